"""Ghost cells of a value on one device's block (see `windows`): where they lie, and how their values are computed.

Beyond a side that wraps, they are copies from the other end. Beyond the physical boundary, `boundary_kinds` computes
them from their mirror images. On a halo side the neighbour's cells are already there.
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

# (axis, side, windows of which that along the axis is None) -> (kind of the boundary's condition, its values on them)
Condition = Callable[[int, int, Windows], tuple[str, list[Any]]]


@dataclass(frozen=True)
class Ghosts:
    """The ghost cells of one operand on a device's block. ``spacing`` is the cell width per axis, in the input's unit
    of length. ``widths`` is the number of ghost cells (lower, upper) per axis that its derivatives need; ``condition``
    is its condition on the physical boundary."""

    frame: Frame
    spacing: Sequence[float]
    widths: Sequence[tuple[int, int]]
    condition: Condition

    def around(self, value: Value, corners: bool) -> Value:
        """The value with ghost cells on all sides that need them; its windows grow accordingly. With ``corners``, which
        mixed derivatives need, axis after axis is extended at full width. Otherwise only the cells straight beyond each
        side are valid, which is cheaper: it takes one padded array."""
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
        """The value with its ghost cells along one axis, written into a padded array. XLA would recompute a
        concatenation wherever it is used, stage after stage."""
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
        """The ghost cells (before, after) of the value along an axis. Each is None on a halo side, or if no ghost cells
        are needed there."""
        lower, upper = self.widths[axis]
        low, high = self.frame.sides[axis]
        if low.kind == "wrap":
            return wrapped(value.array, axis, lower, upper)
        strips = []
        for side, (kind, width) in enumerate(((low.kind, lower), (high.kind, upper))):
            strips.append(self.reflected(value, axis, side, width, 0) if kind == "face" and width else None)
        return strips[0], strips[1]

    def replaced(self, value: Value, axis: int) -> Value:
        """The value with its halo cells along an axis replaced by ghost cells where this device touches the physical
        boundary."""
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
        """``width`` ghost cells beyond the physical boundary on one ``side`` (0 lower, 1 upper) of an axis, from their
        mirror images. The boundary lies before the array index ``face``; on a side of kind "face" it is the end of the
        array."""
        array = value.array
        if self.frame.sides[axis][side].kind == "face":
            face = array.shape[axis] if side else 0
        kind, given = self.condition(axis, side, with_window(value.windows, axis, None))
        # On a staggered field the lower boundary is the first entry, the upper one the first ghost.
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
    """The windows, larger by ``lower`` cells before and ``upper`` cells after along an axis."""
    window = windows[axis]
    assert window is not None  # a value with ghost cells varies, so it has a window on every axis
    return with_window(windows, axis, (window[0] - lower, window[1] + upper))


def with_window(windows: Windows, axis: int, window: Window | None) -> Windows:
    """The windows with the one along ``axis`` replaced by ``window``."""
    return (*windows[:axis], window, *windows[axis + 1 :])


def next_to(field: Value, axis: int, side: int, frame: Frame) -> Value:
    """The values of a field in the cells of the block next to its boundary on one ``side`` (0 lower, 1 upper) of an
    axis. The result has length 1 along ``axis``, and no window there."""
    window = field.windows[axis]
    assert window is not None
    index = (frame.counts[axis] - 1 if side else 0) - window[0]
    return Value(lax.dynamic_slice_in_dim(field.array, index, 1, axis), with_window(field.windows, axis, None))
