"""Standard streams whose writes never fail, so that a run does not depend on whether anybody reads its messages.

The terminal may be closed, the disk full, or the reader of a pipe gone. If a standard descriptor were closed, the next file
opened would get its number, and messages would be written into that file.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any, TextIO


class Lossy(io.FileIO):
    """A raw stream whose writes always appear to succeed. ``failure`` is the errno of the first failed write, or 0."""

    failure = 0

    def write(self, data: Any) -> int:
        """Write the data, or drop it if that fails; return the number of bytes accepted."""
        try:
            written = super().write(data)
        except OSError as error:
            self.failure = self.failure or error.errno or errno.EIO
            return len(data)
        return len(data) if written is None else written  # None: the descriptor does not block and has no room


def secure() -> None:
    """Open closed standard descriptors on the null device, and make writes to sys.stdout and sys.stderr never fail."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest number that is free
    sys.stdout, sys.stderr = _lossy(1, sys.stdout), _lossy(2, sys.stderr)


def _lossy(number: int, before: TextIO | None) -> TextIO:
    """Return a text stream on a descriptor whose writes never fail, with the encoding of the stream ``before``."""
    return io.TextIOWrapper(
        io.BufferedWriter(Lossy(number, "wb", closefd=False)),
        encoding=getattr(before, "encoding", "utf-8"),
        errors="backslashreplace",
        line_buffering=number == 2 or os.isatty(number),
    )


def unread() -> str:
    """Return the system's error message if results on standard output were lost; else "".

    A reader that has closed its pipe does not count as a loss.
    """
    sys.stdout.flush()
    number: int = getattr(getattr(sys.stdout.buffer, "raw", None), "failure", 0)
    return "" if number in (0, errno.EPIPE) else os.strerror(number)
