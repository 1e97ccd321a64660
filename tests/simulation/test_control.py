"""Steps that follow from a tolerance."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from support import integrated, problem_of, random_block, simulation_of

from hpcstencil.backends.native.ffi_call import native
from hpcstencil.backends.native.program import program
from hpcstencil.backends.native.time_loop import attempt_by_sections, in_sections
from hpcstencil.backends.xla.array_code import array_code
from hpcstencil.numerics.error_norm import LIMIT, QUANTUM, error_norm
from hpcstencil.numerics.schedule import Clock, StepRange
from hpcstencil.problem.decomposition import decompose
from hpcstencil.runtime.stopwatch import Stopwatch
from hpcstencil.simulation.restart import Source
from hpcstencil.simulation.start import at_start
from hpcstencil.validation.errors import InputError, NumericsError

# ∂u/∂t = -50 (u - cos(t)) forgets its start quickly: the step must be short at first, and may be long later.
STIFF = {
    "grid": {"shape": [6]},
    "equation": {"name": "custom", "rhs": {"u": "-50*(u - cos(t))"}},
    "initial": {"u": "3 + 0.1*x"},
}


def run(integrator="dopri5", tolerance=1e-6, precision="float64", **tables):
    problem = problem_of(
        numerics={"integrator": integrator, "precision": precision},
        **{"time": {"end": 1.5, "tolerance": tolerance}, **tables},
    )
    fields, clock = integrated(problem, simulation_of(problem))
    return fields["u"], clock


def exact(x, t):
    """Of STIFF, by variation of constants."""
    particular = (2500 * np.cos(t) + 50 * np.sin(t)) / 2501
    return particular + (3 + 0.1 * x - 2500 / 2501) * np.exp(-50 * t)


# How many tolerances the errors may be, of the tolerances 1e-4, 1e-6 and 1e-8.
ERRORS = {"bs3": (1.6, 4.0, 20.0), "dopri5": (0.1, 0.2, 0.2)}


@pytest.mark.parametrize("integrator", ERRORS)
def test_the_error_follows_the_tolerance(integrator):
    x = np.arange(6) + 0.5
    errors, steps = [], []
    for tolerance, factor in zip((1e-4, 1e-6, 1e-8), ERRORS[integrator], strict=True):
        u, clock = run(integrator, tolerance, **STIFF)
        assert clock.time == 1.5
        errors.append(np.abs(u - exact(x, 1.5)).max())
        steps.append(clock.step)
        assert errors[-1] < factor * tolerance
    assert errors == sorted(errors, reverse=True) and steps == sorted(steps)


@pytest.mark.parametrize("kernel", ["shift", "native"])
def test_no_step_is_longer_than_dt_max(kernel):
    """Steps see a pulse of length 1 in a quiet time only with dt_max."""
    pulse = {"name": "custom", "rhs": {"u": "(t > 50)*(t < 51) - 0*u"}}
    ends = []
    for limits in ({}, {"dt_max": 0.25}):
        time = {"end": 100.0, "tolerance": 1e-5, **limits}
        problem = problem_of(grid={"shape": [4]}, equation=pulse, time=time, numerics={"precision": "float64"})
        fields, clock = integrated(problem, simulation_of(problem, kernel=kernel))
        ends.append((float(fields["u"][0]), clock.step))
    (missed, few), (seen, many) = ends
    assert missed == 0.0 and few < 20
    assert seen == pytest.approx(1.0, rel=1e-3) and many >= 400


def test_dt_max_bounds_steps_of_a_cfl_number():
    heat = {"grid": {"shape": [8]}, "equation": {"name": "heat"}, "numerics": {"integrator": "euler"}}
    steps = []
    for limits in ({}, {"dt_max": 0.1}):
        problem = problem_of(**heat, time={"end": 1.0, "cfl": 0.5, **limits})
        _, clock = integrated(problem, simulation_of(problem))
        steps.append(clock.step)
    assert steps == [4, 10]


def test_steps_are_rejected_and_counted_where_the_solution_changes_suddenly():
    problem = problem_of(
        grid={"shape": [4]},
        equation={"name": "custom", "rhs": {"u": "100*exp(-(30*(t - 0.7))**2) - u"}},
        initial={"u": "1"},
        numerics={"integrator": "dopri5", "precision": "float64"},
        time={"end": 1.5, "tolerance": 1e-6},
    )
    simulation, tried = simulation_of(problem), []

    def attempt(fields, parameters, these, room):
        tried.append((float(these.base_time), float(these.base_time + these.dt)))
        return simulation.control.attempt(fields, parameters, these, room)

    _, clock = integrated(problem, replace(simulation, control=replace(simulation.control, attempt=attempt)))
    rejected = [one for one, after in itertools.pairwise(tried) if one[0] == after[0]]
    assert clock.rejected == len(rejected) > 0 and clock.step == len(tried) - len(rejected)
    assert all(start < 0.85 and end > 0.55 for start, end in rejected)


def test_a_step_that_collapses_is_an_error():
    """u' = u² from u = 1 is infinite at t = 1."""
    with pytest.raises(NumericsError, match=r"the step collapsed to .* at step \d+, t = 1,.*time\.tolerance = 1e-06"):
        run(grid={"shape": [4]}, equation={"name": "custom", "rhs": {"u": "u*u"}}, initial={"u": "1"})


