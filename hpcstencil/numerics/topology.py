"""Domain decomposition over processes, devices and tiles, as plain arithmetic without MPI and JAX.

The grid is cut into a Cartesian array of blocks, one per process. A process's block is cut into a Cartesian array of
device blocks, and a device's block into tiles. All splits are balanced: sizes along an axis differ by at most one cell.
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
    """All ways to write ``number`` as an ordered product of ``axes`` positive integers, as tuples."""
    if axes == 1:
        yield (number,)
        return
    small = [n for n in range(1, math.isqrt(max(number, 0)) + 1) if number % n == 0]
    for first in [*small, *(number // n for n in reversed(small) if n * n != number)]:
        for rest in factorizations(number // first, axes - 1):
            yield first, *rest


def halo_surface(shape: Sequence[int], parts: Sequence[int], periodic: Sequence[bool]) -> int:
    """The total number of cells next to the cuts that split ``shape`` into ``parts``, counted on one side of each cut.
    A periodic axis that is split has one more cut, where it wraps around."""
    total = math.prod(shape)
    cuts = [p if p > 1 and wraps else p - 1 for p, wraps in zip(parts, periodic, strict=True)]
    return sum(cut * (total // n) for cut, n in zip(cuts, shape, strict=True))


def best_parts(
    number: int, shape: Sequence[int], periodic: Sequence[bool], narrowest: Sequence[int]
) -> tuple[int, ...] | None:
    """The number of blocks per axis, with the product ``number``, that has the smallest halo surface; None if no choice
    fits. Blocks must be at least ``narrowest`` cells wide on every axis that is cut. Ties go to cutting the first axes
    (contiguous slabs)."""
    fitting = [
        parts
        for parts in factorizations(number, len(shape))
        if all(p == 1 or n // p >= max(w, 1) for p, n, w in zip(parts, shape, narrowest, strict=True))
    ]
    if not fitting:
        return None
    return min(fitting, key=lambda parts: (halo_surface(shape, parts, periodic), [-p for p in parts]))


def counts_that_work(limit: int, shape: Sequence[int], periodic: Sequence[bool], narrowest: Sequence[int]) -> list[int]:
    """The block counts from 1 to ``limit`` for which ``best_parts`` finds a decomposition."""
    return [n for n in range(1, limit + 1) if best_parts(n, shape, periodic, narrowest) is not None]


@dataclass(frozen=True)
class Topology:
    """The decomposition of a grid of ``shape`` cells as process ``rank`` sees it. All tuples have one entry per axis.

    ``processes``, ``devices`` (per process) and ``tiles`` (per device) are numbers of blocks. Ranks and devices are
    numbered in C order (the last axis varies fastest).
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
        """The Cartesian position of the block of process ``rank`` (default: this one), in blocks per axis."""
        return unravel(self.rank if rank is None else rank, self.processes)

    def block(self, rank: int | None = None) -> tuple[Range, ...]:
        """The global half-open index range per axis that process ``rank`` (default: this one) owns."""
        return tuple(map(split, self.shape, self.processes, self.place(rank)))

    def device_block(self, device: int, rank: int | None = None) -> tuple[Range, ...]:
        """The global half-open index range per axis that one device of process ``rank`` (default: this one) owns."""
        places = unravel(device, self.devices)
        ranges = []
        for (start, stop), parts, place in zip(self.block(rank), self.devices, places, strict=True):
            lower, upper = split(stop - start, parts, place)
            ranges.append((start + lower, start + upper))
        return tuple(ranges)

    def capacity(self) -> tuple[int, ...]:
        """The cells per axis of this process's largest device block. Every device's array has this shape, without ghost
        cells."""
        return tuple(
            -(-(stop - start) // parts) for (start, stop), parts in zip(self.block(), self.devices, strict=True)
        )

    def narrowest(self) -> tuple[int, ...]:
        """Cells per axis of the narrowest device block in the whole grid."""
        return tuple(n // p // d for n, p, d in zip(self.shape, self.processes, self.devices, strict=True))

    def is_split(self, axis: int) -> bool:
        """Whether the axis is cut between processes or between devices."""
        return self.processes[axis] * self.devices[axis] > 1

    def block_at(self, device: int, offset: Sequence[int]) -> tuple[int, int] | None:
        """(rank, device) of the block that lies ``offset`` blocks (-1, 0 or +1 per axis) from the block of ``device``
        of this process; None beyond a physical boundary."""
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
        """The rank of the next process along ``axis`` in ``direction`` (-1 or +1), which may be this one on a periodic
        axis; None beyond a physical boundary."""
        place = list(self.place())
        place[axis] += direction
        if not 0 <= place[axis] < self.processes[axis]:
            if not self.periodic[axis]:
                return None
            place[axis] %= self.processes[axis]
        return ravel(place, self.processes)


def unravel(index: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Cartesian position of ``index`` in C order."""
    position = []
    for n in reversed(shape):
        index, place = divmod(index, n)
        position.append(place)
    return tuple(reversed(position))


def ravel(position: Sequence[int], shape: Sequence[int]) -> int:
    """Index in C order of a Cartesian position."""
    index = 0
    for place, n in zip(position, shape, strict=True):
        index = index * n + place
    return index


def positions(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All Cartesian positions in C order."""
    return itertools.product(*map(range, shape))
