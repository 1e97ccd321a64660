"""The stable step that the trees of an equation say, against what is known in closed form and what a run does."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from support import integrate, integrated, problem_of, simulation_of

from hpcstencil.config.reader import load
from hpcstencil.equations import SupportsCfl
from hpcstencil.problem.build import build
from hpcstencil.problem.stability import stable_dt
from hpcstencil.problem.von_neumann import estimated_step
from hpcstencil.problem.warnings import warnings_of

INPUTS = sorted((Path(__file__).parents[2] / "inputs").glob("*.toml"))
GRID = {"shape": [24, 20], "upper": [2.4, 2.0]}

# name: (the built-in's table, the same equation written out, parameters, initial state)
WRITTEN_OUT = {
    "heat": ({"name": "heat", "D": 0.7}, {"u": "D*laplacian(u)"}, {"D": 0.7}, {}),
    "advection_diffusion": (
        {"name": "advection_diffusion", "D": 0.3, "vx": 2.0, "vy": -1.0},
        {"u": "D*laplacian(u) - vx*dx(u) - vy*dy(u)"},
        {"D": 0.3, "vx": 2.0, "vy": -1.0},
        {},
    ),
    "gray_scott": (
        {"name": "gray_scott", "D_u": 2e-2, "D_v": 1e-2, "F": 0.037, "k": 0.06},
        {"u": "D_u*laplacian(u) - u*v**2 + F*(1 - u)", "v": "D_v*laplacian(v) + u*v**2 - (F + k)*v"},
        {"D_u": 2e-2, "D_v": 1e-2, "F": 0.037, "k": 0.06},
        {"u": "1", "v": "0"},
    ),
    "cahn_hilliard": (
        {"name": "cahn_hilliard", "M": 1.0, "kappa": 0.01},
        {"c": "M*laplacian(c**3 - c - kappa*laplacian(c))"},
        {"M": 1.0, "kappa": 0.01},
        {"c": "0.9*sin(pi*x)"},
    ),
    "wave": (
        {"name": "wave", "c": 3.0},
        {"u": "v", "v": "c**2*laplacian(u)"},
        {"c": 3.0},
        {},
    ),
}  # fmt: skip


def custom(rhs, initial=None, dt=1.0, end=1000.0, integrator="rk4", grid=GRID, **parameters):
    return problem_of(
        grid=grid,
        equation={"name": "custom", "rhs": rhs, **parameters},
        initial=initial or {},
        numerics={"integrator": integrator, "precision": "float64"},
        time={"end": end, "dt": dt},
    )


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_an_equation_written_out_has_the_step_of_the_built_in(name):
    table, rhs, parameters, initial = WRITTEN_OUT[name]
    known = problem_of(grid=GRID, equation=table, initial=initial, time={"end": 1000.0, "dt": 1e-3})
    assert isinstance(known.equation, SupportsCfl)
    bound = stable_dt(known, {})
    found = estimated_step(custom(rhs, initial, **parameters), 100 * bound)
    assert bound <= 1.001 * found  # the built-in's is a bound, the sum of what its parts allow
    assert found <= 1.6 * bound


@pytest.mark.parametrize(
    ("rhs", "exact", "integrator"),
    [
        ({"u": "0.5*laplacian(u)"}, 2 / (4 * 0.5 * (100 + 100)), "euler"),
        ({"u": "div_grad(0.5, u)"}, 2 / (4 * 0.5 * (100 + 100)), "euler"),
        ({"u": "-laplacian(laplacian(u))"}, 2 / (4 * (100 + 100)) ** 2, "euler"),
        ({"u": "-upwind(u, 2, 1)"}, 1 / (2 / 0.1 + 1 / 0.1), "euler"),
        ({"u": "difference_x(mean_x(u)*difference_x(u))"}, 2 / (4 * 3.0 * 100), "euler"),
        ({"u": "v", "v": "4*laplacian(u)"}, 2 / (2 * np.sqrt(4 * (100 + 100))), "leapfrog"),
    ],
)  # fmt: skip
def test_steps_in_closed_form(rhs, exact, integrator):
    found = estimated_step(custom(rhs, {"u": "3"}, end=1e9, integrator=integrator), 1.0)
    assert found == pytest.approx(exact, rel=2e-3)


def test_coefficients_of_fields_and_places_count_where_they_are_largest():
    profile = "1.5 + 0.5*sin(pi*x/1.2)"
    fields = custom({"u": "u**2*laplacian(u)"}, {"u": profile}, end=1e9, integrator="euler")
    places = custom({"u": f"({profile})**2*laplacian(u)"}, end=1e9, integrator="euler")
    largest = (1.5 + 0.5 * np.sin(np.pi * 0.65 / 1.2)) ** 2
    assert estimated_step(places, 1.0) == pytest.approx(2 / (4 * largest * 200), rel=2e-3)
    assert estimated_step(fields, 1.0) == pytest.approx(2 / (4 * largest * 200), rel=1e-2)  # and 2 u laplacian(u)


def test_a_thin_layer_counts():
    heat = {"name": "heat", "D": "1 + 1000*(abs(x - 1002.5) < 2)"}
    problem = problem_of(grid={"shape": [4000], "upper": [4000]}, equation=heat, numerics={"integrator": "euler"})
    assert stable_dt(problem, {}) == pytest.approx(1 / (2 * 1001))


def test_a_huge_grid_is_sampled():
    """An array along one axis would take 8 GB. The system may kill such a process before it can say that memory is lacking."""
    tracemalloc.start()
    try:
        warnings_of(problem_of(grid={"shape": [10**9, 10**9]}, equation={"name": "heat", "D": "1 + x*y"}))
        assert tracemalloc.get_traced_memory()[1] < 2**30
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("rhs", [{"u": "laplacian(u)"}, {"u": "dx(v)", "v": "dx(u)"}], ids=["diffusion", "waves"])
def test_a_run_blows_up_beyond_the_step_and_not_before(rhs):
    grid, initial = {"shape": [32], "upper": [3.2]}, {"u": "0.1*noise(1)"}
    step = estimated_step(custom(rhs, initial, grid=grid), 1.0)
    problem = custom(rhs, initial, 0.95 * step, 400 * step, grid=grid)
    simulation = simulation_of(problem)
    begun = simulation.get(simulation.initial_fields(), ["u"])
    kept, _ = integrated(problem, simulation)
    assert np.ptp(kept["u"]) < 0.5 * np.ptp(begun["u"])
    lost = integrate(custom(rhs, initial, 1.2 * step, 400 * step, grid=grid))
    assert not np.abs(lost["u"]).max() < 1e3


def test_an_unstable_step_is_warned_of():
    (warning,) = warnings_of(custom({"u": "D*laplacian(u)"}, D=1.0, grid={"shape": [20], "upper": [4.0]}))
    assert warning.startswith("time.dt = 1 is beyond the stable step of rk4 for this equation and grid, about 0.027")


BACKWARDS = {
    "diffusion": {"u": "-0.5*laplacian(u)"},
    "along one axis": {"u": "laplacian(u) - 3*difference_x(difference_x(u))"},
    "waves": {"u": "v", "v": "-laplacian(u)"},
    "in one cell": {"u": "div_grad(1 - 2*(x < 1), u)"},
    "fourth order": {"u": "laplacian(laplacian(u))"},
    "centred": {"u": "laplacian(u) - 3*dx(dx(u))"},
    "mixed": {"u": "laplacian(u) + 4*dxy(u)"},
    "first order": {"u": "dx(v)", "v": "-dx(u)"},
}
NEAR = [[1, 2, 1], [2, 4, 2], [1, 2, 1]]
FORWARDS = {
    "growth": {"u": "5*u*(1 - u) + laplacian(u)"},
    "patterns": {"u": "laplacian(u**3 - u - 0.05*laplacian(u))"},
    "advection": {"u": "-upwind(u, 2, 1)"},
    "waves": {"u": "v", "v": "laplacian(u) + 5*u"},
    "too fine patterns for the run": {"u": "u - 1e-6*laplacian(u)"},
    "patterns that the grid does not resolve": {"u": "laplacian(u**3 - u - 0.002*laplacian(u))"},
    "a front": {"u": "div_grad(maximum(0, 1 - 20*(x - 1.2)**2) + u**2, u)"},
    "steepening": {"u": "-u*dx(u) + 0.01*laplacian(u)"},
    "a lattice": {"u": "u - near(u)/16 - u**3"},
    "Schroedinger": {"u": "-laplacian(v) - 9*(u**2 + v**2)*v", "v": "laplacian(u) + 9*(u**2 + v**2)*u"},
}


@pytest.mark.parametrize("rhs", BACKWARDS.values(), ids=BACKWARDS)
def test_an_ill_posed_equation_is_warned_of(rhs):
    warnings = warnings_of(custom(rhs, {"u": "0.1"}, dt=1e-6, end=9.0))
    assert [w for w in warnings if w.startswith("equation: short waves grow, on this grid by a factor of e")]


@pytest.mark.parametrize("rhs", FORWARDS.values(), ids=FORWARDS)
@pytest.mark.parametrize("order", [2, 4])
def test_other_growth_is_not_warned_of(rhs, order):
    equation = {"name": "custom", "rhs": rhs, **({"stencils": {"near": NEAR}} if "near" in rhs["u"] else {})}
    tables = {
        "grid": GRID,
        "equation": equation,
        "initial": {"u": "where(x < 1, 1, 0) + 0.1*noise(1)"},
        "numerics": {"order": order},
    }
    assert not [w for w in warnings_of(problem_of(**tables, time={"end": 99.0, "dt": 1e-6})) if "short waves" in w]


@pytest.mark.parametrize("initial", ["u.npy", "1 + 0.1*noise(1)"])
def test_a_sign_that_depends_on_initial_values_from_files_is_not_known(initial, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("u.npy", np.ones((24, 20)))
    assert not warnings_of(custom({"u": "div_grad(u - 0.5, u)"}, {"u": initial}, dt=1e-6, end=99.0))


@pytest.mark.parametrize(
    ("coefficient", "words"),
    [
        (-0.5, "equation.D = -0.5 is negative"),
        ("0.1*(x - 1.2)", "equation: short waves grow"),
        ("D.npy", "equation.D = -2 is neg"),
    ],
)
def test_negative_coefficients_of_built_in_equations_are_warned_of(coefficient, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("D.npy", np.where(np.eye(24, 20), -2.0, 1.0))
    heat = {"name": "heat", "D": coefficient}
    (warning,) = warnings_of(problem_of(grid=GRID, equation=heat, time={"dt": 1e-6, "end": 9.0}))
    assert warning.startswith(words)


PULSE = {"u": "laplacian(u) + (t > 3)*(t < 4)"}
SIGNAL = {"s": {"series": "s.npy", "dt": 0.1}}


@pytest.mark.parametrize(
    ("rhs", "time", "words"),
    [
        (PULSE, {"tolerance": 1e-3}, "time.tolerance: the equation has a pulse or jump in time"),
        (PULSE, {"tolerance": 1e-3, "dt_max": 0.3}, ""),
        ({"u": "laplacian(u) + sin(t)"}, {"tolerance": 1e-3}, ""),
        ({"u": "laplacian(u) + x*exp(-100*(t - 3)**2)"}, {"tolerance": 1e-3}, "time.tolerance: the equation has a pulse"),
        ({"u": "laplacian(u) + s"}, {"tolerance": 1e-3}, "time.tolerance: the equation has a pulse"),
        ({"u": "-upwind(u, sin(t), 0) + (t >= 0)*(t > -5)*(t < 60)"}, {"tolerance": 1e-3}, ""),
        ({"u": "laplacian(u) + maximum(0, t - 3)*(u > exp(-t))"}, {"tolerance": 1e-3}, ""),
        ({"u": "laplacian(u) + s"}, {"dt": 0.2}, "time.dt = 0.2 is longer than dt = 0.1 between the samples"),
        ({"u": "laplacian(u) + s"}, {"dt": 0.1}, ""),
    ],
)  # fmt: skip
def test_changes_between_steps_are_warned_of(rhs, time, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("s.npy", np.ones(9))
    equation = {"name": "custom", "rhs": rhs, **(SIGNAL if "s" in rhs["u"].split() else {})}
    grid = {"shape": [24, 20], "upper": [240, 200]}
    warnings = warnings_of(problem_of(grid=grid, equation=equation, time={"end": 9.0, **time}))
    assert [warning[: len(words)] for warning in warnings] == ([words] if words else [])


@pytest.mark.parametrize(
    "changes", [{"initial": {"u": "u.npy"}}, {"mask": {"solid": "solid.npy"}}], ids=["start", "mask"]
)
def test_it_is_estimated_beside_arrays(changes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("u.npy", np.random.default_rng(1).random(20))
    np.save("solid.npy", np.arange(20) > 17)
    equation = {"name": "custom", "D": 1.0, "rhs": {"u": "D*laplacian(u)"}}
    tables = {"grid": {"shape": [20], "upper": [4.0]}, "equation": equation, "time": {"dt": 1.0, "end": 9.0}, **changes}
    (warning,) = warnings_of(problem_of(**tables))
    assert warning.startswith("time.dt = 1 is beyond the stable step of rk4 for this equation and grid, about 0.028")


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: path.stem)
def test_shipped_inputs_are_stable(path):
    assert warnings_of(build(load(path, []))) == []


def test_equations_without_modes_limit_no_step():
    assert estimated_step(custom({"u": "1 - u*0"}), 5.0) == 5.0
    assert estimated_step(custom({"u": "u"}), 5.0) == 5.0  # it grows by itself
