"""Solid cells in the domain."""

import h5py
import numpy as np
import pytest
from support import coordinates, integrate, integrated, problem_of, random_block, simulation_of, stepped

from hpcstencil.config.reader import load
from hpcstencil.simulation.diagnostics import Diagnostics
from hpcstencil.simulation.solid_cells import check_fluid_left
from hpcstencil.validation.errors import InputError

DISC = "(x - 1.6)**2 + (y - 1.2)**2 < 0.25"


def tables(rhs="laplacian(u)", surface="no_flux", **more):
    return {
        "grid": {"shape": [32, 24], "upper": [3.2, 2.4]},
        "equation": {"name": "custom", "rhs": {"u": rhs}},
        "boundary": {"x": {"neumann": 0.0}, "y": "periodic"},
        "mask": {"solid": DISC, "surface": surface},
        "numerics": {"precision": "float64"},
        **more,
    }


def solid(problem):
    x, y = coordinates(problem)
    return (x - 1.6) ** 2 + (y - 1.2) ** 2 < 0.25


@pytest.mark.parametrize("rhs", ("laplacian(u)", "div_grad(1 + 0.3*x, u)", "div_grad(1 + u*u, u)"))
def test_no_flux_keeps_the_integral_over_the_fluid(rhs):
    problem = problem_of(**tables(rhs))
    simulation = simulation_of(problem)
    fluid = ~solid(problem)
    before = random_block(problem, simulation)["u"][fluid]
    after = stepped(problem, simulation, 300, 1e-4)["u"][fluid]
    assert after.mean() == pytest.approx(before.mean(), rel=1e-13) and after.std() < 0.5 * before.std()


def test_it_equals_a_stencil_written_by_hand():
    problem = problem_of(**tables(numerics={"precision": "float64", "integrator": "euler"}, boundary={}))
    simulation = simulation_of(problem)
    u, s = random_block(problem, simulation)["u"], solid(problem)
    expected = np.zeros_like(u)
    for axis in (0, 1):
        for step in (1, -1):
            there, blocked = np.roll(u, step, axis), np.roll(s, step, axis)
            expected += np.where(blocked, 0.0, there - u) / 0.01
    found = stepped(problem, simulation, 1, 1e-3)["u"]
    np.testing.assert_allclose(found[~s], (u + 1e-3 * expected)[~s], rtol=1e-12)
    assert np.array_equal(found[s], u[s])


LINE = {
    "grid": {"shape": [10]}, "boundary": {"x": {"neumann": 0.0}}, "numerics": {"precision": "float64", "integrator": "euler"},
}  # fmt: skip
BETWEEN = "(x > 4)*(x < 6)"  # two solid cells in the middle of a line


@pytest.mark.parametrize("kernel", ("shift", "conv", "native", "pallas"))
def test_a_value_holds_on_the_face_between_fluid_and_solid(kernel):
    """A surface at 1 on both sides: everything tends to 1. Beside it a first derivative has twice that less the cell in the
    solid's place."""
    rhs = {"u": "laplacian(u)", "v": "div_grad(1 + 0.1*x, v)", "w": "dx(u)"}
    problem = problem_of(
        **LINE, equation={"name": "custom", "rhs": rhs}, initial={"u": "x"}, time={"end": 60.0, "dt": 0.2},
        mask={"solid": BETWEEN, "surface": {"value": "(x - 5)**2"}},
    )  # fmt: skip
    simulation = simulation_of(problem, kernel=kernel)
    slope = stepped(problem, simulation, 1, 1.0)["w"]
    np.testing.assert_allclose(slope[[3, 6]], [(2 - 3.5 - 2.5) / 2, (7.5 + 6.5 - 2) / 2], rtol=1e-14)
    found = integrated(problem, simulation)[0]
    for name in ("u", "v"):
        np.testing.assert_allclose(found[name], np.where(abs(np.arange(10) - 4.5) < 1, 0.0, 1.0), atol=1e-3)


