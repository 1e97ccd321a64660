"""The blocked drivers of native code agree bit for bit with plain loops over steps, passes and cells."""

import ctypes
from contextlib import nullcontext

import numpy as np
import pytest
from support import problem_of, simulation_of, stepped, steps_in_place

from hpcstencil.adjoint.derivation import adjoint_of
from hpcstencil.adjoint.tape import with_tape
from hpcstencil.backends.native.compiler import compile_in_background
from hpcstencil.backends.native.program import program, with_driver
from hpcstencil.gradient.tape_memory import TapeMemory, half_of

WALLS = {"x": {"dirichlet": "0.1*t"}, "y": "periodic", "z": {"neumann": 0.2}}
LEAPFROG = {"integrator": "leapfrog"}
CASES = {
    "1-D heat": {
        "grid": {"shape": [3001]},
        "equation": {"name": "heat"},
        "boundary": {"x": {"robin": {"a": 1.0, "b": 2.0, "value": 0.1}}},
        "numerics": {"integrator": "rk4", "order": 4},
    },
    "2-D Gray-Scott": {
        "grid": {"shape": [150, 130]},
        "equation": {"name": "gray_scott"},
        "boundary": {"x": {"dirichlet": "0.1*t"}, "y": {"neumann": 0.2}},
    },
    "2-D shallow water, operands beyond the wall": {
        "grid": {"shape": [150, 130]},
        "equation": {"name": "shallow_water"},
        "numerics": {"order": 4},
    },
    "2-D gas, operands beyond the wall in arrays": {
        "grid": {"shape": [70, 130]},
        "equation": {"name": "euler"},
        "initial": {"rho": "1 + 0.3*sin(5*x)", "mx": "0.2*cos(9*y)", "E": "2 + 0.5*cos(7*x*y)"},
        "boundary": {"x": {"neumann": 0.0}, "mx": {"x": {"dirichlet": "0.1*t"}}},
        "numerics": {"integrator": "ssprk2"},
    },
    "2-D Gray-Scott in place": {
        "grid": {"shape": [610, 130]},
        "equation": {"name": "gray_scott"},
        "boundary": {"x": {"dirichlet": "0.1*t"}, "y": {"neumann": 0.2}},
        "numerics": {"integrator": "euler"},
    },
    "2-D in place, passes joined, coefficients along each axis and along both": {
        "grid": {"shape": [610, 131]},
        "equation": {
            "name": "custom",
            "rhs": {"u": "v", "v": "(1 + 0.5*sin(9*x)) * laplacian(u) + cos(5*y) * u + sin(x*y + 1) + exp(-t)*cos(x)"},
        },
        "boundary": {"x": {"neumann": "0.1*y"}},
        "numerics": {**LEAPFROG, "order": 4},
    },
    "2-D staggered, fields on the wall": {
        "grid": {"shape": [150, 130]},
        "equation": {"name": "maxwell"},
        "boundary": {"y": {"dirichlet": 0.0}},
        "numerics": LEAPFROG,
    },
    "3-D in place, passes joined, open ends": {
        "grid": {"shape": [37, 41, 61]},
        "equation": {"name": "wave"},
        "boundary": {"x": "open", "y": {"dirichlet": 0.0}},
        "numerics": LEAPFROG,
    },
    "3-D in place, passes joined, walls that change in time": {
        "grid": {"shape": [37, 41, 61]},
        "equation": {"name": "wave"},
        "boundary": WALLS,
        "numerics": {**LEAPFROG, "order": 4},
    },
    "3-D in place, passes joined, ghost cells that depend on two fields": {
        "grid": {"shape": [41, 37, 61]},
        "equation": {"name": "wave"},
        "boundary": {"x": "periodic", "y": "open", "z": "open"},
        "numerics": {**LEAPFROG, "order": 4},
    },
    "1-D waves, the last tile is empty": {
        "grid": {"shape": [409616]},
        "equation": {"name": "wave"},
        "numerics": {"integrator": "rk4"},
    },
    "3-D staggered, one pass per step, fields on the wall": {
        "grid": {"shape": [17, 32, 32]},
        "equation": {"name": "maxwell"},
        "boundary": {"x": {"dirichlet": "0.1*t"}},
        "numerics": {"integrator": "euler"},
    },
    "3-D, derivatives of derivatives": {
        "grid": {"shape": [37, 41, 61]},
        "equation": {"name": "custom", "rhs": {"u": "0.01*laplacian(u**3 - u) - 0.001*dxx(dxx(u)) + sin(x*y + 1)"}},
        "boundary": WALLS,
        "numerics": {"integrator": "ssprk2", "precision": "float64"},
    },
    "3-D in place, coefficients and differences along the second axis": {
        "grid": {"shape": [203, 131, 61]},
        "equation": {"name": "custom", "rhs": {"u": "(1 + 0.5*sin(9*y)) * laplacian(u) + cos(x + 7*y) - 20*dy(u)"}},
        "boundary": WALLS,
        "numerics": {"integrator": "euler"},
    },
    "3-D in place, differences of order 8 along the second axis": {
        "grid": {"shape": [203, 131, 61]},
        "equation": {"name": "custom", "rhs": {"u": "0.1*laplacian(u) - 20*dy(u)"}},
        "numerics": {"integrator": "euler", "order": 8},
    },
    "3-D heat in place": {
        "grid": {"shape": [203, 131, 61]},
        "equation": {"name": "heat"},
        "boundary": WALLS,
        "numerics": {"integrator": "euler"},
    },
    "3-D wave in place, order 4": {
        "grid": {"shape": [203, 131, 61]},
        "equation": {"name": "wave"},
        "boundary": WALLS,
        "numerics": {**LEAPFROG, "order": 4},
    },
}


