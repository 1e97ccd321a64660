"""Building blocks of the monitors: connections, the state of a rank, and queries of the system.

This module uses only the standard library.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

LAUNCHERS = ("mpirun", "mpiexec", "orterun", "orted", "prterun", "prted")  # Open MPI's
FRAMES = 8  # most lines of a stack trace in a report
LONGEST = 2**20  # bytes of a message
PULSE = 1.0  # seconds between pulses
PATIENCE = 20.0  # seconds of silence after which a rank counts as lost
KINDS = {  # types of the values of a message, by key
    **dict.fromkeys(("rank", "step", "status", "pulse", "dump", "end", "bye", "joined"), int),
    **dict.fromkeys(("host", "token", "output", "stack", "lost", "failed"), str),
    **dict.fromkeys(("stopped", "connected", "at_once", "outside"), bool),
    **dict.fromkeys(("listen", "doors", "centre"), list),
}


def message_of(line: bytes) -> dict[str, Any] | None:
    """Parse a line as a message; return None unless it is a JSON object with known keys and values of the right types."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    sound = isinstance(message, dict) and all(type(value) is KINDS.get(key) for key, value in message.items())
    return message if sound else None


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


class Peer:
    """The state of a rank as its monitor has reported it.

    ``step`` is its last step, or -1 before the first. ``stopped`` is the time (of time.monotonic) at which its process was
    found stopped, None if it runs. ``outside`` says that the user's program is running its own code. ``gone`` says that the
    rank has said goodbye or is lost.
    """

    def __init__(self, rank: int, host: str, line: Line | None) -> None:
        self.rank, self.host, self.line = rank, host, line
        self.step = -1
        self.stopped: float | None = None
        self.stack = ""
        self.failure, self.status = "", 0  # the sentence of its failure, and the exit status
        self.gone = self.outside = False

    def hear(self, message: dict[str, Any]) -> None:
        """Update the state from a message of the rank or its monitor."""
        self.failure, self.status = message.get("failed", self.failure), message.get("status", self.status)
        self.step = message.get("step", self.step)
        self.stack = message.get("stack", self.stack)
        self.gone = self.gone or "bye" in message
        self.outside = message.get("outside", self.outside)
        if "stopped" in message:
            self.stopped = (self.stopped or time.monotonic()) if message["stopped"] else None


def tell(sentence: str, peers: Iterable[Peer]) -> None:
    """Print the sentence, and each distinct stack trace once with its ranks, to standard error in a single write."""
    stacks: dict[str, list[int]] = {}
    for peer in peers:
        if peer.stack:
            stacks.setdefault("\n".join(peer.stack.splitlines()[:FRAMES]), []).append(peer.rank)
    rows = [sentence]
    for text, ranks in stacks.items():
        rows.append(f"  rank{'s' * (len(ranks) > 1)} {', '.join(map(str, sorted(ranks)))}, newest call first:")
        rows += [f"    {row}" for row in text.splitlines()]
    with contextlib.suppress(OSError):
        os.write(2, ("\n".join(rows) + "\n").encode())


def lost_report(peer: Peer, why: str, others: list[Peer], output: str) -> None:
    """Print that the rank ``peer`` is lost, and ``why``, with the stack traces of the ``others``.

    The report also names the newest checkpoint of the run's ``output`` (a path, "" if unknown), from which the run can
    continue.
    """
    step = max([peer.step, *(other.step for other in others)])
    place = f"at step {step}" if step >= 0 else "before the first step"
    checkpoints = sorted(glob.glob(f"{glob.escape(output.removesuffix('.h5'))}.checkpoint.*.h5"))
    state = (
        f"The last good state is {checkpoints[-1]}: run the same command with --resume to continue"
        if output and checkpoints
        else "There is no checkpoint yet"
    )
    tell(f"hpcstencil: rank {peer.rank} on {peer.host} {why}, {place}; all ranks are ended. {state}", others)


def is_stopped(process: int) -> bool:
    """Whether a process exists but is stopped by a signal or a debugger."""
    try:
        with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


def launcher_of(process: int) -> int | None:
    """Return a pidfd of the parent of a process, if the parent is a launcher's daemon; else None.

    Only the first rank on a host gets it.
    """
    if os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK") != "0":
        return None
    with contextlib.suppress(OSError):
        with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as file:
            parent = int(file.read().rpartition(")")[2].split()[1])
        handle = os.pidfd_open(parent)
        with open(f"/proc/{parent}/comm", encoding="ascii", errors="replace") as file:
            if file.read().strip().split(".")[0] in LAUNCHERS:  # Debian's is called mpirun.openmpi
                return handle
        os.close(handle)
    return None
