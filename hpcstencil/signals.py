"""Signals that ask a run to stop: they set a flag, which the run looks at between two compiled calls."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


@dataclass
class Request:
    """The signal that asked this process to stop; 0 while none has."""

    number: int = 0


@contextmanager
def watched() -> Iterator[Request]:
    """While entered, stopping signals are noted rather than obeyed; a second interrupt ends the process at once."""
    request = Request()

    def note(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and request.number == signal.SIGINT:
            os._exit(128 + signal.SIGINT)
        request.number = number

    before: dict[int, Any] = {number: signal.signal(number, note) for number in STOPPING}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
