"""Halo exchange: a block is surrounded by cells of its neighbours, axis after axis, each at full width.

The strips of a later axis include the ghost cells of earlier axes, so the corners arrive without messages of their own
(as in ImplicitGlobalGrid's `update_halo!`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from hpcstencil.numerics.topology import Topology, positions, ravel, unravel

DEVICE_AXIS = "device"

Fields = dict[str, Any]
Strips = tuple[Any, Any]
Ghosts = tuple[Any | None, Any | None]
# (axis, cells next to the lower side, cells next to the upper side), each (fields, ...) -> ghost cells (lower, upper)
Swap = Callable[[int, Any, Any], Ghosts]


@dataclass(frozen=True)
class Received:
    """The ghost cells of one axis, (fields, ...) of this ``width``, None without a neighbour; ``count`` is the number
    of cells that the array really owns."""

    axis: int
    width: int
    lower: Any | None
    upper: Any | None
    count: Any


def surrounding(
    fields: Mapping[str, Any], widths: Sequence[int], counts: Sequence[Any]
) -> Generator[tuple[int, Any, Any], Ghosts, Fields]:
    """The fields surrounded by ``widths`` ghost cells per axis (0: none), as a generator. ``fields`` are local arrays
    without ghost cells.

    For each axis it yields the axis and the strips of all fields for the lower and the upper neighbour. It is sent
    their ghost cells, None where there is no neighbour. ``counts`` are the owned cells per axis (a number, or traced if
    devices own different numbers).
    """
    names = list(fields)
    received: list[Received] = []
    for axis, width in enumerate(widths):
        if not width:
            continue
        first = [lax.slice_in_dim(fields[name], 0, width, axis=axis) for name in names]
        last = [lax.dynamic_slice_in_dim(fields[name], counts[axis] - width, width, axis) for name in names]
        first = [_extended(strip, 0, i, axis, received) for i, strip in enumerate(first)]
        last = [_extended(strip, counts[axis] - width, i, axis, received) for i, strip in enumerate(last)]
        lower, upper = yield axis, jnp.stack(first), jnp.stack(last)
        received.append(Received(axis, width, lower, upper, counts[axis]))
    return {name: _assembled(fields[name], i, received) for i, name in enumerate(names)}


def _extended(strip: Any, start: Any, index: int, axis: int, received: Sequence[Received]) -> Any:
    """A strip cut at ``start`` of ``axis`` from field ``index``, extended by the ghost cells of earlier axes."""
    for earlier in received:
        ghosts = [
            None if side is None else lax.dynamic_slice_in_dim(side[index], start, strip.shape[axis], axis)
            for side in (earlier.lower, earlier.upper)
        ]
        strip = _assembled(strip, None, [Received(earlier.axis, earlier.width, ghosts[0], ghosts[1], earlier.count)])
    return strip


def _assembled(array: Any, index: int | None, received: Sequence[Received]) -> Any:
    """The array with all ghost cells around it: one padded array into which each strip is written.

    XLA updates it in place because no strip is read from the padded array itself.
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


def surround(fields: Mapping[str, Any], widths: Sequence[int], counts: Sequence[Any], swap: Swap) -> Fields:
    """The fields surrounded by ghost cells, each axis exchanged by ``swap``."""
    steps = surrounding(fields, widths, counts)
    try:
        request = next(steps)
        while True:
            request = steps.send(swap(*request))
    except StopIteration as done:
        return done.value


def received(fields: Mapping[str, Any], widths: Sequence[int], counts: Sequence[Any], swap: Swap) -> dict[int, Ghosts]:
    """The ghost cells of each axis, as they arrive."""
    brought: dict[int, Ghosts] = {}

    def kept(axis: int, first: Any, last: Any) -> Ghosts:
        brought[axis] = swap(axis, first, last)
        return brought[axis]

    surround(fields, widths, counts, kept)
    return brought


def strips_for(
    fields: Mapping[str, Any], widths: Sequence[int], counts: Sequence[Any], swap: Swap, wanted: int
) -> Strips:
    """The strips that axis ``wanted`` would exchange, after ``swap`` has exchanged the axes before it."""
    steps = surrounding(fields, widths, counts)
    axis, first, last = next(steps)
    while axis != wanted:
        axis, first, last = steps.send(swap(axis, first, last))
    return first, last


def exchange_devices(first: Any, last: Any, topology: Topology, axis: int) -> Strips:
    """The ghost cells from the neighbouring devices of this process, by `lax.ppermute`; zeros without a neighbour.

    A periodic axis that is not cut between processes wraps around within the process.
    """
    wraps = topology.periodic[axis] and topology.processes[axis] == 1
    upwards = []
    for place in positions(topology.devices):
        above = list(place)
        above[axis] += 1
        if above[axis] < topology.devices[axis] or wraps:
            above[axis] %= topology.devices[axis]
            upwards.append((ravel(place, topology.devices), ravel(above, topology.devices)))
    downwards = [(above, below) for below, above in upwards]
    return lax.ppermute(last, DEVICE_AXIS, upwards), lax.ppermute(first, DEVICE_AXIS, downwards)


def exchange_processes(first: Any, last: Any, topology: Topology, axis: int, communicator: Any) -> Ghosts:
    """The ghost cells from the neighbouring processes, by one `mpi4jax.sendrecv` per direction for all fields; None
    without a neighbour.

    ``communicator`` is the mpi4py communicator of the exchange alone.
    """
    import mpi4jax

    below, above = topology.neighbour(axis, -1), topology.neighbour(axis, +1)

    def shift(strip: Any, source: int | None, target: int | None, tag: int) -> Any | None:
        if source is not None and target is not None:
            return mpi4jax.sendrecv(
                strip, strip, source=source, dest=target, sendtag=tag, recvtag=tag, comm=communicator
            )
        if target is not None:
            mpi4jax.send(strip, dest=target, tag=tag, comm=communicator)
        return mpi4jax.recv(strip, source=source, tag=tag, comm=communicator) if source is not None else None

    lower = shift(last, below, above, 2 * axis)
    upper = shift(first, above, below, 2 * axis + 1)
    return lower, upper


def exchange_edges(first: Any, last: Any, topology: Topology, axis: int, communicator: Any) -> Strips:
    """`exchange_processes` for the strips (devices, fields, ...) of all devices of a process, on one device.

    Only the devices at the process's edge take part. The others, and edges without a neighbour, get zeros.
    """
    places = [unravel(device, topology.devices)[axis] for device in range(topology.device_count)]
    bottom = np.flatnonzero(np.array(places) == 0)
    top = np.flatnonzero(np.array(places) == topology.devices[axis] - 1)
    lower, upper = exchange_processes(first[bottom], last[top], topology, axis, communicator)
    zeros = jnp.zeros_like(first)
    return (
        zeros if lower is None else zeros.at[bottom].set(lower),
        zeros if upper is None else zeros.at[top].set(upper),
    )
