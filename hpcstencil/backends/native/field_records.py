"""Native code's recording of extrema and sums of fields, for diagnostics.

The compiled program reduces the fields after each recorded step, while their cells are in the caches, so that one call can
take many steps. The C++ side is field_records.hpp.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Sequence

import numpy as np

from hpcstencil.backends.native.recorded_steps import RecordedSteps

HEADROOM = 2  # bits by which values may grow before their sums take longer


class Records(RecordedSteps):
    """The struct FieldRecords of field_records.hpp."""

    _fields_ = (("sums", ctypes.c_void_p),)


class NativeRecords:
    """Up to ``most`` records of the fields ``names``; see `reductions.FieldRecords`.

    ``fields`` are those of the program in ``library``, and ``field_sum`` is the dtype of its struct FieldSum. ``expected``
    holds the `expected_exponent` of each field; it is kept up to date.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        fields: Sequence[str],
        field_sum: np.dtype,
        expected: dict[str, int],
        names: Sequence[str],
        most: int,
    ) -> None:
        self.library, self.names, self.expected = library, names, expected
        self.places = [fields.index(name) for name in names]
        self.sums = np.zeros((most, len(fields)), field_sum)
        self.records = Records(records=most, sums=self.sums.ctypes.data)
        # Another recorder of the same program may be in use when this one is collected.
        weakref.finalize(self, self.library.drop_field_records, ctypes.c_void_p(ctypes.addressof(self.records)))

    def expect(self, every: int, first: int, origin: int) -> None:
        self.records.every, self.records.first, self.records.origin = every, first, origin
        self.sums[...] = np.zeros((), self.sums.dtype)
        self.sums["high"] = self.sums["low"] = -math.inf
        self.sums["wanted"][:, self.places] = 1
        self.sums["exponent"][:, self.places] = [self.expected.get(name, 0) for name in self.names]
        self.library.set_field_records(ctypes.byref(self.records))

    def expect_nothing(self) -> None:
        self.library.set_field_records(None)

    def extremes(self, count: int) -> np.ndarray:
        found = self.sums[:count, self.places]
        for name, last in zip(self.names, found[-1], strict=True):
            if not last["broken"]:
                self.expected[name] = expected_exponent(last["high"], last["low"])
        return np.stack([found[part].astype(np.float64) for part in ("high", "low", "broken")], -1)

    def parts(self, count: int) -> np.ndarray:
        return self.sums["limb"][:count, self.places]


def expected_exponent(high: float, low: float) -> int:
    """Return the exponent of 2 below which values are expected after those with the largest, and the largest negative."""
    return math.frexp(max(abs(high), abs(low)))[1] + HEADROOM


def recordable(library: ctypes.CDLL, fields: Sequence[str], names: Sequence[str], everywhere: bool = False) -> bool:
    """Return whether a program with these ``fields`` computes those with ``names`` in every step, and ``everywhere`` if that is
    set: not only in absorbing layers."""
    made = (ctypes.c_int64 * len(fields))()
    library.find_recordable(made, ctypes.c_int64(everywhere))
    return all(name in fields and made[fields.index(name)] for name in names)
