"""Signals that ask a run to stop: they are noted, and the run looks at the note between two compiled calls.

Python's own handlers run only when the main thread comes back from compiled code or from MPI. A thread of its own
therefore reads the signals, from the pipe into which Python's C handler writes them at once: so a second interrupt
ends the run also where the main thread waits for ever.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


@dataclass
class Request:
    """The signal that asked this process to stop; 0 while none has. ``at_once`` is what a second interrupt does."""

    number: int = 0
    at_once: Callable[[], None] = lambda: os._exit(128 + signal.SIGINT)


@contextmanager
def watched() -> Iterator[Request]:
    """While entered, stopping signals are noted rather than obeyed; at a second interrupt the request's ``at_once`` is
    called, from another thread."""
    request = Request()
    reading, writing = os.pipe()
    os.set_blocking(writing, False)

    def serve() -> None:
        while numbers := os.read(reading, 64):
            for number in numbers:
                if number == signal.SIGINT and request.number == signal.SIGINT:
                    request.at_once()
                if number in STOPPING:
                    request.number = number

    # A handler must be there for the pipe to be written to; the thread does the work.
    before: dict[int, Any] = {number: signal.signal(number, lambda *_: None) for number in STOPPING}
    pipe_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield request
    finally:
        signal.set_wakeup_fd(pipe_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writing)
        thread.join()
        os.close(reading)
