"""The cells that one instance of a kernel computes: a box inside a block, or a row of cells near the edges of a block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from hpcstencil.distributed.windows import Value, Window

Offset = tuple[int, ...]
Windows = tuple[Window, ...]  # of cells per axis
ROW = 512  # cells of a row: a power of 2
WARPS = 8  # groups of 32 threads that compute a row together


class Tile(Protocol):
    """The cells that one instance of a kernel computes.

    Attributes
    ----------
    shape
        The shape of the values in these cells: powers of 2, as Triton requires.
    region
        The windows in which the cells of all instances lie, one per axis.
    """

    shape: tuple[int, ...]
    region: Windows

    def index(self, axis: int) -> jax.Array:
        """Return the indices in the block of the cells along an axis: int32, in a shape that broadcasts over the tile."""

    def mask(self, axes: Sequence[int]) -> jax.Array | None:
        """Return a bool mask of the cells that are computed, considering only ``axes``; None if all are.

        Its shape broadcasts over the tile.
        """

    def along(self, axis: int, values: Any, shift: int) -> jax.Array:
        """Load the entries index + ``shift`` of an array with one value per cell along ``axis``.

        Their shape broadcasts over the tile.
        """

    def store(self, value: Value, results: jax.Array) -> None:
        """Write ``results``, of the tile's shape, to the tile's cells of an array in memory."""


@dataclass
class Box:
    """A box of cells: ``start`` to ``start + shape``, of which those inside the ``region`` are computed.

    ``ragged`` says, per axis, whether some cells of a box may lie outside the region, on the (lower, upper) side.
    """

    start: Sequence[Any]
    shape: tuple[int, ...]
    region: Windows
    ragged: tuple[tuple[bool, bool], ...]

    def __post_init__(self) -> None:
        mask = self.mask(range(len(self.shape)))
        self.everywhere = None if mask is None else jnp.broadcast_to(mask, self.shape)

    def spread(self, axis: int, values: jax.Array) -> jax.Array:
        """Reshape ``values`` of shape (n,), one per cell along ``axis``, to broadcast over the tile."""
        shape = [1] * len(self.shape)
        shape[axis] = self.shape[axis]
        return lax.broadcast_in_dim(values, shape, (axis,))

    def cells(self, axis: int) -> jax.Array:
        """Return the indices in the block of the cells along an axis: int32 of shape (n,)."""
        return self.start[axis] + jnp.arange(self.shape[axis], dtype=jnp.int32)

    def index(self, axis: int) -> jax.Array:
        return self.spread(axis, self.cells(axis))

    def wanted(self, axis: int) -> jax.Array | None:
        """Return a bool mask, of shape (n,), of the cells along an axis that are computed; None if all are."""
        (lower, upper), (start, stop), cells = self.ragged[axis], self.region[axis], self.cells(axis)
        masks = [mask for mask, needed in ((cells >= start, lower), (cells < stop, upper)) if needed]
        return reduce(jnp.logical_and, masks) if masks else None

    def mask(self, axes: Sequence[int]) -> jax.Array | None:
        result: jax.Array | None = None
        for axis in axes:
            wanted = self.wanted(axis)
            if wanted is not None:
                wanted = self.spread(axis, wanted)
                result = wanted if result is None else result & wanted
        return result

    def along(self, axis: int, values: Any, shift: int) -> jax.Array:
        part = values.at[(self.cells(axis) + shift,)]
        return self.spread(axis, triton.load(part, mask=self.wanted(axis)))

    def load(self, value: Value, at: Offset) -> jax.Array:
        """Load the values of an array at the offset ``at`` from the tile's cells, in the tile's shape."""
        return triton.load(self.part(value, at), mask=self.everywhere)

    def store(self, value: Value, results: jax.Array) -> None:
        triton.store(self.part(value, (0,) * len(self.shape)), results, mask=self.everywhere)

    def part(self, value: Value, at: Offset) -> Any:
        """Return a reference to the part of an array at the offset ``at`` from the tile, in the tile's shape.

        ``at`` is in cells per axis. A box that begins outside its region may begin before the array: it is indexed cell by
        cell then, because JAX's interpreter shifts such slices.
        """
        shifts = [o - first for o, first in zip(at, origin(value), strict=True)]
        if any(lower for lower, _ in self.ragged):
            places = [jnp.broadcast_to(self.index(axis) + shift, self.shape) for axis, shift in enumerate(shifts)]
            return value.array.at[tuple(places)]
        parts = zip(self.start, shifts, self.shape, strict=True)
        return value.array.at[tuple(pl.ds(start + shift, n) for start, shift, n in parts)]


@dataclass
class Row:
    """``count`` cells in a row, from number ``first`` on, of all cells in the ``boxes``, which do not overlap.

    The cells are numbered box after box, within a box with the last axis fastest. Beyond the last cell the row repeats it:
    the same value is then stored several times.
    """

    first: Any
    count: int
    boxes: Sequence[Windows]

    def __post_init__(self) -> None:
        self.shape: tuple[int, ...] = (self.count,)
        ends = [list(zip(*windows, strict=True)) for windows in zip(*self.boxes, strict=True)]
        self.region = tuple((min(starts), max(stops)) for starts, stops in ends)
        self.indices = [jnp.zeros(self.count, jnp.int32)] * len(self.region)
        number = jnp.minimum(self.first + jnp.arange(self.count, dtype=jnp.int32), cells_in(self.boxes) - 1)
        before = 0
        for box in self.boxes:
            rest, here = number - before, number >= before
            for axis in reversed(range(len(box))):
                start, size = box[axis][0], jnp.full_like(rest, box[axis][1] - box[axis][0])
                self.indices[axis] = jnp.where(here, start + lax.rem(rest, size), self.indices[axis])
                rest = lax.div(rest, size)
            before += cells_in([box])

    def index(self, axis: int) -> jax.Array:
        return self.indices[axis]

    def mask(self, axes: Sequence[int]) -> None:
        return None

    def along(self, axis: int, values: Any, shift: int) -> jax.Array:
        return triton.load(values.at[(self.indices[axis] + shift,)])

    def store(self, value: Value, results: jax.Array) -> None:
        places = (i - first for i, first in zip(self.indices, origin(value), strict=True))
        triton.store(value.array.at[tuple(places)], results)


def cells_in(boxes: Sequence[Windows]) -> int:
    """Return the number of cells in ``boxes`` that do not overlap."""
    return sum(math.prod(stop - start for start, stop in box) for box in boxes)


def around(region: Windows, inner: Windows) -> list[Windows]:
    """Return the boxes, without overlap, that fill a ``region`` outside the ``inner`` windows.

    If these are empty along an axis, the only box is the region itself.
    """
    if any(start >= stop for start, stop in inner):
        return [region]
    boxes, rest = [], list(region)
    for axis, ((start, stop), (first, last)) in enumerate(zip(region, inner, strict=True)):
        for window in ((start, first), (last, stop)):
            if window[0] < window[1]:
                boxes.append((*rest[:axis], window, *rest[axis + 1 :]))
        rest[axis] = inner[axis]
    return boxes


def origin(value: Value) -> tuple[int, ...]:
    """Return the index, per axis, of the first cell of an array; negative if the array has ghost cells."""
    return tuple(window[0] for window in value.windows if window is not None)
