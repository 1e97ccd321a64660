"""Native code's sums of fields over the steps of a call, for time averages. The C++ side is time_sums.hpp."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence

import numpy as np

from hpcstencil.backends.native.field_records import recordable
from hpcstencil.backends.native.passes import AXIS_OF
from hpcstencil.backends.native.recorded_steps import RecordedSteps


class TimeSum(ctypes.Structure):
    """The struct TimeSum of time_sums.hpp."""

    _fields_ = (
        ("field", ctypes.c_int64),
        ("from_", ctypes.c_int64 * 3),
        ("to", ctypes.c_int64 * 3),
        ("sums", ctypes.c_void_p),
    )


class Struct(RecordedSteps):
    """The struct TimeSums of time_sums.hpp."""

    _fields_ = (("count", ctypes.c_int64), ("sum", ctypes.c_void_p), ("weights", ctypes.c_void_p))


class NativeTimeSums:
    """Sums over time that the program in ``library``, with these ``fields``, adds up; see `backend.TimeSums`."""

    def __init__(
        self, library: ctypes.CDLL, fields: Sequence[str], first: Sequence[int], sums: Mapping[str, np.ndarray]
    ) -> None:
        self.library, self.sums = library, sums
        self.each = (TimeSum * len(sums))()
        for entry, (name, array) in zip(self.each, sums.items(), strict=True):
            entry.field, entry.sums = fields.index(name), array.ctypes.data
            entry.to[:] = [1, 1, 1]
            for axis, start, count in zip(AXIS_OF[array.ndim], first, array.shape, strict=True):
                entry.from_[axis], entry.to[axis] = start, start + count
        self.struct = Struct(every=1, count=len(sums), sum=ctypes.addressof(self.each))
        weakref.finalize(self, library.drop_time_sums, ctypes.c_void_p(ctypes.addressof(self.struct)))

    def expect(self, first: int, weights: np.ndarray) -> None:
        self.weights = np.ascontiguousarray(weights, np.float64)
        self.struct.first, self.struct.records, self.struct.weights = first + 1, len(weights), self.weights.ctypes.data
        self.library.add_time_sums(ctypes.byref(self.struct))

    def expect_nothing(self) -> None:
        self.library.drop_time_sums(ctypes.byref(self.struct))


def time_sums_of(
    library: ctypes.CDLL, fields: Sequence[str], first: Sequence[int], sums: Mapping[str, np.ndarray]
) -> NativeTimeSums | None:
    """Return the sums over time with the arguments of `Steps.time_sums`; None if the program does not compute these fields."""
    if not recordable(library, fields, [*sums], everywhere=True):
        return None
    return NativeTimeSums(library, fields, first, sums)
