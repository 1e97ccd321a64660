"""Sums over the whole grid."""

import math

import numpy as np
import pytest
from support import problem_of, simulation_of, steps_in_place

from hpcstencil.backends.xla.reductions import ByNumpy, bits_per_part
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.simulation.diagnostics import Diagnostics
from hpcstencil.symbolic.expressions import Field


@pytest.mark.parametrize("shape", ([5], [401, 400]))
@pytest.mark.parametrize("precision", ("float32", "float64"))
@pytest.mark.parametrize("devices", (1, 2))
def test_sums_are_exact_whoever_adds_up(shape, precision, devices):
    """numpy adds up fields, compiled code everything else."""
    problem = problem_of(
        grid={"shape": shape},
        equation={"name": "heat"},
        numerics={"precision": precision},
        diagnostics={"field": "mean(u)", "expression": "mean(2*u)"},
    )
    rng = np.random.default_rng(1)
    block = (rng.standard_normal(shape) * 10.0 ** rng.uniform(-3, 3, shape)).astype(precision)
    simulation = simulation_of(problem, devices=devices)
    fields = simulation.put({"u": block})
    by_numpy, compiled = simulation.extremes, simulation.diagnosed
    expected = math.fsum(block.ravel().tolist())
    for reductions, operand, factor in ((by_numpy, 0, 1), (compiled, 1, 2)):
        low, high, _ = reductions.extremes(fields, problem.parameters, 0.0)
        found = reductions.sums(fields, problem.parameters, 0.0, np.maximum(np.abs(low), np.abs(high)))
        assert found[operand] == factor * expected


SHAPES = ([5], [401, 403], [20, 30, 70])
KINDS = {
    "of one magnitude": lambda rng, x: x,
    "with zeros": lambda rng, x: np.where(rng.random(x.shape) < 0.5, 0, -x),
    "of many magnitudes": lambda rng, x: x * 10.0 ** rng.uniform(-30, 3, x.shape),
    "tiny": lambda rng, x: x * 1e-36,
    "negative": lambda rng, x: -np.abs(x) * 1e9,
    "zero": lambda rng, x: 0 * x,
}


def reduced(reducer, array):
    """(largest, smallest, sum) of an array of finite values."""
    u, fields = Field("u"), {"u": array}
    high, low, broken = reducer.extremes(u, fields, {}, 0.0)
    assert broken == 0
    exponent = math.frexp(max(abs(high), abs(low)))[1]
    return high, -low, reducer.total(reducer.parts(u, fields, exponent), exponent)


def uncounted(monkeypatch, reducer):
    """A list that grows when native code reduces an array that exists already."""
    calls, before = [], type(reducer).begin
    monkeypatch.setattr(type(reducer), "begin", lambda *given: calls.append(given[1]) or before(*given))
    return calls


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("precision", ("float32", "float64"))
def test_native_code_reduces_fields_as_numpy_does(shape, precision, kind, monkeypatch):
    """The field that is there, and the one that a call stores: in place or in tiles, whatever magnitude is expected."""
    problem = problem_of(
        grid={"shape": shape},
        equation={"name": "heat", "D": 0.0},
        numerics={"precision": precision, "integrator": "euler"},
        diagnostics={"mass": "integral(u)"},
    )
    rng = np.random.default_rng(2)
    block = KINDS[kind](rng, rng.standard_normal(shape)).astype(precision)
    simulation = simulation_of(problem, kernel="native")
    native, array = simulation.diagnosed.reducer, simulation.put({"u": block})["u"]
    calls = uncounted(monkeypatch, native)
    by_numpy = ByNumpy(native.device_grid.devices, bits_per_part(block.size))
    expected = reduced(by_numpy, array)
    assert expected[2] == math.fsum(block.ravel().tolist())
    assert reduced(native, array) == expected and calls
    fields = {"u": array}
    for exponent in (None, 7, -40):
        if exponent is not None:
            native.expected[Field("u")] = exponent
        calls.clear()
        simulation.diagnosed.expect(True)
        fields = simulation.advance(fields, StepRange(0.0, 0, 0.1, 3))
        expected = reduced(by_numpy, fields["u"])  # XLA's threads have flushed the smallest numbers to 0
        assert reduced(native, fields["u"]) == expected
        assert not calls
        assert reduced(native, fields["u"]) == expected and calls  # what a call stored is taken once
    if shape == SHAPES[2]:
        assert steps_in_place(simulation)


