"""Samples of single cells that native code records while it takes many steps in a call."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence

import numpy as np

from hpcstencil.backends.native.passes import AXIS_OF
from hpcstencil.distributed.cell_samples import Cells, CellSamples
from hpcstencil.distributed.device_blocks import Devices


class Samples(ctypes.Structure):
    """The struct CellSamples of cell_samples.hpp."""

    _fields_ = (
        ("every", ctypes.c_int64),
        ("origin", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("records", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("begin", ctypes.c_void_p),
        ("cell", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
    )


class NativeSamples(CellSamples):
    """Samples of the ``fields`` of a program in its ``library``, which has one device. The program records them while
    it steps."""

    while_stepping = True

    def __init__(
        self,
        cells: Mapping[str, Cells],
        values: np.ndarray,
        devices: Devices,
        library: ctypes.CDLL,
        fields: Sequence[str],
    ) -> None:
        super().__init__(cells, values, devices)
        axes = AXIS_OF[devices.topology.ndim]
        shape = dict(zip(axes, devices.topology.capacity(), strict=True))
        planes, rows = shape.get(0, 1), shape.get(1, 1)
        self.tables: list[np.ndarray] = []  # to which the struct points
        self.begin = (ctypes.c_void_p * len(fields))()  # null for fields without cells
        listed, count = [np.zeros((0, 2), np.int32)], 0
        for name, each in cells.items():
            place = dict(zip(axes, each.index.T, strict=True))
            row = place.get(0, 0) * rows + place.get(1, 0) + np.zeros(len(each.index), np.int64)
            order = np.lexsort((place[2], row))
            table = count + np.searchsorted(row[order], np.arange(planes * rows + 1))
            listed.append(np.stack([place[2][order], each.slot[order]], axis=1).astype(np.int32))
            count += len(order)
            self.tables.append(np.ascontiguousarray(table, np.int64))
            self.begin[fields.index(name)] = self.tables[-1].ctypes.data
        self.cells = np.ascontiguousarray(np.concatenate(listed))
        self.samples = Samples(
            records=len(values),
            size=values.shape[1],
            begin=ctypes.addressof(self.begin),
            cell=self.cells.ctypes.data,
            values=values.ctypes.data,
        )
        self.library = library
        weakref.finalize(self, library.set_cell_samples, None)

    def expect(self, every: int, first: int, origin: int) -> None:
        self.samples.every, self.samples.first, self.samples.origin = every, first, origin
        self.library.set_cell_samples(ctypes.byref(self.samples))

    def expect_nothing(self) -> None:
        self.library.set_cell_samples(None)
