"""The processes of a run: rank, size, collective operations, and agreement on errors.

The communicator is passed as an argument; there is no global one. Without a launcher that started several processes,
`OneProcess` replaces MPI, which is then neither imported nor started.

Throughout hpcstencil, "collective" means that all processes must call a function together, in the same order.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from hpcstencil.runtime.launcher import environment_size
from hpcstencil.validation.errors import EnvironmentProblem, HpcstencilError

T = TypeVar("T")
NAP = 0.01  # polling interval, in seconds, of a process that waits for a long operation of others


class Watch(Protocol):
    """A watcher to which each process reports its progress, see `watchdog`.

    Reports are not collective and do not wait for other processes.
    """

    @property
    def place(self) -> str:
        """The progress of the run in words, such as "at step 100", for error messages."""

    def step(self, step: int) -> None:
        """Report that the run has reached step number ``step`` on this rank."""

    def outside(self, outside: bool) -> None:
        """Report that the user's program runs its own code (``outside`` is True) or has called hpcstencil again (False).

        Outside, it may take no step for a long time.
        """

    def checkpoints(self, pattern: str) -> None:
        """Report the glob pattern of the checkpoints from which the run can continue."""

    def failed(self, sentence: str, status: int, at_once: bool = False) -> None:
        """Report that this rank has failed, with the message for the user and the exit status.

        All ranks are then ended; with ``at_once``, without waiting for a lower rank that may fail too. The call may return
        if no monitor answers.
        """

    def close(self) -> None:
        """Stop watching this rank."""


class Unwatched:
    """A watcher that does nothing, for a single process or before the watchdog has started."""

    place = "at the start"

    def step(self, step: int) -> None:
        return None

    def outside(self, outside: bool) -> None:
        return None

    def checkpoints(self, pattern: str) -> None:
        return None

    def failed(self, sentence: str, status: int, at_once: bool = False) -> None:
        return None

    def close(self) -> None:
        return None


class Communicator(Protocol):
    """The operations on all processes of a run. All of them except `abort` are collective.

    ``mpi`` is the mpi4py communicator, None for a single process. ``watch`` is the watcher to which processes report.
    """

    rank: int
    size: int
    mpi: Any
    watch: Watch

    def barrier(self) -> None:
        """Return once all processes have called this."""

    def broadcast(self, value: T, root: int = 0) -> T:
        """Return the value of rank ``root``, which must be picklable, on all processes. Those of other ranks are ignored."""

    def gather(self, value: T) -> list[T] | None:
        """Return a list of the values of all processes by rank on rank 0, None elsewhere. Values must be picklable.

        Rank 0 needs memory for all values, so prefer a reduction.
        """

    def scatter(self, values: Sequence[T] | None) -> T:
        """Return the element of rank 0's ``values`` that belongs to this rank. Values must be picklable."""

    def any(self, here: bool) -> bool:
        """Return whether ``here`` is true on any process."""

    def alike(self, key: str) -> list[int]:
        """Return the ranks, in order, that give the same ``key`` as this one, e.g. the name of their host."""

    def maximum(self, values: np.ndarray) -> np.ndarray:
        """Return the elementwise maximum over all processes. ``values`` must have the same shape and dtype on all."""

    def total(self, values: np.ndarray) -> np.ndarray:
        """Return the elementwise sum over all processes. ``values`` must be int64 of the same shape on all.

        Only integers are allowed, so that the result does not depend on the order of summation.
        """

    def shift(self, sent: np.ndarray, to: int | None, received: np.ndarray, source: int | None) -> None:
        """Send an array to the rank ``to``, and receive one of the same shape and dtype from the rank ``source``.

        None stands for no rank; then nothing is sent, and ``received`` is left as it is.
        """

    def abort(self, status: int) -> None:
        """End all processes with this exit status. Not collective; does not return."""


class OneProcess:
    """The communicator of a run without a launcher.

    With a ``rank`` other than 0, code can compute the part of that rank without communication. The process still acts as if
    it were the only one.
    """

    size = 1
    mpi = None
    watch: Watch = Unwatched()

    def __init__(self, rank: int = 0) -> None:
        self.rank = rank

    def barrier(self) -> None:
        return None

    def broadcast(self, value: T, root: int = 0) -> T:
        return value

    def gather(self, value: T) -> list[T] | None:
        return [value]

    def scatter(self, values: Sequence[T] | None) -> T:
        assert values is not None
        return values[0]

    def any(self, here: bool) -> bool:
        return here

    def alike(self, key: str) -> list[int]:
        return [self.rank]

    def maximum(self, values: np.ndarray) -> np.ndarray:
        return values

    def total(self, values: np.ndarray) -> np.ndarray:
        return values

    def shift(self, sent: np.ndarray, to: int | None, received: np.ndarray, source: int | None) -> None:
        if source is not None:
            received[...] = sent

    def abort(self, status: int) -> None:
        os._exit(status)


