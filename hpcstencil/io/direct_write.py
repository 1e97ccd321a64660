"""Direct writes: values are written straight to the bytes of the file that hold a dataset's chunks, without HDF5 or MPI.

A thread can do this while the main thread of its process uses HDF5 and MPI. The dataset must be uncompressed, its chunks
must be allocated, and no other process may write the same cells.
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

SHORTEST_RUN = 512  # bytes; if runs are shorter on average, MPI-IO is faster, because it aggregates them
FEW_RUNS = 1000  # up to this number, short runs do not matter
PAGE = 4096
MOST_AT_ONCE = 1024  # most arrays per system call
LEAST_PAST = 2**20  # chunks of at least this many bytes bypass the page cache


@dataclass(frozen=True)
class Cut:
    """The part of a block that lies in one chunk of a dataset.

    ``chunk`` is the shape of the chunk and ``corner`` the index of its first cell in the dataset. ``inside`` are the slices
    of the part in the chunk, and ``index`` those in the block. A part is ``whole`` if it has all cells of the dataset in this
    chunk.
    """

    corner: tuple[int, ...]
    chunk: tuple[int, ...]
    inside: tuple[slice, ...]
    index: tuple[slice, ...]
    whole: bool

    @property
    def runs(self) -> int:
        """The number of contiguous runs in the file of which the part consists."""
        return 1 if self.whole else math.prod(_shape(self.inside)[: self.rows])

    @property
    def rows(self) -> int:
        """The number of leading axes over which runs are enumerated; along the other axes, the part is contiguous."""
        shape = _shape(self.inside)
        axis = len(shape) - 1
        while axis > 0 and shape[axis] == self.chunk[axis]:
            axis -= 1
        return axis


def cuts(start: Sequence[int], shape: Sequence[int], chunk: Sequence[int], ends: Sequence[int]) -> list[Cut]:
    """Divide a block of ``shape``, with its first cell at ``start``, into one part per chunk of the dataset.

    The dataset has the shape ``ends`` and chunks of shape ``chunk``.
    """
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
    """Return whether ``parts``, of ``size`` bytes in total, consist of many runs shorter than SHORTEST_RUN on average."""
    runs = sum(part.runs for part in parts)
    return runs > FEW_RUNS and size < runs * SHORTEST_RUN


Place = tuple[Cut, int]  # a part, and the byte offset of its chunk in the file


def places(dataset: h5py.Dataset, start: Sequence[int], shape: Sequence[int]) -> list[Place] | None:
    """Return the place in the file of each part of a block of ``shape``, with its first cell at ``start``.

    The result is None if the dataset is compressed, not all chunks are allocated, or the block is scattered.
    """
    if dataset.compression is not None:
        return None
    parts = cuts(start, shape, dataset.chunks, dataset.shape)
    if scattered(parts, dataset.dtype.itemsize * math.prod(shape)):
        return None
    bytes_ = [dataset.id.get_chunk_info_by_coord(part.corner).byte_offset for part in parts]
    return None if None in bytes_ else list(zip(parts, bytes_, strict=True))


def placing(chunk: int) -> dict[str, int]:
    """Return the arguments of h5py.File that align chunks of ``chunk`` bytes.

    If ``chunk`` is a multiple of the page size, large chunks are aligned to pages, so that they can be written straight from
    memory, bypassing the page cache. Other chunks are not aligned, because every journal would copy the gaps between them.
    """
    return {"alignment_threshold": LEAST_PAST, "alignment_interval": PAGE} if chunk % PAGE == 0 else {}


def _pages(size: int) -> mmap.mmap:
    """Allocate page-aligned anonymous memory, with huge pages where the system has them.

    The fewer the pages, the cheaper is a transfer to disk. The memory is private, because shared memory, the default of
    mmap, rarely gets huge pages. Raises MemoryError.
    """
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{size} bytes for what is written") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class Pieces:
    """A buffer for this process's block of ``dtype`` and local ``shape``, divided into one piece per chunk of the file.

    Each piece has its own pages. It has the shape of the chunk if the block covers the chunk, else that of the part. Pages
    are pre-faulted, because the first access to a page can cost more than the copy.
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
        """Copy ``block``, which must have as many cells as the buffer, into the buffer on all threads."""
        block = block.reshape(self.shape)

        def copy(numbers: np.ndarray) -> None:
            for n in numbers:
                np.copyto(self.own(n), block[self.cuts[n].index])

        by_threads(copy, np.arange(len(self.cuts)))

    def own(self, n: int) -> np.ndarray:
        """Return a view of the cells of the n-th piece that belong to the block."""
        return self.pieces[n][self.cuts[n].inside] if self.cuts[n].whole else self.pieces[n]

    def joined(self) -> np.ndarray:
        """Return the block as one array of the buffer's shape; a view if the buffer has a single piece."""
        if len(self.pieces) == 1 and self.pieces[0].shape == self.shape:
            return self.pieces[0]
        block = np.empty(self.shape, self.dtype)
        for n, cut in enumerate(self.cuts):
            block[cut.index] = self.own(n)
        return block


