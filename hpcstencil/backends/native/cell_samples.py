"""Native code's recording of the cells that probes need.

The compiled program copies these cells into a buffer after each recorded step, so that one call can take many steps.
`distributed.cell_samples` serves the other backends. The C++ side is cell_samples.hpp.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcstencil.backends.native.passes import AXIS_OF
from hpcstencil.backends.native.recorded_steps import RecordedSteps
from hpcstencil.distributed.cell_samples import Cells, CellSamples
from hpcstencil.distributed.device_blocks import Devices
from hpcstencil.runtime.communicator import Communicator
from hpcstencil.runtime.threads import by_threads

WIDEST = 8  # of the runs that the program copies
SPARSE = 600  # cells per run from which on it is faster to compute values again than to store a field after every step


class Samples(RecordedSteps):
    """The struct CellSamples of cell_samples.hpp."""

    _fields_ = (
        ("size", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("dense", ctypes.c_int64),
        ("begin", ctypes.c_void_p),
        ("run", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
    )


class NativeSamples(CellSamples):
    """Records of single cells that a compiled program makes while it steps, on one device. To make it is collective.

    ``library`` is the loaded program, and ``fields`` are the names of its fields in order.
    """

    while_stepping = True

    def __init__(
        self,
        cells: Mapping[str, Cells],
        values: np.ndarray,
        width: int,
        devices: Devices,
        library: ctypes.CDLL,
        fields: Sequence[str],
        communicator: Communicator,
        members: int = 1,
    ) -> None:
        super().__init__(cells, values, width, devices, members)
        self.library, self.fields, self.cells, self.width = library, fields, cells, width
        self.topology, self.tables = devices.topology, list[Any]()  # tables: to which structs point
        self.samples = self.struct(fields)
        # all blocks exchange the same: fields, or what a joined step stores
        self.samples.dense = communicator.any(self.samples.dense)
        self.samples.drop_with(self, library.drop_cell_samples)

    def struct(self, names: Sequence[str]) -> Samples:
        """Return the struct for the cells of what has these ``names``, in order."""
        axes = AXIS_OF[self.topology.ndim]
        shape = dict(zip(axes, self.topology.capacity(), strict=True))
        planes, rows = shape.get(0, 1), shape.get(1, 1)
        begin = (ctypes.c_void_p * len(names))()  # null without cells
        listed, count = [np.zeros((0, 3), np.int32)], 0
        for name in [name for name in names if name in self.cells]:
            each = self.cells[name]
            place = dict(zip(axes, each.index.T, strict=True))
            row = place.get(0, 0) * rows + place.get(1, 0) + np.zeros(len(each.index), np.int64)
            runs, row = runs_of(row, place[2], each.slot, self.width)
            table = np.ascontiguousarray(count + np.searchsorted(row, np.arange(planes * rows + 1)), np.int64)
            listed.append(runs)
            count += len(runs)
            begin[names.index(name)] = table.ctypes.data
            self.tables.append(table)
        runs = np.ascontiguousarray(np.concatenate(listed), np.int32)
        self.tables += [begin, runs]
        return Samples(
            records=len(self.values) // self.members,
            size=self.values.shape[1],
            begin=ctypes.addressof(begin),
            width=self.width,
            dense=len(runs) * SPARSE > math.prod(self.topology.capacity()),
            run=runs.ctypes.data,
            values=self.values.ctypes.data,
        )

    def expect(self, every: int, first: int, origin: int, times: Mapping[int, float]) -> None:
        self.samples.choose(every, first, origin)
        self.library.set_cell_samples(ctypes.byref(self.samples))

    def expect_nothing(self) -> None:
        self.library.set_cell_samples(None)

    def weighted(self, start: int, count: int, weights: np.ndarray, place: np.ndarray) -> np.ndarray:
        receivers, rows, width = weights.shape
        weights, place = np.ascontiguousarray(weights), np.ascontiguousarray(place, np.int64)
        result = np.empty((count, receivers), self.values.dtype)

        def some(values: np.ndarray, result: np.ndarray) -> None:
            self.library.weigh_records(
                ctypes.c_void_p(values[:, start:].ctypes.data),
                ctypes.c_int64(len(values)),
                ctypes.c_int64(self.values.shape[1]),
                weights.ctypes.data_as(ctypes.c_void_p),
                place.ctypes.data_as(ctypes.c_void_p),
                ctypes.c_int64(receivers),
                ctypes.c_int64(rows),
                ctypes.c_int64(width),
                ctypes.c_void_p(result.ctypes.data),
            )

        by_threads(some, self.values[:count], result)
        return result


def runs_of(row: np.ndarray, x: np.ndarray, slot: np.ndarray, longest: int) -> tuple[np.ndarray, np.ndarray]:
    """(runs, their rows), sorted by row: cells next to each other in a row whose slots are next to each other too, at
    most ``longest``. The arguments are int64 (cells,); runs are int32 (runs, 3), with cell, slot and width."""
    order = np.lexsort((slot, row))
    row, x, slot = row[order], x[order], slot[order]
    goes_on = (np.diff(row) == 0) & (np.diff(x) == 1) & (np.diff(slot) == 1)
    goes_on &= slot[1:] % longest != 0  # slots of a receiver's row begin at a multiple
    first = np.flatnonzero(np.concatenate([[True], ~goes_on])) if len(row) else np.zeros(0, np.int64)
    width = np.diff(np.concatenate([first, [len(row)]]))
    return np.stack([x[first], slot[first], width], axis=1).astype(np.int32), row[first]