class MpiProcesses:
    """The processes of an MPI launch. ``mpi`` must be a communicator that nothing else uses, such as a clone."""

    def __init__(self, mpi: Any) -> None:
        self.mpi = mpi
        self.rank: int = mpi.Get_rank()
        self.size: int = mpi.Get_size()
        self.watch: Watch = Unwatched()

    def barrier(self) -> None:
        self.mpi.Barrier()

    def broadcast(self, value: T, root: int = 0) -> T:
        return self.mpi.bcast(value, root=root)

    def gather(self, value: T) -> list[T] | None:
        """Gather along a binomial tree: MPI's own gather of values of different sizes sends rank 0 a message from each."""
        values = [value]
        for step in steps_below(self.size):
            if self.rank & step:
                self.mpi.send(values, dest=self.rank - step)
                return None
            if self.rank + step < self.size:
                values += self.mpi.recv(source=self.rank + step)
        return values

    def scatter(self, values: Sequence[T] | None) -> T:
        """Scatter along the binomial tree of `gather`."""
        for step in reversed(steps_below(self.size)):
            if self.rank % (2 * step) == step:
                values = self.mpi.recv(source=self.rank - step)
            elif self.rank % (2 * step) == 0 and self.rank + step < self.size:
                assert values is not None
                self.mpi.send(values[step:], dest=self.rank + step)
                values = values[:step]
        assert values is not None
        return values[0]

    def any(self, here: bool) -> bool:
        return bool(self.maximum(np.array([int(here)]))[0])

    def alike(self, key: str) -> list[int]:
        keys, ranks = self.gather(key), dict[str, list[int]]()
        for rank, other in enumerate(keys or []):
            ranks.setdefault(other, []).append(rank)
        return self.scatter(None if keys is None else [ranks[other] for other in keys])

    def maximum(self, values: np.ndarray) -> np.ndarray:
        """Elementwise maximum over all processes."""
        return self._reduced(values, "MAX")

    def total(self, values: np.ndarray) -> np.ndarray:
        """Elementwise sum over all processes. The values must be integers, so that their order does not matter."""
        assert values.dtype.kind == "i"
        return self._reduced(values, "SUM")

    def _reduced(self, values: np.ndarray, operation: str) -> np.ndarray:
        from mpi4py import MPI

        result = np.empty(values.shape, values.dtype)  # in C order, as what is sent
        self.mpi.Allreduce(np.ascontiguousarray(values), result, op=getattr(MPI, operation))
        return result

    def shift(self, sent: np.ndarray, to: int | None, received: np.ndarray, source: int | None) -> None:
        from mpi4py import MPI

        there, here = (MPI.PROC_NULL if rank is None else rank for rank in (to, source))
        arrived = np.empty(received.shape, received.dtype)
        self.mpi.Sendrecv(np.ascontiguousarray(sent), there, recvbuf=arrived, source=here)
        if source is not None:
            received[...] = arrived

    def abort(self, status: int) -> None:
        self.mpi.Abort(status)


def steps_below(size: int) -> list[int]:
    """Return the powers of two below ``size``."""
    return [1 << n for n in range((size - 1).bit_length())]


def connect() -> Communicator:
    """Return the communicator of this run: `OneProcess` without a launcher, else a clone of MPI's world. Collective.

    Raises EnvironmentProblem if mpi4py cannot be loaded, or if the launcher started several processes that MPI does not
    connect. Each of these would act as the only one, and all would write the same file.
    """
    expected = environment_size()
    if expected == 1:
        return OneProcess()
    # Under srun without a process manager, the MPI library would end the process with its own message, so check it first.
    if "SLURM_STEP_NUM_TASKS" in os.environ and not any(name.startswith(("PMI", "OMPI_COMM")) for name in os.environ):
        raise EnvironmentProblem(
            f"the launcher started {expected} processes, but gave them no way to find each other: each would write the "
            f"same file; start them with 'srun --mpi=pmix' ('srun --mpi=list' says whether this Slurm has it), or with "
            f"the mpirun of the MPI library that mpi4py was built with"
        )
    # Open MPI would create a semaphore, named only after the file, for a shared file pointer that we do not use. A semaphore
    # of that name that belongs to another user prevents opening the file.
    os.environ.setdefault("OMPI_MCA_sharedfp", "^sm")
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise EnvironmentProblem(
            f"the launcher started {expected} processes, but mpi4py cannot be loaded ({error}): install "
            "'hpcstencil[mpi]', or start one process"
        ) from error
    world = MPI.COMM_WORLD
    if world.Get_size() != expected:
        raise EnvironmentProblem(
            f"the launcher started {expected} processes, but MPI sees {world.Get_size()}: they cannot see each other "
            f"and would all write the same file; use the launcher of the MPI library that mpi4py was built with "
            f"({MPI.Get_library_version().split(',')[0].strip()}), under Slurm 'srun --mpi=pmix'"
        )
    return MpiProcesses(world.Clone())


