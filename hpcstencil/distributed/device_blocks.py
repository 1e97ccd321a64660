"""One process's block on its devices: what lies beyond each side, coordinates, and the transfer of arrays.

A field of a process has shape (devices, *capacity) under `pmap`, and the block's own shape (cells per axis) with one
device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hpcstencil.distributed.windows import Frame, Side, Value
from hpcstencil.numerics.grid import Grid
from hpcstencil.numerics.topology import Topology, unravel

DEVICE_AXIS = "device"  # of arrays over the devices of a process, in mapped code


def sides(topology: Topology, wrapped_as_halo: Sequence[bool]) -> tuple[tuple[Side, Side], ...]:
    """The kind of both sides (lower, upper) of this process's device blocks, per axis.

    ``wrapped_as_halo`` marks periodic axes that are whole in a block but still exchanged, with the block itself.
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


@dataclass(frozen=True)
class Places:
    """The places of the devices' blocks: arrays with a leading device axis, passed to the compiled code at run time.

    ``coordinates`` has, per axis, the cell centres (devices, cells + 2 margins), in the input's units of length.
    ``counts`` has the owned cells (devices, axes). ``touches`` says which sides are the physical boundary (devices,
    axes, 2).
    """

    coordinates: tuple[np.ndarray, ...]
    counts: np.ndarray
    touches: np.ndarray

    @staticmethod
    def of(topology: Topology, grid: Grid, margin: Sequence[int]) -> Places:
        """The places of all devices of a process, with ``margin`` more coordinates on both sides of a block."""
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
    """`Places` on the devices, as compiled code gets them. With several devices the arrays have a leading device axis,
    which mapped code does not see. ``once`` is a 1 for loops of one round; ``constants`` are the numbers of expressions,
    float64."""

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
    """The frame of the device with these (possibly traced) ``places``. On axes that divide evenly the counts are the
    array's cells."""
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
    """The local devices of a process, and the distribution of its block over them."""

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
        """The sharding of arrays with a leading device axis; with one device, that device."""
        if not self.several:
            return self.devices[0]
        return NamedSharding(Mesh(np.array(self.devices), (DEVICE_AXIS,)), PartitionSpec(DEVICE_AXIS))

    def slices(self, device: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """The cells that a device owns: (slices of the process's block, slices of the device's array)."""
        origin = [start for start, _ in self.topology.block()]
        block = self.topology.device_block(device)
        return (
            tuple(slice(a - o, b - o) for (a, b), o in zip(block, origin, strict=True)),
            tuple(slice(0, b - a) for a, b in block),
        )

    def put(self, block: np.ndarray) -> jax.Array:
        """Put a process's block on its devices. ``block`` is local, without ghost cells: cells per axis, then members
        in an ensemble. The result has a leading device axis if there are several devices."""
        if not self.several:
            return jax.device_put(block, self.devices[0])
        members = block.shape[self.topology.ndim :]
        stacked = np.zeros((len(self.devices), *self.topology.capacity(), *members), block.dtype)
        for device in range(len(self.devices)):
            here, there = self.slices(device)
            stacked[device][there] = block[here]
        return jax.device_put(stacked, self.sharding)

    def owned(self, array: jax.Array) -> list[np.ndarray]:
        """The cells that each device owns of an array, as a list of local arrays without ghost cells; on CPUs without a
        copy."""
        if not self.several:
            return [np.asarray(array)]
        return [
            np.asarray(shard.data)[0][self.slices(int(shard.index[0].start or 0))[1]]
            for shard in array.addressable_shards
        ]

    def get(self, array: jax.Array) -> np.ndarray:
        """The process's block of an array on its devices: local, without ghost cells, C-contiguous. With one device it
        is a view if possible."""
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
        """Put `Places` and the constants of expressions on the devices."""

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
    """The arrays as values that all cover the same windows."""
    return {name: Value(array, windows) for name, array in fields.items()}
