"""The child's side of a guarded probe: lines to the parent, requests from it."""

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
LENGTH = 300  # characters of an error that are told

Facts = dict[str, Any]


def start() -> None:
    """Tie this process's life to its parent's: a launcher may kill the parent at any time, and nothing must stay."""
    ctypes.CDLL(None).prctl(KILL_WITH_PARENT, signal.SIGKILL)


def tell(**line: Any) -> None:
    """One line to the parent."""
    os.write(int(os.environ["HPCSTENCIL_DOCTOR_PIPE"]), json.dumps(line).encode() + b"\n")


def listen() -> Facts:
    """The parent's next line; an empty one where it has gone."""
    line = sys.stdin.readline()
    return json.loads(line) if line else {}


def outcome(probe: Callable[[], Facts]) -> Facts:
    """What a probe finds, or ``{"error": sentence}``: to find out what raises is what a probe is for."""
    try:
        return probe()
    except Exception as error:  # whatever a broken library raises
        text = reason(error) or type(error).__name__
        return {"error": text if len(text) <= LENGTH else text[: LENGTH - 3] + "..."}
