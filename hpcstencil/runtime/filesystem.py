"""The file system: error messages, folders, reserved space, syncs."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import resource
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from hpcstencil.runtime.communicator import Communicator, agree
from hpcstencil.validation.errors import EnvironmentProblem


def reason(error: BaseException) -> str:
    """The system's own message in one line, extracted from the long text in which HDF5 wraps it."""
    said = re.search(r"error message = '([^']+)'", str(error))
    if said:
        return said.group(1)
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return " ".join(str(error).split())


@contextmanager
def file_errors(path: Path, doing: str, problem: type[EnvironmentProblem] = EnvironmentProblem) -> Iterator[None]:
    """Turn a failure of the file system or of HDF5 inside the block into ``problem``, one sentence. ``doing`` is a
    verb, such as "read" or "write", that says what was being done to ``path``.

    h5py reports a failed HDF5 call as OSError or RuntimeError, depending on HDF5's own error class.
    """
    try:
        with _nothing_ignored():
            yield
    except (OSError, RuntimeError) as error:
        remedy = (
            "the file is damaged or not readable"
            if doing == "read"
            else ("the folder must be writable, have free space and be the same on all hosts")
        )
        said = reason(error)
        if os.strerror(errno.EMFILE) in said:
            remedy = "raise the limit of open files (ulimit -n), or write fewer streams"
        if doing != "read" and os.strerror(errno.ENOSPC) not in said and _full(path):
            said = f"{os.strerror(errno.ENOSPC)} ({said})"  # MPI-IO gives no reason for a failed write
        raise problem(f"cannot {doing} {path}: {said}; {remedy}") from error


@contextmanager
def _nothing_ignored() -> Iterator[None]:
    """Raise, at the end of the block, the errors that h5py only prints. If HDF5 writes a cached chunk only when the
    dataset's handle is released, and fails, the value is lost although everything afterwards looks fine."""
    ignored: list[BaseException] = []
    before = sys.excepthook, sys.unraisablehook  # h5py's handles call both

    def note(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if isinstance(value, OSError | RuntimeError):
            ignored.append(value)
        else:
            before[0](kind, value, trace)

    def note_unraisable(told: sys.UnraisableHookArgs) -> None:
        if isinstance(told.exc_value, OSError | RuntimeError):
            ignored.append(told.exc_value)
        else:
            before[1](told)

    sys.excepthook, sys.unraisablehook = note, note_unraisable
    try:
        yield
    finally:
        sys.excepthook, sys.unraisablehook = before
    if ignored:
        raise ignored[0]


def _full(path: Path) -> bool:
    """Whether the file system of ``path`` reports that no space is left."""
    try:
        system = os.statvfs(path.parent)
    except OSError:
        return False
    return system.f_blocks > 0 and system.f_bavail * system.f_frsize < 2**16


def prepare_folder(path: Path, communicator: Communicator) -> None:
    """Create the folder of ``path`` if it is missing, and test on rank 0 that files can be created in it. The test
    leaves nothing behind. All processes call this together.

    Raises EnvironmentProblem on all of them.
    """

    def prepare() -> None:
        if communicator.rank == 0:
            with file_errors(path, "create"):
                path.parent.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=path.parent):
                    pass

    agree(communicator, prepare)


def reserve(path: Path, size: int, communicator: Communicator, allocate: bool = True, hollow: bool = False) -> None:
    """Ensure, before HDF5 begins to change ``path``, that it can grow by ``size`` bytes, or, if it is ``hollow``, that
    its holes of ``size`` bytes in all can be filled. All processes call this together.

    A disk that fills up during a flush makes the whole file unreadable, and only one process gets the error. Here all
    processes raise EnvironmentProblem and the file is untouched. With ``allocate`` the file system reserves the space
    if it can, so that quotas count; otherwise only its free space is checked.
    """

    def check() -> None:
        if communicator.rank == 0:
            with file_errors(path, "extend"):
                _reserve(path, size, allocate, hollow)

    agree(communicator, check)


def _reserve(path: Path, size: int, allocate: bool, hollow: bool) -> None:
    """Raise OSError if ``path`` cannot take ``size`` more bytes."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        length = os.fstat(descriptor).st_size
        start, end = (0, length) if hollow else (length, length + size)
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        if limit != resource.RLIM_INFINITY and end > limit:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        status = _allocate(descriptor, start, end - start) if allocate else errno.EOPNOTSUPP
    finally:
        os.close(descriptor)
    if status in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
        system = os.statvfs(path)
        known = system.f_blocks > 0
        status = errno.ENOSPC if known and system.f_bavail * system.f_frsize < size else 0
    if status:
        raise OSError(status, os.strerror(status))


def _allocate(descriptor: int, start: int, size: int) -> int:
    """Reserve bytes of an open file, also beyond its end, without changing its length; returns the errno, 0 for
    success.

    ``os.posix_fallocate`` would lengthen the file, and would write every block where the file system has no such call.
    """
    fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)  # Linux has it
    if fallocate is None:
        return errno.EOPNOTSUPP
    keep_size = 1  # FALLOC_FL_KEEP_SIZE
    return ctypes.get_errno() if fallocate(descriptor, keep_size, ctypes.c_int64(start), ctypes.c_int64(size)) else 0


# File systems on which MPI-IO needs locks that are often missing, slow or wrong.
NOT_FOR_MPIO = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "vboxsf", "virtiofs")


def sync(path: Path) -> None:
    """Wait until the contents of a file, or the names in a folder, are on disk. Raises OSError if that fails."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_system(folder: Path) -> str:
    """Linux's name for the type of the file system that holds ``folder`` ("ext4", "lustre", "nfs4" ...), according to
    the table of mounts; "" if it is unknown."""
    there, kind, deepest = folder.resolve(), "", -1
    try:
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    for line in mounts:
        left, right = line.split(" - ", 1)
        point = Path(left.split()[4].encode().decode("unicode_escape"))
        if (point == there or point in there.parents) and len(point.parts) >= deepest:
            deepest, kind = len(point.parts), right.split()[0]
    return kind
