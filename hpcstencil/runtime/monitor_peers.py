"""Building blocks of the monitors: connections, and the state of a rank and of a subtree of ranks.

This module uses only the standard library.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any

LONGEST = 2**20  # bytes of a message
PULSE = 1.0  # seconds between pulses
PATIENCE = 20.0  # seconds of silence after which a monitor counts as lost
KINDS = {  # types of the values of a message, by key
    **dict.fromkeys(("rank", "step", "status", "pulse", "end", "bye", "joined", "turn", "parent", "gone"), int),
    **dict.fromkeys(("host", "token", "checkpoints", "lost", "failed"), str),
    **dict.fromkeys(("stopped", "connected", "at_once", "outside", "moved", "all"), bool),
    **dict.fromkeys(("listen", "children", "doors"), list),
    "dump": float,
    "stacks": dict,
}


def message_of(line: bytes) -> dict[str, Any] | None:
    """Parse a line as a message; return None unless it is a JSON object with known keys and values of the right types."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict) or any(type(value) is not KINDS.get(key) for key, value in message.items()):
        return None
    spans = message.get("stacks", {}).values()
    return message if all(type(s) is list and all(type(n) is int for n in s) for s in spans) else None


class Line:
    """One end of a connection, which sends and receives messages without blocking.

    Anything received that is not a message closes it.
    """

    def __init__(self, incoming: Any, outgoing: Any) -> None:
        self.incoming, self.outgoing = incoming, outgoing
        self.unread, self.unsent = b"", b""
        self.heard = time.monotonic()
        self.open = True
        os.set_blocking(incoming.fileno(), False)
        os.set_blocking(outgoing.fileno(), False)

    def send(self, **message: object) -> None:
        """Send a message, a JSON object. Bytes that the connection does not accept now are sent with the next message."""
        self.unsent += json.dumps(message).encode() + b"\n"
        try:
            self.unsent = self.unsent[os.write(self.outgoing.fileno(), self.unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self.open = False

    def receive(self) -> Iterator[dict[str, Any]]:
        """Yield the messages that have arrived, without waiting.

        ``open`` becomes False at the end of the stream, and after anything that is not a message.
        """
        try:
            data = os.read(self.incoming.fileno(), 2**16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.open = self.open and bool(data)
        self.heard = time.monotonic()
        *lines, self.unread = (self.unread + data).split(b"\n")
        for line in lines:
            message = message_of(line)
            if message is None:
                self.open = False
                return
            yield message
        self.open = self.open and len(self.unread) <= LONGEST


class Known:
    """The state of this monitor's rank.

    ``step`` is its last step, or -1 before the first. ``moved`` says that it has taken a step since the last pulse.
    ``stopped`` is the time (of time.monotonic) at which its process was found stopped, None if it runs. ``outside`` says that
    the user's program is running its own code. ``left`` says that the rank has said goodbye.
    """

    def __init__(self) -> None:
        self.step = -1
        self.stopped: float | None = None
        self.moved = self.outside = self.left = self.failed = False

    def hear(self, message: dict[str, Any]) -> None:
        """Update the state from a message of the rank."""
        self.moved = self.moved or "step" in message
        self.step = message.get("step", self.step)
        self.outside = message.get("outside", self.outside)
        self.failed = self.failed or "failed" in message
        self.left = self.left or "bye" in message
        if "stopped" in message:
            self.stopped = (self.stopped or time.monotonic()) if message["stopped"] else None


class Child:
    """The subtree of ranks below one child of a monitor, as that child has reported it.

    ``rank`` and ``host`` are those of the child, ``line`` the connection to its monitor. Of the whole subtree, ``step`` is the
    largest step, ``outside`` says that a user's program somewhere is running its own code, ``gone`` is a rank that has left, or
    -1, ``reported`` says that every rank has failed or left, ``left`` that every rank has left.
    """

    def __init__(self, rank: int, host: str, line: Line) -> None:
        self.rank, self.host, self.line = rank, host, line
        self.step = self.gone = -1
        self.outside = self.reported = self.left = False

    def hear(self, message: dict[str, Any]) -> None:
        """Update the state from a message of the child."""
        self.step = message.get("step", self.step)
        self.outside = message.get("outside", self.outside)
        self.left = self.left or "bye" in message
        self.gone = self.rank if self.left else message.get("gone", self.gone)
        self.reported = self.reported or self.left or message.get("all", False)
