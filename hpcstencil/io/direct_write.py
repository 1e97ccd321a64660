"""Direct writes: values go straight to the bytes where HDF5 keeps the chunks of a dataset, without HDF5 or MPI.

A thread can do this while the main thread of its process uses both. The dataset must be uncompressed, its chunks must
be allocated, and no other process may write the same cells.
"""

from __future__ import annotations

import errno
import itertools
import math
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcstencil.io.hdf5_access import check_type
from hpcstencil.runtime.filesystem import file_errors
from hpcstencil.runtime.threads import by_threads

SHORTEST_RUN = 512  # bytes on average; below it MPI-IO is faster, since it aggregates runs
FEW_RUNS = 1000  # below this count short runs do not matter
PAGE = 4096
MOST_AT_ONCE = 1024  # arrays per system call
LEAST_PAST = 2**20  # bytes from which on a chunk bypasses the page cache


@dataclass(frozen=True)
class Cut:
    """The part of a block that lies in one chunk of a dataset. ``chunk`` is the chunk's shape and ``corner`` its first
    cell in the dataset. ``inside`` are the part's cells in the chunk, and ``index`` its cells in the block. A part is
    ``whole`` if it has every cell that the dataset has in the chunk."""

    corner: tuple[int, ...]
    chunk: tuple[int, ...]
    inside: tuple[slice, ...]
    index: tuple[slice, ...]
    whole: bool

    @property
    def runs(self) -> int:
        """The number of contiguous runs in the file that the part consists of."""
        return 1 if self.whole else math.prod(_shape(self.inside)[: self.rows])

    @property
    def rows(self) -> int:
        """The number of leading axes over which the runs are enumerated. Along the axes after them the part is
        contiguous in the file."""
        shape = _shape(self.inside)
        axis = len(shape) - 1
        while axis > 0 and shape[axis] == self.chunk[axis]:
            axis -= 1
        return axis


def cuts(start: Sequence[int], shape: Sequence[int], chunk: Sequence[int], ends: Sequence[int]) -> list[Cut]:
    """The parts of a block of ``shape`` with its first cell at ``start``, one per chunk it touches, in a dataset of
    shape ``ends`` with chunks of shape ``chunk``."""
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
    """Whether ``parts`` of ``size`` bytes in total lie in many runs that are shorter than SHORTEST_RUN on average."""
    runs = sum(part.runs for part in parts)
    return runs > FEW_RUNS and size < runs * SHORTEST_RUN


Place = tuple[Cut, int]  # the byte of the file at which the chunk begins


def places(dataset: h5py.Dataset, start: Sequence[int], shape: Sequence[int]) -> list[Place] | None:
    """The place in the file of each part of a block, which has the given ``shape`` and its first cell at ``start``.
    None if the dataset is compressed, its chunks are not all allocated, or the block is scattered."""
    if dataset.compression is not None:
        return None
    parts = cuts(start, shape, dataset.chunks, dataset.shape)
    if scattered(parts, dataset.dtype.itemsize * math.prod(shape)):
        return None
    bytes_ = [dataset.id.get_chunk_info_by_coord(part.corner).byte_offset for part in parts]
    return None if None in bytes_ else list(zip(parts, bytes_, strict=True))


def placing(chunk: int) -> dict[str, int]:
    """Arguments of h5py.File for a file with chunks of ``chunk`` bytes. If that is a whole number of pages, large
    chunks are aligned to pages, so that they can be written straight from memory, past the page cache. Other chunks are
    not aligned, because every journal would copy the gaps."""
    return {"alignment_threshold": LEAST_PAST, "alignment_interval": PAGE} if chunk % PAGE == 0 else {}


def _pages(size: int) -> mmap.mmap:
    """Anonymous memory of whole pages, large ones where the system has them: the fewer pages, the cheaper the disk
    transfer. Shared memory, mmap's default, seldom gets large pages."""
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{size} bytes for what is written") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class Pieces:
    """A buffer for this process's block of ``dtype`` and local ``shape``, cut like the file: one piece per chunk, each
    in its own pages. A piece has the shape of its chunk if the block has all of it, else that of the part.

    Pages are pre-faulted: a first touch can cost more than the copy.
    """

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
        """Copy ``block`` into the buffer on all threads. It must have as many cells as the buffer."""
        block = block.reshape(self.shape)

        def copy(numbers: np.ndarray) -> None:
            for n in numbers:
                np.copyto(self.own(n), block[self.cuts[n].index])

        by_threads(copy, np.arange(len(self.cuts)))

    def own(self, n: int) -> np.ndarray:
        """The cells of the n-th piece that belong to the block, as a view."""
        return self.pieces[n][self.cuts[n].inside] if self.cuts[n].whole else self.pieces[n]

    def joined(self) -> np.ndarray:
        """The block as one array of the buffer's shape; a view if the buffer has a single piece."""
        if len(self.pieces) == 1 and self.pieces[0].shape == self.shape:
            return self.pieces[0]
        block = np.empty(self.shape, self.dtype)
        for n, cut in enumerate(self.cuts):
            block[cut.index] = self.own(n)
        return block


