"""Native code's recording of expressions with stencils while one call takes many steps.

It records their extrema and sums over the grid, or single cells of them; region_records.py has regions of them.

The program of the steps calls the pass of `StencilValues` for states between two steps. The C++ side is stencil_records.hpp.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcstencil.backends.native.cell_samples import WIDEST, NativeSamples
from hpcstencil.backends.native.field_records import NativeRecords, SumRecords
from hpcstencil.backends.native.program import Program
from hpcstencil.backends.native.recorded_steps import RecordedSteps
from hpcstencil.backends.native.stencil_values import OF_CELLS, OF_SUMS, CompiledValues, Inputs, field_of, inputs_of
from hpcstencil.distributed.cell_samples import Cells, CellSamples
from hpcstencil.distributed.device_blocks import Devices
from hpcstencil.runtime.communicator import Communicator
from hpcstencil.symbolic.expressions import Node


class Evaluator(ctypes.Structure):
    """The struct Evaluator of evaluator.hpp."""

    _fields_ = (
        ("first_pass", ctypes.c_void_p),
        ("prepare", ctypes.c_void_p),
        ("open", ctypes.c_void_p),
        ("field_of", ctypes.c_void_p),
        ("scalars", ctypes.c_int64),
    )


class Records(RecordedSteps):
    """The struct StencilRecords of stencil_records.hpp."""

    _fields_ = (
        ("least", ctypes.c_int64),
        ("sums", ctypes.c_void_p),
        ("values", ctypes.c_int64),
        ("cells", ctypes.c_void_p),
        ("evaluator", ctypes.c_void_p),
        ("inputs", Inputs),
        ("value", ctypes.c_void_p),
        ("constants", ctypes.c_void_p),
        ("times", ctypes.c_void_p),
    )


class Evaluation:
    """What `Records` have of the program that computes ``values``.

    ``fields`` are those of the program that takes the steps, which must be able to record the values
    (`StencilValues.recorded`). ``times`` are those of the records, float64 of shape (records,).
    """

    def __init__(self, fields: Sequence[str], values: CompiledValues, times: np.ndarray) -> None:
        self.evaluator, self.inputs = Evaluator(), inputs_of(values.program, fields)
        values.library.find_evaluator(ctypes.byref(self.evaluator))
        numbers = {field_of(n): n for n in range(len(values.trees))}
        self.value = np.array([numbers.get(name, -1) for name in values.program.fields], np.int64)
        self.constants = np.array([*values.program.constants, 0.0])
        self.times = times

    def records(self, **others: int) -> Records:
        """Return the struct, which points to this object's memory. ``others`` are its entries beside those of the program."""
        return Records(
            records=len(self.times),
            evaluator=ctypes.addressof(self.evaluator),
            inputs=self.inputs,
            value=self.value.ctypes.data,
            constants=self.constants.ctypes.data,
            times=self.times.ctypes.data,
            **others,
        )


class StencilRecords(SumRecords):
    """Records of the trees of ``values``, except of the state after a call; see `reductions.TreeRecords`.

    ``fields`` are those of the program in ``library``, which takes the steps. ``most``, ``field_sum`` and ``expected`` are
    those of `SumRecords`. The program must be able to record them (`StencilValues.recorded`).
    """

    with_last = False

    def __init__(
        self,
        library: ctypes.CDLL,
        fields: Sequence[str],
        field_sum: np.dtype,
        values: CompiledValues,
        expected: dict[Node, int],
        most: int,
        members: int,
    ) -> None:
        trees = values.trees
        super().__init__(trees, range(len(trees)), len(trees), most, field_sum, expected, members)
        self.library, self.evaluation = library, Evaluation(fields, values, self.times)
        self.records = self.evaluation.records(sums=self.sums.ctypes.data, values=len(trees))
        self.records.drop_with(self, library.drop_stencil_records)

    def expect(self, every: int, first: int, origin: int, times: Sequence[float]) -> None:
        self.clear(times)
        self.records.choose(every, first, origin)
        self.library.set_stencil_records(ctypes.c_int64(OF_SUMS), ctypes.byref(self.records))

    def expect_nothing(self) -> None:
        self.library.set_stencil_records(ctypes.c_int64(OF_SUMS), None)


class ExpressionSamples(NativeSamples):
    """Records of single cells of fields and of expressions, except those of expressions after a call.

    ``given`` are the arguments of `NativeSamples`, and ``names`` are those of the trees of ``probed``, in order.
    """

    with_last = False

    def __init__(self, *given: Any, probed: CompiledValues, names: Sequence[str]) -> None:
        super().__init__(*given)
        self.sampled = self.struct(names)
        self.evaluation = Evaluation(self.fields, probed, np.zeros(self.sampled.records))
        self.records = self.evaluation.records(cells=ctypes.addressof(self.sampled))
        self.records.drop_with(self, self.library.drop_stencil_records)

    def expect(self, every: int, first: int, origin: int, times: Mapping[int, float]) -> None:
        super().expect(every, first, origin, times)
        self.evaluation.times[[*times]] = [*times.values()]
        self.records.least = min(times, default=len(self.evaluation.times))
        self.records.choose(every, first, origin)
        self.library.set_stencil_records(ctypes.c_int64(OF_CELLS), ctypes.byref(self.records))

    def expect_nothing(self) -> None:
        super().expect_nothing()
        self.library.set_stencil_records(ctypes.c_int64(OF_CELLS), None)


def recorder_of_cells(
    program: Program,
    library: ctypes.CDLL,
    communicator: Communicator,
    probed: CompiledValues | None,
    expressions: Sequence[str],
    cells: Mapping[str, Cells],
    values: np.ndarray,
    width: int,
    devices: Devices,
    members: int = 1,
) -> CellSamples:
    """Return the recorder of single cells on each process, with the arguments of `CellSamples`. Collective.

    It records inside calls of many steps if the ``program`` in ``library`` can record these fields, and ``probed``, if that is
    not None, all others: its trees have the names in ``expressions``, in order. Otherwise it is an ordinary `CellSamples`.
    """
    recorded = cells.keys() & set(expressions)
    possible = width <= WIDEST and cells.keys() - recorded <= set(program.recordable)
    given = cells, values, width, devices, library, program.fields, communicator, members
    if possible and not recorded:
        return NativeSamples(*given)
    if possible and probed is not None:
        return ExpressionSamples(*given, probed=probed, names=expressions)
    return CellSamples(cells, values, width, devices, members)


class RecordsTogether:
    """Records of ``trees`` by several recorders, each of some of them; see `reductions.TreeRecords`."""

    def __init__(self, trees: Sequence[Node], recorders: Sequence[NativeRecords | StencilRecords]) -> None:
        self.recorders, self.trees = recorders, trees
        self.with_last = all(each.with_last for each in recorders)

    def expect(self, every: int, first: int, origin: int, times: Sequence[float]) -> None:
        for each in self.recorders:
            each.expect(every, first, origin, times)

    def expect_nothing(self) -> None:
        for each in self.recorders:
            each.expect_nothing()

    def extremes(self, count: int) -> np.ndarray:
        return self._joined([each.extremes(count) for each in self.recorders])

    def parts(self, count: int) -> np.ndarray:
        return self._joined([each.parts(count) for each in self.recorders])

    def _joined(self, found: Sequence[np.ndarray]) -> np.ndarray:
        """Return what each recorder has found for its trees, arrays (records, its trees, ...), in the order of all trees."""
        order = [tree for each in self.recorders for tree in each.trees]
        return np.concatenate(found, 1)[:, [order.index(tree) for tree in self.trees]]
