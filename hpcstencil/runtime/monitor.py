"""The monitor: a small process beside each rank that detects lost ranks and ends the others.

It is a separate process because a rank that waits inside MPI or HDF5 can neither answer nor be interrupted from Python. The
monitor of rank 0 is the centre. Every other monitor holds a TCP connection to it, independent of MPI, and sends a heartbeat
("pulse").

A rank is lost if its process has ended without a message, or has been stopped or silent for ``PATIENCE`` seconds. The
centre then collects stack traces from the ranks that answer, prints one report, and makes all monitors end their ranks. A
rank that fails sends its error message to the centre. The centre prints the message of the lowest failed rank, and all
ranks end with its exit status.

`watchdog` starts the monitor. `Monitor` serves the rank and has one of two roles: `Centre` beside rank 0, `Member` beside
the others. Monitors use only the standard library. Messages are lines of JSON on pipes and sockets:

| from | to | keys |
|---|---|---|
| rank | its monitor | ``token``, ``step``, ``output``, ``outside``, ``bye``, ``failed status at_once``; ``centre`` |
| rank 0 | centre | ``listen`` (at these addresses), ``joined`` (all ranks have connected) |
| monitor | its rank | ``doors`` (where the centre listens), ``connected``, ``end`` (with this status) |
| monitor | centre | first ``rank host``; pulses (``step stopped outside``), ``stack lost bye``, ``failed status at_once`` |
| centre | monitor | pulses, ``dump`` (send your stack), ``end`` (with this status), ``bye`` |
"""

from __future__ import annotations

import selectors
import signal
import socket
import sys
import time
from functools import partial
from typing import Any, Protocol

from hpcstencil.runtime.handshake import joined
from hpcstencil.runtime.monitor_centre import Centre
from hpcstencil.runtime.monitor_peers import PATIENCE, PULSE, Line, Peer, is_stopped, lost_report, tell
from hpcstencil.runtime.monitored_rank import LOST, MERCY, MonitoredRank


class Role(Protocol):
    """The part of a monitor that deals with the other ranks.

    The monitor calls these methods when something happens to its own rank, and about once a second.
    """

    def told(self, message: dict[str, Any]) -> None:
        """Handle a message of the rank. A role needs only those about connections between monitors."""

    def stepped(self) -> None:
        """Record that the rank has taken a step."""

    def failed(self, message: dict[str, Any]) -> None:
        """Report that the rank has failed, with the sentence and exit status in ``message``."""

    def rank_ended(self, why: str) -> None:
        """Report that the rank's process has ended without a goodbye; ``why`` is a clause for the report."""

    def leave(self) -> None:
        """Say goodbye to the other monitors, because the rank is done."""

    def tick(self, now: float) -> None:
        """Send pulses and check for lost ranks. Called about every ``PULSE`` seconds; ``now`` is `time.monotonic()`."""

    def after_messages(self) -> None:
        """Act on the messages of this round, for example print a failure."""

    def awoke(self, pause: float) -> None:
        """Ignore the silence of other ranks during the last ``pause`` seconds: this process was suspended then."""


class Monitor:
    """The loop of a monitor: it serves the messages of its rank, and calls its role about once a second."""

    def __init__(self, rank: int, size: int, parent: int, dump: int, dump_signal: int) -> None:
        """Set up the monitor of ``rank``, one of ``size`` ranks, whose process id is ``parent``.

        ``dump`` is the reading end of a pipe, into which the rank writes its stack trace on the signal ``dump_signal``.
        """
        self.rank = MonitoredRank(rank, parent, dump, dump_signal)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.rank.line.incoming, selectors.EVENT_READ, self.from_rank)
        made = Centre(self.rank, size, self.selector) if rank == 0 else Member(self.rank, self.selector)
        self.role: Role = made
        self.ticked = time.monotonic()

    def run(self) -> None:
        """Serve messages and ticks until the rank is done."""
        while not self.rank.done:
            for key, _ in self.selector.select(PULSE):
                if not self.rank.done:
                    key.data()
            self.role.after_messages()
            self.tick()

    def tick(self) -> None:
        """About once a second, check whether the rank is stopped, and let the role do its periodic work."""
        now = time.monotonic()
        pause = now - self.ticked
        if pause < PULSE / 2 or self.rank.done:
            return
        if pause > 5 * PULSE:  # this process itself was suspended, as when the whole job is: no rank is lost
            self.role.awoke(pause)
        self.ticked = now
        self.rank.known.hear({"stopped": is_stopped(self.rank.process)})
        self.role.tick(now)

    def from_rank(self) -> None:
        """Handle the messages of the rank."""
        rank = self.rank
        for message in rank.line.receive():
            rank.token = message.get("token", rank.token)
            rank.output = message.get("output", rank.output)
            self.role.told(message)
            if "step" in message:
                rank.known.hear(message)
                self.role.stepped()
            if "outside" in message:
                rank.known.hear(message)
            if "failed" in message:
                rank.known.hear(message)
                self.role.failed(message)
            if "bye" in message:
                self.role.leave()
                rank.done = True
                return
        if not rank.line.open:
            self.selector.unregister(rank.line.incoming)
            self.role.rank_ended("ended without a message (killed, or out of memory)")


