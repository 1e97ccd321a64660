"""Standard streams that never fail: a run does not depend on whether anybody reads its messages.

The terminal may be closed, the disk full, or the reader of a pipe gone. A closed descriptor's number would go to the
next file that is opened, and messages to standard error would be written into that file.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any, TextIO


class Lossy(io.FileIO):
    """A file descriptor to which writes always succeed. ``failure`` is the errno of the first write that failed, 0 if
    there is none."""

    failure = 0

    def write(self, data: Any) -> int:
        """Write the data, or drop it if that fails; returns the number of bytes taken, as if all had been written."""
        try:
            written = super().write(data)
        except OSError as error:
            self.failure = self.failure or error.errno or errno.EIO
            return len(data)
        return len(data) if written is None else written  # None: the descriptor does not block and has no room


def secure() -> None:
    """Open closed standard descriptors on the null device, and replace sys.stdout and sys.stderr by streams to which
    writes never fail."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest number that is free
    sys.stdout, sys.stderr = _lossy(1, sys.stdout), _lossy(2, sys.stderr)


def _lossy(number: int, before: TextIO | None) -> TextIO:
    """A text stream on a descriptor whose writes never fail, with the encoding of the stream ``before``."""
    return io.TextIOWrapper(
        io.BufferedWriter(Lossy(number, "wb", closefd=False)),
        encoding=getattr(before, "encoding", "utf-8"),
        errors="backslashreplace",
        line_buffering=number == 2 or os.isatty(number),
    )


def unread() -> str:
    """Why results on standard output were lost, in the system's words; "" if nothing was lost, or if the reader of a
    pipe has left."""
    sys.stdout.flush()
    number: int = getattr(getattr(sys.stdout.buffer, "raw", None), "failure", 0)
    return "" if number in (0, errno.EPIPE) else os.strerror(number)