def as_cut(block: np.ndarray | Pieces, where: Sequence[Place]) -> np.ndarray | Pieces:
    """The block in a form that fits the places: joined into one array if its pieces differ from them, since the chunks
    of a continued file may differ from this run's."""
    if isinstance(block, Pieces) and [cut.index for cut in block.cuts] != [cut.index for cut, _ in where]:
        return block.joined()
    return block


class DirectWriter:
    """A writer of blocks to their places in the file at ``path``. It bypasses the page cache where the file system
    allows that: caching cells that nobody reads soon would cost processor time and memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: os.stat_result | None = None  # the file that the first write found
        self.buffer = _pages(PAGE)

    def write(self, parts: Sequence[tuple[np.ndarray | Pieces, Sequence[Place]]]) -> None:
        """Write blocks to their places, and wait until they are on disk. Raises OSError, also if another file has taken
        the place of the one that was written first."""
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
        """A file descriptor that bypasses the page cache; None if the system or the file system has none."""
        try:
            return os.open(self.path, os.O_WRONLY | os.O_DIRECT)
        except (OSError, AttributeError):  # missing on some systems and file systems
            return None

    def _write_chunk(self, cached: int, past: int | None, part: np.ndarray, cut: Cut, byte: int) -> None:
        """Write a chunk of which ``part`` is all that the dataset has; what lies beyond holds nothing. The chunk's
        whole pages go ``past`` the cache, if there is a descriptor for it."""
        content = self._in_order(part, cut, byte % PAGE)
        if past is None:  # or the chunk is too short
            return write_all(cached, [content], byte)
        head = -byte % PAGE
        tail = head + (len(content) - head) // PAGE * PAGE
        write_all(cached, [content[:head]], byte)
        _write_past(past, cached, [content[head:tail]], byte + head)
        write_all(cached, [content[tail:]], byte + tail)

    def _in_order(self, part: np.ndarray, cut: Cut, first: int) -> np.ndarray:
        """The bytes of a chunk, starting at byte ``first`` of a page: a view if they lie in memory like that, else a
        copy in the buffer."""
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


def own_write(
    file: h5py.File, writer: DirectWriter, start: Sequence[int], blocks: Mapping[str, np.ndarray | Pieces]
) -> Callable[[], None] | None:
    """A function that writes this process's own blocks straight to their places in the open ``file``; None if the
    places of some are not available. ``start`` is the global index of the blocks, which are local and without ghost
    cells.

    Raises TypeError if a block has another dtype than its dataset. The function raises EnvironmentProblem if writing
    fails.
    """
    asked = []
    for name, block in blocks.items():
        dataset = file[name]
        check_type(dataset, block.dtype)
        asked.append((block, places(dataset, start, block.shape)))
    found = [(as_cut(block, where), where) for block, where in asked if where is not None]

    def write() -> None:
        with file_errors(writer.path, "write"):
            writer.write(found)

    return write if len(found) == len(asked) else None


def _in_pages(part: np.ndarray, cut: Cut, byte: int) -> bool:
    """Whether a part lies in memory as its chunk does in the file, in whole pages of both."""
    in_order = part.shape == cut.chunk and part.flags.c_contiguous
    return in_order and not any(n % PAGE for n in (part.nbytes, part.ctypes.data, byte))


def _in_a_row(parts: Sequence[tuple[int, np.ndarray]]) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Join parts that are contiguous in the file: (first byte, parts). Each completed write wakes a thread, which takes
    a core from the computation."""
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
    """Write pages of memory past the cache if there is a descriptor for it, else through the cache."""
    if past is not None:
        try:
            return write_all(past, pages, byte)
        except OSError as error:
            if error.errno != errno.EINVAL:  # EINVAL: this file system needs another alignment
                raise
    write_all(cached, pages, byte)


def _write_runs(descriptor: int, part: np.ndarray, cut: Cut, byte: int) -> None:
    steps = [part.itemsize * math.prod(cut.chunk[axis + 1 :]) for axis in range(part.ndim)]
    corner = sum(s.start * step for s, step in zip(cut.inside, steps, strict=True))
    for index in np.ndindex(*part.shape[: cut.rows]):
        offset = sum(i * step for i, step in zip(index, steps, strict=False))
        write_all(descriptor, [part[index]], byte + corner + offset)


def write_all(descriptor: int, arrays: Sequence[np.ndarray], byte: int) -> None:
    """Write all values of the arrays, one after the other, from the byte ``byte`` of the file on. The system may write
    less than it is given, so this repeats. Raises OSError."""
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
