"""The child's side of a guarded probe: it reports to the parent and receives requests."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from hpcstencil.runtime.filesystem import reason

KILL_WITH_PARENT = 1  # PR_SET_PDEATHSIG
LENGTH = 300  # most characters of an error in a report

Facts = dict[str, Any]


def start() -> None:
    """Make this process end with its parent, which a launcher may kill at any time, so that no child is left over."""
    ctypes.CDLL(None).prctl(KILL_WITH_PARENT, signal.SIGKILL)


def send(**line: object) -> None:
    """Send one report to the parent."""
    os.write(int(os.environ["HPCSTENCIL_DOCTOR_PIPE"]), json.dumps(line).encode() + b"\n")


def listen() -> Facts:
    """Wait for the parent's next request and return it; empty if the parent has ended."""
    line = sys.stdin.readline()
    return json.loads(line) if line else {}


def outcome(probe: Callable[[], Facts]) -> Facts:
    """Run a probe and return its facts, or ``{"error": message}`` if it raises any exception.

    All exceptions are caught, because a probe tests whether something raises.
    """
    try:
        return probe()
    except Exception as error:  # a broken library may raise anything
        text = reason(error) or type(error).__name__
        return {"error": text if len(text) <= LENGTH else text[: LENGTH - 3] + "..."}
