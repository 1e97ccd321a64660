"""Values written straight to where HDF5 keeps the chunks of a dataset, without HDF5 or MPI: what a thread may do while the main
thread of its process uses both.

The dataset must be uncompressed and its chunks allocated; whoever writes owns its cells alone.
"""

from __future__ import annotations

import errno
import itertools
import math
import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcstencil.runtime.threads import by_threads

SHORTEST_RUN = 512  # bytes on average: what is cut finer is better written through MPI-IO, which puts it together
FEW_RUNS = 1000  # take no time, however short they are
PAGE = 4096
MOST_AT_ONCE = 1024  # arrays that the system writes in one go
LEAST_PAST = 2**20  # bytes of a chunk that are worth it to be written past the system's cache


@dataclass(frozen=True)
class Cut:
    """A part of a block in a ``chunk`` (its shape), which begins at ``corner``: where it is in the chunk and in the block. A
    ``whole`` one is all that the dataset has of the chunk."""

    corner: tuple[int, ...]
    chunk: tuple[int, ...]
    inside: tuple[slice, ...]
    index: tuple[slice, ...]
    whole: bool

    @property
    def runs(self) -> int:
        """In how many pieces the part is in the file."""
        return 1 if self.whole else math.prod(_shape(self.inside)[: self.rows])

    @property
    def rows(self) -> int:
        """How many of the first axes are gone through from piece to piece."""
        shape = _shape(self.inside)
        axis = len(shape) - 1
        while axis > 0 and shape[axis] == self.chunk[axis]:
            axis -= 1
        return axis


def cuts(start: Sequence[int], shape: Sequence[int], chunk: Sequence[int], ends: Sequence[int]) -> list[Cut]:
    """The parts of a block of ``shape`` from cell ``start`` on, in the chunks of a dataset that ``ends`` there."""
    result = []
    firsts = [range(a - a % c, a + n, c) if n else range(0) for a, n, c in zip(start, shape, chunk, strict=True)]
    for corner in itertools.product(*firsts):
        inside, index, whole = [], [], True
        for first, a, n, c, end in zip(corner, start, shape, chunk, ends, strict=True):
            low, high = max(first, a), min(first + c, a + n)
            whole = whole and low == first and high == min(first + c, end)
            inside.append(slice(low - first, high - first))
            index.append(slice(low - a, high - a))
        result.append(Cut(corner, tuple(chunk), tuple(inside), tuple(index), whole))
    return result


def scattered(parts: Sequence[Cut], size: int) -> bool:
    """Whether parts of so many bytes are in many runs of less than SHORTEST_RUN."""
    runs = sum(part.runs for part in parts)
    return runs > FEW_RUNS and size < runs * SHORTEST_RUN


Place = tuple[Cut, int]  # the byte of the file at which the chunk begins


def places(dataset: h5py.Dataset, start: Sequence[int], shape: Sequence[int]) -> list[Place] | None:
    """Where the cells of a block of ``shape``, the first of which is ``start``, are in the file; None where they are
    compressed, HDF5 has not made room for all of them, or they are scattered."""
    if dataset.compression is not None:
        return None
    parts = cuts(start, shape, dataset.chunks, dataset.shape)
    if scattered(parts, dataset.dtype.itemsize * math.prod(shape)):
        return None
    bytes_ = [dataset.id.get_chunk_info_by_coord(part.corner).byte_offset for part in parts]
    return None if None in bytes_ else list(zip(parts, bytes_, strict=True))


def placing(chunk: int) -> dict[str, int]:
    """How h5py is to place chunks of so many bytes: those of whole pages begin with a page, so that they are written past the
    system's cache from where they lie. Others would leave gaps, which every journal would keep."""
    return {"alignment_threshold": LEAST_PAST, "alignment_interval": PAGE} if chunk % PAGE == 0 else {}


