"""Values of single cells of this process's block, recorded at given steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import numpy as np

from hpcstencil.distributed.device_blocks import Devices
from hpcstencil.distributed.halo import Fields


@dataclass(frozen=True)
class Cells:
    """Cells of one field: their local ``index``, int64 (cells, axes), without ghost cells, and the ``slot`` of each
    in a record, int64 (cells,)."""

    index: np.ndarray
    slot: np.ndarray


class CellSamples:
    """Records of the ``cells`` of each field, in ``values``: (records, size), in the run's dtype. Cells in ``width``
    slots from a multiple on may be neighbours along the last axis. This class copies cells from the devices between
    compiled calls; a backend may have a subclass that records them ``while_stepping``."""

    while_stepping = False

    def __init__(self, cells: Mapping[str, Cells], values: np.ndarray, width: int, devices: Devices) -> None:
        self.values = values
        self.parts: dict[str, list[tuple[int, tuple[np.ndarray, ...], np.ndarray]]] = {}
        for name, each in cells.items():
            self.parts[name] = []
            for device in range(len(devices.devices)):
                here, there = devices.slices(device)
                first, stop = (np.array([getattr(s, end) for s in here]) for end in ("start", "stop"))
                own = ((each.index >= first) & (each.index < stop)).all(axis=1)
                moved = each.index[own] - first + [s.start for s in there]
                self.parts[name].append((device, tuple(moved.T), each.slot[own]))
        self.several = devices.several

    def record(self, row: int, fields: Fields) -> None:
        """Record the ``fields``, as `Devices.put` gives them, in a row of ``values``."""
        for name, parts in self.parts.items():
            shards = (
                {int(shard.index[0].start or 0): shard.data[0] for shard in fields[name].addressable_shards}
                if (self.several)
                else {0: fields[name]}
            )
            for device, index, slot in parts:
                if len(slot):
                    self.values[row, slot] = taken(shards[device], index)

    def expect(self, every: int, first: int, origin: int) -> None:
        """The next compiled call follows, and nothing else before it: record the state after step n of the run in row
        n / ``every`` - ``first``, if ``every`` divides n. Step 0 of the call's `StepRange` is step ``origin`` of the
        run. Does nothing unless samples are taken ``while_stepping``."""

    def expect_nothing(self) -> None:
        """The next compiled call is not one of this run, or is not recorded."""

    def weighted(self, start: int, count: int, weights: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Weighted sums of the first ``count`` records, whose slots from ``start`` on are (receivers, rows, width), with
        ``weights``, float64 of this shape: (count, receivers), in the run's dtype. That of receiver r is in column
        ``place[r]``. The products of a column of cells are added row by row, then the columns, in float64."""
        receivers, rows, width = weights.shape
        values = self.values[:count, start : start + weights.size].reshape(count, *weights.shape)
        columns = np.zeros((count, receivers, width))
        for row in range(rows):
            columns += weights[:, row] * values[:, :, row]
        total = np.zeros((count, receivers))
        for column in range(width):
            total += columns[:, :, column]
        result = np.empty(total.shape, self.values.dtype)
        result[:, place] = total
        return result


@jax.jit
def _taken(block: jax.Array, index: tuple[np.ndarray, ...]) -> jax.Array:
    return block[index]


def taken(block: jax.Array, index: tuple[np.ndarray, ...]) -> np.ndarray:
    """The cells of a device's block, as a local array. On CPUs they are read where they are."""
    if next(iter(block.devices())).platform == "cpu":
        return np.asarray(block)[index]
    return np.asarray(_taken(block, index))
