"""Which expressions native code evaluates by rows."""

import ctypes

import numpy as np
import pytest

from hpcstencil.backends.native.compiler import SOURCES
from hpcstencil.backends.native.stencil_values import EVALUATORS
from hpcstencil.backends.native.value_program import MOST_FIELDS, ValueProgram, evaluable
from hpcstencil.symbolic.expressions import Derivative, Field, Parameter, Time, total

FIELDS = ("u", "v", *(f"k{n}" for n in range(MOST_FIELDS)))
U, V = Field("u"), Field("v")


def program(*trees):
    return ValueProgram(trees, FIELDS, ("a", "b"), (0, 2), "float32")


@pytest.mark.parametrize(("tree", "expected"), [
    (U * V + Time() * Parameter("a"), True),
    (Derivative(U, (2, 0)), False),
    (total([Field(name) for name in FIELDS[2:]]), True),
    (total([Field(name) for name in FIELDS]), False),
], ids=("pointwise", "a stencil", "some fields", "too many fields"))  # fmt: skip
def test_expressions_that_native_code_evaluates(tree, expected):
    assert evaluable(tree) == expected


def test_numbers_are_those_of_the_program_in_order():
    assert np.array_equal(program(U).numbers({"b": 2, "c": 3.0, "a": 0.5}), [0.5, 2.0])


@pytest.mark.parametrize("value", (0.1, -3e38, float("inf"), float("-inf"), float("nan")))
def test_every_number_can_be_written(value):
    tree, cells = U + value, 16  # a multiple of the cells of a vector
    made = program(tree).loaded()[tree]
    u, result = np.linspace(-1, 1, cells, dtype=np.float32), np.zeros(cells, np.float32)
    row = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p, ctypes.c_double, *[ctypes.c_void_p] * 3, ctypes.c_long])(made.row)
    row(None, 0.0, None, (ctypes.c_void_p * 1)(u.ctypes.data), result.ctypes.data, cells)
    assert np.array_equal(result, u + np.float32(value), equal_nan=True)


def test_python_and_cpp_agree_on_the_number_of_evaluators():
    assert f"constexpr int EVALUATORS = {EVALUATORS};" in (SOURCES / "pipeline.hpp").read_text()
