"""The output lock, which ensures that only one run at a time writes an output.

Rank 0 holds a lock on ``NAME.h5.lock`` during its run. The system releases the lock when the process ends in any way, so a
killed run does not block the run that resumes it. The exception is a file server that has not noticed yet that a host is
dead. A requeued Slurm job therefore ignores its own former lock, and the error message says which file to remove. On a file
system without locks, the `transaction` detects between two changes that another process has changed the file.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hpcstencil.io.foreign_files import refuse_foreign
from hpcstencil.runtime.communicator import Communicator, agree
from hpcstencil.runtime.filesystem import file_errors
from hpcstencil.runtime.hosts import host
from hpcstencil.validation.errors import EnvironmentProblem

HELD = (errno.EWOULDBLOCK, errno.EACCES)
NEW_OUTPUT = "or choose another --output"


class Claim:
    """The lock of one ``output``. The constructor does not take it.

    ``remedy`` completes the sentence "wait for its end ..." for a user whose output another run writes.
    """

    def __init__(self, output: Path, communicator: Communicator, remedy: str) -> None:
        self.path = Path(f"{os.path.realpath(output)}.lock")  # the same for all links to the file
        self.output = output
        self.communicator = communicator
        self.remedy = remedy
        self.descriptor: int | None = None

    def take(self) -> None:
        """Take the lock, if the folder of the output exists and this run does not hold the lock yet. Collective.

        Raises EnvironmentProblem on all processes if another run has the lock, and the errors of `refuse_foreign`.
        """

        def take() -> None:
            if self.communicator.rank == 0 and self.descriptor is None and self.path.parent.is_dir():
                refuse_foreign(self.output)
                with file_errors(self.path, "create"):
                    while not self._taken():
                        pass

        agree(self.communicator, take)

    def _taken(self) -> bool:
        """Try to take the lock, on rank 0; return False if a run that ended has removed the lock file meanwhile."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = _said(descriptor)
            if error.errno in HELD and not _is_former_self(owner):
                os.close(descriptor)
                raise EnvironmentProblem(
                    f"{self.output}: another run is writing it (process {owner.get('process', '?')} on "
                    f"{owner.get('host', 'some host')}); wait for its end {self.remedy}, or, should no such "
                    f"process exist, remove {self.path.name}"
                ) from error
        if not _is_at(descriptor, self.path):
            os.close(descriptor)
            return False
        with suppress(OSError):  # only the message above uses it
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(_myself()).encode(), 0)
        self.descriptor = descriptor
        return True

    def give_back(self) -> None:
        """Release the lock and remove its file, on rank 0. Not collective."""
        if self.descriptor is not None:
            with suppress(OSError):
                self.path.unlink()
            os.close(self.descriptor)
            self.descriptor = None


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


@contextmanager
def claimed(outputs: Sequence[Path], communicator: Communicator, remedy: str = NEW_OUTPUT) -> Iterator[list[Claim]]:
    """Hold the locks of all ``outputs`` inside the context. Collective.

    A lock is taken at once if the folder of the output exists; otherwise call its `Claim.take` later. Raises the same errors
    as `Claim.take`, whose message has the ``remedy`` of `Claim`.
    """
    claims = [Claim(output, communicator, remedy) for output in outputs]
    try:
        for claim in claims:
            claim.take()
        yield claims
    finally:
        for claim in claims:
            claim.give_back()


def _myself() -> dict[str, str | int]:
    restarts = os.environ.get("SLURM_RESTART_COUNT", "0")
    job = os.environ.get("SLURM_JOB_ID", "")
    return {"host": host(), "process": os.getpid(), "job": job, "restarts": int(restarts) if restarts.isdigit() else 0}


def _said(descriptor: int) -> dict[str, str | int]:
    """Read who holds the lock from the lock file; an empty dict if the file is not readable."""
    try:
        said = json.loads(os.pread(descriptor, 4096, 0))
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _is_former_self(owner: dict[str, str | int]) -> bool:
    """Return whether the owner is this Slurm job before it was requeued."""
    me = _myself()
    return bool(me["job"]) and me["job"] == owner.get("job") and int(me["restarts"]) > int(owner.get("restarts", 0))