def as_cut(block: np.ndarray | Pieces, where: Sequence[Place]) -> np.ndarray | Pieces:
    """Return the block in a form that matches the places ``where``.

    If its pieces differ from them, the block is joined into one array. The chunks of a continued file may differ from those
    that this run would choose.
    """
    if isinstance(block, Pieces) and [cut.index for cut in block.cuts] != [cut.index for cut, _ in where]:
        return block.joined()
    return block


class DirectWriter:
    """A writer of blocks to their places in the file at ``path``.

    It bypasses the page cache where the file system allows this, because caching cells that are not read soon would cost
    processor time and memory. The first write opens the file, since thousands of processes that open it for each snapshot would
    keep a parallel file system busy.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cached: int | None = None  # a file descriptor
        self.past: int | None = None  # one that bypasses the page cache
        self.buffer = _pages(PAGE)

    def close(self) -> None:
        """Close the file. Raises OSError."""
        for descriptor in (self.cached, self.past):
            if descriptor is not None:
                os.close(descriptor)
        self.cached = self.past = None

    def write(self, parts: Sequence[tuple[np.ndarray | Pieces, Sequence[Place]]]) -> None:
        """Write blocks to their places, and wait until they are on disk.

        Raises OSError if that fails, or if the file has been replaced since the first write.
        """
        if self.cached is None:
            self.cached, self.past = os.open(self.path, os.O_WRONLY), self._open_past()
        cached, past = self.cached, self.past
        if not os.path.samestat(self.path.stat(), os.fstat(cached)):
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

    def _open_past(self) -> int | None:
        """Open a file descriptor that bypasses the page cache; return None if the (file) system does not support it."""
        try:
            return os.open(self.path, os.O_WRONLY | os.O_DIRECT)
        except (OSError, AttributeError):  # missing on some systems and file systems
            return None

    def _write_chunk(self, cached: int, past: int | None, part: np.ndarray, cut: Cut, byte: int) -> None:
        """Write a chunk whose cells in the dataset are all in ``part``; cells beyond the dataset are set to 0.

        The chunk's full pages bypass the page cache through the descriptor ``past``, if there is one.
        """
        content = self._in_order(part, cut, byte % PAGE)
        if past is None:  # or the chunk is too short
            return write_all(cached, [content], byte)
        head = -byte % PAGE
        tail = head + (len(content) - head) // PAGE * PAGE
        write_all(cached, [content[:head]], byte)
        _write_past(past, cached, [content[head:tail]], byte + head)
        write_all(cached, [content[tail:]], byte + tail)

    def _in_order(self, part: np.ndarray, cut: Cut, first: int) -> np.ndarray:
        """Return the bytes of a chunk, in memory that starts at byte ``first`` of a page.

        The result is a view of ``part`` if its memory already has this layout, else a copy in the buffer.
        """
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
    """Return a function that writes this process's blocks straight to their places in the open ``file``.

    The blocks are local, without ghost cells, at the global index ``start``. The function raises EnvironmentProblem if
    writing fails. The result is None if the places of some blocks are not available. Raises TypeError if the dtype of a block
    differs from that of its dataset.
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
    """Return whether a part has the same layout in memory as its chunk in the file, with both aligned to pages."""
    in_order = part.shape == cut.chunk and part.flags.c_contiguous
    return in_order and not any(n % PAGE for n in (part.nbytes, part.ctypes.data, byte))


def _in_a_row(parts: Sequence[tuple[int, np.ndarray]]) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Group parts that are contiguous in the file, and yield (first byte, parts).

    Fewer, longer writes are better, because each completed write wakes a thread, which takes a core from the computation.
    """
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
    """Write pages of memory through the descriptor ``past``, bypassing the cache, if possible; else through the cache."""
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
    """Write all values of the arrays, one after the other, from byte ``byte`` of the file on. Raises OSError.

    The system may write fewer bytes than requested, so the call is repeated until all are written.
    """
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