@pytest.mark.parametrize("kernel", ("shift", "conv", "native", "pallas"))
def test_nothing_inside_of_a_solid_is_used(kernel):
    """A coefficient has its own value on the surface, and there it is not the mean with a 0 in the solid; beside 1/0 the fluid
    stays finite, and loses nothing."""
    problem = problem_of(
        **LINE, equation={"name": "custom", "rhs": {"u": "div_grad(v, u)", "v": "0"}}, initial={"u": "2 + x", "v": "4"},
        mask={"solid": BETWEEN, "surface": {"value": 10.0}},
    )  # fmt: skip
    rate = stepped(problem, simulation_of(problem, kernel=kernel), 1, 1.0)["u"] - (np.arange(10) + 2.5)
    assert rate[3] == 10 * (14.5 - 5.5) - 4 * 1 and rate[6] == 4 * 1 + 10 * (11.5 - 8.5)
    problem = problem_of(
        **LINE, equation={"name": "custom", "rhs": {"u": "div_grad(1/u, u) + 0.1*laplacian(1/u)"}}, initial={"u": "2 + x"},
        mask={"solid": BETWEEN},
    )  # fmt: skip
    found = stepped(problem, simulation_of(problem, kernel=kernel), 20, 0.1)["u"]
    assert np.isfinite(found).all() and np.ptp(found[:4]) > 0
    for side in (slice(0, 4), slice(6, 10)):
        assert found[side].sum() == pytest.approx((np.arange(10) + 2.5)[side].sum(), rel=1e-14)


@pytest.mark.parametrize("rhs", (
    "laplacian(u)", "div_grad(1, u)", "div_grad(u, u) + div_grad(1 + u*u, u)", "div_grad(2 + x, u) - dx(u) - upwind(u, 1)",
    "0.1*laplacian(u*u) - dx(u*u)",
))  # fmt: skip
def test_a_wall_of_solid_with_a_value_is_a_dirichlet_boundary(rhs):
    """Solid beyond x = 2 with u = t on it, against a domain that ends there."""
    whole = problem_of(
        grid={"shape": [30], "upper": [3.0]},
        equation={"name": "custom", "rhs": {"u": rhs}},
        initial={"u": "sin(2*x)"},
        boundary={"x": {"dirichlet": 0.0}},
        mask={"solid": "x > 2", "surface": {"value": "t"}},
        numerics={"precision": "float64"},
        time={"end": 0.5, "dt": 1e-3},
    )
    part = problem_of(
        grid={"shape": [20], "upper": [2.0]},
        equation={"name": "custom", "rhs": {"u": rhs}},
        initial={"u": "sin(2*x)"},
        boundary={"x": {"lower": {"dirichlet": 0.0}, "upper": {"dirichlet": "t"}}},
        numerics={"precision": "float64"},
        time={"end": 0.5, "dt": 1e-3},
    )
    found = integrate(whole)["u"]
    np.testing.assert_allclose(found[:20], integrate(part)["u"], rtol=1e-12)
    assert not found[20:].any()


def test_transport_stops_at_a_wall():
    """First derivatives find the mirror image at the surface, as at a wall without flux."""
    given = {
        "equation": {"name": "custom", "rhs": {"u": "0.1*laplacian(u) - dx(u) - upwind(u, 1)"}},
        "initial": {"u": "exp(-4*(x - 1)**2)"}, "numerics": {"precision": "float64"}, "time": {"end": 0.5, "dt": 1e-3},
    }  # fmt: skip
    whole = problem_of(
        grid={"shape": [30], "upper": [3.0]}, boundary={"x": {"neumann": 0.0}}, mask={"solid": "x > 2"}, **given
    )
    part = problem_of(grid={"shape": [20], "upper": [2.0]}, boundary={"x": {"neumann": 0.0}}, **given)
    np.testing.assert_allclose(integrate(whole)["u"][:20], integrate(part)["u"], rtol=1e-12)


def test_diagnostics_see_the_fluid_alone():
    problem = problem_of(
        **tables(diagnostics={"area": "integral(1 + 0*u)", "average": "mean(u)", "low": "min(u)", "high": "max(u)"})
    )
    simulation = simulation_of(problem)
    u, fluid = random_block(problem, simulation)["u"], ~solid(problem)
    u[~fluid] = np.where(np.arange((~fluid).sum()) % 2, 9.0, -9.0)
    diagnostics = Diagnostics(problem.diagnostics, simulation.diagnosed, problem.parameters)
    found = diagnostics.evaluate(simulation.put({"u": u}), 0.0)
    assert found["area"] == pytest.approx(0.01 * fluid.sum(), rel=1e-13)
    assert found["average"] == pytest.approx(u[fluid].mean(), rel=1e-13)
    assert (found["low"], found["high"]) == (u[fluid].min(), u[fluid].max())


