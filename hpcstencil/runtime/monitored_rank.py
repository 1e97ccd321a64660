"""The rank that a monitor watches: messages to it, its stack trace, and its end.

This module uses only the standard library.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time

from hpcstencil.runtime.hosts import stat_fields
from hpcstencil.runtime.monitor_peers import Known, Line
from hpcstencil.runtime.monitor_report import FRAMES

LAUNCHERS = ("mpirun", "mpiexec", "orterun", "orted", "prterun", "prted")  # Open MPI's
LOST = 4  # the status of a run that lost a rank
MERCY = 3.0  # seconds a rank has to end itself before it is killed
LAUNCHER_MERCY = 10.0  # seconds a launcher has to leave after its ranks


class MonitoredRank:
    """The rank that a monitor watches; it is the parent process of the monitor.

    ``number`` is the rank and ``process`` its process id. ``known`` is its state as the monitors see it. ``done`` says that
    the monitor has nothing left to do.
    """

    def __init__(self, number: int, process: int, dump: int, dump_signal: int) -> None:
        self.number, self.process = number, process
        self.host = socket.gethostname()
        self.dump, self.dump_signal = dump, dump_signal
        os.set_blocking(dump, False)
        self.line = Line(sys.stdin.buffer, sys.stdout.buffer)
        self.known = Known()
        self.launcher = launcher_of(process)
        self.token = ""  # by which the monitors of this run recognize each other; comes from the rank
        self.checkpoints = ""  # the glob pattern of the run's checkpoints
        self.done = False

    def is_here(self) -> bool:
        """Return whether the rank's process still exists."""
        return os.getppid() == self.process

    def is_stopped(self) -> bool:
        """Return whether the rank's process exists but is stopped by a signal or a debugger."""
        return (stat_fields(self.process) or " ")[0] in "Tt"

    def stack(self) -> str:
        """Return the stack trace of the rank's main thread, newest call first, at most ``FRAMES`` lines of faulthandler.

        The result is "" if the rank does not answer within 0.2 seconds.
        """
        if not self.is_here():
            return ""
        with contextlib.suppress(OSError):
            os.kill(self.process, self.dump_signal)
        text = b""
        for _ in range(10):
            time.sleep(0.02)
            with contextlib.suppress(BlockingIOError):
                text += os.read(self.dump, 2**16)
        rows = [row.strip() for row in text.decode(errors="replace").splitlines() if "File" in row]
        return "\n".join(rows[:FRAMES])

    def end(self, status: int) -> None:
        """Ask the rank to end with this exit status, and kill it if it still exists after ``MERCY`` seconds.

        The launcher's daemon is killed too if it does not exit.
        """
        self.line.send(end=status)
        deadline = time.monotonic() + MERCY
        while time.monotonic() < deadline and self.is_here():
            time.sleep(0.05)
        if self.is_here():
            with contextlib.suppress(OSError):
                os.kill(self.process, signal.SIGKILL)
        self._end_launcher()
        self.done = True

    def _end_launcher(self) -> None:
        """Kill the launcher's daemon on this host if it does not exit after its ranks.

        If a host is cut off from the network, Open MPI's daemon would wait about 15 minutes, until TCP gives up. It is
        killed, because some versions crash with a page of addresses on a second request to terminate.
        """
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a launcher may wait until this stream is closed
        if self.launcher is not None and not select.select([self.launcher], [], [], LAUNCHER_MERCY)[0]:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(self.launcher, signal.SIGKILL)


def launcher_of(process: int) -> int | None:
    """Return a pidfd of the parent of a process, if the parent is a launcher's daemon; else None.

    Only the first rank on a host gets it.
    """
    if os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK") != "0":
        return None
    with contextlib.suppress(OSError, IndexError):
        parent = int(stat_fields(process)[1])
        handle = os.pidfd_open(parent)
        with open(f"/proc/{parent}/comm", encoding="ascii", errors="replace") as file:
            if file.read().strip().split(".")[0] in LAUNCHERS:  # Debian's is called mpirun.openmpi
                return handle
        os.close(handle)
    return None