def agree(communicator: Communicator, action: Callable[[], T]) -> T:
    """Run ``action`` on every process and return each process's own result; if it fails on any, raise on all. Collective.

    The error of the lowest failed rank is raised everywhere, so that all processes stop together with one exit status. Only
    our own errors (HpcstencilError) are shared; an unexpected exception propagates and aborts the run. ``action`` must not
    wait for other processes after a step that can fail.
    """
    result: T | None = None
    failure: HpcstencilError | None = None
    try:
        result = action()
    except HpcstencilError as error:
        failure = error
    raise_first(communicator, failure, communicator.maximum(np.array([place_of(communicator, failure)]))[0])
    return result  # type: ignore[return-value]  # set: no process failed, this one included


def place_of(communicator: Communicator, failure: HpcstencilError | None) -> int:
    """A number that is larger on lower ranks, and 0 without a ``failure``: its maximum says which rank failed first."""
    return 0 if failure is None else communicator.size - communicator.rank


def raise_first(communicator: Communicator, failure: HpcstencilError | None, highest: float) -> None:
    """Raise the error of the lowest rank that has a ``failure``, on all processes, if there is one. Collective.

    ``highest`` is the maximum of `place_of` over the processes.
    """
    if not highest:
        return
    lowest = communicator.size - int(highest)
    first = communicator.broadcast(failure, root=lowest)
    assert first is not None
    raise first if lowest == 0 else type(first)(f"rank {lowest}: {first}")


def from_rank_0(communicator: Communicator, action: Callable[[], T]) -> T:
    """Run ``action`` on rank 0 only, and return its result, which must be picklable, on all processes. Collective.

    If it raises one of our own errors, all processes raise it.
    """
    result = agree(communicator, lambda: action() if communicator.rank == 0 else None)
    return communicator.broadcast(result)  # type: ignore[return-value]  # rank 0 has run the action


def on_first(communicator: Communicator, count: int, action: Callable[[Communicator], T]) -> T | None:
    """Run ``action`` on the first ``count`` processes, with a communicator of their own. Collective.

    Its result is returned on these processes. The others sleep meanwhile and get None. If one of our own errors is raised,
    all processes raise it; ``action`` must raise it on all of the first ``count`` processes.
    """
    if count == communicator.size:
        return action(communicator)
    from mpi4py import MPI

    among = communicator.rank < count
    part = communicator.mpi.Split(0 if among else MPI.UNDEFINED, communicator.rank)

    def turn() -> T | None:
        result, failure = None, None
        try:
            result = action(MpiProcesses(part)) if among else None
        except HpcstencilError as error:
            failure = error
        meeting = communicator.mpi.Ibarrier()
        while not meeting.Test():  # a blocking call would keep a core busy that the others may need
            time.sleep(NAP)
        if failure is not None:
            raise failure
        return result

    return agree(communicator, turn)


def count_failed(meeting: Communicator, failed: bool, patience: float) -> int | None:
    """Return the number of processes that have failed; ``failed`` says whether this one has. Collective.

    The result is None if this process has failed and the others do not join within ``patience`` seconds. ``meeting`` is a
    communicator used for nothing else, because a process that does not join may be inside any other operation.
    """
    if meeting.size == 1:
        return int(failed)
    from mpi4py import MPI

    mine, total, start = np.array([int(failed)]), np.zeros(1, np.int64), time.monotonic()
    request = meeting.mpi.Iallreduce(mine, total, op=MPI.SUM)
    while not request.Test():
        waited = time.monotonic() - start
        if failed and waited > patience:
            return None
        time.sleep(min(NAP, waited / 2))  # the others may need the core
    return int(total[0])
