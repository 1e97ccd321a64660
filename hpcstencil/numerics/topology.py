"""Domain decomposition over processes, devices and tiles, as plain arithmetic without MPI and JAX.

The grid is split into a Cartesian array of blocks, one per process. The block of a process is split into a Cartesian
array of device blocks, and each device block into tiles. All splits are balanced: along an axis, the parts of a split
differ by at most one cell. Index ranges are half-open, (start, stop).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Range = tuple[int, int]


def split(cells: int, parts: int, index: int) -> Range:
    """The half-open index range of part ``index`` (from 0) when ``cells`` cells are split into ``parts`` parts as
    evenly as possible. The first parts get the extra cells."""
    size, extra = divmod(cells, parts)
    start = index * size + min(index, extra)
    return start, start + size + (index < extra)


def factorizations(number: int, axes: int) -> Iterator[tuple[int, ...]]:
    """Yield all tuples of ``axes`` positive integers whose product is ``number``."""
    if axes == 1:
        yield (number,)
        return
    small = [n for n in range(1, math.isqrt(max(number, 0)) + 1) if number % n == 0]
    for first in [*small, *(number // n for n in reversed(small) if n * n != number)]:
        for rest in factorizations(number // first, axes - 1):
            yield first, *rest


def halo_surface(shape: Sequence[int], parts: Sequence[int], periodic: Sequence[bool]) -> int:
    """The number of cells next to the cuts between blocks, counted on one side of each cut: a measure of communication.

    ``shape`` is in cells and ``parts`` in blocks per axis. A periodic axis that is split has one more cut, where it
    wraps around.
    """
    total = math.prod(shape)
    cuts = [p if p > 1 and wraps else p - 1 for p, wraps in zip(parts, periodic, strict=True)]
    return sum(cut * (total // n) for cut, n in zip(cuts, shape, strict=True))


def best_parts(
    number: int, shape: Sequence[int], periodic: Sequence[bool], narrowest: Sequence[int]
) -> tuple[int, ...] | None:
    """The decomposition into ``number`` blocks with the smallest halo surface, as the number of blocks per axis.

    Blocks must be at least ``narrowest`` cells wide along every axis that is split; None if that is impossible. Among
    equal surfaces, the first axes are split, which gives contiguous slabs.
    """
    if number > math.prod(shape):  # numbers with many digits take long to factorize
        return None
    fitting = [
        parts
        for parts in factorizations(number, len(shape))
        if all(p == 1 or n // p >= max(w, 1) for p, n, w in zip(parts, shape, narrowest, strict=True))
    ]
    if not fitting:
        return None
    return min(fitting, key=lambda parts: (halo_surface(shape, parts, periodic), [-p for p in parts]))


def counts_that_work(limit: int, shape: Sequence[int], periodic: Sequence[bool], narrowest: Sequence[int]) -> list[int]:
    """The numbers of blocks from 1 to ``limit`` for which `best_parts` finds a decomposition."""
    return [n for n in range(1, limit + 1) if best_parts(n, shape, periodic, narrowest) is not None]


@dataclass(frozen=True)
class Topology:
    """The decomposition of a global grid of ``shape`` cells, as seen by process ``rank``.

    ``processes``, ``devices`` (per process) and ``tiles`` (per device) are numbers of blocks. All tuples have one entry
    per axis. Ranks and devices are numbered in C order: the last axis varies fastest.
    """

    shape: tuple[int, ...]
    periodic: tuple[bool, ...]
    processes: tuple[int, ...]
    devices: tuple[int, ...]
    tiles: tuple[int, ...]
    rank: int = 0

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of processes."""
        return math.prod(self.processes)

    @property
    def device_count(self) -> int:
        """Number of devices per process."""
        return math.prod(self.devices)

    def place(self, rank: int | None = None) -> tuple[int, ...]:
        """The Cartesian position, in blocks per axis, of the block of process ``rank`` (default: this process)."""
        return unravel(self.rank if rank is None else rank, self.processes)

    def block(self, rank: int | None = None) -> tuple[Range, ...]:
        """The global index range per axis that process ``rank`` (default: this process) owns, without ghost cells."""
        return tuple(map(split, self.shape, self.processes, self.place(rank)))

    def device_block(self, device: int, rank: int | None = None) -> tuple[Range, ...]:
        """The global index range per axis that one device of process ``rank`` (default: this process) owns, without
        ghost cells."""
        places = unravel(device, self.devices)
        ranges = []
        for (start, stop), parts, place in zip(self.block(rank), self.devices, places, strict=True):
            lower, upper = split(stop - start, parts, place)
            ranges.append((start + lower, start + upper))
        return tuple(ranges)

    def capacity(self) -> tuple[int, ...]:
        """The number of cells per axis of the largest device block of this process, without ghost cells.

        The arrays of all its devices have this shape; smaller blocks do not fill it.
        """
        return tuple(
            -(-(stop - start) // parts) for (start, stop), parts in zip(self.block(), self.devices, strict=True)
        )

    def narrowest(self) -> tuple[int, ...]:
        """The number of cells per axis of the narrowest device block in the whole grid."""
        return tuple(n // p // d for n, p, d in zip(self.shape, self.processes, self.devices, strict=True))

    def is_split(self, axis: int) -> bool:
        """Whether the axis is split between processes or between devices."""
        return self.processes[axis] * self.devices[axis] > 1

    def block_at(self, device: int, offset: Sequence[int]) -> tuple[int, int] | None:
        """(rank, device) of the block at an ``offset`` of -1, 0 or +1 per axis from the block of ``device`` of this
        process; None outside a non-periodic boundary."""
        ranks, devices = [], []
        here = zip(self.place(), unravel(device, self.devices), strict=True)
        for axis, (process, inside) in enumerate(here):
            parts = self.processes[axis] * self.devices[axis]
            block = process * self.devices[axis] + inside + offset[axis]
            if not 0 <= block < parts and not self.periodic[axis]:
                return None
            ranks.append(block % parts // self.devices[axis])
            devices.append(block % parts % self.devices[axis])
        return ravel(ranks, self.processes), ravel(devices, self.devices)

    def neighbour(self, axis: int, direction: int) -> int | None:
        """The rank of the neighbouring process along ``axis`` in ``direction`` (-1 or +1).

        On a periodic axis it may be this process itself. None outside a non-periodic boundary.
        """
        place = list(self.place())
        place[axis] += direction
        if not 0 <= place[axis] < self.processes[axis]:
            if not self.periodic[axis]:
                return None
            place[axis] %= self.processes[axis]
        return ravel(place, self.processes)


def unravel(index: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The Cartesian position of a flat ``index`` in C order. The inverse of `ravel`."""
    position = []
    for n in reversed(shape):
        index, place = divmod(index, n)
        position.append(place)
    return tuple(reversed(position))


def ravel(position: Sequence[int], shape: Sequence[int]) -> int:
    """The flat index in C order of a Cartesian position."""
    index = 0
    for place, n in zip(position, shape, strict=True):
        index = index * n + place
    return index


def positions(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield all Cartesian positions in an array of this ``shape``, in C order."""
    return itertools.product(*map(range, shape))
