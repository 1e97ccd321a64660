"""The exchange between blocks: a block gives strips of cells along its edges and gets ghost cells, one axis after the
other.

A kind is a class with the members of `Exchange`; `exchange_for` chooses one:

    OwnStrips       nothing is sent: a block gets its own strips, which is right on a periodic axis that is whole in it
    BetweenDevices  `lax.ppermute` between the devices of a process
    Mpi4jax         `mpi4jax.sendrecv` between processes of one device each, inside compiled code
    Phased          several processes of several devices: between processes outside compiled code, between devices inside

A backend may offer one more kind that needs its help, as native code does (`backends.native.edge_exchange.InPasses`).
`halo` cuts the strips and places the ghost cells, for all kinds alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hpcstencil.distributed.device_blocks import DEVICE_AXIS, Devices
from hpcstencil.numerics.topology import Topology, positions, ravel, unravel
from hpcstencil.validation.errors import InputError

Fields = dict[Any, jax.Array]  # arrays of a device's own cells, by name or number
Strips = tuple[jax.Array, jax.Array]  # next to the lower and the upper side of a block, each (fields, cells)
Ghosts = tuple[
    jax.Array | None, jax.Array | None
]  # ghost cells beyond the lower and the upper side; None without a neighbour
Outer = Mapping[int, Strips]  # axis -> ghost cells (lower, upper) that were exchanged outside compiled code, per device
StripsOf = Callable[[Fields, Outer], Strips]  # (fields, ghost cells of earlier axes) -> strips of all devices


class Exchange(Protocol):
    """A way to exchange the edges of blocks. All processes call its methods together, in the same order."""

    @property
    def name(self) -> str:
        """The means by which processes exchange, for users, such as "mpi4jax"; "" if nothing is sent between
        processes."""

    @property
    def fused(self) -> bool:
        """Whether the whole exchange happens inside compiled code. Then `outside` has nothing to do."""

    def along(self, axis: int, first: jax.Array, last: jax.Array, outer: Outer) -> Ghosts:
        """The ghost cells (lower, upper) of one axis, in return for a block's own strips. For use inside compiled code.

        ``first`` and ``last`` are the device's own strips next to its lower and upper side: arrays of shape (fields,
        cells per axis) in the fields' dtype, which include the ghost cells of earlier axes. ``outer`` is the result of
        `outside`. The ghost cells have the shape of the strips. On a side without a neighbour they are None, or zeros
        if the axis is cut between devices of a process.
        """

    def outside(self, widths: Sequence[int], strips_along: Callable[[int], StripsOf]) -> Callable[[Fields], Outer]:
        """The function of the fields that does the part of an exchange that must run before compiled code.

        The function returns the ghost cells (lower, upper) of this process's devices, by axis; it returns nothing if
        the exchange is `fused`. ``widths`` is the number of ghost cells per axis. ``strips_along(axis)`` compiles the
        function that cuts the strips of an axis on all devices.
        """

    def waited(self) -> float | None:
        """The seconds that this process has waited for its neighbours so far, on average over its devices; None if this
        kind of exchange does not count them."""


@dataclass(frozen=True)
class OwnStrips:
    """No exchange: a block gets its own strips back, even where a neighbour's belong. This is right for a single block,
    whose only neighbour is itself. The benchmark also uses it to time steps without messages."""

    topology: Topology
    name = ""
    fused = True

    def along(self, axis: int, first: jax.Array, last: jax.Array, outer: Outer) -> Ghosts:
        return of_neighbours(self.topology, axis, last, first)

    def outside(self, widths: Sequence[int], strips_along: Callable[[int], StripsOf]) -> Callable[[Fields], Outer]:
        return nothing

    def waited(self) -> float | None:
        return None


@dataclass(frozen=True)
class BetweenDevices:
    """The exchange of one process with several devices, by `lax.ppermute`."""

    topology: Topology
    name = ""
    fused = True

    def along(self, axis: int, first: jax.Array, last: jax.Array, outer: Outer) -> Ghosts:
        if self.topology.devices[axis] == 1:
            return of_neighbours(self.topology, axis, last, first)
        return of_devices(self.topology, axis, first, last)

    def outside(self, widths: Sequence[int], strips_along: Callable[[int], StripsOf]) -> Callable[[Fields], Outer]:
        return nothing

    def waited(self) -> float | None:
        return None


@dataclass(frozen=True)
class Mpi4jax:
    """The exchange between processes of one device each, by mpi4jax inside compiled code: one message per direction for
    all fields.

    ``communicator`` is an mpi4py communicator that is used for nothing else.
    """

    topology: Topology
    communicator: Any
    name = "mpi4jax"
    fused = True

    def along(self, axis: int, first: jax.Array, last: jax.Array, outer: Outer) -> Ghosts:
        if self.topology.processes[axis] == 1:
            return of_neighbours(self.topology, axis, last, first)
        below, above = self.topology.neighbour(axis, -1), self.topology.neighbour(axis, +1)
        lower = self.shift(last, below, above, 2 * axis)
        upper = self.shift(first, above, below, 2 * axis + 1)
        return lower, upper

    def shift(self, strip: jax.Array, source: int | None, target: int | None, tag: int) -> jax.Array | None:
        """Send a strip to rank ``target``, and return the one received from rank ``source``, of the same shape. None as
        ``target`` sends nothing; None as ``source`` receives nothing and returns None."""
        import mpi4jax

        comm = self.communicator
        if source is not None and target is not None:
            return mpi4jax.sendrecv(strip, strip, source=source, dest=target, sendtag=tag, recvtag=tag, comm=comm)
        if target is not None:
            mpi4jax.send(strip, dest=target, tag=tag, comm=comm)
        return mpi4jax.recv(strip, source=source, tag=tag, comm=comm) if source is not None else None

    def outside(self, widths: Sequence[int], strips_along: Callable[[int], StripsOf]) -> Callable[[Fields], Outer]:
        return nothing

    def waited(self) -> float | None:
        return None


@dataclass(frozen=True)
class Phased:
    """The exchange of several processes with several devices each.

    Devices of a process exchange inside compiled code. Before that, the strips of all devices go to one device, and
    from there ``between`` exchanges them with other processes, because mpi4jax cannot be called in code mapped over
    devices.
    """

    topology: Topology
    devices: Devices
    between: Exchange
    fused = False

    @property
    def name(self) -> str:
        return self.between.name

    def along(self, axis: int, first: jax.Array, last: jax.Array, outer: Outer) -> Ghosts:
        topology = self.topology
        cut = topology.processes[axis] > 1
        if topology.devices[axis] == 1:
            return of_neighbours(topology, axis, *(outer[axis] if cut else (last, first)))
        lower, upper = of_devices(topology, axis, first, last)
        if cut:
            places = jnp.array([unravel(d, topology.devices)[axis] for d in range(topology.device_count)])
            place = places[lax.axis_index(DEVICE_AXIS)]
            lower = jnp.where(place == 0, outer[axis][0], lower)
            upper = jnp.where(place == topology.devices[axis] - 1, outer[axis][1], upper)
        return lower, upper

    def outside(self, widths: Sequence[int], strips_along: Callable[[int], StripsOf]) -> Callable[[Fields], Outer]:
        axes = [axis for axis, width in enumerate(widths) if width and self.topology.processes[axis] > 1]
        programs = [(axis, strips_along(axis), self.edges_along(axis)) for axis in axes]

        def exchange(fields: Fields) -> Outer:
            outer: dict[int, Strips] = {}
            for axis, strips, edges in programs:
                first, last = jax.device_put(strips(fields, dict(outer)), self.devices.devices[0])
                outer[axis] = jax.device_put(edges(first, last), self.devices.sharding)
            return outer

        return exchange

    def edges_along(self, axis: int) -> Callable[[jax.Array, jax.Array], Strips]:
        """The compiled exchange between processes along an axis: from the strips of all devices, each of shape
        (devices, fields, cells per axis) on one device, to ghost cells of the same shape.

        Only the devices at the process's edge take part. The others, and edges without a neighbour, get zeros.
        """
        topology = self.topology
        places = np.array([unravel(device, topology.devices)[axis] for device in range(topology.device_count)])
        bottom, top = np.flatnonzero(places == 0), np.flatnonzero(places == topology.devices[axis] - 1)

        def edges(first: jax.Array, last: jax.Array) -> Strips:
            lower, upper = self.between.along(axis, first[bottom], last[top], {})
            zeros = jnp.zeros_like(first)
            return (
                zeros if lower is None else zeros.at[bottom].set(lower),
                zeros if upper is None else zeros.at[top].set(upper),
            )

        return jax.jit(edges)

    def waited(self) -> float | None:
        return self.between.waited()


# decomposition.exchange of the input -> the exchange between processes; for "auto" and "mpi" a backend may use its own.
BETWEEN_PROCESSES: dict[str, Callable[[Topology, Any], Exchange]] = {
    "auto": Mpi4jax,
    "mpi": Mpi4jax,
    "mpi4jax": Mpi4jax,
}


def exchange_for(kind: str, topology: Topology, devices: Devices, communicator: Any) -> Exchange:
    """The exchange between the blocks of a grid that the input's ``kind`` (`decomposition.exchange`) selects.

    ``communicator`` is an mpi4py communicator for this exchange alone; if it is None, nothing is sent between
    processes. Raises InputError for an unknown kind.
    """
    if kind not in BETWEEN_PROCESSES:
        known = ", ".join(f'"{name}"' for name in BETWEEN_PROCESSES)
        raise InputError(f'decomposition.exchange: expected one of {known}, but got "{kind}"')
    if topology.size == 1:
        return BetweenDevices(topology) if devices.several else OwnStrips(topology)
    between = OwnStrips(topology) if communicator is None else BETWEEN_PROCESSES[kind](topology, communicator)
    return Phased(topology, devices, between) if devices.several else between


def of_neighbours(topology: Topology, axis: int, lower: jax.Array, upper: jax.Array) -> Ghosts:
    """The given strips as the ghost cells (lower, upper) of an axis: None on a side where this process has no
    neighbour."""
    below, above = (topology.neighbour(axis, direction) is not None for direction in (-1, 1))
    return lower if below else None, upper if above else None


def of_devices(topology: Topology, axis: int, first: jax.Array, last: jax.Array) -> Strips:
    """The ghost cells (lower, upper) from the neighbouring devices of this process, of the shape of the strips; zeros
    without a neighbour. For use in code mapped over devices.

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


def nothing(fields: Fields) -> Outer:
    """No ghost cells: the `Exchange.outside` of an exchange that happens inside compiled code."""
    return {}