class Member:
    """The role beside every rank except 0: keep the connection to the centre and follow its orders.

    Without a connection, it reports for its own rank only.
    """

    def __init__(self, rank: MonitoredRank, selector: selectors.BaseSelector) -> None:
        self.rank, self.selector = rank, selector
        self.centre: Line | None = None

    def told(self, message: dict[str, Any]) -> None:
        """Connect to the centre when the rank sends its address, and report the result to the rank."""
        if "centre" not in message:
            return
        connection = joined(message["centre"], self.rank.token)
        if connection is not None:
            self.joined_by(connection)
        self.rank.line.send(connected=connection is not None)

    def joined_by(self, connection: socket.socket) -> None:
        """Use ``connection`` as the connection to the centre, and send this rank's number and host."""
        line = self.centre = Line(connection, connection)
        line.send(rank=self.rank.number, host=self.rank.known.host)
        self.selector.register(connection, selectors.EVENT_READ, partial(self.from_centre, line))

    def from_centre(self, line: Line) -> None:
        """Handle the messages of the centre."""
        for message in line.receive():
            if "dump" in message:
                line.send(stack=self.rank.stack())
            if "bye" in message:
                self.rank.done = True
            if "end" in message:
                self.rank.end(message["end"])
            if self.rank.done:
                return
        if not line.open:
            self.lost_centre("ended without a message, or its host did")

    def lost_centre(self, why: str) -> None:
        """Handle the loss of the centre: report it and end the rank.

        Each rank waits longer than lower ranks, so that the lowest remaining one reports.
        """
        time.sleep(min(0.2 * (self.rank.number - 1), MERCY))
        if self.rank.is_here():
            self.rank.known.stack = self.rank.stack()
            lost_report(Peer(0, "its host", None), why, [self.rank.known], self.rank.output)
        self.rank.end(LOST)

    def stepped(self) -> None:
        """Do nothing, because the next pulse reports the step."""

    def failed(self, message: dict[str, Any]) -> None:
        """Pass the failure on to the centre. Without a connection, print it and end the rank."""
        if self.centre is not None:
            self.centre.send(**message)
        else:
            tell(self.rank.known.failure, [])
            self.rank.end(self.rank.known.status)

    def rank_ended(self, why: str) -> None:
        """Report the loss of the rank to the centre."""
        if self.centre is not None:
            self.centre.send(lost=why, step=self.rank.known.step)
            time.sleep(2 * PULSE)  # so that the message arrives before the connection ends
        self.rank.done = True

    def leave(self) -> None:
        """Say goodbye to the centre."""
        if self.centre is not None:
            self.centre.send(bye=1)

    def tick(self, now: float) -> None:
        """Send a pulse. If the centre has sent none for ``PATIENCE`` seconds, it is lost."""
        if self.centre is not None:
            known = self.rank.known
            self.centre.send(step=known.step, stopped=known.stopped is not None, outside=known.outside)
            if now - self.centre.heard > PATIENCE:
                self.lost_centre(f"has not been heard from for {PATIENCE:.0f} s")

    def after_messages(self) -> None:
        """Do nothing, because the centre prints all reports."""

    def awoke(self, pause: float) -> None:
        """Do not count the pause as silence of the centre."""
        if self.centre is not None:
            self.centre.heard += pause


def main() -> None:
    """Run the monitor of a rank until the rank is done."""
    rank, size, parent, dump, dump_signal = map(int, sys.argv[1:6])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # signals to the whole job are for the ranks
    Monitor(rank, size, parent, dump, dump_signal).run()
