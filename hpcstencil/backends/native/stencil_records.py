"""Native code's recording of extrema and sums of expressions with stencils, while one call takes many steps.

The program of the steps calls the pass of `StencilValues` for states between two steps. The C++ side is stencil_records.hpp.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

import numpy as np

from hpcstencil.backends.native.field_records import NativeRecords, SumRecords
from hpcstencil.backends.native.recorded_steps import RecordedSteps
from hpcstencil.backends.native.stencil_values import CompiledValues, Inputs, field_of, inputs_of
from hpcstencil.symbolic.expressions import Node


class Evaluator(ctypes.Structure):
    """The struct Evaluator of stencil_records.hpp."""

    _fields_ = (
        ("first_pass", ctypes.c_void_p),
        ("prepare", ctypes.c_void_p),
        ("field_of", ctypes.c_void_p),
        ("scalars", ctypes.c_int64),
    )


class Records(RecordedSteps):
    """The struct StencilRecords of stencil_records.hpp."""

    _fields_ = (
        ("sums", ctypes.c_void_p),
        ("values", ctypes.c_int64),
        ("evaluator", ctypes.c_void_p),
        ("inputs", Inputs),
        ("value", ctypes.c_void_p),
        ("constants", ctypes.c_void_p),
        ("times", ctypes.c_void_p),
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
    ) -> None:
        trees, program = values.trees, values.program
        super().__init__(trees, range(len(trees)), len(trees), most, field_sum, expected)
        self.library, self.evaluator, self.inputs = library, Evaluator(), inputs_of(program, fields)
        values.library.find_evaluator(ctypes.byref(self.evaluator))
        numbers = {field_of(n): n for n in range(len(trees))}
        self.value = np.array([numbers.get(name, -1) for name in program.fields], np.int64)
        self.constants = np.array([*program.constants, 0.0])
        self.records = Records(
            records=most,
            sums=self.sums.ctypes.data,
            values=len(trees),
            evaluator=ctypes.addressof(self.evaluator),
            inputs=self.inputs,
            value=self.value.ctypes.data,
            constants=self.constants.ctypes.data,
            times=self.times.ctypes.data,
        )
        # Another recorder of the same program may be in use when this one is collected.
        weakref.finalize(self, library.drop_stencil_records, ctypes.c_void_p(ctypes.addressof(self.records)))

    def expect(self, every: int, first: int, origin: int, times: Sequence[float]) -> None:
        self.clear(times)
        self.records.every, self.records.first, self.records.origin = every, first, origin
        self.library.set_stencil_records(ctypes.byref(self.records))

    def expect_nothing(self) -> None:
        self.library.set_stencil_records(None)


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
