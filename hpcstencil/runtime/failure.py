"""How a failed process ends: its error message, and the end of the other processes if they do not know of the failure."""

from __future__ import annotations

import traceback

from hpcstencil.runtime.communicator import Communicator
from hpcstencil.runtime.hosts import host
from hpcstencil.runtime.watchdog import end_all
from hpcstencil.validation.errors import EnvironmentProblem, HpcstencilError
from hpcstencil.validation.printable import printable_lines

NO_MEMORY = ("RESOURCE_EXHAUSTED", "failed to map segment", "Cannot allocate memory")
MPI_FAILED = "the MPI library failed"  # from the message in xla_bridge.cpp


def out_of_memory(error: BaseException) -> bool:
    """Return whether ``error`` means that numpy, Python, the dynamic loader or XLA (on any device) ran out of memory."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in NO_MEMORY)


def of_environment(error: BaseException) -> bool:
    """Return whether an exception of a library or of native code means that memory ran out or MPI failed.

    Such a failure has the exit status of EnvironmentProblem.
    """
    return out_of_memory(error) or MPI_FAILED in str(error)


def sentence(error: BaseException) -> str:
    """Return the message that reports an exception to the user; for an unexpected exception, with the traceback."""
    if isinstance(error, HpcstencilError):
        return str(error)
    if out_of_memory(error):
        said = " ".join(str(error).split())[:200]
        return f"out of memory ({said}): take a coarser grid or more processes; hpcstencil check says what each needs"
    if MPI_FAILED in str(error):
        said = str(error)[str(error).index(MPI_FAILED) :].splitlines()[0]
        return f"{said}; read what the MPI library printed, and continue from the last checkpoint with --resume"
    trace = "".join(traceback.format_exception(error)).rstrip()
    return f"{type(error).__name__}, a defect of the program or of a library that it uses; please report this:\n{trace}"


def abort_all(communicator: Communicator, error: BaseException, why: str = "") -> None:
    """End all processes at once after a failure on this one of which the others do not know. Does not return.

    The message says where the failure happened and ``why`` (default: the error's `sentence`). The exit status is that of the
    error: 130 for KeyboardInterrupt, 1 for an unexpected exception.
    """
    place = f"rank {communicator.rank} of {communicator.size} on {host()}, {communicator.watch.place}"
    match error:
        case HpcstencilError():
            status = error.status
        case KeyboardInterrupt():
            status = 130
        case _:
            status = EnvironmentProblem.status if of_environment(error) else 1
    end_all(communicator, f"hpcstencil: {place}: {printable_lines(why or sentence(error))}", status)
