"""Anonymous memory that the processes of one host share."""

from __future__ import annotations

import mmap
import os

from hpcstencil.runtime.communicator import Communicator


def shared_memory(size: int, communicator: Communicator) -> mmap.mmap | None:
    """Map ``size`` bytes of zeroed memory that all processes of ``communicator`` share. Collective.

    The result is None on all processes if one of them cannot map the memory. The memory has no name in the file system, so
    it is freed when the last process ends, even by a crash.
    """
    descriptor, place, memory = None, None, None
    if communicator.rank == 0:
        try:
            descriptor = os.memfd_create("hpcstencil", os.MFD_CLOEXEC)
            os.posix_fallocate(descriptor, 0, size)
            place = (f"/proc/{os.getpid()}/fd/{descriptor}", _identity(descriptor))
        except OSError:
            pass  # no room
    place = communicator.broadcast(place)
    if place is not None:
        try:
            with open(place[0], "r+b") as file:
                # Where process numbers are separate, as in containers, this one may belong to another process.
                if _identity(file.fileno()) == place[1]:
                    memory = mmap.mmap(file.fileno(), size)
        except (OSError, ValueError):
            memory = None
    missing = communicator.any(memory is None)
    if descriptor is not None:
        os.close(descriptor)
    return None if missing else memory


def _identity(descriptor: int) -> tuple[int, int]:
    """Return the device and inode of an open file, which identify its memory."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
