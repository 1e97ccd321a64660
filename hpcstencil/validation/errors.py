"""The failures that a user may meet, each with the exit status of the command line."""

from __future__ import annotations


class HpcstencilError(Exception):
    """A failure, reported to the user in one sentence: what was expected, what was found, what to do. ``status`` is the
    exit status of the command. ``shared`` says that all processes raise it together; otherwise the one that does ends
    all."""

    status = 1
    shared = True  # whether all processes raise it together; if not, the process that raises it ends all

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return type(self), (str(self),)


class InputError(HpcstencilError):
    """Bad input or usage: the user has to change something. As a rule nothing has been written yet."""

    status = 2


class NumericsError(HpcstencilError):
    """The solution is no longer finite, no step meets the tolerance, or `verify` missed a promise. The last good state
    is kept."""

    status = 3


class EnvironmentProblem(HpcstencilError):
    """MPI, a device, HDF5, the file system or memory failed: the input may be right, but not this machine or launch."""

    status = 4


class StoppedEarly(HpcstencilError):
    """A signal or the time limit ended the run early; if steps had begun, after a checkpoint was written."""

    status = 75
