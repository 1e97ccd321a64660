"""The centre, the role of rank 0's monitor: it tracks all ranks, detects lost ones, reports once, and ends the run."""

from __future__ import annotations

import math
import resource
import selectors
import socket
import time
from functools import partial
from typing import Any

from hpcstencil.runtime.handshake import Door
from hpcstencil.runtime.monitor_peers import PATIENCE, Line, Peer, lost_report, tell
from hpcstencil.runtime.monitored_rank import LOST, MonitoredRank

STALLED = 300.0  # seconds without a step after which the ranks' stacks are printed; the interval then doubles
GIVE_UP = 3600.0  # seconds without a step after which the run is ended as deadlocked
ANSWER = 2.0  # seconds given to the others to send their stacks
GATHER = 2.0  # seconds for which the centre waits, after a failure, for one of a lower rank


class Centre:
    """The role beside rank 0. ``peers`` holds the known state of each rank that has joined, including rank 0."""

    def __init__(self, rank: MonitoredRank, size: int, selector: selectors.BaseSelector) -> None:
        self.rank, self.size, self.selector = rank, size, selector
        self.peers = {rank.number: rank.known}
        self.door: Door | None = None
        self.progress = time.monotonic()  # when any rank last took a step
        self.warned = STALLED
        self.speaks = math.inf  # when the centre prints the failure of the lowest rank

    # ---- its own rank --------------------------------------------------------------------------------------------------

    def told(self, message: dict[str, Any]) -> None:
        """Start listening for the other monitors when the rank asks for it, and stop when all have joined."""
        if "listen" in message:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            addresses = [str(one) for one in message["listen"]]
            self.door = Door(addresses, self.rank.token, self.size, self.selector, self.welcome)
            self.rank.line.send(doors=self.door.places())
        if "joined" in message and self.door is not None:
            self.door.close()

    def stepped(self) -> None:
        """Record that the run has taken a step."""
        self.progress, self.warned = time.monotonic(), STALLED

    def failed(self, message: dict[str, Any]) -> None:
        """Schedule the report of a rank's failure.

        Other ranks may fail at the same time, so the centre waits ``GATHER`` seconds for a lower one, unless the message
        says ``at_once``.
        """
        self.speaks = min(self.speaks, time.monotonic() + (0.0 if message.get("at_once", False) else GATHER))

    def rank_ended(self, why: str) -> None:
        """Report that rank 0 itself is lost."""
        self.lost(self.rank.known, why)

    def leave(self) -> None:
        """Print a failure that is still held back for lower ranks, and say goodbye to the other monitors."""
        self.speaks = min(self.speaks, time.monotonic())
        self.after_messages()
        for peer in self.peers.values():
            if peer.line is not None:
                peer.line.send(bye=1)

    # ---- the others ----------------------------------------------------------------------------------------------------

    def welcome(self, connection: socket.socket) -> None:
        """Take over a connection that has proved to know the token.

        It belongs to the monitor of a rank, which first sends its rank number.
        """
        line = Line(connection, connection)
        self.selector.register(connection, selectors.EVENT_READ, partial(self.from_member, line))

    def from_member(self, line: Line) -> None:
        """Handle the messages of another rank's monitor."""
        peer = next((peer for peer in self.peers.values() if peer.line is line), None)
        for message in line.receive():
            if peer is None:
                rank = message.get("rank", self.rank.number)
                if rank in self.peers or not 0 <= rank < self.size:
                    line.open = False
                    break
                peer = self.peers[rank] = Peer(rank, message.get("host", "its host"), line)
            before = peer.step
            peer.hear(message)
            if peer.step != before:
                self.stepped()
            if "failed" in message:
                self.failed(message)
            if "lost" in message:
                self.lost(peer, message["lost"])
            if self.rank.done:
                return
        if not line.open:
            self.selector.unregister(line.incoming)
            line.incoming.close()
            if peer is not None and not peer.gone:
                self.lost(peer, "ended without a message, or its host did")

    # ---- the time ------------------------------------------------------------------------------------------------------

    def after_messages(self) -> None:
        """Print the sentence of the lowest failed rank and end the run, once all ranks have reported or the wait is over."""
        failed = [peer for peer in self.peers.values() if peer.failure]
        everyone = sum(bool(peer.failure) or peer.gone for peer in self.peers.values()) == self.size
        if not self.rank.done and failed and (everyone or time.monotonic() >= self.speaks):
            lowest = min(failed, key=lambda peer: peer.rank)
            tell(lowest.failure, [])
            self.end_all(lowest.status)

    def tick(self, now: float) -> None:
        """Send pulses, and look for ranks that are lost, stopped or stalled."""
        if self.door is not None:
            self.door.tick()
        for peer in list(self.peers.values()):
            if self.rank.done:  # one rank of a host was reported lost; the others would follow
                return
            if peer.line is not None and not peer.gone:
                peer.line.send(pulse=1)
                if now - peer.line.heard > PATIENCE:
                    self.lost(peer, f"has not been heard from for {PATIENCE:.0f} s")
            if not self.rank.done and not peer.gone and peer.stopped is not None and now - peer.stopped > PATIENCE:
                self.lost(peer, f"has been stopped for {PATIENCE:.0f} s")
        if any(peer.outside and not peer.gone for peer in self.peers.values()):
            self.stepped()  # a long computation of the user's program cannot be told from a deadlock
        if not self.rank.done and now - self.progress > self.warned:
            self.stalled(now)

    def awoke(self, pause: float) -> None:
        """Do not count the pause as silence of the others, nor as time without a step."""
        for peer in self.peers.values():
            if peer.line is not None:
                peer.line.heard += pause
        self.progress += pause

    # ---- the end -------------------------------------------------------------------------------------------------------

    def stalled(self, now: float) -> None:
        """Print the stack traces of all ranks, because the run takes no steps; end it after ``GIVE_UP`` seconds."""
        self.warned = min(2 * self.warned, GIVE_UP)
        self.collect_stacks(None)
        last = now - self.progress > GIVE_UP
        outcome = "the run is ended" if last else f"after {GIVE_UP:.0f} s the run will be ended"
        tell(f"hpcstencil: no step for {now - self.progress:.0f} s; {outcome}", self.peers.values())
        if last:
            self.end_all(LOST)

    def lost(self, peer: Peer, why: str) -> None:
        """Report a lost rank with the stack traces of the others, and end the run.

        ``why`` is a clause for the report. If a rank has already failed, this does nothing and the failure is reported
        instead.
        """
        peer.gone = True
        if any(other.failure for other in self.peers.values()):
            return
        self.collect_stacks(peer)
        lost_report(peer, why, [other for other in self.peers.values() if other is not peer], self.rank.output)
        self.end_all(LOST)

    def collect_stacks(self, without: Peer | None) -> None:
        """Ask all ranks except ``without`` for their stacks, and wait at most ``ANSWER`` seconds for the answers."""
        others = [(peer, peer.line) for peer in self.peers.values() if peer is not without and not peer.gone]
        asked = [(peer, line) for peer, line in others if line is not None]
        for peer, line in asked:
            peer.stack = ""
            line.send(dump=1)
        if without is not self.rank.known:
            self.rank.known.stack = self.rank.stack()
        deadline = time.monotonic() + ANSWER
        while time.monotonic() < deadline and any(not peer.stack and line.open for peer, line in asked):
            for peer, line in asked:
                for message in line.receive():
                    peer.hear(message)
            time.sleep(0.02)

    def end_all(self, status: int) -> None:
        """End all ranks with this exit status."""
        for peer in self.peers.values():
            if peer.line is not None:
                peer.line.send(end=status)
        self.rank.end(status)
