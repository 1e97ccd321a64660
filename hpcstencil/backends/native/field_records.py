"""Native code's recording of extrema and sums of fields, for diagnostics.

The compiled program reduces the fields after each recorded step, while their cells are in the caches, so that one call can
take many steps. The C++ side is field_records.hpp.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

HEADROOM = 2  # bits by which values may grow before their sums take longer


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
    """Up to ``most`` records of the fields ``names``; see `reductions.FieldRecords`.

    ``fields`` are those of the program in ``library``, ``field_sum`` is its struct FieldSum, and ``expected`` holds the
    `expected_exponent` of each field, which is kept up to date.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        fields: Sequence[str],
        field_sum: Any,
        expected: dict[str, int],
        names: Sequence[str],
        most: int,
    ) -> None:
        self.library, self.names, self.expected = library, names, expected
        self.places = [fields.index(name) for name in names]
        self.sums = (field_sum * len(fields) * most)()
        self.records = Records(records=most, sums=ctypes.addressof(self.sums))
        # Another recorder of the same program may be in use when this one is collected.
        weakref.finalize(self, self.library.drop_field_records, ctypes.c_void_p(ctypes.addressof(self.records)))

    def expect(self, every: int, first: int, origin: int) -> None:
        self.records.every, self.records.first, self.records.origin = every, first, origin
        ctypes.memset(self.sums, 0, ctypes.sizeof(self.sums))
        for record in self.sums:
            for name, place in zip(self.names, self.places, strict=True):
                each = record[place]
                each.wanted, each.exponent = 1, self.expected.get(name, 0)
                each.high = each.low = -math.inf
        self.library.set_field_records(ctypes.byref(self.records))

    def expect_nothing(self) -> None:
        self.library.set_field_records(None)

    def extremes(self, count: int) -> np.ndarray:
        found = [
            [(record[place].high, record[place].low, record[place].broken) for place in self.places]
            for record in self.sums[:count]
        ]
        for name, (high, low, broken) in zip(self.names, found[-1], strict=True):
            if not broken:
                self.expected[name] = expected_exponent(high, low)
        return np.array(found)

    def parts(self, count: int) -> np.ndarray:
        return np.array([[record[place].limb for place in self.places] for record in self.sums[:count]], np.int64)


def expected_exponent(high: float, low: float) -> int:
    """Return the exponent of 2 below which values are expected after those with the largest, and the largest negative."""
    return math.frexp(max(abs(high), abs(low)))[1] + HEADROOM


def recordable(library: ctypes.CDLL, fields: Sequence[str], names: Sequence[str], everywhere: bool = False) -> bool:
    """Return whether a program with these ``fields`` computes those with ``names`` in every step, and ``everywhere`` if that is
    set: not only in absorbing layers."""
    made = (ctypes.c_int64 * len(fields))()
    library.find_recordable(made, ctypes.c_int64(everywhere))
    return all(name in fields and made[fields.index(name)] for name in names)