# Steps whose reverse is computed: parameters' derivatives add up cell by cell, where they are.
REVERSED = {
    "3-D Gray-Scott reversed": {
        "grid": {"shape": [37, 41, 61]},
        "equation": {"name": "gray_scott"},
        "boundary": {"y": {"neumann": 0.2}},
        "numerics": {"integrator": "euler"},
        "gradient": {"of": ["initial.u", "equation.F", "equation.k"]},
    },
    "2-D wave reversed": {
        "grid": {"shape": [150, 130]},
        "equation": {"name": "wave", "c": 0.7},
        "boundary": {"x": {"dirichlet": 0.0}},
        "numerics": LEAPFROG,
        "gradient": {"of": ["equation.c"]},
    },
}
# Steps that read values of their own, from a tape; some in the operand of a derivative.
SELF_FOCUSING = {"name": "custom", "a": 0.3, "rhs": {"u": "v", "v": "(1 + a*u)*laplacian(u)"}}
TAPED = {
    "3-D in place, with a tape": {
        "grid": {"shape": [37, 41, 61]},
        "equation": SELF_FOCUSING,
        "boundary": {"x": "periodic", "y": {"dirichlet": 0.0}},
        "numerics": {**LEAPFROG, "order": 4},
        "gradient": {"of": ["initial.u"]},
    },
    "3-D in place, with a tape, periodic": {
        "grid": {"shape": [61, 37, 40]},
        "equation": SELF_FOCUSING,
        "boundary": dict.fromkeys("xyz", "periodic"),
        "numerics": {**LEAPFROG, "precision": "float64"},
        "gradient": {"of": ["initial.u"]},
    },
    "2-D in place, with a tape, periodic": {
        "grid": {"shape": [151, 130]},
        "equation": {"name": "gray_scott"},
        "boundary": dict.fromkeys("xy", "periodic"),
        "numerics": {"integrator": "euler"},
        "gradient": {"of": ["initial.u", "equation.F"]},
    },
    "3-D in place, with a tape in half precision": {
        "grid": {"shape": [61, 37, 40]},
        "equation": SELF_FOCUSING,
        "boundary": {"x": "periodic", "y": "periodic", "z": {"dirichlet": 0.0}},
        "numerics": LEAPFROG,
        "gradient": {"of": ["initial.u"], "tape_precision": "half"},
    },
    "2-D in place, with a tape in half precision": {
        "grid": {"shape": [151, 130]},
        "equation": {"name": "gray_scott"},
        "boundary": {"x": "periodic"},
        "numerics": {"integrator": "euler", "precision": "float64"},
        "gradient": {"of": ["initial.u", "equation.F"], "tape_precision": "half"},
    },
    "3-D in tiles, with a tape": {
        "grid": {"shape": [5, 60, 61]},
        "equation": {"name": "gray_scott"},
        "boundary": {"x": "periodic", "y": "periodic"},
        "numerics": {"integrator": "euler"},
        "gradient": {"of": ["initial.u", "equation.F"]},
    },
}


