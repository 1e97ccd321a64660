"""The memory layout of a block's edges, as edge_exchange.hpp expects it.

A page with the epochs comes first, then two buffers. For each decomposed axis, a buffer holds the strips of the lower and
the upper side. A strip is an array of shape (fields, cells per axis) with the ``width`` outermost cells of the block. There
are always three axes (`passes.AXIS_OF`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from hpcstencil.backends.native.passes import AXIS_OF
from hpcstencil.numerics.topology import Topology

PAGE = 4096
Offset = tuple[int, int, int]  # of a block, in blocks per axis: -1, 0 or 1
OFFSETS: list[Offset] = list(itertools.product((-1, 0, 1), repeat=3))  # type: ignore[arg-type]  # of three numbers each
HERE: Offset = (0, 0, 0)
Box = list[tuple[int, int, int]]  # part of a strip: (size, first cell, number of cells) along each axis of its array


@dataclass(frozen=True)
class EdgeLayout:
    """The layout of the edge memory of one block and of its neighbours.

    ``widths`` is the number of cells exchanged per axis of the driver. ``cells`` holds, per axis, the numbers of cells of
    the block below, of this block, and of the block above. A cell has ``fields`` values of ``itemsize`` bytes.
    """

    widths: tuple[int, int, int]
    cells: tuple[tuple[int, int, int], ...]
    fields: int
    itemsize: int

    @classmethod
    def of(cls, topology: Topology, device: int, widths: Sequence[int], fields: int, itemsize: int) -> EdgeLayout:
        """Return the layout for the block of this process's ``device``. ``widths`` has one entry per axis of the grid."""
        width, cells = [0, 0, 0], [[1, 1, 1] for _ in range(3)]
        for axis, b in enumerate(AXIS_OF[topology.ndim]):
            width[b] = widths[axis]
            for d in (-1, 0, 1) if widths[axis] else (0,):
                block = topology.block_at(device, [d * (a == axis) for a in range(topology.ndim)])
                if block is not None:
                    start, stop = topology.device_block(block[1], block[0])[axis]
                    cells[b][1 + d] = stop - start
        return cls((width[0], width[1], width[2]), tuple((n[0], n[1], n[2]) for n in cells), fields, itemsize)

    def shape(self, offset: Offset, axis: int) -> list[int]:
        """Return the shape [fields, cells per axis] of the strips along ``axis`` of the block at ``offset``."""
        cells = [self.widths[b] if b == axis else self.cells[b][1 + offset[b]] for b in range(3)]
        return [self.fields, *cells]

    def start(self, offset: Offset, axis: int, side: int, buffer: int) -> int:
        """Return the byte offset of a strip in the edge memory of the block at ``offset``.

        The strip is on the lower (0) or upper (1) ``side`` of ``axis``, in ``buffer`` 0 or 1.
        """
        strips = [math.prod(self.shape(offset, b)) for b in range(3)]
        cells = buffer * 2 * sum(strips) + 2 * sum(strips[:axis]) + side * strips[axis]
        return PAGE + cells * self.itemsize

    def read_here(self, offset: Offset) -> Box:
        """Return the part of the strip of the block at ``offset`` that this block reads."""
        return self._part(offset, [-d for d in offset], strip_axis(offset))

    def read_there(self, offset: Offset) -> Box:
        """Return the part of this block's strip that the block at ``offset`` reads."""
        return self._part(HERE, offset, strip_axis(offset))

    def _part(self, block: Offset, towards: Sequence[int], axis: int) -> Box:
        """Return the part of a strip of ``block`` next to its neighbour in the direction ``towards``.

        It has all cells along the strip's own ``axis``. Along the other axes in which the two blocks differ, it has only
        the outermost cells.
        """
        shape = self.shape(block, axis)
        box = [(self.fields, 0, self.fields)]
        for b, (n, direction) in enumerate(zip(shape[1:], towards, strict=True)):
            count = n if b == axis or not direction else self.widths[b]
            box.append((n, n - count if direction > 0 else 0, count))
        return box


def strip_axis(offset: Offset) -> int:
    """Return the axis of the strip that a neighbour at ``offset`` is read from: the first axis with a non-zero offset."""
    return next(axis for axis, d in enumerate(offset) if d)


def edge_bytes(topology: Topology, widths: Sequence[int], cell_bytes: int) -> int:
    """Return a size of edge memory in bytes, a multiple of the page size, that suffices for every block.

    ``cell_bytes`` is the size of all fields in one cell.
    """
    processes = [math.ceil(n / p) for n, p in zip(topology.shape, topology.processes, strict=True)]
    largest = [math.ceil(n / d) for n, d in zip(processes, topology.devices, strict=True)]
    cells = sum(2 * w * math.prod(largest) // n for w, n in zip(widths, largest, strict=True))
    return math.ceil((PAGE + 2 * cells * cell_bytes) / PAGE) * PAGE


def neighbours(topology: Topology, device: int, widths: Sequence[int]) -> dict[Offset, tuple[int, int]]:
    """Return the blocks whose cells the block of ``device`` reads, as (rank, device) by offset.

    Nothing is read along axes whose entry in ``widths`` is 0.
    """
    found = {}
    for offset in OFFSETS:
        of_axis = [offset[b] for b in AXIS_OF[topology.ndim]]
        outside = [offset[b] for b in range(3) if b not in AXIS_OF[topology.ndim]]
        if any(outside) or not any(offset) or any(d and not w for d, w in zip(of_axis, widths, strict=True)):
            continue
        block = topology.block_at(device, of_axis)
        if block is not None:
            found[offset] = block
    return found
