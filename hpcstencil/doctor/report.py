"""The child's side of a guarded probe: reports to the parent, and requests from it."""

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
LENGTH = 300  # characters of an error that are reported

Facts = dict[str, Any]


def start() -> None:
    """Make this process end with its parent, which a launcher may kill at any time: no child must be left over."""
    ctypes.CDLL(None).prctl(KILL_WITH_PARENT, signal.SIGKILL)


def tell(**line: object) -> None:
    """Send one report to the parent."""
    os.write(int(os.environ["HPCSTENCIL_DOCTOR_PIPE"]), json.dumps(line).encode() + b"\n")


def listen() -> Facts:
    """The parent's next request, for which this waits; empty if the parent has gone."""
    line = sys.stdin.readline()
    return json.loads(line) if line else {}


def outcome(probe: Callable[[], Facts]) -> Facts:
    """The facts that a probe returns, or ``{"error": sentence}`` if it raises any exception: whether something raises
    is what a probe tests."""
    try:
        return probe()
    except Exception as error:  # a broken library may raise anything
        text = reason(error) or type(error).__name__
        return {"error": text if len(text) <= LENGTH else text[: LENGTH - 3] + "..."}
