"""Halos: padding of a block with the cells of its neighbours, one axis after the other.

The strips of a later axis include the ghost cells of earlier axes, so that corners arrive without separate messages (as in
ImplicitGlobalGrid's `update_halo!`). An `Exchange` turns strips into ghost cells. Native code exchanges edges inside its passes
instead, where it can (`backends/native/edge_exchange.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hpcstencil.distributed.exchange import Exchange, Outer, Strips

Fields = dict[str, jax.Array]  # by name; a device's own cells without ghost cells, members of an ensemble last


@dataclass(frozen=True)
class Received:
    """The ghost cells of all fields along one axis, on one device.

    ``lower`` and ``upper`` are arrays of shape (fields, cells per axis), ``width`` cells wide along the axis; along
    earlier axes they include those axes' ghost cells. Each is None if no device of this process has a neighbour on that
    side. ``count`` is the number of cells along the axis that the device owns.
    """

    axis: int
    width: int
    lower: jax.Array | None
    upper: jax.Array | None
    count: int | jax.Array


def received(
    fields: Mapping[Any, jax.Array],
    widths: Sequence[int],
    counts: Sequence[int | jax.Array],
    exchange: Exchange,
    outer: Outer,
) -> list[Received]:
    """Exchange the halos of the fields: one `Received` per axis with non-zero width, in the order of the axes.

    For use inside compiled code. ``fields`` are the device's own cells without ghost cells. ``widths`` is the number of
    ghost cells per axis and side, and ``counts`` the number of owned cells per axis (traced if it differs between devices).
    ``outer`` is the result of `Exchange.outside`.
    """
    earlier: list[Received] = []
    for axis, width in enumerate(widths):
        if width:
            first, last = strips(fields, axis, width, counts[axis], earlier)
            lower, upper = exchange.along(axis, first, last, outer)
            earlier.append(Received(axis, width, lower, upper, counts[axis]))
    return earlier


def surround(
    fields: Mapping[str, jax.Array],
    widths: Sequence[int],
    counts: Sequence[int | jax.Array],
    exchange: Exchange,
    outer: Outer,
) -> Fields:
    """Exchange the halos of the fields, and return the fields padded with their ghost cells.

    A side that receives no ghost cells is not padded. The arguments are those of `received`.
    """
    ghosts = received(fields, widths, counts, exchange, outer)
    return {name: _assembled(field, i, ghosts) for i, (name, field) in enumerate(fields.items())}


def strips(
    fields: Mapping[Any, jax.Array], axis: int, width: int, count: int | jax.Array, earlier: Sequence[Received]
) -> Strips:
    """Return the edge strips of all fields at the (lower, upper) side of an axis.

    They are two arrays of shape (fields, cells per axis), ``width`` cells wide along ``axis`` and extended by the ghost
    cells of the ``earlier`` axes. ``count`` is the number of owned cells along ``axis``.
    """
    first = [lax.slice_in_dim(field, 0, width, axis=axis) for field in fields.values()]
    last = [lax.dynamic_slice_in_dim(field, count - width, width, axis) for field in fields.values()]
    first = [_extended(strip, 0, i, axis, earlier) for i, strip in enumerate(first)]
    last = [_extended(strip, count - width, i, axis, earlier) for i, strip in enumerate(last)]
    return jnp.stack(first), jnp.stack(last)


def strips_after(
    fields: Mapping[Any, jax.Array],
    widths: Sequence[int],
    counts: Sequence[int | jax.Array],
    exchange: Exchange,
    outer: Outer,
    axis: int,
) -> Strips:
    """Return the `strips` of ``axis`` after an exchange of all earlier axes. For use inside compiled code.

    The strips include the ghost cells of the earlier axes. The other arguments are those of `received`.
    """
    earlier = received(fields, widths[:axis], counts, exchange, outer)
    return strips(fields, axis, widths[axis], counts[axis], earlier)


def _extended(
    strip: jax.Array, start: int | jax.Array, index: int, axis: int, received: Sequence[Received]
) -> jax.Array:
    """Return a strip of field ``index``, which begins at cell ``start`` of ``axis``, with the ghost cells of earlier axes."""
    for earlier in received:
        ghosts = [
            None if side is None else lax.dynamic_slice_in_dim(side[index], start, strip.shape[axis], axis)
            for side in (earlier.lower, earlier.upper)
        ]
        strip = _assembled(strip, None, [Received(earlier.axis, earlier.width, ghosts[0], ghosts[1], earlier.count)])
    return strip


def _assembled(array: jax.Array, index: int | None, received: Sequence[Received]) -> jax.Array:
    """Return the array padded with all ghost cells in ``received``.

    Each strip is written into one padded array. XLA does this in place, because no strip is read from the padded array.
    """
    padding = [(0, 0, 0)] * array.ndim
    for part in received:
        padding[part.axis] = (part.width * (part.lower is not None), part.width * (part.upper is not None), 0)
    if not any(low or high for low, high, _ in padding):
        return array
    padded = lax.pad(array, array.dtype.type(0), padding)
    for n, part in enumerate(received):
        later = {other.axis for other in received[n + 1 :]}
        start: list[Any] = [padding[axis][0] if axis in later else 0 for axis in range(array.ndim)]
        for strip, place in ((part.lower, 0), (part.upper, padding[part.axis][0] + part.count)):
            if strip is not None:
                start[part.axis] = place
                padded = lax.dynamic_update_slice(padded, strip if index is None else strip[index], start)
    return padded
