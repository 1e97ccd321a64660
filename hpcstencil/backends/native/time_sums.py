"""Native code's sums of fields and of expressions over the steps of a call, for time averages.

The C++ side is time_sums.hpp, and for expressions stencil_records.hpp.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence

import numpy as np

from hpcstencil.backends.native.field_records import recordable
from hpcstencil.backends.native.passes import AXIS_OF
from hpcstencil.backends.native.recorded_steps import RecordedSteps
from hpcstencil.backends.native.stencil_records import Evaluation
from hpcstencil.backends.native.stencil_values import CompiledValues
from hpcstencil.symbolic.expressions import Node


class TimeSum(ctypes.Structure):
    """The struct TimeSum of time_sums.hpp."""

    _fields_ = (
        ("field", ctypes.c_int64),
        ("from_", ctypes.c_int64 * 3),
        ("count", ctypes.c_int64 * 3),
        ("stride", ctypes.c_int64 * 3),
        ("sums", ctypes.c_void_p),
    )


class Struct(RecordedSteps):
    """The struct TimeSums of time_sums.hpp."""

    _fields_ = (
        ("evaluator", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("sum", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
    )


class NativeTimeSums:
    """Sums over time that the program in ``library`` adds up; see `backend.TimeSums`.

    ``names`` are those of all its fields, in order; or of the values of the ``evaluator`` with this number.
    """

    with_last = True

    def __init__(
        self,
        library: ctypes.CDLL,
        names: Sequence[str],
        chosen: Sequence[slice],
        sums: Mapping[str, np.ndarray],
        evaluator: int = -1,
    ) -> None:
        self.library, self.sums = library, sums
        self.each = (TimeSum * len(sums))()
        for entry, (name, array) in zip(self.each, sums.items(), strict=True):
            entry.field, entry.sums = names.index(name), array.ctypes.data
            entry.count[:] = entry.stride[:] = [1, 1, 1]
            for axis, cells, count in zip(AXIS_OF[len(chosen)], chosen, array.shape[-len(chosen) :], strict=True):
                entry.from_[axis], entry.count[axis], entry.stride[axis] = cells.start, count, cells.step or 1
        self.struct = Struct(every=1, evaluator=evaluator, count=len(sums), sum=ctypes.addressof(self.each))
        weakref.finalize(self, library.drop_time_sums, ctypes.c_void_p(ctypes.addressof(self.struct)))

    def expect(self, first: int, times: Sequence[float], weights: np.ndarray) -> None:
        self.weights = np.ascontiguousarray(weights, np.float64)
        self.struct.first, self.struct.records, self.struct.weights = first + 1, len(weights), self.weights.ctypes.data
        self.set(True)

    def expect_nothing(self) -> None:
        self.set(False)

    def set(self, wanted: bool) -> None:
        """Make later calls add up the sums, or not."""
        (self.library.add_time_sums if wanted else self.library.drop_time_sums)(ctypes.byref(self.struct))


class ExpressionTimeSums(NativeTimeSums):
    """Sums over time of the trees of ``values``, except after the last step of a call.

    ``fields`` are those of the program in ``library``, and the ``sums`` are in the order of the trees. Several sums of the same
    values share an ``evaluator``, and have the same times.
    """

    with_last = False

    def __init__(
        self,
        library: ctypes.CDLL,
        fields: Sequence[str],
        evaluator: int,
        values: CompiledValues,
        chosen: Sequence[slice],
        sums: Mapping[str, np.ndarray],
    ) -> None:
        super().__init__(library, list(sums), chosen, sums, evaluator)
        self.number, self.evaluation = ctypes.c_int64(evaluator), Evaluation(fields, values, np.zeros(0))
        self.records = self.evaluation.records(every=1)
        weakref.finalize(self, library.drop_stencil_records, ctypes.c_void_p(ctypes.addressof(self.records)))

    def expect(self, first: int, times: Sequence[float], weights: np.ndarray) -> None:
        self.times = np.array(times, np.float64)
        self.records.first, self.records.records, self.records.times = first + 1, len(times), self.times.ctypes.data
        super().expect(first, times, weights)

    def set(self, wanted: bool) -> None:
        super().set(wanted)
        self.library.set_stencil_records(self.number, ctypes.byref(self.records) if wanted else None)


def time_sums_of(
    library: ctypes.CDLL,
    fields: Sequence[str],
    averaged: Mapping[tuple[Node, ...], tuple[int, CompiledValues]],
    chosen: Sequence[slice],
    sums: Mapping[str, np.ndarray],
    trees: Sequence[Node],
) -> NativeTimeSums | None:
    """Return the sums over time with the arguments of `Steps.time_sums`; None if the program cannot make them.

    ``averaged`` are the values that it can record, with the numbers of their evaluators.
    """
    if trees:
        found = averaged.get(tuple(trees))
        return None if found is None else ExpressionTimeSums(library, fields, *found, chosen, sums)
    if not recordable(library, fields, [*sums], everywhere=True):
        return None
    return NativeTimeSums(library, fields, chosen, sums)