def test_mixed_derivatives_are_taken_one_after_the_other():
    problem = problem_of(
        **tables("dxy(u)", initial={"u": "x*y"}, numerics={"integrator": "euler", "precision": "float64"})
    )
    assert np.isfinite(stepped(problem, simulation_of(problem), 3, 1e-3)["u"]).all()


def test_a_mask_that_covers_everything_is_refused():
    simulation = simulation_of(problem_of(**{**tables(), "mask": {"solid": "x > -1"}}))
    with pytest.raises(InputError, match=r"mask\.solid: expected some cells that are not solid"):
        check_fluid_left(simulation, simulation.initial_fields())


# ---- solid cells from a dataset ----------------------------------------------------------------------------------------


@pytest.fixture
def geometry(tmp_path):
    """The disc as a dataset."""
    path = tmp_path / "geometry.h5"
    with h5py.File(path, "w") as file:
        file["solid"] = solid(problem_of(**tables())).astype(np.int8)
        file["everything"] = np.ones((32, 24))
        file["other"] = np.zeros((32, 23))
        file["hole"] = np.where(np.arange(24) == 5, np.nan, 0.0) * np.ones((32, 1))
        file["words"] = np.full((32, 24), b"x")
    return path


NO_FLUX, VALUE = "no_flux", {"value": "0.3*sin(x + t)"}


@pytest.mark.parametrize("surface, integrator", [
    (NO_FLUX, "bs3"), (VALUE, "ssprk2"),  # a tolerance and fixed steps, once each, and each surface once
    *(pytest.param(*row, marks=pytest.mark.long) for row in ((VALUE, "bs3"), (NO_FLUX, "rk4"), (VALUE, "rk4"))),
])  # fmt: skip
def test_a_dataset_is_as_good_as_an_expression(geometry, surface, integrator):
    time = {"end": 0.02, "tolerance": 1e-5} if integrator == "bs3" else {"end": 0.02, "dt": 2e-4}
    more = {
        "initial": {"u": "1 + 0.2*sin(3*x)*cos(2*y)"}, "time": time, "diagnostics": {"middle": "mean(u)", "least": "min(u)"},
        "numerics": {"precision": "float64", "integrator": integrator},
    }  # fmt: skip
    given = {**tables("laplacian(u) + dxy(u) + div_grad(1 + u*u, u)"), **more}
    problems = [
        problem_of(**{**given, "mask": {"solid": text, "surface": surface}}) for text in (DISC, f"{geometry}:solid")
    ]
    results, found = [], []
    for problem in problems:
        simulation = simulation_of(problem, devices=2)
        fields, _ = integrated(problem, simulation)
        diagnostics = Diagnostics(problem.diagnostics, simulation.diagnosed, problem.parameters)
        results.append(fields["u"])
        found.append(diagnostics.evaluate(simulation.put(fields), 0.0))
    assert np.array_equal(*results) and found[0] == found[1]


@pytest.mark.parametrize("name, sentence", [
    ("nothing", "mask.solid: .*no dataset 'nothing'"),
    ("other", r"mask.solid: .*'other' has shape \(32, 23\), expected \(32, 24\)"),
    ("hole", r"mask.solid: .*/geometry.h5:hole: expected finite numbers, but got nan in cell \[0, 5\]; correct it"),
    ("words", "mask.solid: .*/geometry.h5: expected real numbers in 'words', but got texts"),
    ("everything", "it covers the whole grid"),
])  # fmt: skip
def test_datasets_that_are_refused(geometry, name, sentence):
    with pytest.raises(InputError, match=sentence):
        simulation = simulation_of(problem_of(**{**tables(), "mask": {"solid": f"{geometry}:{name}"}}))
        check_fluid_left(simulation, simulation.initial_fields())


def test_a_file_that_is_not_there(tmp_path):
    (tmp_path / "input.toml").write_text(
        'grid.shape = [8]\nequation.name = "heat"\ntime.end = 1\nmask.solid = "none.h5:solid"\n'
    )
    with pytest.raises(InputError, match="mask.solid: expected an HDF5 file, but .*/none.h5 does not exist"):
        load(tmp_path / "input.toml")
