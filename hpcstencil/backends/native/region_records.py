"""Native code's records of regions of fields and of expressions while one call takes many steps, for streams: copies of their
cells, or sums over the steps for time averages.

The C++ side is region_records.hpp, and for expressions stencil_records.hpp.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np

from hpcstencil.backends.native.field_records import recordable
from hpcstencil.backends.native.passes import AXIS_OF
from hpcstencil.backends.native.recorded_steps import RecordedSteps
from hpcstencil.backends.native.stencil_records import Evaluation
from hpcstencil.backends.native.stencil_values import CompiledValues
from hpcstencil.symbolic.expressions import Node


class Region(ctypes.Structure):
    """The struct Region of region_records.hpp."""

    _fields_ = (
        ("field", ctypes.c_int64),
        ("from_", ctypes.c_int64 * 3),
        ("count", ctypes.c_int64 * 3),
        ("stride", ctypes.c_int64 * 3),
        ("sums", ctypes.c_void_p),
        ("copies", ctypes.c_void_p),
    )


class RegionRecordsStruct(RecordedSteps):
    """The struct RegionRecords of region_records.hpp."""

    _fields_ = (
        ("evaluator", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("region", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
    )


class NativeRegions:
    """Records of regions that the program in ``library`` makes; see `backend.RegionRecords`.

    ``names`` are those of all its fields, in order; or of the values of the ``evaluator`` with this number.
    """

    with_last = True

    def __init__(
        self,
        library: ctypes.CDLL,
        names: Sequence[str],
        chosen: Sequence[slice],
        arrays: Mapping[str, np.ndarray],
        summed: bool,
        evaluator: int = -1,
    ) -> None:
        self.library, self.arrays = library, arrays
        self.regions = (Region * len(arrays))()
        for region, (name, array) in zip(self.regions, arrays.items(), strict=True):
            region.field, address = names.index(name), array.ctypes.data
            region.sums, region.copies = (address, None) if summed else (None, address)
            region.count[:] = region.stride[:] = [1, 1, 1]
            for axis, cells, count in zip(AXIS_OF[len(chosen)], chosen, array.shape[-len(chosen) :], strict=True):
                region.from_[axis], region.count[axis], region.stride[axis] = cells.start, count, cells.step or 1
        self.struct = RegionRecordsStruct(evaluator=evaluator, count=len(arrays), region=ctypes.addressof(self.regions))
        self.struct.drop_with(self, library.drop_region_records)

    def expect(
        self, every: int, first: int, origin: int, times: Sequence[float], weights: Sequence[float] = ()
    ) -> None:
        self.struct.choose(every, first, origin)
        self.weights = np.array(weights, np.float64)
        self.struct.records, self.struct.weights = len(times), self.weights.ctypes.data if weights else None
        self.set(True)

    def expect_nothing(self) -> None:
        self.set(False)

    def set(self, wanted: bool) -> None:
        """Make later calls record the regions, or not."""
        (self.library.add_region_records if wanted else self.library.drop_region_records)(ctypes.byref(self.struct))


class ExpressionRegions(NativeRegions):
    """Records of regions of the trees of ``values``, except of the state after a call.

    ``fields`` are those of the program in ``library``, and the ``arrays`` are in the order of the trees. Streams that record
    the same values after the same steps share an ``evaluator``.
    """

    with_last = False

    def __init__(
        self,
        library: ctypes.CDLL,
        fields: Sequence[str],
        chosen: Sequence[slice],
        arrays: Mapping[str, np.ndarray],
        summed: bool,
        evaluator: int,
        values: CompiledValues,
    ) -> None:
        super().__init__(library, list(arrays), chosen, arrays, summed, evaluator)
        self.number, self.evaluation = ctypes.c_int64(evaluator), Evaluation(fields, values, np.zeros(0))
        self.records = self.evaluation.records()
        self.records.drop_with(self, library.drop_stencil_records)

    def expect(
        self, every: int, first: int, origin: int, times: Sequence[float], weights: Sequence[float] = ()
    ) -> None:
        self.times = np.array(times, np.float64)
        self.records.choose(every, first, origin)
        self.records.records, self.records.times = len(times), self.times.ctypes.data
        super().expect(every, first, origin, times, weights)

    def set(self, wanted: bool) -> None:
        super().set(wanted)
        self.library.set_stencil_records(self.number, ctypes.byref(self.records) if wanted else None)


def region_records_of(
    library: ctypes.CDLL,
    fields: Sequence[str],
    evaluators: Mapping[tuple[tuple[Node, ...], int], tuple[int, CompiledValues]],
    chosen: Sequence[slice],
    arrays: Mapping[str, np.ndarray],
    trees: Sequence[Node],
    every: int,
    summed: bool,
) -> NativeRegions | None:
    """Return the records of regions with the arguments of `Steps.region_records`; None if the program cannot make them.

    ``evaluators`` are, by their trees and by the steps between two records, the number of the evaluator and the values that
    it computes.
    """
    if trees:
        found = evaluators.get((tuple(trees), every))
        return None if found is None else ExpressionRegions(library, fields, chosen, arrays, summed, *found)
    if not recordable(library, fields, [*arrays], everywhere=True):
        return None
    return NativeRegions(library, fields, chosen, arrays, summed)
