"""Native code's addition of values to single cells after given steps, as a reverse sweep needs them.

One call can then reverse many steps of a run whose receivers record after each of them. The C++ side is injection.hpp.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from hpcstencil.backends.native.cell_samples import WIDEST, runs_of
from hpcstencil.backends.native.passes import AXIS_OF
from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.decomposition import MOST_STEPS_PER_EXCHANGE


class InjectionStruct(ctypes.Structure):
    """The struct Injection of injection.hpp."""

    _fields_ = (
        ("first", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("beyond", ctypes.c_int64 * 3),
        ("row_of", ctypes.c_void_p),
        ("begin", ctypes.c_void_p),
        ("run", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
    )


class NativeInjection:
    """The `Injection` of a compiled program.

    ``library`` is the loaded program. ``per_step`` is how many times per step it adds, and ``most`` the largest number of
    steps in a call.
    """

    def __init__(self, library: ctypes.CDLL, topology: Topology, per_step: int, most: int) -> None:
        self.library, self.topology, self.per_step = library, topology, per_step
        found = (ctypes.c_int64 * 3)()
        library.reach_of_steps(ctypes.c_int64(min(most, MOST_STEPS_PER_EXCHANGE)), found)
        self.beyond = tuple(int(found[axis]) for axis in AXIS_OF[topology.ndim])
        self.index: np.ndarray | None = None
        self.struct = InjectionStruct()

    def at(self, index: np.ndarray) -> None:
        self.index = index
        axes = AXIS_OF[self.topology.ndim]
        count, beyond, place = [1, 1, 1], [0, 0, 0], [np.zeros(len(index), np.int64)] * 3
        for axis, b in enumerate(axes):
            start, stop = self.topology.block()[axis]
            count[b], beyond[b], place[b] = stop - start, self.beyond[axis], index[:, axis]
        planes, rows = (count[b] + 2 * beyond[b] for b in (0, 1))
        row = (place[0] + beyond[0]) * rows + place[1] + beyond[1]
        runs, row = runs_of(row, place[2], np.arange(len(index)), WIDEST)
        self.runs, self.begin = runs, np.searchsorted(row, np.arange(planes * rows + 1)).astype(np.int64)
        self.struct = InjectionStruct(
            size=len(index),
            beyond=(ctypes.c_int64 * 3)(*beyond),
            begin=self.begin.ctypes.data,
            run=self.runs.ctypes.data,
        )

    @contextmanager
    def adding(self, first: int, rows: Sequence[int], values: np.ndarray) -> Iterator[None]:
        row_of, values = np.array(rows, np.int64), np.ascontiguousarray(values)
        struct = self.struct
        struct.first, struct.count = first, len(row_of) // self.per_step
        struct.row_of, struct.values = row_of.ctypes.data, values.ctypes.data
        self.library.set_injection(ctypes.byref(struct))
        try:
            yield
        finally:
            self.library.set_injection(None)
