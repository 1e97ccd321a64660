"""A small process beside each rank, which notices when a rank is lost and ends the others.

It is separate from the rank because a rank waiting inside MPI or HDF5 can neither answer nor be interrupted from
Python. The monitor of rank 0 is the centre. All others hold a TCP connection to it, independent of MPI, and send a
pulse. A rank is lost when its process ended without a message, is stopped, or is silent for ``PATIENCE`` seconds. The
centre then collects the stacks of those that answer, reports once, and makes all monitors end their ranks. A rank that
fails sends its sentence to the centre; the centre prints that of the lowest failed rank, once, and all ranks end with
its status.

`watchdog` starts it. It uses only the standard library, `monitor_peers` and `handshake`. Messages are lines of JSON on
pipes and sockets:

| from | to | keys |
|---|---|---|
| rank | its monitor | ``token``, ``step``, ``output``, ``outside``, ``bye``, ``failed status at_once``; ``centre`` |
| rank 0 | centre | ``listen`` (at which addresses), ``joined`` (nobody else is to come) |
| monitor | its rank | ``doors`` (the centre's), ``connected``, ``end`` (with this status) |
| monitor | centre | first ``rank host``; pulses (``step stopped outside``), ``stack lost bye``, ``failed status at_once`` |
| centre | monitor | pulses, ``dump`` (send your stack), ``end`` (with this status), ``bye`` |
"""

from __future__ import annotations

import contextlib
import glob
import math
import os
import resource
import select
import selectors
import signal
import socket
import sys
import time
from functools import partial
from typing import Any

from hpcstencil.runtime.handshake import Door, joined
from hpcstencil.runtime.monitor_peers import FRAMES, Line, Peer, is_stopped, launcher_of, tell

PULSE = 1.0  # seconds between pulses
PATIENCE = 20.0  # seconds of silence after which a rank counts as lost
STALLED = 300.0  # seconds without a step after which the ranks' stacks are shown, and again after twice as long
GIVE_UP = 3600.0  # seconds without a step after which the run is ended as deadlocked
ANSWER = 2.0  # seconds given to the others to send their stacks
GATHER = 2.0  # seconds that the centre waits, after the first failure, for one of a lower rank
LOST = 4  # the status of a run that lost a rank
MERCY = 3.0  # seconds a rank has to end itself before it is killed
LAUNCHER_MERCY = 10.0  # seconds a launcher has to leave after its ranks


