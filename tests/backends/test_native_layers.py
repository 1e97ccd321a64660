"""Native code computes the memory fields of absorbing layers only near the layers, with the same bits."""

import numpy as np
import pytest
from support import problem_of, random_block, simulation_of, steps_in_place

from hpcstencil.backends.native.passes import Trials
from hpcstencil.backends.native.program import program, with_driver
from hpcstencil.backends.native.step import step_of
from hpcstencil.backends.native.zero_regions import layers_of
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.symbolic.expressions import Constant, Coordinate, Derivative, Field, Parameter, Pointwise
from hpcstencil.symbolic.zero_regions import profile, vanishes


def layers(width, axes):
    """Layers of different widths, so that the numbers of a program differ too."""
    return {axis: {"cpml": {"width": width + 0.25 * n, "speed": 1.0}} for n, axis in enumerate(axes)}


U, PSI = Field("u"), Field("psi")
SIGMA = 3.0 * Pointwise("maximum", (Constant(0.0), 1.0 - Coordinate(0) / 0.2))
SLOPE = Derivative(U, (1, 0))


def test_where_a_memory_field_stays_0():
    rate = -1.0 * (SIGMA + 0.5) * PSI - SIGMA * SLOPE
    axis, function = profile("psi", rate)
    assert axis == 0
    assert vanishes(rate, ("psi",), (function,))
    assert not vanishes(rate, (), (function,))
    assert not vanishes(rate, ("psi",))


@pytest.mark.parametrize(
    "rate",
    (
        -1.0 * PSI - SLOPE,
        -1.0 * PSI - SIGMA * SLOPE + Constant(1.0),
        -1.0 * PSI - Coordinate(1) * SIGMA * SLOPE - Coordinate(1) * SLOPE,
        Constant(1.0) / SIGMA * PSI + U,
    ),
    ids=("no profile", "a source", "two coordinates", "another field"),
)
def test_memory_that_does_not_stay_0(rate):
    assert profile("psi", rate) is None


def test_an_operand_of_zeros_has_ghost_cells_that_need_not_be_zero():
    of_zeros = Derivative(Constant(0.0) * Field("u"), (0, 1))
    assert vanishes(Constant(0.0) * Field("u"), ()) and not vanishes(of_zeros, ("psi",))


def test_what_vanishes_with_a_field():
    flux = Parameter("c") * PSI
    for tree in (flux, Derivative(flux, (0, 1)), flux - PSI / U, Pointwise("where", (U, Constant(0.0), flux))):
        assert vanishes(tree, ("psi",))
        assert not vanishes(tree, ())
    for tree in (flux + U, Pointwise("where", (flux, U, flux)), U / PSI, Pointwise("exp", (PSI,))):
        assert not vanishes(tree, ("psi",))


def test_what_remembers_slopes_or_estimates_errors_is_computed_everywhere():
    tables = {"grid": {"shape": [90, 70]}, "equation": {"name": "wave"}, "boundary": layers(9.0, "xy")}
    assert layers_of(problem_of(**tables)).axis == {"u.psi_x": 0, "u.zeta_x": 0, "u.psi_y": 1, "u.zeta_y": 1}
    assert not layers_of(problem_of(**tables, numerics={"integrator": "ab2"})).axis
    assert not layers_of(problem_of(**tables, time={"end": 1.0, "tolerance": 1e-3})).axis


@pytest.mark.parametrize("integrator", ("rk4", "euler"))
@pytest.mark.parametrize("equation", ("wave", "acoustic", "maxwell"))
def test_passes_do_hardly_more_outside_layers_than_without_layers(equation, integrator):
    def passes(boundary):
        problem = problem_of(
            grid={"shape": [90, 70]},
            equation={"name": equation},
            boundary=boundary,
            numerics={"integrator": integrator, "order": 8 if equation != "maxwell" else 2},
        )
        return step_of(problem)

    def statements(step, axes):
        trials = Trials(step.plan.problem)
        return [len(trials.of(parts, step.plan.absent(axes)).lines) for parts in step.parts]

    with_layers, walls = passes(layers(9.0, "xy")), passes({axis: {"dirichlet": 0.0} for axis in "xy"})
    outside, inside = (statements(with_layers, frozenset(axes)) for axes in ((), (0, 1)))
    assert sum(outside) <= sum(statements(walls, frozenset())) + 4 * len(outside)
    assert sum(inside) > 1.7 * sum(outside)
    for each in with_layers.passes:
        filled = [each.outputs[n] for n in each.variants[frozenset()].outputs]
        assert not any(with_layers.plan.layer_axes[array] for array in filled)
        assert {array for array in each.outputs if not with_layers.plan.layer_axes[array]} == set(filled)


def test_probes_do_not_record_memory_inside_calls():
    made = program(problem_of(grid={"shape": [90]}, equation={"name": "wave"}, boundary=layers(9.0, "x")))
    assert set(made.recordable) == {"u", "v"}
    assert "u.psi_x" in made.fields


