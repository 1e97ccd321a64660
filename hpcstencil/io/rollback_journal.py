"""The rollback journal, which undoes a change of an HDF5 file that a killed process has left unfinished.

HDF5 cannot change its metadata atomically. Before a change, all bytes of the file that it might modify are therefore copied
to ``NAME.h5.journal``, together with the file's length. The journal is on disk before the change begins, and is removed when
the change is on disk. If a journal is found later, the change is undone: the saved bytes are copied back, and the file is
truncated to its old length. SQLite uses the same order ("Atomic Commit In SQLite", sqlite.org).

The journal is small, because it leaves out bytes that no change modifies, above all the values of committed snapshots.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hpcstencil.runtime.hosts import born, host

Span = tuple[int, int]  # half-open range of bytes [start, stop)


@dataclass(frozen=True)
class Journal:
    """The state of a file before a change.

    ``length`` is the length of the file in bytes, and ``data`` the concatenated bytes of its ``spans``. ``writer`` identifies
    the process that began the change: (host, process id, start time in clock ticks since boot; None without /proc).
    """

    length: int
    spans: tuple[Span, ...]
    data: bytes
    writer: tuple[str, int, int | None]

    def pieces(self) -> Iterator[tuple[int, bytes]]:
        """Yield (start in the file, former bytes) of each span."""
        position = 0
        for start, stop in self.spans:
            yield start, self.data[position : position + stop - start]
            position += stop - start


def journal_path(path: Path) -> Path:
    """Return ``NAME.h5.journal`` beside the file ``NAME.h5``.

    For a link, it lies beside the target, where a program that opens the target directly finds it too.
    """
    return Path(f"{os.path.realpath(path)}.journal")


def begin(path: Path, untouched: Iterable[Span]) -> None:
    """Save all bytes of the file at ``path`` that are not ``untouched``, before a change.

    The journal is on disk when the call returns. Raises OSError.
    """
    length = path.stat().st_size
    spans = complement(untouched, length)
    with path.open("rb") as file:
        data = b"".join(_piece(file, span) for span in spans)
    said = {"length": length, "spans": spans, "writer": _myself(), "sha256": hashlib.sha256(data).hexdigest()}
    head = json.dumps(said).encode()
    temporary = journal_path(path).with_suffix(".journal.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(head + b"\n" + data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, journal_path(path))
    except OSError:
        with suppress(OSError):  # an incomplete journal would only take space, perhaps on a full disk
            temporary.unlink()
        raise


def commit(path: Path) -> None:
    """Wait until the changed file is on disk, then remove its journal. Raises OSError."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    journal_path(path).unlink(missing_ok=True)


def pending(path: Path) -> Journal | None:
    """Return the journal of an unfinished change of ``path``; None if there is none, or if the journal is incomplete."""
    try:
        content = journal_path(path).read_bytes()
    except FileNotFoundError:
        return None
    head, _, data = content.partition(b"\n")
    try:
        said = json.loads(head)
        sound = said["sha256"] == hashlib.sha256(data).hexdigest()
        spans = tuple((start, stop) for start, stop in said["spans"])
        return Journal(said["length"], spans, data, tuple(said["writer"])) if sound else None
    except (ValueError, KeyError, TypeError):
        return None


def roll_back(path: Path) -> bool:
    """Undo the unfinished change of ``path``, if there is one, and return whether there was one.

    Call this only while no run writes the file. It can be repeated if it is interrupted. Raises OSError.
    """
    journal = pending(path)
    if journal is None:
        return False
    with path.open("r+b") as file:
        for start, data in journal.pieces():
            file.seek(start)
            file.write(data)
        file.truncate(journal.length)
    commit(path)
    return True


def living_writer(path: Path, patience: float = 10.0) -> int | None:
    """Return the id of a process on this host that is in the middle of a change of ``path``; None if there is none.

    A process that is about to end, such as the last one of a killed run, gets ``patience`` seconds to do so.
    """
    deadline = time.monotonic() + patience
    while (journal := pending(path)) is not None:
        place, process, started = journal.writer
        if place != host() or born(process) != started:
            return None
        if time.monotonic() > deadline:
            return process
        time.sleep(0.1)
    return None


def _myself() -> tuple[str, int, int | None]:
    return host(), os.getpid(), born(os.getpid())


def complement(spans: Iterable[Span], length: int) -> list[Span]:
    """Return the parts of the byte range [0, length) that no span covers, in order."""
    rest, position = [], 0
    for start, stop in sorted(spans):
        if start > position:
            rest.append((position, min(start, length)))
        position = max(position, stop)
        if position >= length:
            return rest
    return [*rest, (position, length)]


def merged(spans: Iterable[Span]) -> list[Span]:
    """Return the union of ``spans``, in order and in as few spans as possible."""
    result: list[Span] = []
    for start, stop in sorted(spans):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(stop, result[-1][1]))
        else:
            result.append((start, stop))
    return result


def _piece(file: io.BufferedReader, span: Span) -> bytes:
    file.seek(span[0])
    return file.read(span[1] - span[0])


class Before(io.RawIOBase):
    """The file at ``path`` as it was before its unfinished change, for reading. h5py can open this object."""

    def __init__(self, path: Path, journal: Journal) -> None:
        self.file = path.open("rb", buffering=0)
        self.length = journal.length
        self.pieces = list(journal.pieces())
        self.position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.position, os.SEEK_END: self.length}[whence]
        self.position = base + offset
        return self.position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # any buffer, as h5py passes it
        """Fill the buffer with the next bytes of the file, where the journal's bytes take precedence.

        Returns the number of bytes read, which is smaller than the buffer at the end of the file.
        """
        wanted = min(len(buffer), max(0, self.length - self.position))
        self.file.seek(self.position)
        there = self.file.read(wanted)
        content = bytearray(there.ljust(wanted, b"\0"))
        for start, data in self.pieces:
            first, last = max(start, self.position), min(start + len(data), self.position + wanted)
            if first < last:
                content[first - self.position : last - self.position] = data[first - start : last - start]
        buffer[:wanted] = content
        self.position += wanted
        return wanted

    def close(self) -> None:
        self.file.close()
        super().close()
