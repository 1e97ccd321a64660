"""Recording of single cells of this process's block at given steps, for probes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import numpy as np

from hpcstencil.distributed.device_blocks import Devices
from hpcstencil.distributed.halo import Fields


@dataclass(frozen=True)
class Cells:
    """Cells of one field that are recorded.

    ``index`` holds their local indices in the process's block without ghost cells: int64 of shape (cells, axes). ``slot`` is
    the position of each cell in a record: int64 of shape (cells,).
    """

    index: np.ndarray
    slot: np.ndarray


class CellSamples:
    """A recorder of single ``cells`` of each field.

    Records are rows of ``values``, of shape (records, size) in the run's dtype. In an ensemble of ``members``, which are the
    last axis of the fields, a record has a row for each. Each group of ``width`` slots, starting at a
    multiple of ``width``, may hold neighbours along the last axis. This class copies cells from the devices between compiled
    calls. A backend may have a subclass that records them ``while_stepping``, inside a call of many steps.
    """

    while_stepping = False
    with_last = True  # if calls record: whether they also record the state after their last step

    def __init__(
        self, cells: Mapping[str, Cells], values: np.ndarray, width: int, devices: Devices, members: int = 1
    ) -> None:
        self.values, self.members = values, members
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
        """Record the cells of these ``fields``, arrays on the devices as from `Devices.put`, in the record ``row``.

        Cells of fields that are not given keep what was recorded.
        """
        rows = slice(row * self.members, (row + 1) * self.members)
        for name in self.parts.keys() & fields.keys():
            parts = self.parts[name]
            shards = (
                {int(shard.index[0].start or 0): shard.data[0] for shard in fields[name].addressable_shards}
                if (self.several)
                else {0: fields[name]}
            )
            for device, index, slot in parts:
                if len(slot):
                    self.values[rows, slot] = taken(shards[device], index).reshape(len(slot), -1).T

    def expect(self, every: int, first: int, origin: int, times: Mapping[int, float]) -> None:
        """Announce a compiled call whose steps are to be recorded; the call must follow at once.

        The state after step n of the run goes to row n / ``every`` - ``first``, if ``every`` divides n. Step 0 of the call's
        `StepRange` is step ``origin`` of the run. ``times`` are those of the rows that are recorded, by row; not needed
        ``with_last``. Does nothing unless samples are taken ``while_stepping``.
        """

    def expect_nothing(self) -> None:
        """Announce that the next compiled call is not to be recorded."""

    def weighted(self, start: int, count: int, weights: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Return weighted sums of the cells of each receiver, for the first ``count`` records.

        ``weights`` is float64 of shape (receivers, rows, width); the slots from ``start`` on have the same order. The result
        has shape (count, receivers) in the run's dtype, with receiver r in column ``place[r]``. Sums are in float64, and
        their order is fixed: first over rows, then over columns.
        """
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
    """Return the cells at ``index`` of a device's block as a numpy array. On CPUs the block is not copied."""
    if next(iter(block.devices())).platform == "cpu":
        return np.asarray(block)[index]
    return np.asarray(_taken(block, index))