@pytest.mark.parametrize("largest", (1e300, 1e308, 1e-300))
def test_sums_of_the_largest_and_smallest_numbers(largest):
    problem = problem_of(
        grid={"shape": [40, 37]},
        equation={"name": "heat"},
        numerics={"precision": "float64"},
        diagnostics={"field": "mean(u)", "expression": "mean(0.5*u)"},
    )
    block = np.cos(np.arange(40 * 37.0)).reshape(40, 37) * largest
    simulation = simulation_of(problem)
    fields = simulation.put({"u": block})
    for reductions, operand, factor in ((simulation.extremes, 0, 1.0), (simulation.diagnosed, 1, 0.5)):
        low, high, _ = reductions.extremes(fields, problem.parameters, 0.0)
        found = reductions.sums(fields, problem.parameters, 0.0, np.maximum(np.abs(low), np.abs(high)))
        assert found[operand] == math.fsum((factor * block).ravel().tolist())


@pytest.mark.parametrize("sign", (1, -1))
def test_a_sum_beyond_all_numbers_is_infinite(sign):
    problem = problem_of(
        grid={"shape": [40, 37]},
        equation={"name": "heat", "D": 0.0},
        numerics={"precision": "float64"},
        diagnostics={"mass": "integral(u)", "half": "integral(0.5*u)"},
    )
    simulation = simulation_of(problem, kernel="native")
    fields = simulation.put({"u": np.full((40, 37), sign * 1e308)})
    low, high, broken = simulation.diagnosed.extremes(fields, problem.parameters, 0.0)
    assert sorted(low * sign) == [5e307, 1e308] and (low == high).all() and not broken.any()
    assert (simulation.diagnosed.sums(fields, problem.parameters, 0.0, np.abs(low)) == sign * math.inf).all()


@pytest.mark.parametrize("precision", ("float32", "float64"))
def test_extrema_outside_of_solid_cells(precision):
    """They are those of expressions with a value in solid cells that is never the extremum, whose sum may be infinite."""
    problem = problem_of(
        grid={"shape": [40, 37], "upper": [1.0, 1.0]},
        equation={"name": "heat"},
        mask={"solid": "(x - 0.3)**2 + (y - 0.5)**2 < 0.05"},
        initial={"u": "2 + x"},
        numerics={"precision": precision},
        diagnostics={"mass": "integral(u)", "most": "max(u)", "least": "min(u)"},
    )
    simulation = simulation_of(problem, kernel="native")
    values = Diagnostics(problem.diagnostics, simulation.diagnosed, problem.parameters).evaluate(
        simulation.initial_fields(), 0.0
    )
    assert values["least"] == pytest.approx(2.0125) and values["most"] == pytest.approx(2.9875)
    assert 1.5 < values["mass"] < 2.5


@pytest.mark.parametrize("value", (math.nan, math.inf))
def test_values_that_are_not_finite_are_counted(value):
    problem = problem_of(
        grid={"shape": [40, 37]}, equation={"name": "heat", "D": 0.0}, diagnostics={"mass": "integral(u)"}
    )
    simulation = simulation_of(problem, kernel="native")
    block = np.ones((40, 37), np.float32)
    native = simulation.diagnosed.reducer
    reduced(native, simulation.put({"u": block})["u"])
    block[3, 36] = block[30, 2] = value
    simulation.steps.stayed_finite()
    for wanted in (False, True):
        simulation.diagnosed.expect(wanted)
        fields = simulation.advance(simulation.put({"u": block}), StepRange(0.0, 0, 0.1, 1))
        assert simulation.diagnosed.extremes(fields, problem.parameters, 0.0)[2].tolist() == [
            np.count_nonzero(~np.isfinite(np.asarray(fields["u"])))
        ]
        assert not simulation.steps.stayed_finite()
