"""Leapfrog with linear damping and memory fields: second order, and stable up to the step of the undamped method."""

import numpy as np
import pytest
from support import integrate, problem_of, simulation_of, stepped

from hpcstencil.numerics.schedule import StepRange
from hpcstencil.problem.stability import stable_dt
from hpcstencil.problem.von_neumann import estimated_step

SHOT = {"source": 1.0, "f0": 0.1, "t0": 12.0}
THIN = {"sponge": {"width": 3.0, "strength": 3.0}}
SPONGE = {"sponge": {"width": 8.0, "strength": 2.0}}


def cpml(width):
    return {"cpml": {"width": width}}


CASES = {
    "second order, cpml": {
        "grid": {"shape": [40]},
        "equation": {"name": "acoustic", **SHOT, "xs": 20.2},
        "boundary": {"x": {"lower": {"dirichlet": 0.0}, "upper": cpml(10.0)}},
        "numerics": {"order": 4},
    },
    "coefficients": {
        "grid": {"shape": [16, 15]},
        "equation": {"name": "acoustic", "c": "1 + 0.2*sin(x/7)", "rho": "1 + 0.3*cos(y/5)", **SHOT, "xs": 8.2, "ys": 9.0},
        "boundary": {"x": cpml(5.0), "y": {"lower": {"dirichlet": 0.0}, "upper": cpml(6.0)}},
    },
    "staggered, cpml": {
        "grid": {"shape": [15, 14]},
        "equation": {"name": "maxwell", **SHOT, "xs": 7.2, "ys": 7.0},
        "boundary": {"x": cpml(4.0), "y": cpml(5.0)},
    },
    "staggered, both layers": {
        "grid": {"shape": [15, 14]},
        "equation": {"name": "maxwell", **SHOT, "xs": 7.2, "ys": 7.0},
        "boundary": {"x": SPONGE, "y": cpml(5.0)},
    },
    "sponge": {
        "grid": {"shape": [24, 15]},
        "equation": {"name": "wave"},
        "initial": {"u": "exp(-((x - 12)**2 + (y - 7)**2)/20)"},
        "boundary": {"x": SPONGE, "y": {"neumann": 0.0}},
    },
    "an own damping, in time and space": {
        "grid": {"shape": [24]},
        "equation": {"name": "custom", "g": 0.3, "rhs": {
            "u": "v - 0.1*u*(1 + x/24)", "v": "laplacian(u) - g*(1 + 0.5*sin(t))*v + sin(t/3)"}},
        "initial": {"u": "exp(-((x - 12)**2)/20)"},
    },
    "an own memory": {  # a viscoelastic solid: w is driven by u and drives v, and belongs to no pair
        "grid": {"shape": [24]},
        "equation": {"name": "custom", "rhs": {"u": "v", "v": "dxx(u) - w", "w": "0.3*dxx(u) - w/2"}},
        "initial": {"u": "exp(-((x - 12)**2)/20)"},
    },
}  # fmt: skip
LAYERS = [name for name in CASES if "own" not in name]


def problem(name, integrator="leapfrog", dt=0.1, end=16.0):
    tables = CASES[name]
    numerics = {"precision": "float64", "integrator": integrator, **tables.get("numerics", {})}
    return problem_of(**{**tables, "numerics": numerics, "time": {"end": end, "dt": dt}})


@pytest.mark.parametrize("name", CASES)
def test_order_in_time(name):
    """Against rk4, whose error is smaller by far. Memory fields are of second order too."""
    expected = integrate(problem(name, "rk4", 0.05))
    errors = []
    for dt in (0.2, 0.1):
        found = integrate(problem(name, dt=dt))
        errors.append([np.abs(found[field] - values).max() for field, values in expected.items()])
    assert np.log2(np.divide(*errors)) == pytest.approx(2.0, abs=0.2)


def step_matrix(problem, dt):
    """The matrix of a step, from the steps of unit vectors: the operator of the whole grid, with its walls and layers."""
    simulation, columns = simulation_of(problem), []
    zero = {name: 0.0 * block for name, block in stepped(problem, simulation, 0, dt).items()}
    for name, block in zero.items():
        for cell in range(block.size):
            unit = {**zero, name: np.eye(1, block.size, cell).reshape(block.shape)}
            new = simulation.get(simulation.advance(simulation.put(unit), StepRange(-1e9, 0, dt, 1)), problem.fields)
            columns.append(np.concatenate([new[field].ravel() for field in zero]))
    return np.stack(columns, axis=1)


