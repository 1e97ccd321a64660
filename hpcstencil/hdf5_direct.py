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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

SHORTEST_RUN = 512  # bytes on average: what is cut finer is better written through MPI-IO, which puts it together
FEW_RUNS = 1000  # take no time, however short they are
PAGE = 4096
LEAST_PAST = 2**20  # bytes of a chunk that are worth it to be written past the system's cache


@dataclass(frozen=True)
class Place:
    """A part of a block in a chunk: the byte at which the ``chunk`` (its shape) begins, where the part is in the chunk and
    in the block. A ``whole`` one is all that the dataset has of the chunk."""

    byte: int
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


def places(dataset: h5py.Dataset, start: Sequence[int], shape: Sequence[int]) -> list[Place] | None:
    """Where the cells of a block of ``shape``, the first of which is ``start``, are in the file; None where they are
    compressed, HDF5 has not made room for all of them, or they are scattered in many runs of less than SHORTEST_RUN."""
    if dataset.compression is not None:
        return None
    result = []
    firsts = [
        range(a - a % c, a + n, c) if n else range(0) for a, n, c in zip(start, shape, dataset.chunks, strict=True)
    ]
    for corner in itertools.product(*firsts):
        place = dataset.id.get_chunk_info_by_coord(corner)
        if place.byte_offset is None:
            return None
        inside, index, whole = [], [], True
        for first, a, n, c, end in zip(corner, start, shape, dataset.chunks, dataset.shape, strict=True):
            low, high = max(first, a), min(first + c, a + n)
            whole = whole and low == first and high == min(first + c, end)
            inside.append(slice(low - first, high - first))
            index.append(slice(low - a, high - a))
        result.append(Place(place.byte_offset, dataset.chunks, tuple(inside), tuple(index), whole))
    runs = sum(place.runs for place in result)
    scattered = runs > FEW_RUNS and dataset.dtype.itemsize * math.prod(shape) < runs * SHORTEST_RUN
    return None if scattered else result


class DirectWriter:
    """Writes blocks to their places in the file at ``path``, past the system's cache of pages where it can: that would cost the
    processor, and memory, for cells that nobody reads soon."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.buffer = mmap.mmap(-1, PAGE)

    def write(self, parts: Sequence[tuple[np.ndarray, Sequence[Place]]]) -> None:
        """Write blocks, and wait until the disk has them. Raises OSError."""
        cached, past = os.open(self.path, os.O_WRONLY), self._open_past()
        try:
            for block, where in parts:
                for place in where:
                    part = block[place.index]
                    if place.whole:
                        self._write_chunk(cached, past if part.nbytes >= LEAST_PAST else None, part, place)
                    else:
                        _write_runs(cached, part, place)
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

    def _write_chunk(self, cached: int, past: int | None, part: np.ndarray, place: Place) -> None:
        """A chunk of which ``part`` is all that the dataset has; what is beyond holds nothing. Its whole pages, from pages of
        memory, go ``past`` the cache, if there is a way."""
        size = part.itemsize * math.prod(place.chunk)
        first = place.byte % PAGE
        if len(self.buffer) < first + size:
            self.buffer = mmap.mmap(-1, first + size)
        chunk = np.frombuffer(self.buffer, part.dtype, math.prod(place.chunk), first).reshape(place.chunk)
        if part.shape != place.chunk:
            chunk[...] = 0
        chunk[place.inside] = part
        content = np.frombuffer(self.buffer, np.uint8, size, first)
        if past is not None:
            head = -place.byte % PAGE
            tail = head + (size - head) // PAGE * PAGE
            try:
                write_all(past, content[head:tail], place.byte + head)
            except OSError as error:
                if error.errno != errno.EINVAL:  # which says that this file system wants something else
                    raise
            else:
                write_all(cached, content[:head], place.byte)
                write_all(cached, content[tail:], place.byte + tail)
                return
        write_all(cached, content, place.byte)


def _write_runs(descriptor: int, part: np.ndarray, place: Place) -> None:
    steps = [part.itemsize * math.prod(place.chunk[axis + 1 :]) for axis in range(part.ndim)]
    corner = sum(s.start * step for s, step in zip(place.inside, steps, strict=True))
    for index in np.ndindex(*part.shape[: place.rows]):
        offset = sum(i * step for i, step in zip(index, steps, strict=False))
        write_all(descriptor, part[index], place.byte + corner + offset)


def write_all(descriptor: int, values: np.ndarray, byte: int) -> None:
    """All of the values, though the system may write less than it is given. Raises OSError."""
    left = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    while len(left):
        written = os.pwrite(descriptor, left.data, byte)
        left, byte = left[written:], byte + written


def _shape(slices: Sequence[slice]) -> tuple[int, ...]:
    return tuple(s.stop - s.start for s in slices)
