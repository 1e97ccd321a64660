"""File-system helpers: error messages, folders, reserved space, syncs."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import resource
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from hpcstencil.runtime.communicator import Communicator, agree
from hpcstencil.validation.errors import EnvironmentProblem


def reason(error: BaseException) -> str:
    """Return the system's message in one line, extracted from the long text in which HDF5 wraps it."""
    said = re.search(r"error message = '([^']+)'", str(error))
    if said:
        return said.group(1)
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return " ".join(str(error).split())


@contextmanager
def file_errors(path: Path, doing: str, problem: type[EnvironmentProblem] = EnvironmentProblem) -> Iterator[None]:
    """Turn an error of the file system or of HDF5 inside the context into ``problem``, with a message of one sentence.

    ``doing`` is the verb, such as "read" or "write", for the operation on ``path``. h5py reports a failed HDF5 call as
    OSError or RuntimeError, depending on HDF5's own error class.
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
        if "locking flag" in said:
            remedy = "this process has it open with other settings: close it there first, for example xarray's dataset"
        if os.strerror(errno.EMFILE) in said:
            remedy = "raise the limit of open files (ulimit -n), or write fewer streams"
        if doing != "read" and os.strerror(errno.ENOSPC) not in said and _full(path):
            said = f"{os.strerror(errno.ENOSPC)} ({said})"  # MPI-IO gives no reason for a failed write
        raise problem(f"cannot {doing} {path}: {said}; {remedy}") from error


class _Ignored(threading.local):
    """Errors of this thread that h5py would only print: a list per open context of `_nothing_ignored`, the innermost last."""

    def __init__(self) -> None:
        self.lists: list[list[BaseException]] = []

    def noted(self, error: BaseException | None) -> bool:
        """Note an error of the file system, if this thread is in a context, and return whether it was noted."""
        if not self.lists or not isinstance(error, OSError | RuntimeError):
            return False
        self.lists[-1].append(error)
        return True


class _Hooks:
    """The hooks of sys that h5py's handles call. They note errors while a thread is in a context of `_nothing_ignored`."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # reentrant, since the handler of a signal may use a file
        self.contexts = 0  # open contexts of all threads
        self.ignored = _Ignored()

    def enter(self) -> None:
        """Install the hooks, unless another context has done so."""
        with self.lock:
            self.contexts += 1
            if self.contexts == 1:
                self.before = excepthook, unraisablehook = sys.excepthook, sys.unraisablehook

                def note(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
                    if not self.ignored.noted(value):
                        excepthook(kind, value, trace)

                def note_unraisable(unraisable: sys.UnraisableHookArgs) -> None:
                    if not self.ignored.noted(unraisable.exc_value):
                        unraisablehook(unraisable)

                sys.excepthook, sys.unraisablehook = self.installed = note, note_unraisable

    def leave(self) -> None:
        """Put back the former hooks after the last context, except where somebody has installed another one meanwhile."""
        with self.lock:
            self.contexts -= 1
            if self.contexts == 0 and sys.excepthook is self.installed[0]:
                sys.excepthook = self.before[0]
            if self.contexts == 0 and sys.unraisablehook is self.installed[1]:
                sys.unraisablehook = self.before[1]


_HOOKS = _Hooks()


@contextmanager
def _nothing_ignored() -> Iterator[None]:
    """Raise, at the end of the context, errors of this thread that h5py would only print.

    HDF5 may write a cached chunk only when the dataset's handle is released. If that fails, data are lost although no call
    has reported an error.
    """
    ignored: list[BaseException] = []
    _HOOKS.ignored.lists.append(ignored)
    _HOOKS.enter()
    try:
        yield
    finally:
        _HOOKS.leave()
        _HOOKS.ignored.lists.pop()
    if ignored:
        raise ignored[0]


def _full(path: Path) -> bool:
    """Return whether the file system of ``path`` reports that no space is left."""
    try:
        system = os.statvfs(path.parent)
    except OSError:
        return False
    return system.f_blocks > 0 and system.f_bavail * system.f_frsize < 2**16


def prepare_folder(path: Path, communicator: Communicator) -> None:
    """Create the folder of ``path`` if it is missing, and test that files can be created in it. Collective.

    Rank 0 does the work, and the test leaves nothing behind. If it fails, all processes raise EnvironmentProblem.
    """

    def prepare() -> None:
        if communicator.rank == 0:
            with file_errors(path, "create"):
                path.parent.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=path.parent):
                    pass

    agree(communicator, prepare)


def find_room(path: Path, communicator: Communicator) -> None:
    """Test that a page can be written beside ``path``, before all processes open it. Collective.

    Rank 0 does the work, and the test leaves nothing behind. If it fails, all processes raise EnvironmentProblem.
    """

    def write() -> None:
        if communicator.rank == 0:
            with file_errors(path, "open"), tempfile.TemporaryFile(dir=path.parent, buffering=0) as file:
                file.write(bytes(4096))

    agree(communicator, write)


def reserve(path: Path, size: int, communicator: Communicator, allocate: bool = True, hollow: bool = False) -> None:
    """Ensure that ``path`` can grow by ``size`` bytes before HDF5 begins to change it. Collective.

    If the file is ``hollow``, its holes, ``size`` bytes in total, are to be filled instead. With ``allocate``, the file
    system reserves the space if it can, so that quotas are considered; otherwise only its free space is checked.

    If there is no space, all processes raise EnvironmentProblem and the file is unchanged. A disk that filled up during a
    flush would make the whole file unreadable, and only one process would get the error.
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
    """Reserve space in an open file, possibly beyond its end, without changing its length; return the errno, or 0.

    ``os.posix_fallocate`` would lengthen the file. Where the file system does not support it, it would write every block.
    """
    fallocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)  # Linux has it
    if fallocate is None:
        return errno.EOPNOTSUPP
    keep_size = 1  # FALLOC_FL_KEEP_SIZE
    return ctypes.get_errno() if fallocate(descriptor, keep_size, ctypes.c_int64(start), ctypes.c_int64(size)) else 0


MOUNTS = Path("/proc/self/mountinfo")  # Linux's table of mounts
# File systems on which MPI-IO needs locks that are often missing, slow or wrong.
NOT_FOR_MPIO = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "vboxsf", "virtiofs")


def sync(path: Path) -> None:
    """Wait until the contents of a file, or the entries of a folder, are on disk. Raises OSError if that fails."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_system(folder: Path) -> str:
    """Return the type of the file system that holds ``folder`` ("ext4", "lustre", "nfs4", ...); "" if unknown.

    It is Linux's name in the table of mounts.
    """
    there, kind, deepest = folder.resolve(), "", -1
    try:
        mounts = MOUNTS.read_bytes().splitlines()
    except OSError:
        return ""
    for line in mounts:
        left, right = line.split(b" - ", 1)
        name = re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), left.split()[4])  # spaces and the like
        point = Path(os.fsdecode(name))
        if (point == there or point in there.parents) and len(point.parts) >= deepest:
            deepest, kind = len(point.parts), os.fsdecode(right.split()[0])
    return kind
