"""A node of the tree of monitors: its connections to its parent and its children, and what it does about a lost rank.

All nodes run the same code. A node without a parent is the root of its subtree: it decides, prints, and ends the ranks below.
At first every node is a root. When all are connected, only the node of rank 0 is. A node that loses its parent becomes a root
again.
"""

from __future__ import annotations

import math
import selectors
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from hpcstencil.runtime.handshake import Door, joined
from hpcstencil.runtime.monitor_peers import PATIENCE, Child, Line
from hpcstencil.runtime.monitor_report import Stacks, lost_report, print_report
from hpcstencil.runtime.monitored_rank import LOST, MERCY, MonitoredRank

STALLED = 300.0  # seconds without a step after which the ranks' stacks are printed; the interval then doubles
GIVE_UP = 3600.0  # seconds without a step after which the run is ended as deadlocked
ABANDONED = 30.0, 60.0  # the same two if a rank has left, for which the others may wait
ANSWER = 2.0  # seconds given to the others to send their stacks
HOP = 0.25  # seconds less for each level of the tree
GATHER = 2.0  # seconds for which the root waits, after a failure, for one of a lower rank
GONE = "ended without a message, or its host did"


class Node:
    """The node of the monitor of ``rank``. ``children`` are the subtrees that have joined, by the rank of the child."""

    def __init__(self, rank: MonitoredRank, selector: selectors.BaseSelector) -> None:
        self.rank, self.selector = rank, selector
        self.parent: Line | None = None
        self.above, self.turn = 0, 0  # the parent's rank, and this node's number among its children
        self.children: dict[int, Child] = {}
        self.expected: set[int] = set()  # the children that may join
        self.door: Door | None = None
        self.progress = time.monotonic()  # when any rank of the subtree last took a step
        self.warned = 0.0  # the seconds without a step at the last warning
        self.failure: tuple[int, str, int] | None = None  # of the lowest failed rank: rank, sentence, exit status
        self.passed: tuple[int, bool] | None = (
            None  # the failure that the parent knows: rank, whether all have reported
        )
        self.speaks = math.inf  # when the root prints the failure
        self.decided = False  # a rank of the subtree is lost, and the run ends for it
        self.stacks, self.waiting = Stacks(), set[int]()  # what was collected, and the children that have not answered
        self.due = math.inf  # when the collection ends at the latest
        self.then: Callable[[], None] | None = None  # and what follows

    # ---- the tree --------------------------------------------------------------------------------------------------

    def receive(self, message: dict[str, Any]) -> None:
        """Connect to the parent, or listen for the children, when the rank asks for it; stop when they have joined."""
        if "parent" in message:
            connection = joined(message["doors"], self.rank.token)
            if connection is not None:
                self.above, self.turn = message["parent"], message["turn"]
                line = self.parent = Line(connection, connection)
                line.send(rank=self.rank.number, host=self.rank.host)
                self.selector.register(connection, selectors.EVENT_READ, partial(self.from_parent, line))
            self.rank.line.send(connected=connection is not None)
        if "listen" in message:
            self.expected = set(message["children"])
            addresses = [str(one) for one in message["listen"]]
            self.door = Door(addresses, self.rank.token, len(self.expected), self.selector, self.welcome)
            self.rank.line.send(doors=self.door.places())
        if "joined" in message and self.door is not None:
            self.door.close()

    def welcome(self, connection: socket.socket) -> None:
        """Take over a connection that has proved to know the token.

        It belongs to the monitor of a child, which first sends its rank number.
        """
        line = Line(connection, connection)
        self.selector.register(connection, selectors.EVENT_READ, partial(self.from_child, line))

    def from_child(self, line: Line) -> None:
        """Handle the messages of a child's monitor."""
        child = next((child for child in self.children.values() if child.line is line), None)
        for message in line.receive():
            if child is None:
                rank = message.get("rank", -1)
                if rank in self.children or rank not in self.expected:
                    line.open = False
                    break
                child = self.children[rank] = Child(rank, message.get("host", "its host"), line)
            self.hear(child, message)
            if self.rank.done:
                return
        if not line.open:
            self.selector.unregister(line.incoming)
            line.incoming.close()
            if child is not None and not child.left:
                self.lost(child.rank, child.host, GONE, child.step)

    def hear(self, child: Child, message: dict[str, Any]) -> None:
        """Handle one message of a child."""
        child.hear(message)
        if message.get("moved", False):
            self.stepped()
            self.rank.known.moved = True  # passed on with the next pulse
        if "failed" in message:
            self.failed({"rank": child.rank, "status": LOST, **message})
        if "lost" in message:
            self.lost(message.get("rank", child.rank), message.get("host", child.host), message["lost"], child.step)
        if "stacks" in message:
            self.stacks.merge(message["stacks"])
            self.waiting.discard(child.rank)
        if "bye" in message:
            self.left()

    def from_parent(self, line: Line) -> None:
        """Handle the messages of the parent's monitor."""
        for message in line.receive():
            if "dump" in message:
                self.collect(message["dump"], self.answer)
            if "end" in message:
                self.end_all(message["end"])
                return
        if not line.open:
            self.lost_parent(GONE)

    # ---- its own rank ----------------------------------------------------------------------------------------------

    def stepped(self) -> None:
        """Record that the run has taken a step."""
        self.progress, self.warned = time.monotonic(), 0.0

    def failed(self, message: dict[str, Any]) -> None:
        """Handle the failure of a rank of the subtree: the ``rank``, the sentence (``failed``) and the exit ``status``.

        Only that of the lowest rank goes up to the root. Other ranks may fail at the same time, so the root waits ``GATHER``
        seconds for a lower one, unless all have reported or the message says ``at_once``.
        """
        if self.failure is None or message["rank"] < self.failure[0]:
            self.failure = message["rank"], message["failed"], message["status"]
        at_once = message.get("at_once", False)
        self.speaks = min(self.speaks, time.monotonic() + (0.0 if at_once else GATHER))
        self.pass_failure(at_once)

    def pass_failure(self, at_once: bool = False) -> None:
        """Send the failure of the lowest rank to the parent, if there is news of it."""
        if self.failure is not None and self.parent is not None:
            rank, sentence, status = self.failure
            news = rank, self.everyone()
            if news != self.passed or at_once:
                self.passed = news
                self.parent.send(rank=rank, failed=sentence, status=status, at_once=at_once, all=news[1])

    def everyone(self) -> bool:
        """Whether all ranks of the subtree have failed or left."""
        known = self.rank.known
        return (known.failed or known.left) and all(child.reported for child in self.children.values())

    def rank_ended(self) -> None:
        """Report that the rank's process has ended, unless it has said goodbye."""
        known = self.rank.known
        if not known.left:
            self.lost(
                self.rank.number, self.rank.host, "ended without a message (killed, or out of memory)", known.step
            )

    def left(self) -> None:
        """Say goodbye to the parent once all ranks of the subtree are done."""
        if not self.rank.known.left or not all(child.left for child in self.children.values()):
            self.pass_failure()
            return
        self.speaks = min(self.speaks, time.monotonic())
        self.after_messages()  # prints a failure that the root still holds back
        if self.parent is not None:
            self.parent.send(bye=1)
        self.rank.done = True

    # ---- the time --------------------------------------------------------------------------------------------------

    def gone(self) -> int:
        """Return a rank of the subtree that has left; -1 if none has."""
        return max(
            [self.rank.number if self.rank.known.left else -1, *(child.gone for child in self.children.values())]
        )

    def step(self) -> int:
        """Return the largest step of the subtree."""
        return max([self.rank.known.step, *(child.step for child in self.children.values())])

    def wait(self) -> float:
        """Return the seconds until `after_messages` has something to do; infinity if only messages can bring it."""
        speaks = math.inf if self.decided or self.parent is not None else self.speaks
        return max(0.0, min(self.due, speaks) - time.monotonic())

    def after_messages(self) -> None:
        """Finish a collection of stacks, and as the root print the failure of the lowest rank and end the run, when due."""
        now = time.monotonic()
        if self.then is not None and (now >= self.due or not self.waiting):
            then, self.then, self.due = self.then, None, math.inf
            then()
        if self.rank.done or self.decided or self.parent is not None or self.failure is None:
            return
        if self.everyone() or now >= self.speaks:
            print_report(self.failure[1])
            self.end_all(self.failure[2])

    def tick(self, now: float) -> None:
        """Send pulses, and look for monitors that are silent, a rank that is stopped, and a run that is stalled."""
        known = self.rank.known
        if self.door is not None:
            self.door.tick()
        outside = (known.outside and not known.left) or any(c.outside and not c.left for c in self.children.values())
        if self.parent is not None:
            self.parent.send(step=self.step(), moved=known.moved, outside=outside, gone=self.gone())
            known.moved = False
            if now - self.parent.heard > PATIENCE:
                self.lost_parent(f"has not been heard from for {PATIENCE:.0f} s")
        for child in [child for child in self.children.values() if not child.left]:
            child.line.send(pulse=1)
            if now - child.line.heard > PATIENCE:
                self.lost(child.rank, child.host, f"has not been heard from for {PATIENCE:.0f} s", child.step)
        if not known.left and known.stopped is not None and now - known.stopped > PATIENCE:
            self.lost(self.rank.number, self.rank.host, f"has been stopped for {PATIENCE:.0f} s", known.step)
        if outside:
            self.stepped()  # a long computation of the user's program cannot be told from a deadlock
        first, last = self.patience()
        warned = max(first, min(2 * self.warned, last))
        if self.parent is None and not self.decided and now - self.progress > warned:
            self.warned = warned
            self.collect(ANSWER, self.stalled)

    def patience(self) -> tuple[float, float]:
        """Return after how many seconds without a step the stacks are printed, and the run is ended."""
        return (STALLED, GIVE_UP) if self.gone() < 0 else ABANDONED

    def awoke(self, pause: float) -> None:
        """Do not count the last ``pause`` seconds, in which this process was suspended, as silence or as a stalled run."""
        for line in (self.parent, *(child.line for child in self.children.values())):
            if line is not None:
                line.heard += pause
        self.progress += pause
        if self.rank.known.stopped is not None:
            self.rank.known.stopped += pause

    # ---- the end ---------------------------------------------------------------------------------------------------

    def collect(self, seconds: float, then: Callable[[], None]) -> None:
        """Ask the subtree for its stacks, and call ``then`` when all have answered, at the latest after ``seconds``."""
        self.stacks, self.then, self.due = Stacks(), then, time.monotonic() + seconds
        asked = [child for child in self.children.values() if child.line.open and not child.left]
        for child in asked:
            child.line.send(dump=max(seconds - HOP, HOP))
        self.waiting = {child.rank for child in asked}
        own = self.rank.stack()
        if own:
            self.stacks.add(own, [self.rank.number])

    def answer(self) -> None:
        """Send the stacks of the subtree to the parent."""
        if self.parent is not None:
            self.parent.send(stacks=self.stacks.message(), step=self.step())

    def stalled(self) -> None:
        """Print the stack traces of all ranks, because the run takes no steps; end it if it has taken none for too long."""
        waited, (_, last), gone = time.monotonic() - self.progress, self.patience(), self.gone()
        outcome = "the run is ended" if waited > last else f"after {last:.0f} s the run will be ended"
        why = "" if gone < 0 else f", and the program has ended on rank {gone}; others may be waiting for it"
        print_report(f"hpcstencil: no step for {waited:.0f} s{why}; {outcome}", self.stacks)
        if waited > last:
            self.end_all(LOST)

    def lost(self, rank: int, host: str, why: str, step: int) -> None:
        """Handle the loss of a rank of the subtree, or of a whole subtree: tell the parent, or report it and end the run.

        ``why`` is a clause for the report. If a rank has already failed, the root does nothing, and the failure is reported
        instead.
        """
        if self.decided:
            return
        if self.parent is not None:
            self.decided = True
            self.parent.send(lost=why, rank=rank, host=host, step=max(step, self.step()))
        elif self.failure is None:
            self.decided = True
            self.collect(ANSWER, partial(self.report, f"rank {rank} on {host} {why}"))

    def report(self, lost: str) -> None:
        """Print that a rank is ``lost``, and end the run."""
        lost_report(lost, self.step(), self.stacks, self.rank.checkpoints)
        self.end_all(LOST)

    def lost_parent(self, why: str) -> None:
        """Handle the loss of the parent: report it and end the subtree, if nobody above has done so after a while.

        If the parent was rank 0, nobody is above, and the first of its children that is left reports.
        """
        assert self.parent is not None
        self.selector.unregister(self.parent.incoming)
        self.parent.incoming.close()
        self.parent, self.decided = None, True
        pause = MERCY * (1 + self.turn) / 16 if self.above == 0 else MERCY
        self.collect(min(pause, MERCY), partial(self.report_alone, f"rank {self.above} on its host {why}"))
        self.waiting.add(self.above)  # it does not answer, so that this node waits for the whole time

    def report_alone(self, lost: str) -> None:
        """Report the loss of the parent, unless the rank has been ended meanwhile."""
        if self.rank.is_here():
            self.report(lost)
        self.end_all(LOST)

    def end_all(self, status: int) -> None:
        """End all ranks of the subtree with this exit status."""
        if not self.rank.done:
            for child in self.children.values():
                child.line.send(end=status)
            self.rank.end(status)
