"""The rank's side of the watchdog: it starts the monitor beside this process, and reports the run's progress to it."""

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
import time
from pathlib import Path
from typing import Any

import hpcstencil
from hpcstencil.runtime.communicator import Communicator, MpiProcesses, agree
from hpcstencil.runtime.handshake import own_addresses, where_to_listen
from hpcstencil.runtime.hosts import boot, host
from hpcstencil.runtime.monitor_tree import places
from hpcstencil.runtime.progress import say
from hpcstencil.validation.errors import EnvironmentProblem

DUMP_SIGNAL = signal.SIGRTMAX - 2  # requests a stack; users, launchers and libraries do not send this signal
LONGEST = 8000  # characters of a sentence that always fit into a pipe
UNHEARD = 10.0  # seconds after which a failed rank stops waiting for its monitor and ends the run itself
FOLDER = str(Path(hpcstencil.__file__).parents[1])
MONITOR = f"import sys; sys.path.insert(0, {FOLDER!r}); from hpcstencil.runtime.monitor import main; main()"


class Watchdog:
    """The rank's side of the watchdog, which owns the monitor process of this rank.

    Reports to the monitor do not wait for an answer. ``place`` is the progress of the run in words, for error messages.
    ``unreachable`` lists, on rank 0, the ranks whose monitor is not connected to the others.
    """

    def __init__(self, communicator: MpiProcesses) -> None:
        """Start the monitors of all ranks and connect them. Collective.

        Raises EnvironmentProblem, on all processes, if a monitor cannot be started.
        """
        self.communicator = communicator
        self.place = "before the first step"
        reading, self.writing = os.pipe()
        faulthandler.register(DUMP_SIGNAL, file=self.writing, all_threads=False, chain=False)
        numbers = (communicator.rank, os.getpid(), reading, int(DUMP_SIGNAL))
        # The monitor has its own session, so that it survives when the launcher kills the rank, and can still report.
        command = [sys.executable, "-S", "-P", "-c", MONITOR, *map(str, numbers)]

        started: list[subprocess.Popen[bytes]] = []

        def start() -> None:
            try:
                started.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        pass_fds=(reading,),
                        start_new_session=True,
                    )
                )
            except OSError as error:
                raise EnvironmentProblem(f"no process can be started beside the rank: {error.strerror}") from error

        try:
            agree(communicator, start)
        except EnvironmentProblem:
            for process in started:
                process.kill()
            raise
        (self.process,) = started
        os.close(reading)
        assert self.process.stdin is not None
        os.set_blocking(self.process.stdin.fileno(), False)
        self.unreachable = self._connect()
        threading.Thread(target=self._listen, daemon=True).start()

    def _connect(self) -> list[int]:
        """Connect the monitors with each other, from the root of their tree to its leaves. Collective.

        Returns, on rank 0, the ranks whose monitor cannot reach its parent; elsewhere an empty list.
        """
        communicator, mpi, rank = self.communicator, self.communicator.mpi, self.communicator.rank
        self._tell(token=communicator.broadcast(secrets.token_hex(32) if rank == 0 else ""))
        own = own_addresses()
        network = f"{host()} {boot()} {os.stat('/proc/self/ns/net').st_ino}"
        everyone = communicator.gather((network, own))
        place = communicator.scatter(places(everyone) if everyone is not None else None)
        connected = True
        if place.parent is not None:
            self._tell(parent=place.parent, turn=place.turn, doors=mpi.recv(source=place.parent))
            connected = self._read()["connected"]
            mpi.send(None, dest=place.parent)
        if place.children:
            self._tell(listen=where_to_listen(own, place.addresses), children=place.children)
            doors = self._read()["doors"]
            for child in place.children:
                mpi.send(doors, dest=child)
            for child in place.children:
                mpi.recv(source=child)
            self._tell(joined=1)
        missing = communicator.gather(None if connected else rank) if communicator.any(not connected) else None
        return [child for child in missing or [] if child is not None]

    def step(self, step: int) -> None:
        """Report that the run has reached step number ``step``, which also becomes its ``place``."""
        self.place = f"at step {step}"
        self._tell(step=step)

    def outside(self, outside: bool) -> None:
        """Report that the user's program runs its own code (``outside`` is True) or has called hpcstencil again (False).

        While any rank is outside, a run that takes no steps does not count as stalled.
        """
        self._tell(outside=outside)

    def checkpoints(self, pattern: str) -> None:
        """Report the glob pattern of the checkpoints from which the run can continue."""
        self._tell(checkpoints=pattern)

    def failed(self, sentence: str, status: int, at_once: bool = False) -> None:
        """Report that this rank has failed, with the message for the user and the exit status.

        The monitors print the message of the lowest failed rank and end all ranks with its status. With ``at_once``, they do
        not wait for lower ranks. If they have not ended this rank after ``UNHEARD`` seconds, the call returns.
        """
        if len(sentence) > LONGEST:
            sentence = f"{sentence[: LONGEST // 2]}\n...\n{sentence[-LONGEST // 2 :]}"
        self._tell(failed=sentence, status=status, at_once=at_once)
        time.sleep(UNHEARD)

    def close(self) -> None:
        """Report that this rank is done, which ends its monitor."""
        self._tell(bye=1)
        faulthandler.unregister(DUMP_SIGNAL)

    def _tell(self, **message: object) -> None:
        """Send a message to the monitor. It is lost if the monitor has gone."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # the monitor is gone; the run goes on unwatched
            os.write(self.process.stdin.fileno(), json.dumps(message).encode() + b"\n")

    def _read(self) -> dict[str, Any]:
        """Wait for the monitor's next message and return it.

        If the monitor has ended, the result is that of a monitor that could not connect.
        """
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"connected": False, "doors": []}

    def _listen(self) -> None:
        """End this rank when the monitor sends ``end``."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            if "end" in message:
                end_at_once(self.communicator, message["end"])


def end_all(communicator: Communicator, sentence: str, status: int, at_once: bool = False) -> None:
    """End all processes after a failure on this one of which the others do not know. Does not return.

    If several processes fail, the monitors print one message. If no monitor answers, this process prints its own.
    """
    communicator.watch.failed(sentence, status, at_once)
    print(sentence, file=sys.stderr, flush=True)
    end_at_once(communicator, status)


def end_at_once(communicator: Communicator, status: int) -> None:
    """End all ranks by MPI_Abort with this exit status; after a second, end at least this one.

    Works from any thread, even if the main thread hangs.
    """
    timer = threading.Timer(1.0, os._exit, (status,))
    timer.daemon = True
    timer.start()
    communicator.abort(status)


def start(communicator: Communicator) -> None:
    """Start a watchdog, if there are several processes, and set it as the communicator's ``watch``. Collective.

    Prints a warning if some monitors cannot reach each other.
    """
    if not isinstance(communicator, MpiProcesses):
        return
    communicator.watch = watch = Watchdog(communicator)
    if watch.unreachable:
        say(
            f"warning: no TCP connection between the monitors of ranks {', '.join(map(str, watch.unreachable))} and those of "
            "other hosts: if one of them is lost, the others may hang"
        )
