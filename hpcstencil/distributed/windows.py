"""A device's block as seen by compiled code, and values on parts of the block.

A value covers a *window*, a range of cell indices, along each axis; [0, cells) is the block itself. The kind of a side says
what lies beyond it:
  wrap  periodic, on an axis that is not decomposed: ghost cells are copied from the other end when needed
  face  the physical boundary: the boundary condition gives the ghost cells when they are needed
  halo  another block: the last exchange filled ghost cells inside the window; each derivative uses up some of them
Under `pmap`, all devices run the same program. A side that is the boundary for only some devices is therefore a halo, whose
cells are replaced on the devices that touch the boundary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Number = float | jax.Array  # a number, or its traced value; in an ensemble it may have one value per member
Parameters = Mapping[
    str, float | np.ndarray | jax.Array
]  # of the equation, by name; in an ensemble perhaps one value per member

STEP_SIZE = "step size"  # the key under which `Parameters` hold dt; no parameter has a space in its name

Window = tuple[int, int]
Windows = tuple[Window | None, ...]


@partial(jax.tree_util.register_dataclass, data_fields=["array"], meta_fields=["windows"])
@dataclass(frozen=True)
class Value:
    """An array and the window (start, stop) of cell indices that it covers along each axis.

    A window of None means that the value is constant along that axis; the array has length 1 there. ``array`` is a (traced)
    jax.Array, or in GPU kernels a reference to one in memory.
    """

    array: Any
    windows: Windows

    def crop(self, windows: Sequence[Window | None]) -> Value:
        """Return the part of the value on smaller ``windows``. Axes without a window stay as they are."""
        array, kept = self.array, []
        for axis, (have, want) in enumerate(zip(self.windows, windows, strict=True)):
            kept.append(have if have is None or want is None else want)
            if have is not None and want is not None and have != want:
                assert have[0] <= want[0] and want[1] <= have[1], (have, want)
                array = lax.slice_in_dim(array, want[0] - have[0], want[1] - have[0], axis=axis)
        return Value(array, tuple(kept))

    def spread(self, windows: Sequence[Window | None]) -> Value:
        """Return the value on smaller ``windows``, broadcast to all cells of these windows."""
        shape = [1 if window is None else window[1] - window[0] for window in windows]
        return Value(jnp.broadcast_to(self.crop(windows).array, shape), tuple(windows))

    def rows(self, start: int | jax.Array, count: int) -> Value:
        """Return the value in ``count`` cells along the first axis, starting at the (possibly traced) cell ``start``.

        The window of the result along this axis is [0, count).
        """
        if self.windows[0] is None:
            return self
        array = lax.dynamic_slice_in_dim(self.array, start - self.windows[0][0], count)
        return Value(array, ((0, count), *self.windows[1:]))


def common(values: Sequence[Value]) -> Windows:
    """Return the largest windows that all ``values`` cover; None along axes on which all of them are constant."""
    result: list[Window | None] = []
    for windows in zip(*(value.windows for value in values), strict=True):
        real = [w for w in windows if w is not None]
        result.append((max(w[0] for w in real), min(w[1] for w in real)) if real else None)
    return tuple(result)


@dataclass(frozen=True)
class Side:
    """One side of a block.

    ``kind`` is "wrap", "face" or "halo". For a halo, ``boundary`` says whether it is the physical boundary on some devices.
    """

    kind: str
    boundary: bool = False


@dataclass(frozen=True)
class Frame:
    """A device's block as seen by compiled code.

    Attributes
    ----------
    cells
        The shape of the device's arrays without ghost cells, the same on all devices.
    sides
        The (lower, upper) sides per axis.
    counts
        The number of cells per axis that this device owns, at most ``cells``; may be traced.
    touches
        Whether each (lower, upper) side per axis is the physical boundary on this device; traced under `pmap`.
    coordinates
        The cell centres in the input's unit of length: one float64 array per axis, with ``margin`` more cells on both sides.
    margin
        The number of coordinates beyond the block, per axis.
    constants
        The float64 run-time values of the numbers in expressions, by number.
    """

    cells: tuple[int, ...]
    sides: tuple[tuple[Side, Side], ...]
    counts: Sequence[int | jax.Array]
    touches: Sequence[Sequence[jax.Array]]
    coordinates: Sequence[Any]
    margin: tuple[int, ...]
    constants: Mapping[float, jax.Array]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.cells)

    def rows(self, start: int | jax.Array, count: int) -> Frame:
        """Return the frame of ``count`` cells along the first axis from ``start``, matching `Value.rows`.

        Its sides along this axis are meaningless.
        """
        along = lax.dynamic_slice_in_dim(self.coordinates[0], start, count + 2 * self.margin[0])
        return replace(
            self,
            cells=(count, *self.cells[1:]),
            counts=[self.counts[0] - start, *self.counts[1:]],
            coordinates=[along, *self.coordinates[1:]],
        )


def wrapped(array: jax.Array, axis: int, lower: int, upper: int) -> tuple[jax.Array | None, jax.Array | None]:
    """Return the ghost cells (lower, upper) along a periodic axis that ``array`` holds completely.

    ``lower`` and ``upper`` are their numbers, which may exceed the cells of the array. Each result is None if its number is
    0.
    """
    cells = array.shape[axis]

    def take(first: int, count: int) -> jax.Array:
        parts, index = [], first
        while index < first + count:
            start = index % cells
            stop = min(cells, start + first + count - index)
            parts.append(lax.slice_in_dim(array, start, stop, axis=axis))
            index += stop - start
        return jnp.concatenate(parts, axis) if len(parts) > 1 else parts[0]

    return take(-lower, lower) if lower else None, take(cells, upper) if upper else None