MATRICES = {
    "order 8": ({"name": "acoustic"}, [20], {"x": cpml(6.0)}, 8),
    "a layer of one cell": ({"name": "acoustic"}, [20], {"x": cpml(1.0)}, 2),
    "corners": (
        {"name": "acoustic"},
        [8, 7],
        {"x": cpml(3.0), "y": {"lower": {"neumann": 0.0}, "upper": cpml(3.0)}},
        2,
    ),
    "sponges": ({"name": "wave"}, [9, 8], {"x": THIN, "y": THIN}, 4),
    "staggered": ({"name": "maxwell"}, [9, 8], {"x": cpml(3.0), "y": THIN}, 2),
}


@pytest.mark.parametrize("name", MATRICES)
def test_the_stable_step_is_that_without_damping(name):
    """No eigenvalue of the step leaves the unit circle up to the proposed step; soon beyond it one does."""
    equation, shape, boundary, order = MATRICES[name]
    made = problem_of(
        grid={"shape": shape}, equation=equation, boundary=boundary,
        numerics={"order": order, "integrator": "leapfrog", "precision": "float64"},
    )  # fmt: skip
    stable = stable_dt(made, {})
    undamped = problem_of(grid={"shape": shape}, equation=equation, numerics={"order": order, "integrator": "leapfrog"})
    assert stable == stable_dt(undamped, {}) > 0.0
    for share in (0.5, 0.999):
        assert np.abs(np.linalg.eigvals(step_matrix(made, share * stable))).max() <= 1.0 + 1e-9
    assert np.abs(np.linalg.eigvals(step_matrix(made, 1.05 * stable))).max() > 1.1


def test_damping_lowers_no_estimate():
    """Also where the damping of one field alone turns all oscillations of the equation into decay."""
    rhs = {"u": "v", "v": "laplacian(u) - 9*v"}
    made = problem_of(
        grid={"shape": [24, 20]}, equation={"name": "custom", "rhs": rhs}, numerics={"integrator": "leapfrog"},
        time={"end": 1e9, "dt": 1.0},
    )  # fmt: skip
    assert estimated_step(made, 10.0) == pytest.approx(1 / np.sqrt(2), rel=2e-3)


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.long if n else ()) for n, name in enumerate(LAYERS)
])  # fmt: skip
def test_nothing_grows_in_a_long_run(name):
    """From waves of all lengths, at almost the longest step. They do not reach the walls, where E would stay."""
    tables = CASES[name]
    equation = {key: value for key, value in tables["equation"].items() if key in ("name", "c", "rho")}
    numerics = {"integrator": "leapfrog", "precision": "float64", **tables.get("numerics", {})}
    middle = " + ".join(f"({axis} - {n / 2})**2" for axis, n in zip("xy", tables["grid"]["shape"], strict=False))
    initial = {{"wave": "u", "acoustic": "p", "maxwell": "Ez"}[equation["name"]]: f"noise(1)*exp(-({middle}))"}
    quiet = problem_of(**{**tables, "equation": equation, "initial": initial, "numerics": numerics})
    dt = 0.95 * min(stable_dt(quiet, {}), estimated_step(quiet, 1.0))
    simulation = simulation_of(quiet, kernel="native")
    early, late = (stepped(quiet, simulation, steps, dt) for steps in (100, 100_000))
    for field, values in late.items():
        assert np.abs(values).max() <= max(np.abs(early[field]).max(), 1e-9)


@pytest.mark.parametrize("kernel", ["shift", "native"])
def test_blocks_too_thin_for_a_whole_step_have_the_same_bits(kernel):
    """Then each stage has an exchange of its own, between calls of compiled code that must know dt."""
    made = problem_of(
        grid={"shape": [13]},
        equation={"name": "acoustic"},
        boundary={"x": {"cpml": {"width": 5.0}}, "q": {"x": {"sponge": {"width": 4.0, "strength": 1.0}}}},
        numerics={"order": 4, "integrator": "leapfrog"},
    )
    alone, split = (simulation_of(made, devices=devices, kernel=kernel) for devices in (1, 2))
    assert alone.plan.steps_per_exchange > 0 and split.plan.steps_per_exchange == 0
    expected, found = (stepped(made, simulation, 5, 0.3) for simulation in (alone, split))
    for field, values in expected.items():
        assert np.isfinite(values).all() and np.array_equal(found[field], values)