def case(name):
    """The problem of a row."""
    if name in CASES:
        return problem_of(**CASES[name])
    forward = problem_of(**{**REVERSED, **TAPED}[name], objective={"J": "integral(u**2)"})
    adjoint, topology = adjoint_of(forward, ()), simulation_of(forward).plan.topology
    return with_tape(adjoint).reversing(topology) if name in TAPED else adjoint.reversing(topology, 3)


def with_values(simulation, steps):
    """A context with random values for each of these steps, if the problem reads any."""
    if simulation.steps.replaying is None:
        return nullcontext()
    tape = TapeMemory()
    shape = simulation.problem.config.grid.shape
    dtype = half_of(simulation.dtype) if simulation.problem.replayed_in_half else simulation.dtype
    tape.begin(range(steps), simulation.problem.replayed, shape, dtype, (0,) * len(shape))
    values = np.random.default_rng(2).random(tape.arrays.shape)
    tape.arrays[...] = values.astype(np.float32).view(np.uint32) >> 16 if dtype == np.uint16 else values
    return simulation.steps.replaying({n: tape.at(n) for n in range(steps)})


@pytest.mark.parametrize("name", [*CASES, *TAPED, *(pytest.param(name, marks=pytest.mark.long) for name in REVERSED)])
@pytest.mark.usefixtures("cache_of_a_mebibyte")
def test_blocked_drivers_give_the_bits_of_the_reference(name, monkeypatch):
    problem = case(name)
    # Many, if sweeps between the first and the last one differ from both.
    steps = 40 if "joined" in name else 7 if max(problem.config.grid.shape) == 203 else 18
    blocked = program(problem)
    reference = with_driver(blocked, "reference")
    assert reference.driver != blocked.driver

    def result(made, threads):
        monkeypatch.setattr("hpcstencil.backends.native.backend.program", lambda _: made)
        monkeypatch.setattr("hpcstencil.backends.native.step_functions.threads_for", lambda _: threads)
        simulation = simulation_of(problem, kernel="native")
        assert steps_in_place(simulation, threads) == ("in place" in name)
        with with_values(simulation, steps):
            return stepped(problem, simulation, steps, 1e-3)

    expected = result(reference, 1)
    for threads in (1, 2, 3):
        for field, block in result(blocked, threads).items():
            assert np.isfinite(block).all()
            assert np.array_equal(block, expected[field]), (threads, field, np.abs(block - expected[field]).max())


SEARCHED = (  # in tiles, then in place
    "3-D, derivatives of derivatives",
    "3-D Gray-Scott reversed",
    "3-D in place, passes joined, walls that change in time",
    "3-D in place, passes joined, open ends",
)


@pytest.mark.parametrize("name", SEARCHED)
@pytest.mark.usefixtures("cache_of_a_mebibyte")
def test_blockings_that_calls_measure_give_the_bits_of_the_reference(name, monkeypatch):
    problem, steps = case(name), 1 if name in REVERSED else 17
    blocked = program(problem)
    simulation = simulation_of(problem, kernel="native")
    assert steps_in_place(simulation) == ("in place" in name)
    with monkeypatch.context() as only_here:
        reference = with_driver(blocked, "reference")
        only_here.setattr("hpcstencil.backends.native.backend.program", lambda _: reference)
        expected = stepped(problem, simulation_of(problem, kernel="native"), steps, 1e-3)
    library = compile_in_background(blocked.text, blocked.driver).result()
    monkeypatch.setattr(ctypes.c_double.in_dll(library, "least_measured"), "value", 0.0)
    before = library.blockings_measured()
    for _ in range(12):
        for field, block in stepped(problem, simulation, steps, 1e-3).items():
            assert np.array_equal(block, expected[field]), field
    assert library.blockings_measured() >= before + 3


def test_an_unknown_driver_is_an_error():
    with pytest.raises(ValueError, match="expected one of the drivers blocked, reference, but got plain"):
        with_driver("", "plain")