def test_steps_land_on_outputs():
    problem = problem_of(
        **STIFF,
        numerics={"integrator": "bs3", "precision": "float64"},
        time={"end": 1.0, "tolerance": 1e-5},
        output={"every": 0.3},
    )
    simulation, schedule = simulation_of(problem), problem.schedule()
    fields, landed = simulation.initial_fields(), []
    clock = Clock()
    while not schedule.finished(clock):
        fields, clock = simulation.control.step(fields, clock)
        if schedule.is_output(clock):
            landed.append(clock.time)
    assert landed == [0.3, 0.6, pytest.approx(0.9), 1.0]


@pytest.mark.optimized
def test_the_steps_are_the_same_for_every_decomposition():
    tables = {
        "grid": {"shape": [23, 17], "upper": [2.3, 1.7]},
        "equation": {"name": "gray_scott", "D_u": 0.02, "D_v": 0.01},
        "initial": {"u": "1 - 0.5*exp(-(x - 1)**2)", "v": "0.3*exp(-4*(y - 1)**2) + 0.1*noise(1)"},
        "boundary": {"y": {"neumann": "0.1*sin(t)"}},
        "numerics": {"integrator": "bs3"},
        "time": {"end": 2.0, "tolerance": 1e-4},
    }
    reference, clock = None, None
    for devices in (1, 2):
        problem = problem_of(**tables)
        fields, after = integrated(problem, simulation_of(problem, devices=devices))
        if reference is None:
            reference, clock = fields, after
        assert after == clock
        for name in fields:
            assert np.array_equal(fields[name], reference[name])


@pytest.mark.parametrize("members", ({}, {"equation.F": [0.03, 3.0], "equation.D_v": [0.001, 0.01]}))
def test_the_estimate_has_the_walls_of_the_end_of_the_step_on_thin_blocks_too(members):
    """The last slope of the error belongs to exactly t + dt, although the weights of dopri5 do not add up to exactly 1."""
    problem = problem_of(
        grid={"shape": [9, 11], "upper": [0.9, 1.1]},
        equation={"name": "gray_scott", "D_u": 0.002, "D_v": 0.001},
        initial={"u": "1 - 0.5*noise(1)", "v": "0.3*noise(2)"},
        boundary={"x": {"dirichlet": "5*exp(-(60*(t - 0.7))**2)"}},
        numerics={"integrator": "dopri5", "precision": "float64"},
        time={"end": 1.0, "tolerance": 1e-4},
        ensemble=members,
    )
    ended = []
    for devices in (1, 2):
        simulation = simulation_of(problem, devices=devices, kernel="native")
        assert simulation.plan.steps_per_exchange == (devices == 1)
        stepping = at_start(simulation, Source(), None, Stopwatch())
        while not stepping.finished:
            stepping.advance(lambda state, leap: None, 5)
        ended.append((simulation.get(dict(stepping.state.fields), problem.fields), stepping.state))
    (alone, one), (divided, two) = ended
    assert one.members == two.members and one.clock == two.clock
    for name in problem.fields:
        assert np.array_equal(alone[name], divided[name])


KINDS = {
    "several fields": {
        "grid": {"shape": [23, 17], "upper": [2.3, 1.7]},
        "equation": {"name": "gray_scott", "D_u": 0.02, "D_v": 0.01},
        "boundary": {"x": {"neumann": "0.1*sin(t)"}, "y": {"dirichlet": 0.5}},
    },
    "inner results": {
        "grid": {"shape": [13, 9, 11], "upper": [1.3, 0.9, 1.1]},
        "equation": {"name": "cahn_hilliard", "M": 1e-3, "kappa": 1e-2},
    },
    "a staggered grid": {
        "grid": {"shape": [23, 17], "upper": [2.3, 1.7]},
        "equation": {"name": "shallow_water", "g": 1.0, "nu": 0.01},
        "boundary": {"y": {"neumann": 0.0}, "v": {"y": {"dirichlet": "0.1*sin(x)*t"}}},
    },
    "layers": {
        "grid": {"shape": [40], "upper": [4.0]},
        "equation": {"name": "acoustic"},
        "boundary": {"x": {"cpml": {"width": 0.5}}},
    },
    "solid cells": {
        "grid": {"shape": [23, 17], "upper": [2.3, 1.7]},
        "equation": {"name": "heat", "D": 0.1},
        "mask": {"solid": "(x - 1.2)**2 + (y - 1)**2 < 0.1"},
    },
}


