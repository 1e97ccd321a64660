"""The monitor: a small process beside each rank that detects lost ranks and ends the others.

It is a separate process because a rank that waits inside MPI or HDF5 can neither answer nor be interrupted from Python. The
monitors form a tree (`monitor_tree`): each holds a TCP connection, independent of MPI, to its parent and to a few children.
Once a second it sends a pulse up, which sums up its subtree, and a pulse down.

A rank is lost if its process has ended without a message, or has been stopped, or its monitor silent, for ``PATIENCE``
seconds. The news goes up to the root, which collects stack traces from the ranks that answer, prints one report, and sends
the order to end down the tree. The message of a rank that fails goes up likewise. The root prints that of the lowest failed
rank, and all ranks end with its exit status.

`watchdog` starts the monitor. `Monitor` serves the rank, and its `Node` the connections to other monitors. Monitors use only
the standard library. Messages are lines of JSON on pipes and sockets:

| from | to | keys |
|---|---|---|
| rank | its monitor | ``token``, ``step``, ``checkpoints``, ``outside``, ``bye``, ``failed status at_once`` |
| rank | its monitor, at the start | ``parent doors turn`` (connect there), ``joined`` (the children have connected) |
| rank | its monitor, at the start | ``listen children`` (at these addresses, for these ranks) |
| monitor | its rank | ``connected``, ``doors`` (where it listens), ``end`` (with this status) |
| child | parent | first ``rank host``; then pulses (``step moved outside gone``) and ``bye`` of the whole subtree |
| child | parent | ``lost rank host step``, ``failed status at_once rank all``, ``stacks step`` |
| parent | child | pulses, ``dump`` (send your stacks within this number of seconds), ``end`` (with this status) |
"""

from __future__ import annotations

import selectors
import signal
import sys
import time

from hpcstencil.runtime.monitor_node import Node
from hpcstencil.runtime.monitor_peers import PULSE
from hpcstencil.runtime.monitored_rank import MonitoredRank


class Monitor:
    """The loop of a monitor: it serves the messages of its rank, and lets its node work about once a second."""

    def __init__(self, rank: int, parent: int, dump: int, dump_signal: int) -> None:
        """Set up the monitor of ``rank``, whose process id is ``parent``.

        ``dump`` is the reading end of a pipe, into which the rank writes its stack trace on the signal ``dump_signal``.
        """
        self.rank = MonitoredRank(rank, parent, dump, dump_signal)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.rank.line.incoming, selectors.EVENT_READ, self.from_rank)
        self.node = Node(self.rank, self.selector)
        self.ticked = time.monotonic()

    def run(self) -> None:
        """Serve messages and ticks until the rank, and those below it in the tree, are done."""
        while not self.rank.done:
            for key, _ in self.selector.select(min(PULSE, self.node.wait())):
                if not self.rank.done:
                    key.data()
            self.node.after_messages()
            self.tick()

    def tick(self) -> None:
        """About once a second, check whether the rank is stopped, and let the node do its periodic work."""
        now = time.monotonic()
        pause = now - self.ticked
        if pause < PULSE / 2 or self.rank.done:
            return
        if pause > 5 * PULSE:  # this process itself was suspended, as when the whole job is: no rank is lost
            self.node.awoke(pause)
        self.ticked = now
        self.rank.known.hear({"stopped": self.rank.is_stopped()})
        self.node.tick(now)

    def from_rank(self) -> None:
        """Handle the messages of the rank."""
        rank = self.rank
        for message in rank.line.receive():
            rank.token = message.get("token", rank.token)
            rank.checkpoints = message.get("checkpoints", rank.checkpoints)
            rank.known.hear(message)
            self.node.receive(message)
            if "step" in message:
                self.node.stepped()
            if "failed" in message:
                self.node.failed({"rank": rank.number, **message})
            if "bye" in message:
                self.node.left()
            if rank.done:
                return
        if not rank.line.open:
            self.selector.unregister(rank.line.incoming)
            self.node.rank_ended()


def main() -> None:
    """Run the monitor of a rank until there is nothing left to do."""
    rank, parent, dump, dump_signal = map(int, sys.argv[1:5])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # signals to the whole job are for the ranks
    Monitor(rank, parent, dump, dump_signal).run()
