"""The exceptions that are reported to users, each with an exit status of the command."""

from __future__ import annotations


class HpcstencilError(Exception):
    """Base class of the failures that a user may meet.

    The message is one sentence: what was expected, what was found, what to do. ``status`` is the exit status of the
    command. If ``shared`` is true, all processes raise the exception together; otherwise the process that raises it
    aborts all others.
    """

    status = 1
    shared = True

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return type(self), (str(self),)


class InputError(HpcstencilError):
    """Wrong input or usage, which the user must correct. Usually nothing has been written yet."""

    status = 2


class NumericsError(HpcstencilError):
    """A numerical failure: the solution is not finite, no step meets the tolerance, or a check of `verify` failed.

    The last good state is kept.
    """

    status = 3


class EnvironmentProblem(HpcstencilError):
    """A failure of the machine or the launch, such as MPI, a device, HDF5, the file system or memory. The input may be
    right."""

    status = 4


RESUME = "run the same command with --resume to continue"


class StoppedEarly(HpcstencilError):
    """A signal or the time limit ended the run early. If steps had begun, a checkpoint was written before.

    ``what`` happened is the first part of the message; ``then`` says how to go on.
    """

    status = 75

    def __init__(self, what: str, then: str = "") -> None:
        super().__init__(f"{what}; {then}" if then else what)
        self.what, self.then = what, then
