"""Native code's recording of extrema and sums of fields, for diagnostics.

The compiled program reduces the fields after each recorded step, while their cells are in the caches, so that one call can
take many steps. The C++ side is field_records.hpp.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hpcstencil.backends.native.field_sums import ByNative


class Records(ctypes.Structure):
    """The struct FieldRecords of field_records.hpp."""

    _fields_ = (
        ("every", ctypes.c_int64),
        ("origin", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("records", ctypes.c_int64),
        ("sums", ctypes.c_void_p),
    )


class NativeRecords:
    """Up to ``most`` records of the fields ``names``; see `reductions.FieldRecords`."""

    def __init__(self, reducer: ByNative, names: Sequence[str], most: int) -> None:
        self.reducer, self.names = reducer, names
        self.sums = (reducer.field_sum * len(reducer.fields) * most)()
        self.records = Records(records=most, sums=ctypes.addressof(self.sums))
        self.library = reducer.library
        # Another recorder of the same program may be in use when this one is collected.
        weakref.finalize(self, self.library.drop_field_records, ctypes.c_void_p(ctypes.addressof(self.records)))

    def expect(self, every: int, first: int, origin: int) -> None:
        self.records.every, self.records.first, self.records.origin = every, first, origin
        ctypes.memset(self.sums, 0, ctypes.sizeof(self.sums))
        for record in self.sums:
            for name in self.names:
                each = record[self.reducer.fields.index(name)]
                each.wanted, each.exponent = 1, self.reducer.expected.get(name, 0)
                each.high = each.low = -math.inf
        self.library.set_field_records(ctypes.byref(self.records))

    def expect_nothing(self) -> None:
        self.library.set_field_records(None)

    def extremes(self, count: int) -> np.ndarray:
        found = [[(each.high, each.low, each.broken) for each in self._of(record)] for record in self.sums[:count]]
        for name, (high, low, broken) in zip(self.names, found[-1], strict=True):
            if not broken:
                self.reducer.expect_magnitude(name, high, low)
        return np.array(found)

    def parts(self, count: int) -> np.ndarray:
        return np.array([[each.limb for each in self._of(record)] for record in self.sums[:count]], np.int64)

    def _of(self, record: ctypes.Array) -> list:
        return [record[self.reducer.fields.index(name)] for name in self.names]


def recordable(reducer: ByNative, names: Sequence[str]) -> bool:
    """Return whether a program computes all these fields in every step, in all cells."""
    made = (ctypes.c_int64 * len(reducer.fields))()
    reducer.library.find_recordable(made)
    return all(name in reducer.fields and made[reducer.fields.index(name)] for name in names)
