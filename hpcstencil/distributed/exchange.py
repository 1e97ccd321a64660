"""The halo exchange between blocks, one axis after the other: a block sends edge strips and receives ghost cells.

Each kind of exchange is a class that implements `Exchange`; `exchange_for` chooses one:

    OwnStrips       sends nothing: a block's own strips become its ghost cells, as on an undecomposed periodic axis
    BetweenDevices  `lax.ppermute` between the devices of one process
    Mpi4jax         `mpi4jax.sendrecv` inside compiled code, between processes with one device each
    Phased          for several processes with several devices: between processes outside compiled code, between devices
                    inside

A backend may provide another kind, as native code does (`backends.native.edge_exchange.InPasses`). `halo` extracts the
strips and inserts the ghost cells, for all kinds alike.
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

Arrays = dict[Any, jax.Array]  # arrays of a device's own cells, by name or number
Strips = tuple[jax.Array, jax.Array]  # strips at the lower and the upper side of a block, each (fields, cells per axis)
Ghosts = tuple[
    jax.Array | None, jax.Array | None
]  # ghost cells beyond the lower and the upper side; None without a neighbour
Outer = Mapping[int, Strips]  # axis -> ghost cells (lower, upper) that were exchanged outside compiled code, per device
StripsOf = Callable[[Arrays, Outer], Strips]  # (fields, ghost cells of earlier axes) -> strips of all devices


class Exchange(Protocol):
    """A way to exchange halos between blocks. Its methods are collective."""

    @property
    def name(self) -> str:
        """The means of exchange between processes, shown to users, e.g. "mpi4jax"; "" if processes exchange nothing."""

    @property
    def fused(self) -> bool:
        """Whether the whole exchange happens inside compiled code, so that `outside` has nothing to do."""

    def along(self, axis: int, first: jax.Array, last: jax.Array, outer: Outer) -> Ghosts:
        """Send a block's strips along one axis, and return its ghost cells (lower, upper). For use inside compiled code.

        ``first`` and ``last`` are the device's own strips at its lower and upper side: arrays of shape (fields, cells per
        axis) in the fields' dtype, which include the ghost cells of earlier axes. ``outer`` is the result of `outside`. The
        ghost cells have the shape of the strips. On a side without a neighbour they are None, or zeros if the axis is
        decomposed over the devices of a process.
        """

    def outside(self, widths: Sequence[int], strips_along: Callable[[int], StripsOf]) -> Callable[[Arrays], Outer]:
        """Return the function of the fields that does the part of the exchange that precedes compiled code.

        The function returns the ghost cells (lower, upper) of this process's devices by axis, an empty dict if the exchange
        is `fused`. ``widths`` is the number of ghost cells per axis. ``strips_along(axis)`` compiles the function that
        extracts the strips of an axis on all devices.
        """

    def waited(self) -> float | None:
        """Return the seconds that this process has waited for its neighbours so far, averaged over its devices.

        The result is None if this kind of exchange does not measure it.
        """

    def free(self) -> None:
        """Free the communicator and the messages that this exchange has made for itself. It is not used afterwards."""


class InCompiledCode:
    """The common part of exchanges that happen inside compiled code: nothing precedes it, is measured or is to be freed."""

    name = ""
    fused = True

    def outside(self, widths: Sequence[int], strips_along: Callable[[int], StripsOf]) -> Callable[[Arrays], Outer]:
        return nothing

    def waited(self) -> float | None:
        return None

    def free(self) -> None:
        return None


@dataclass(frozen=True)
class OwnStrips(InCompiledCode):
    """Wraps a block around onto itself: its own strips become its ghost cells, and nothing is exchanged.

    This is correct for a single block, which is its own periodic neighbour. Benchmarks also use it to time steps without
    messages.
    """

    topology: Topology

    def along(self, axis: int, first: jax.Array, last: jax.Array, outer: Outer) -> Ghosts:
        return of_neighbours(self.topology, axis, last, first)


@dataclass(frozen=True)
class BetweenDevices(InCompiledCode):
    """The exchange of one process with several devices, by `lax.ppermute`."""

    topology: Topology

    def along(self, axis: int, first: jax.Array, last: jax.Array, outer: Outer) -> Ghosts:
        if self.topology.devices[axis] == 1:
            return of_neighbours(self.topology, axis, last, first)
        return of_devices(self.topology, axis, first, last)


@dataclass(frozen=True)
class Mpi4jax(InCompiledCode):
    """The exchange between processes with one device each, by mpi4jax inside compiled code.

    All fields share one message per direction. ``communicator`` is an mpi4py communicator that is used for nothing else.
    """

    topology: Topology
    communicator: Any
    name = "mpi4jax"

    def along(self, axis: int, first: jax.Array, last: jax.Array, outer: Outer) -> Ghosts:
        if self.topology.processes[axis] == 1:
            return of_neighbours(self.topology, axis, last, first)
        below, above = self.topology.neighbour(axis, -1), self.topology.neighbour(axis, +1)
        lower = self.shift(last, below, above, 2 * axis)
        upper = self.shift(first, above, below, 2 * axis + 1)
        return lower, upper

    def shift(self, strip: jax.Array, source: int | None, target: int | None, tag: int) -> jax.Array | None:
        """Send a strip to rank ``target``, and return the strip received from rank ``source``, of the same shape.

        If ``target`` is None, nothing is sent. If ``source`` is None, nothing is received and the result is None.
        """
        import mpi4jax

        comm = self.communicator
        if source is not None and target is not None:
            return mpi4jax.sendrecv(strip, strip, source=source, dest=target, sendtag=tag, recvtag=tag, comm=comm)
        if target is not None:
            mpi4jax.send(strip, dest=target, tag=tag, comm=comm)
        return mpi4jax.recv(strip, source=source, tag=tag, comm=comm) if source is not None else None


@dataclass(frozen=True)
class Phased:
    """The exchange of several processes with several devices each.

    Before compiled code runs, the strips of all devices are gathered on one device, where ``between`` exchanges them with
    other processes; mpi4jax cannot be called in code mapped over devices. The devices of a process then exchange with each
    other inside compiled code.
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

    def outside(self, widths: Sequence[int], strips_along: Callable[[int], StripsOf]) -> Callable[[Arrays], Outer]:
        axes = [axis for axis, width in enumerate(widths) if width and self.topology.processes[axis] > 1]
        programs = [(axis, strips_along(axis), self.edges_along(axis)) for axis in axes]

        def exchange(fields: Arrays) -> Outer:
            outer: dict[int, Strips] = {}
            for axis, strips, edges in programs:
                first, last = jax.device_put(strips(fields, dict(outer)), self.devices.devices[0])
                outer[axis] = jax.device_put(edges(first, last), self.devices.sharding)
            return outer

        return exchange

    def edges_along(self, axis: int) -> Callable[[jax.Array, jax.Array], Strips]:
        """Return the compiled exchange between processes along an axis, as a function of the strips of all devices.

        The strips and the resulting ghost cells have the shape (devices, fields, cells per axis) and are on one device. Only
        the devices at the process's edge take part. The others, and edges without a neighbour, get zeros.
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

    def free(self) -> None:
        self.between.free()


# The exchanges between processes, by the value of decomposition.exchange.
BETWEEN_PROCESSES: dict[str, Callable[[Topology, Any], Exchange]] = {"mpi4jax": Mpi4jax}
BY_BACKEND = ("auto", "mpi")  # a backend may exchange in its own way; one that does not uses mpi4jax


def exchange_for(kind: str, topology: Topology, devices: Devices, communicator: Any) -> Exchange:
    """Return the exchange selected by ``kind``, the value of `decomposition.exchange`.

    ``communicator`` is an mpi4py communicator for this exchange alone; if it is None, nothing is sent between processes.
    Raises InputError for an unknown kind.
    """
    if kind not in (*BY_BACKEND, *BETWEEN_PROCESSES):
        known = ", ".join(f'"{name}"' for name in (*BY_BACKEND, *BETWEEN_PROCESSES))
        raise InputError(f'decomposition.exchange: expected one of {known}, but got "{kind}"')
    if topology.size == 1:
        return BetweenDevices(topology) if devices.several else OwnStrips(topology)
    make = BETWEEN_PROCESSES["mpi4jax" if kind in BY_BACKEND else kind]
    between = OwnStrips(topology) if communicator is None else make(topology, communicator)
    return Phased(topology, devices, between) if devices.several else between


def of_neighbours(topology: Topology, axis: int, lower: jax.Array, upper: jax.Array) -> Ghosts:
    """Return the given strips as the ghost cells (lower, upper) of an axis; None on a side without a neighbour process."""
    below, above = (topology.neighbour(axis, direction) is not None for direction in (-1, 1))
    return lower if below else None, upper if above else None


def of_devices(topology: Topology, axis: int, first: jax.Array, last: jax.Array) -> Strips:
    """Exchange strips between the devices of this process and return the ghost cells (lower, upper). For mapped code.

    They have the shape of the strips and are zero on a side without a neighbour. A periodic axis that is not decomposed over
    processes wraps around within the process.
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


def nothing(fields: Arrays) -> Outer:
    """Return no ghost cells: the result of `Exchange.outside` if the exchange happens inside compiled code."""
    return {}