RK4 = {"integrator": "rk4", "order": 4}
CASES = {
    "1-D": {
        "grid": {"shape": [901]},
        "equation": {"name": "wave"},
        "boundary": layers(11.0, "x"),
        "numerics": {"integrator": "rk4", "order": 8, "precision": "float64"},
    },
    "2-D, variable density, a free surface": {
        "grid": {"shape": [150, 213]},
        "equation": {"name": "acoustic", "c": "1 + 0.1*sin(x)", "rho": "1 + 0.1*cos(y)"},
        "boundary": {
            **layers(11.0, "x"),
            "y": {"lower": {"dirichlet": 0.0}, "upper": {"cpml": {"width": 17.0, "speed": 1.0}}},
        },
        "numerics": {**RK4, "order": 8},
    },
    "2-D, one layer, a periodic axis": {
        "grid": {"shape": [131, 190]},
        "equation": {"name": "wave"},
        "boundary": {"x": {"lower": {"cpml": {"width": 9.0}}, "upper": {"neumann": 0.0}}, "y": "periodic"},
        "numerics": RK4,
    },
    "2-D, layers that meet": {
        "grid": {"shape": [150, 90]},
        "equation": {"name": "wave"},
        "boundary": {**layers(87.3, "x"), **layers(46.7, "y")},
        "numerics": {"integrator": "ssprk3"},
    },
    "2-D, staggered": {
        "grid": {"shape": [161, 183]},
        "equation": {"name": "maxwell"},
        "boundary": layers(9.0, "xy"),
        "numerics": {"integrator": "ssprk2"},
    },
    "2-D, around a solid": {
        "grid": {"shape": [110, 130]},
        "equation": {"name": "wave"},
        "boundary": layers(9.0, "xy"),
        "numerics": {"integrator": "rk4"},
        "mask": {"solid": "(x - 50)**2 + (y - 60)**2 < 300"},
    },
    "2-D in place": {
        "grid": {"shape": [261, 283]},
        "equation": {"name": "wave"},
        "boundary": layers(9.0, "xy"),
        "numerics": {"integrator": "euler"},
    },
    "3-D": {
        "grid": {"shape": [41, 50, 83]},
        "equation": {"name": "wave"},
        "boundary": {**layers(9.0, "x"), "y": {"neumann": 0.0}, **layers(8.3, "z")},
        "numerics": RK4,
    },
    "3-D, staggered": {
        "grid": {"shape": [41, 50, 83]},
        "equation": {"name": "maxwell"},
        "boundary": layers(7.0, "xyz"),
        "numerics": {"integrator": "ssprk2"},
    },
    "3-D in place": {
        "grid": {"shape": [61, 70, 83]},
        "equation": {"name": "wave"},
        "boundary": layers(9.0, "xyz"),
        "numerics": {"integrator": "euler"},
    },
}
LONG = ("2-D, layers that meet", "2-D, one layer, a periodic axis", "2-D, around a solid", "3-D", "3-D, staggered")


def widened(tables):
    """The same input with layers that fill the grid."""

    def wide(side, length):
        return {"cpml": {**side["cpml"], "width": length - 0.5}} if "cpml" in side else side

    boundary = {}
    for (axis, sides), length in zip(tables["boundary"].items(), tables["grid"]["shape"], strict=True):
        if "lower" in sides:
            boundary[axis] = {name: wide(side, length) for name, side in sides.items()}
        else:
            boundary[axis] = wide(sides, length)
    return {**tables, "boundary": boundary}


def calls(problem, simulation, size=1.0):
    """All fields after calls of different lengths; half the values at the start are -0."""
    blocks, rng, first = random_block(problem, simulation), np.random.default_rng(2), 0
    for name in problem.shown:
        blocks[name] = np.where(
            rng.random(blocks[name].shape) < 0.5, blocks[name].dtype.type(-0.0), size * blocks[name]
        )
    fields = simulation.put({name: block.astype(simulation.dtype) for name, block in blocks.items()})
    for steps in (1, 13, 4):
        fields, first = simulation.advance(fields, StepRange(0.0, first, 0.1, steps)), first + steps
    return simulation.get(fields, problem.fields)


def as_integers(block):
    """The bits of an array: -0 and 0 differ."""
    return block.view(f"u{block.itemsize}")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.long) if n in LONG else n for n in CASES])
@pytest.mark.usefixtures("cache_of_a_mebibyte")
def test_bits_near_and_far_from_layers_are_those_of_passes_that_compute_everything(name, monkeypatch):
    """The memory of native code holds the values of another problem, whose layers are everywhere."""
    tables = CASES[name]
    problem = problem_of(**tables)
    blocked = program(problem)
    reference = with_driver(blocked, "reference")

    def result(made, threads, of=problem, size=1.0):
        monkeypatch.setattr("hpcstencil.backends.native.backend.program", lambda _: made)
        monkeypatch.setattr("hpcstencil.backends.native.step_functions.threads_for", lambda _: threads)
        simulation = simulation_of(of, kernel="native")
        assert steps_in_place(simulation, threads) == ("in place" in name)
        return calls(of, simulation, size)

    wide = problem_of(**widened(tables))
    assert program(wide).text == blocked.text
    expected = result(reference, 1)
    assert len({name for name in problem.memory if expected[name].any()}) > 0
    for threads in (1, 2):
        result(program(wide), threads, wide, 1e3)
        for field, block in result(blocked, threads).items():
            assert np.isfinite(block).all()
            assert np.array_equal(as_integers(block), as_integers(expected[field])), (threads, field)
