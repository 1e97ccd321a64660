"""Ghost cells of a value on one device's block (see `windows`).

On a periodic side, they are copies from the other end of the block. Beyond the physical boundary, `boundary_kinds` computes
them from mirror cells. On a halo side, the exchange has already filled them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hpcstencil.distributed.windows import Frame, Value, Window, Windows, wrapped
from hpcstencil.symbolic.boundary_kinds import KINDS

# (axis, side, windows with None along that axis) -> (kind of the boundary condition, its values on these windows)
Condition = Callable[[int, int, Windows], tuple[str, list[Any]]]


@dataclass(frozen=True)
class Ghosts:
    """The ghost cells of one operand on a device's block.

    ``spacing`` is the cell width per axis, in the input's unit of length. ``widths`` is the number of ghost cells (lower,
    upper) per axis that operators on the operand need. ``condition`` returns its boundary condition.
    """

    frame: Frame
    spacing: Sequence[float]
    widths: Sequence[tuple[int, int]]
    condition: Condition

    def around(self, value: Value, corners: bool) -> Value:
        """Return the value with ghost cells on all sides that need them, on correspondingly larger windows.

        With ``corners``, as mixed derivatives need, axis after axis is extended at full width. Without them, only the cells
        straight beyond each side are valid; this is cheaper, because it makes a single padded array.
        """
        axes = [axis for axis, widths in enumerate(self.widths) if max(widths)]
        if corners:
            for axis in axes:
                value = self.along(value, axis)
            return value
        for axis in axes:
            value = self.replaced(value, axis)
        strips = [
            (axis, side, strip)
            for axis in axes
            for side, strip in enumerate(self.strips(value, axis))
            if strip is not None
        ]
        if not strips:
            return value
        padding, windows = [(0, 0, 0)] * len(self.widths), value.windows
        for axis, side, strip in strips:
            width = strip.shape[axis]
            low, high, _ = padding[axis]
            padding[axis] = (low, width, 0) if side else (width, high, 0)
            windows = widened(windows, axis, *((0, width) if side else (width, 0)))
        array = lax.pad(value.array, value.array.dtype.type(0), padding)
        for axis, side, strip in strips:
            start_index = [low for low, _, _ in padding]
            start_index[axis] = array.shape[axis] - strip.shape[axis] if side else 0
            array = lax.dynamic_update_slice(array, strip, start_index)
        return Value(array, windows)

    def along(self, value: Value, axis: int) -> Value:
        """Return the value with its ghost cells along one axis.

        They are written into a padded array, because XLA would recompute a concatenation wherever it is used.
        """
        value = self.replaced(value, axis)
        lower, upper = self.strips(value, axis)
        before, after = (0 if strip is None else strip.shape[axis] for strip in (lower, upper))
        if not before and not after:
            return value
        padding = [(before, after, 0) if a == axis else (0, 0, 0) for a in range(value.array.ndim)]
        array = lax.pad(value.array, value.array.dtype.type(0), padding)
        for strip, place in ((lower, 0), (upper, before + value.array.shape[axis])):
            if strip is not None:
                array = lax.dynamic_update_slice_in_dim(array, strip, place, axis)
        return Value(array, widened(value.windows, axis, before, after))

    def strips(self, value: Value, axis: int) -> tuple[jax.Array | None, jax.Array | None]:
        """Return the ghost cells (lower, upper) of the value along an axis.

        Each is None on a halo side, or if no ghost cells are needed there.
        """
        lower, upper = self.widths[axis]
        low, high = self.frame.sides[axis]
        if low.kind == "wrap":
            return wrapped(value.array, axis, lower, upper)
        strips = []
        for side, (kind, width) in enumerate(((low.kind, lower), (high.kind, upper))):
            strips.append(self.reflected(value, axis, side, width, 0) if kind == "face" and width else None)
        return strips[0], strips[1]

    def replaced(self, value: Value, axis: int) -> Value:
        """Return the value with correct ghost cells along an axis where this device touches the physical boundary.

        They replace halo cells, which other devices of the process receive on that side.
        """
        frame, array = self.frame, value.array
        window = value.windows[axis]
        assert window is not None
        for side in (0, 1):
            width = self.widths[axis][side]
            if not frame.sides[axis][side].boundary or not width:
                continue
            # Index of the face in the array: the block begins at 0 and ends at the cells this device owns.
            face = -window[0] if side == 0 else frame.counts[axis] - window[0]
            ghosts = self.reflected(value, axis, side, width, face)
            place = face - width if side == 0 else face
            kept = lax.dynamic_slice_in_dim(array, place, width, axis)
            array = lax.dynamic_update_slice_in_dim(
                array, jnp.where(frame.touches[axis][side], ghosts, kept), place, axis
            )
        return Value(array, value.windows)

    def reflected(self, value: Value, axis: int, side: int, width: int, face: int | jax.Array) -> jax.Array:
        """Compute the ``width`` ghost cells beyond the boundary on one ``side`` (0 lower, 1 upper) of ``axis``.

        They follow from their mirror cells, and have the shape of the array except for ``width`` cells along ``axis``, in
        order of the index. ``face`` is the index of the first cell above the boundary. It is ignored on a side of kind
        "face", where the boundary is that side of the array.
        """
        array = value.array
        if self.frame.sides[axis][side].kind == "face":
            face = array.shape[axis] if side else 0
        kind, given = self.condition(axis, side, with_window(value.windows, axis, None))
        # For a staggered field, the lower boundary is the first own entry, and the upper boundary is the first ghost cell.
        on_face = KINDS[kind].on_face
        images = width - 1 if on_face and side else width
        distance = np.arange(1, images + 1) if side else np.arange(images, 0, -1)
        height = (2 * distance - (not on_face)) * self.spacing[axis]
        shape = [1] * array.ndim
        shape[axis] = images
        inner = lax.dynamic_slice_in_dim(array, face - images if side else face + on_face, images, axis)
        mirror = jnp.flip(inner, axis)
        ghosts = KINDS[kind].ghost(array.dtype.type, mirror, height.astype(array.dtype).reshape(shape), *given)
        if not (on_face and side):
            return ghosts
        on_wall = jnp.broadcast_to(given[0], [1 if a == axis else n for a, n in enumerate(array.shape)])
        return jnp.concatenate([on_wall, ghosts], axis)


def widened(windows: Windows, axis: int, lower: int, upper: int) -> Windows:
    """Return the windows enlarged along an axis by ``lower`` cells before and ``upper`` cells after."""
    window = windows[axis]
    assert window is not None  # a value with ghost cells varies, so it has a window on every axis
    return with_window(windows, axis, (window[0] - lower, window[1] + upper))


def with_window(windows: Windows, axis: int, window: Window | None) -> Windows:
    """Return the windows with the entry of ``axis`` replaced by ``window``."""
    return (*windows[:axis], window, *windows[axis + 1 :])


def next_to(field: Value, axis: int, side: int, frame: Frame) -> Value:
    """Return a field's values in the block's outermost cells on one ``side`` (0 lower, 1 upper) of an axis.

    The result has length 1 along ``axis`` and no window there.
    """
    window = field.windows[axis]
    assert window is not None
    index = (frame.counts[axis] - 1 if side else 0) - window[0]
    return Value(lax.dynamic_slice_in_dim(field.array, index, 1, axis), with_window(field.windows, axis, None))