class Monitor:
    """The monitor of one rank; for rank 0, also the centre."""

    def __init__(self, rank: int, size: int, parent: int, dump: int, dump_signal: int) -> None:
        """``dump`` is the reading end of the pipe into which the rank writes its stack at ``dump_signal``."""
        self.rank, self.size, self.parent = rank, size, parent
        self.token = ""  # by which the monitors of this run recognize each other; comes from the rank
        self.dump, self.dump_signal = dump, dump_signal
        os.set_blocking(dump, False)
        self.host = socket.gethostname()
        self.rank_line = Line(sys.stdin.buffer, sys.stdout.buffer)
        self.selector = selectors.DefaultSelector()
        self.selector.register(sys.stdin.buffer, selectors.EVENT_READ, partial(self.from_rank, self.rank_line))
        self.door: Door | None = None
        self.centre: Line | None = None
        self.me = Peer(rank, self.host, None)
        self.peers = {rank: self.me}
        self.output = ""  # the run's output file, beside which its checkpoints lie
        self.progress = self.ticked = time.monotonic()
        self.warned = STALLED
        self.speaks = math.inf  # when the centre prints the failure of the lowest rank
        self.done = False
        self.launcher = launcher_of(parent)

    # ---- the loop ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve messages and ticks until the rank is done."""
        while not self.done:
            for key, _ in self.selector.select(PULSE):
                if not self.done:
                    key.data()
            self.say_failure()
            self.tick()

    def tick(self) -> None:
        """The work of every second: send pulses, and look for silent ranks."""
        now = time.monotonic()
        pause = now - self.ticked
        if pause < PULSE / 2 or self.done:
            return
        if pause > 5 * PULSE:  # this process itself was suspended, as when the whole job is: no rank is lost
            for line in [self.centre, *(peer.line for peer in self.peers.values())]:
                if line is not None:
                    line.heard += pause
            self.progress += pause
        self.ticked = now
        if self.door is not None:
            self.door.tick()
        self.me.hear({"stopped": is_stopped(self.parent)})
        if self.centre is not None:
            self.centre.send(step=self.me.step, stopped=self.me.stopped is not None, outside=self.me.outside)
            if now - self.centre.heard > PATIENCE:
                self.lost_centre(f"has not been heard from for {PATIENCE:.0f} s")
        if self.rank == 0:
            self.look_around(now)

    # ---- the rank ----------------------------------------------------------------------------------------------------

    def from_rank(self, line: Line) -> None:
        """Handle a message of the rank."""
        for message in line.receive():
            self.token = message.get("token", self.token)
            self.output = message.get("output", self.output)
            if "listen" in message:
                self.listen(message["listen"])
            if "joined" in message and self.door is not None:
                self.door.close()
            if "centre" in message:
                self.connect(message["centre"])
            if "step" in message:
                self.me.hear(message)
                self.progressed()
            if "outside" in message:
                self.me.hear(message)
            if "failed" in message:
                self.failed(self.me, message)
            if "bye" in message:
                self.leave()
                return
        if not line.open:
            self.selector.unregister(line.incoming)
            why = "ended without a word (killed, or out of memory)"
            if self.rank == 0:
                self.lost(self.me, why)
                return
            if self.centre is not None:
                self.centre.send(lost=why, step=self.me.step)
                time.sleep(2 * PULSE)  # so that the message arrives before the connection ends
            self.done = True

    def leave(self) -> None:
        """Leave, because the rank is done."""
        self.speaks = min(self.speaks, time.monotonic())
        self.say_failure()
        for line in [self.centre, *(peer.line for peer in self.peers.values())]:
            if line is not None:
                line.send(bye=1)
        self.done = True

    def stack(self) -> str:
        """The stack of the rank's main thread, newest call first, as faulthandler writes it; empty if it does not
        answer."""
        with contextlib.suppress(OSError):
            os.kill(self.parent, self.dump_signal)
        text = b""
        for _ in range(10):
            time.sleep(0.02)
            with contextlib.suppress(BlockingIOError):
                text += os.read(self.dump, 2**16)
        rows = [row.strip() for row in text.decode(errors="replace").splitlines() if "File" in row]
        return "\n".join(rows[:FRAMES])

    def end_rank(self, status: int) -> None:
        """Make the rank end itself; kill it if it does not."""
        self.rank_line.send(end=status)
        deadline = time.monotonic() + MERCY
        while time.monotonic() < deadline and os.getppid() == self.parent:
            time.sleep(0.05)
        if os.getppid() == self.parent:
            with contextlib.suppress(OSError):
                os.kill(self.parent, signal.SIGKILL)
        self.end_launcher()
        self.done = True

    def end_launcher(self) -> None:
        """End the launcher's daemon of this host if it does not leave after its ranks.

        Open MPI's daemon waits for a host that is cut off until TCP gives up, a quarter of an hour. It is killed,
        because a second request to terminate makes some versions crash with a page of addresses.
        """
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # which a launcher may wait for
        if self.launcher is not None and not select.select([self.launcher], [], [], LAUNCHER_MERCY)[0]:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self.launcher, signal.SIGKILL)

    # ---- a monitor's side of the connection to the centre --------------------------------------------------------------

    def connect(self, doors: list[Any]) -> None:
        """Connect to the centre, and report the result to the rank."""
        connection = joined(doors, self.token)
        if connection is not None:
            line = self.centre = Line(connection, connection)
            line.send(rank=self.rank, host=self.host)
            self.selector.register(connection, selectors.EVENT_READ, partial(self.from_centre, line))
        self.rank_line.send(connected=connection is not None)

    def from_centre(self, line: Line) -> None:
        """Handle a message of the centre."""
        for message in line.receive():
            if "dump" in message:
                line.send(stack=self.stack())
            if "bye" in message:
                self.done = True
            if "end" in message:
                self.end_rank(message["end"])
            if self.done:
                return
        if not line.open:
            self.lost_centre("ended without a word, or its host did")

    def lost_centre(self, why: str) -> None:
        """Handle the loss of rank 0's monitor: the lowest remaining rank reports, because it waits least."""
        assert self.centre is not None
        time.sleep(min(0.2 * (self.rank - 1), MERCY))
        if os.getppid() == self.parent:
            self.me.stack = self.stack()
            self.report(Peer(0, "its host", None), why, [self.me])
        self.end_rank(LOST)

    # ---- the centre ----------------------------------------------------------------------------------------------------

    def listen(self, addresses: list[Any]) -> None:
        """Open the centre's door and send its places to the rank."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.door = Door([str(one) for one in addresses], self.token, self.size, self.selector, self.welcome)
        self.rank_line.send(doors=self.door.places())

    def welcome(self, connection: socket.socket) -> None:
        """Take in a connection that knows the token: the monitor of a rank, which first sends its rank."""
        line = Line(connection, connection)
        self.selector.register(connection, selectors.EVENT_READ, partial(self.from_monitor, line))

    def from_monitor(self, line: Line) -> None:
        """Handle a message of another rank's monitor."""
        peer = next((peer for peer in self.peers.values() if peer.line is line), None)
        for message in line.receive():
            if peer is None:
                rank = message.get("rank", self.rank)
                if rank in self.peers or not 0 <= rank < self.size:
                    line.open = False
                    break
                peer = self.peers[rank] = Peer(rank, message.get("host", "its host"), line)
            before = peer.step
            peer.hear(message)
            if peer.step != before:
                self.progressed()
            if "failed" in message:
                self.failed(peer, message)
            if "lost" in message:
                self.lost(peer, message["lost"])
            if self.done:
                return
        if not line.open:
            self.selector.unregister(line.incoming)
            line.incoming.close()
            if peer is not None and not peer.gone:
                self.lost(peer, "ended without a word, or its host did")

    def failed(self, peer: Peer, message: dict[str, Any]) -> None:
        """Handle the failure of a rank. Others may fail at the same time, so the centre waits a little for a lower
        rank, unless the rank has to end ``at_once``. A monitor without a centre speaks for its rank."""
        peer.hear(message)
        if self.centre is not None:
            self.centre.send(**message)
        else:
            alone = self.rank != 0 or message.get("at_once", False)
            self.speaks = min(self.speaks, time.monotonic() + (0.0 if alone else GATHER))

    def say_failure(self) -> None:
        """Print the sentence of the lowest failed rank when the wait is over or all have reported, and end the run."""
        failed = [peer for peer in self.peers.values() if peer.failure]
        everyone = sum(bool(peer.failure) or peer.gone for peer in self.peers.values()) == self.size
        if not self.done and failed and (everyone or time.monotonic() >= self.speaks):
            lowest = min(failed, key=lambda peer: peer.rank)
            tell(lowest.failure, [])
            self.end_all(lowest.status)

    def look_around(self, now: float) -> None:
        """Look for ranks that are lost, stopped or stalled."""
        for peer in list(self.peers.values()):
            if self.done:  # one rank of a host was reported lost; the others would follow
                return
            if peer.line is not None and not peer.gone:
                peer.line.send(pulse=1)
                if not self.done and now - peer.line.heard > PATIENCE:
                    self.lost(peer, f"has not been heard from for {PATIENCE:.0f} s")
            if not self.done and not peer.gone and peer.stopped is not None and now - peer.stopped > PATIENCE:
                self.lost(peer, f"has been stopped for {PATIENCE:.0f} s")
        if any(peer.outside and not peer.gone for peer in self.peers.values()):
            self.progressed()  # nobody can tell a long computation of the user's program from a deadlock
        if not self.done and now - self.progress > self.warned:
            self.warned = min(2 * self.warned, GIVE_UP)
            self.collect_stacks(None)
            last = now - self.progress > GIVE_UP
            outcome = "the run is ended" if last else f"after {GIVE_UP:.0f} s the run will be ended"
            tell(f"hpcstencil: no step for {now - self.progress:.0f} s; {outcome}", self.peers.values())
            if last:
                self.end_all(LOST)

    def progressed(self) -> None:
        """Note that the run has taken a step."""
        self.progress, self.warned = time.monotonic(), STALLED

    def lost(self, peer: Peer, why: str) -> None:
        """Report a lost rank with the stacks of the others, and end them. If a rank has failed before, report that
        instead."""
        peer.gone = True
        if any(other.failure for other in self.peers.values()):
            return
        self.collect_stacks(peer)
        self.report(peer, why, [other for other in self.peers.values() if other is not peer])
        self.end_all(LOST)

    def collect_stacks(self, without: Peer | None) -> None:
        """Ask all ranks but one for their stacks, and wait a little for the answers."""
        others = [(peer, peer.line) for peer in self.peers.values() if peer is not without and not peer.gone]
        asked = [(peer, line) for peer, line in others if line is not None]
        for peer, line in asked:
            peer.stack = ""
            line.send(dump=1)
        if without is not self.me:
            self.me.stack = self.stack()
        deadline = time.monotonic() + ANSWER
        while time.monotonic() < deadline and any(not peer.stack and line.open for peer, line in asked):
            for peer, line in asked:
                for message in line.receive():
                    peer.hear(message)
            time.sleep(0.02)

    def report(self, peer: Peer, why: str, others: list[Peer]) -> None:
        """Print the report."""
        step = max([peer.step, *(other.step for other in others)])
        place = f"at step {step}" if step >= 0 else "before the first step"
        checkpoints = sorted(glob.glob(f"{glob.escape(self.output.removesuffix('.h5'))}.checkpoint.*.h5"))
        state = (
            f"The last good state is {checkpoints[-1]}: run the same command with --resume to go on"
            if self.output and checkpoints
            else "There is no checkpoint yet"
        )
        tell(f"hpcstencil: rank {peer.rank} on {peer.host} {why}, {place}; all ranks are ended. {state}", others)

    def end_all(self, status: int) -> None:
        """End all ranks with this status."""
        for peer in self.peers.values():
            if peer.line is not None:
                peer.line.send(end=status)
        self.end_rank(status)


def main() -> None:
    """Run the monitor of a rank until the rank is done."""
    rank, size, parent, dump, dump_signal = map(int, sys.argv[1:6])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # signals to the whole job are for the ranks
    Monitor(rank, size, parent, dump, dump_signal).run()
