"""A rank's side of the watchdog: it starts the monitor beside this process, and tells it how far the run has come."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import hpcstencil
from hpcstencil.parallel import Communicator, MpiProcesses

DUMP_SIGNAL = signal.SIGRTMAX - 2  # asks for a stack; not one that users, launchers or libraries send
ENDED_BY_WATCHDOG = 4
FOLDER = str(Path(hpcstencil.__file__).parents[1])
MONITOR = f"import sys; sys.path.insert(0, {FOLDER!r}); from hpcstencil.monitor import main; main()"


class Watchdog:
    """The monitor of this rank, running. Everything told to it is told without waiting."""

    def __init__(self, communicator: MpiProcesses) -> None:
        """Start the monitors of all ranks and connect them; all processes together."""
        self.communicator = communicator
        self.place = "before the first step"
        reading, self.writing = os.pipe()
        faulthandler.register(DUMP_SIGNAL, file=self.writing, all_threads=False, chain=False)
        rank, size = communicator.rank, communicator.size
        numbers = (rank, size, os.getpid(), reading, int(DUMP_SIGNAL))
        # In a session of its own, so that it outlives a rank that the launcher kills, for long enough to report.
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", MONITOR, *map(str, numbers)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(reading,), start_new_session=True,
        )  # fmt: skip
        os.close(reading)
        assert self.process.stdin is not None
        os.set_blocking(self.process.stdin.fileno(), False)
        token = communicator.broadcast(secrets.token_hex(16) if rank == 0 else "")
        self._tell(token=token)
        centre = communicator.broadcast(self._read() if rank == 0 else {})
        connected = True
        if rank != 0:
            self._tell(centre=centre)
            connected = self._read()["connected"]
        self.unreachable = [r for r, there in enumerate(communicator.allgather(connected)) if not there]
        threading.Thread(target=self._listen, daemon=True).start()

    def step(self, step: int) -> None:
        """The run has come to this step."""
        self.place = f"at step {step}"
        self._tell(step=step)

    def output(self, path: Path) -> None:
        """The run's output file, beside which its checkpoints lie."""
        self._tell(output=str(path))

    def failed(self) -> None:
        """This rank reports a failure itself and ends all; the monitors need not report it again."""
        self._tell(failed=1)

    def close(self) -> None:
        """This rank is done."""
        self._tell(bye=1)
        faulthandler.unregister(DUMP_SIGNAL)

    def _tell(self, **message: Any) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # a monitor that is gone can watch no more; the run goes on
            os.write(self.process.stdin.fileno(), json.dumps(message).encode() + b"\n")

    def _read(self) -> dict[str, Any]:
        """The next message of the monitor; as if unconnected where the monitor did not start."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"connected": False, "addresses": [], "port": 0}

    def _listen(self) -> None:
        """End this rank when the monitor says so."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if b"end" in line:
                end_at_once(self.communicator, ENDED_BY_WATCHDOG)


def end_at_once(communicator: Communicator, status: int) -> None:
    """End all ranks, or at least this one, from any thread and whatever the main thread waits for."""
    timer = threading.Timer(1.0, os._exit, (status,))
    timer.daemon = True
    timer.start()
    communicator.abort(status)


def start(communicator: Communicator) -> list[int]:
    """Have a watchdog watch over the processes, where there are several; returns the ranks that cannot reach rank 0's."""
    if not isinstance(communicator, MpiProcesses):
        return []
    communicator.watch = watch = Watchdog(communicator)
    return watch.unreachable