def _pages(size: int) -> mmap.mmap:
    """Whole pages of memory, large ones where the system has them: of few pages it takes little time to tell the disk. Shared
    memory, the default, is seldom given large ones."""
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{size} bytes for what is written") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class Pieces:
    """Memory for a block, cut as the file is, each piece in pages of its own: a chunk, where the block has all of it. It is
    touched when it is made: memory that a process has never had may take longer to be given than to be written to."""

    def __init__(self, dtype: Any, shape: tuple[int, ...], parts: Sequence[Cut]) -> None:
        self.dtype, self.shape, self.cuts = np.dtype(dtype), shape, parts
        shapes = [cut.chunk if cut.whole else _shape(cut.inside) for cut in parts]
        ends = list(itertools.accumulate(-(-self.dtype.itemsize * math.prod(each) // PAGE) * PAGE for each in shapes))
        memory = _pages(max([PAGE, *ends[-1:]]))
        np.frombuffer(memory, np.uint8)[::PAGE] = 0
        self.pieces = [
            np.frombuffer(memory, self.dtype, math.prod(each), first).reshape(each)
            for each, first in zip(shapes, [0, *ends], strict=False)
        ]

    def take(self, block: np.ndarray) -> None:
        """Copy a block."""
        block = block.reshape(self.shape)

        def copy(numbers: np.ndarray) -> None:
            for n in numbers:
                np.copyto(self.own(n), block[self.cuts[n].index])

        by_threads(copy, np.arange(len(self.cuts)))

    def own(self, n: int) -> np.ndarray:
        """The cells of the n-th piece that are the block's."""
        return self.pieces[n][self.cuts[n].inside] if self.cuts[n].whole else self.pieces[n]

    def joined(self) -> np.ndarray:
        """The block; where it is one piece, that itself."""
        if len(self.pieces) == 1 and self.pieces[0].shape == self.shape:
            return self.pieces[0]
        block = np.empty(self.shape, self.dtype)
        for n, cut in enumerate(self.cuts):
            block[cut.index] = self.own(n)
        return block


def as_cut(block: np.ndarray | Pieces, where: Sequence[Place]) -> np.ndarray | Pieces:
    """The block, in one where its pieces are not those of the places: a file that is continued may be cut in another way."""
    if isinstance(block, Pieces) and [cut.index for cut in block.cuts] != [cut.index for cut, _ in where]:
        return block.joined()
    return block


class DirectWriter:
    """Writes blocks to their places in the file at ``path``, past the system's cache of pages where it can: that would cost the
    processor, and memory, for cells that nobody reads soon."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: os.stat_result | None = None  # that was written first
        self.buffer = _pages(PAGE)

    def write(self, parts: Sequence[tuple[np.ndarray | Pieces, Sequence[Place]]]) -> None:
        """Write blocks, and wait until the disk has them. Raises OSError."""
        cached, past = os.open(self.path, os.O_WRONLY), self._open_past()
        try:
            self.file = self.file or os.fstat(cached)
            if not os.path.samestat(self.file, os.fstat(cached)):
                raise OSError("replaced by somebody else while this run was writing it")
            for block, where in parts:
                pages: list[tuple[int, np.ndarray]] = []
                for n, (cut, byte) in enumerate(where):
                    part = block.pieces[n] if isinstance(block, Pieces) else block[cut.index]
                    if not cut.whole:
                        _write_runs(cached, part, cut, byte)
                    elif part.nbytes >= LEAST_PAST and _in_pages(part, cut, byte):
                        pages.append((byte, part))
                    else:
                        self._write_chunk(cached, past if part.nbytes >= LEAST_PAST else None, part, cut, byte)
                for byte, row in _in_a_row(pages):
                    _write_past(past, cached, row, byte)
            os.fsync(cached)
        finally:
            os.close(cached)
            if past is not None:
                os.close(past)

    def _open_past(self) -> int | None:
        try:
            return os.open(self.path, os.O_WRONLY | os.O_DIRECT)
        except (OSError, AttributeError):  # not every file system, nor system, has it
            return None

    def _write_chunk(self, cached: int, past: int | None, part: np.ndarray, cut: Cut, byte: int) -> None:
        """A chunk of which ``part`` is all that the dataset has; what is beyond holds nothing. Its whole pages, from pages of
        memory, go ``past`` the cache, if there is a way."""
        content = self._in_order(part, cut, byte % PAGE)
        if past is None:  # or too short for it
            return write_all(cached, [content], byte)
        head = -byte % PAGE
        tail = head + (len(content) - head) // PAGE * PAGE
        write_all(cached, [content[:head]], byte)
        _write_past(past, cached, [content[head:tail]], byte + head)
        write_all(cached, [content[tail:]], byte + tail)

    def _in_order(self, part: np.ndarray, cut: Cut, first: int) -> np.ndarray:
        """The bytes of a chunk, from byte ``first`` of a page on: where they are, if they are so, or in the buffer."""
        if part.shape == cut.chunk and part.flags.c_contiguous and part.ctypes.data % PAGE == first:
            return part.reshape(-1).view(np.uint8)
        cells = math.prod(cut.chunk)
        size = part.itemsize * cells
        if len(self.buffer) < first + size:
            self.buffer = _pages(first + size)
        chunk = np.frombuffer(self.buffer, part.dtype, cells, first).reshape(cut.chunk)
        if part.shape != cut.chunk:
            chunk[...] = 0
            chunk = chunk[cut.inside]
        chunk[...] = part
        return np.frombuffer(self.buffer, np.uint8, size, first)


def _in_pages(part: np.ndarray, cut: Cut, byte: int) -> bool:
    """Whether a part lies in memory as its chunk does in the file, in whole pages of both."""
    in_order = part.shape == cut.chunk and part.flags.c_contiguous
    return in_order and not any(n % PAGE for n in (part.nbytes, part.ctypes.data, byte))


def _in_a_row(parts: Sequence[tuple[int, np.ndarray]]) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Parts with their place in the file, those together that follow each other there: each time that the disk is done with
    one, the thread that waits for it takes a core from a computation."""
    first, end, row = 0, 0, list[np.ndarray]()
    for byte, part in sorted(parts, key=lambda known: known[0]):
        if row and byte != end:
            yield first, row
            row = []
        first, end = first if row else byte, byte + part.nbytes
        row.append(part)
    if row:
        yield first, row


def _write_past(past: int | None, cached: int, pages: Sequence[np.ndarray], byte: int) -> None:
    """Write pages of memory past the cache, if there is a way."""
    if past is not None:
        try:
            return write_all(past, pages, byte)
        except OSError as error:
            if error.errno != errno.EINVAL:  # which says that this file system wants something else
                raise
    write_all(cached, pages, byte)


def _write_runs(descriptor: int, part: np.ndarray, cut: Cut, byte: int) -> None:
    steps = [part.itemsize * math.prod(cut.chunk[axis + 1 :]) for axis in range(part.ndim)]
    corner = sum(s.start * step for s, step in zip(cut.inside, steps, strict=True))
    for index in np.ndindex(*part.shape[: cut.rows]):
        offset = sum(i * step for i, step in zip(index, steps, strict=False))
        write_all(descriptor, [part[index]], byte + corner + offset)


def write_all(descriptor: int, arrays: Sequence[np.ndarray], byte: int) -> None:
    """All values of the arrays, one after the other, though the system may write less than it is given. Raises OSError."""
    left = [np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in arrays]
    while left:
        written = os.pwritev(descriptor, [array.data for array in left[:MOST_AT_ONCE]], byte)
        byte += written
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]


def _shape(slices: Sequence[slice]) -> tuple[int, ...]:
    return tuple(s.stop - s.start for s in slices)
