"""One process's block on its devices: the kinds of its sides, its coordinates, and the transfer of arrays.

With one device, the array of a field has the shape of the process's block (cells per axis). With several devices, it has
the shape (devices, *capacity), where capacity is the shape of the largest device block. An ensemble adds a trailing member
axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hpcstencil.distributed.windows import Frame, Side, Value
from hpcstencil.numerics.grid import Grid
from hpcstencil.numerics.topology import Topology, unravel

DEVICE_AXIS = "device"  # name of the axis over which code is mapped to the devices of a process


def sides(topology: Topology, wrapped_as_halo: Sequence[bool]) -> tuple[tuple[Side, Side], ...]:
    """Return the (lower, upper) sides of this process's device blocks, per axis.

    ``wrapped_as_halo`` says, per axis, whether a periodic axis that is not decomposed is exchanged nevertheless, by the
    block with itself.
    """
    result: list[tuple[Side, Side]] = []
    for axis in range(topology.ndim):
        below, above = topology.neighbour(axis, -1), topology.neighbour(axis, +1)
        if not topology.is_split(axis):
            kind = ("halo" if wrapped_as_halo[axis] else "wrap") if topology.periodic[axis] else "face"
            result.append((Side(kind), Side(kind)))
        elif topology.devices[axis] > 1:
            result.append((Side("halo", boundary=below is None), Side("halo", boundary=above is None)))
        else:
            result.append((Side("face" if below is None else "halo"), Side("face" if above is None else "halo")))
    return tuple(result)


def device_number() -> jax.Array:
    """Return the number of the device on which mapped code runs: a traced integer scalar, from 0.

    The minimum over the devices, which is 0, is added on purpose. It makes the program contain a collective, and XLA starts
    such programs on all devices together. Devices that wait for each other in native code rely on that.
    """
    device = lax.axis_index(DEVICE_AXIS)
    return device + lax.pmin(device, DEVICE_AXIS)


@dataclass(frozen=True)
class Places:
    """The positions of this process's device blocks in the grid, as numpy arrays with a leading device axis.

    They are passed to compiled code at run time, because they differ between devices.

    Attributes
    ----------
    coordinates
        The cell centres in the input's unit of length: one float64 array per axis, of shape (devices, cells + 2 margin).
    counts
        The number of owned cells, an integer array of shape (devices, axes).
    touches
        Which sides (lower, upper) are the physical boundary: bool of shape (devices, axes, 2).
    """

    coordinates: tuple[np.ndarray, ...]
    counts: np.ndarray
    touches: np.ndarray

    @staticmethod
    def of(topology: Topology, grid: Grid, margin: Sequence[int]) -> Places:
        """Return the places of all devices of this process, with ``margin`` coordinates per axis beyond both sides."""
        coordinates: list[list[np.ndarray]] = [[] for _ in range(topology.ndim)]
        counts, touches = [], []
        for device in range(topology.device_count):
            block = topology.device_block(device)
            place = unravel(device, topology.devices)
            counts.append([stop - start for start, stop in block])
            touches.append(
                [
                    [place[a] == 0 and topology.neighbour(a, -1) is None,
                     place[a] == topology.devices[a] - 1 and topology.neighbour(a, +1) is None]
                    for a in range(topology.ndim)
                ]
            )  # fmt: skip
            for axis, ((start, _), cells, m) in enumerate(zip(block, topology.capacity(), margin, strict=True)):
                coordinates[axis].append(grid.centres(axis, start - m, start + cells + m, topology.periodic[axis]))
        return Places(tuple(np.stack(c) for c in coordinates), np.array(counts), np.array(touches))


class Placed(TypedDict):
    """`Places` on the devices, as compiled code receives them.

    With several devices, the arrays have a leading device axis, which mapped code does not see. ``once`` is the int64 number
    1, for loops of one round (`device_grid.in_loop`). ``constants`` are the numbers of expressions, float64.
    """

    coordinates: tuple[jax.Array, ...]
    counts: jax.Array
    touches: jax.Array
    once: jax.Array
    constants: jax.Array


def frame_of(
    topology: Topology,
    sides_: tuple[tuple[Side, Side], ...],
    margin: tuple[int, ...],
    places: Placed,
    constants: Sequence[float],
) -> Frame:
    """Return the frame of the device with these (possibly traced) ``places``.

    ``constants`` are the numbers whose run-time values are in ``places``, in the same order. On axes that divide evenly, the
    frame's counts are plain integers.
    """
    cells = topology.capacity()
    uneven = [(stop - start) % d != 0 for (start, stop), d in zip(topology.block(), topology.devices, strict=True)]
    return Frame(
        cells=cells,
        sides=sides_,
        counts=[places["counts"][a] if uneven[a] else cells[a] for a in range(topology.ndim)],
        touches=[[places["touches"][a, side] for side in (0, 1)] for a in range(topology.ndim)],
        coordinates=places["coordinates"],
        margin=margin,
        constants={value: places["constants"][i] for i, value in enumerate(constants)},
    )


@dataclass(frozen=True)
class Devices:
    """The devices of this process, and the distribution of the process's block over them."""

    topology: Topology
    devices: tuple[jax.Device, ...]

    @property
    def several(self) -> bool:
        """Whether there is more than one device."""
        return len(self.devices) > 1

    @property
    def on_gpu(self) -> bool:
        """Whether the devices are GPUs."""
        return bool(self.devices[0].platform == "gpu")

    @property
    def sharding(self) -> Any:
        """The sharding of arrays with a leading device axis. With one device it is that device."""
        if not self.several:
            return self.devices[0]
        return NamedSharding(Mesh(np.array(self.devices), (DEVICE_AXIS,)), PartitionSpec(DEVICE_AXIS))

    def slices(self, device: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Return the cells that a device owns, as (slices of the process's block, slices of the device's array).

        There is one slice per axis. Neither the block nor the array has ghost cells.
        """
        origin = [start for start, _ in self.topology.block()]
        block = self.topology.device_block(device)
        return (
            tuple(slice(a - o, b - o) for (a, b), o in zip(block, origin, strict=True)),
            tuple(slice(0, b - a) for a, b in block),
        )

    def put(self, block: np.ndarray) -> jax.Array:
        """Transfer this process's block to its devices.

        ``block`` is local, without ghost cells, and in an ensemble has a trailing member axis. The result has the same
        dtype. With several devices it has a leading device axis, and cells that no device owns are 0.
        """
        if not self.several:
            return jax.device_put(block, self.devices[0])
        members = block.shape[self.topology.ndim :]
        stacked = np.zeros((len(self.devices), *self.topology.capacity(), *members), block.dtype)
        for device in range(len(self.devices)):
            here, there = self.slices(device)
            stacked[device][there] = block[here]
        return jax.device_put(stacked, self.sharding)

    def owned(self, array: jax.Array) -> list[np.ndarray]:
        """Return the cells of ``array`` that each device owns: one numpy array per device, in order, without ghost cells.

        On CPUs nothing is copied.
        """
        if not self.several:
            return [np.asarray(array)]
        shards = {int(shard.index[0].start or 0): shard for shard in array.addressable_shards}
        return [np.asarray(shards[device].data)[0][self.slices(device)[1]] for device in sorted(shards)]

    def get(self, array: jax.Array) -> np.ndarray:
        """Return the process's block of an array on its devices: local, without ghost cells, in the array's dtype.

        With one device, the result is a view if possible; with several, it is a new C-contiguous array.
        """
        if not self.several:
            return np.asarray(array)
        members = array.shape[1 + self.topology.ndim :]
        block = np.empty([*(stop - start for start, stop in self.topology.block()), *members], array.dtype)
        for shard in array.addressable_shards:
            device = int(shard.index[0].start or 0)
            here, there = self.slices(device)
            block[here] = np.asarray(shard.data)[0][there]
        return block

    def put_places(self, places: Places, constants: Sequence[float]) -> Placed:
        """Transfer ``places`` and the numbers of expressions, ``constants``, to the devices."""

        def move(a: np.ndarray) -> jax.Array:
            return jax.device_put(a if self.several else a[0], self.sharding)

        return {
            "coordinates": tuple(move(c) for c in places.coordinates),
            "counts": move(places.counts),
            "touches": move(places.touches),
            "once": move(np.ones(len(places.counts), np.int64)),
            "constants": move(np.tile(np.array(constants, np.float64), (len(places.counts), 1))),
        }


def values(fields: Mapping[str, jax.Array], windows: tuple[tuple[int, int], ...]) -> dict[str, Value]:
    """Wrap the arrays of a device's block as `Value` objects that all cover the same ``windows``."""
    return {name: Value(array, windows) for name, array in fields.items()}