@pytest.mark.parametrize(
    "kind, integrator, precision",
    [
        ("several fields", "dopri5", "float64"),
        ("inner results", "bs3", "float32"),
        *((kind, "bs3", "float64") for kind in ("a staggered grid", "layers", "solid cells")),
        pytest.param("several fields", "bs3", "float64", marks=pytest.mark.long),
        pytest.param("inner results", "bs3", "float64", marks=pytest.mark.long),
        pytest.param("inner results", "dopri5", "float32", marks=pytest.mark.long),
    ],
)
def test_native_code_tries_the_steps_of_shift(kind, integrator, precision):
    """The fields after a step, and the estimated errors that decide on it, differ by some roundings of the fields."""
    numerics, tolerance = {"integrator": integrator, "precision": precision}, 1e-3
    problem = problem_of(**KINDS[kind], numerics=numerics, time={"end": 1.0, "tolerance": tolerance})
    tried = {}
    for kernel in ("shift", "native"):
        simulation = simulation_of(problem, kernel=kernel)
        start = simulation.put(random_block(problem, simulation))
        after, error = simulation.control.attempt(start, problem.parameters, StepRange(0.1, 0, 0.05, 1), {})
        tried[kernel] = simulation.get(after, problem.fields), float(error)
    (fields, error), (expected, estimated) = tried["native"], tried["shift"]
    rounding = 64 * np.finfo(precision).eps * max(np.abs(u).max() for u in expected.values())
    assert fields.keys() == expected.keys()
    for name in fields:
        assert np.abs(fields[name] - expected[name]).max() <= rounding
    assert abs(error - estimated) <= rounding / tolerance
    assert estimated > 1e-6 / tolerance


def by_definition(errors, cells):
    """`error_norm` of the squared errors of all cells, in exact arithmetic."""
    if not all((w < LIMIT).all() for w in errors):
        return math.inf
    total = sum(round(Fraction(float(v)) / Fraction(QUANTUM)) for w in errors for v in w.ravel())
    return math.sqrt(float(total * Fraction(QUANTUM) / (cells * len(errors))))


@pytest.mark.parametrize("precision", ("float32", "float64"))
@pytest.mark.parametrize("size", (1e-9, 1e-4, 1.0, 1e4, 1e9, 1e30))
def test_the_error_is_that_of_its_definition(size, precision):
    """In native code, with all cells of a kind in vectors and in the rest of a row, and in XLA's code."""
    tables = {**KINDS["several fields"], "numerics": {"integrator": "bs3", "precision": precision}}
    problem = problem_of(**tables, time={"end": 1.0, "tolerance": 1e-3})
    simulation = simulation_of(problem, devices=2, kernel="native")
    code, grid = native(program(problem), 2), simulation.device_grid
    array = array_code(problem, simulation.plan, grid, simulation.communicator)
    start = simulation.put({name: size * u for name, u in random_block(problem, simulation).items()})
    this = StepRange(0.1, 0, 0.05, 1)
    _, by_field = code.ended(in_sections(code, grid)(code.arrays(start), problem.parameters, this))
    errors = [block.astype(np.float64) for block in simulation.get(by_field, list(by_field)).values()]
    _, of_sections = attempt_by_sections(code, grid, array.error_sums(), array.norm)(
        start, problem.parameters, this, {}
    )
    _, of_call = simulation.control.attempt(start, problem.parameters, this, {})
    assert float(of_call) == float(of_sections) == by_definition(errors, grid.grid.cells)


def test_the_words_of_a_sum_are_put_together_exactly():
    words = np.array([[5, -3, 2, 0], [2**60, 2**61, 2**62, 0]])
    total = 5 + 2**60 + ((2**61 - 3) << 32) + ((2**62 + 2) << 64)
    assert error_norm(words, 10) == math.sqrt(total * QUANTUM / 20)
    both = np.stack([words, words], -1)
    both[1, 3, 1] = 1
    assert error_norm(both, 10).tolist() == [error_norm(words, 10), math.inf]


def test_a_method_without_an_estimate_is_refused():
    with pytest.raises(InputError, match='numerics.integrator: expected "bs3".* with time.tolerance'):
        run("rk4", **STIFF)


def test_wide_halos_are_refused():
    tables = {**STIFF, "numerics": {"integrator": "bs3"}, "time": {"end": 1.0, "tolerance": 1e-3}}
    with pytest.raises(InputError, match=r"steps_per_exchange: 2 steps are too many, since .* with time.tolerance"):
        decompose(problem_of(**tables, decomposition={"steps_per_exchange": 2}), 1, 1)
