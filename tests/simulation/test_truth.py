"""Against closed forms, conservation laws and observed order: one table per kind."""

import itertools

import numpy as np
import pytest
from support import coordinates, integrate, problem_of, random_block, simulation_of, stepped

from hpcstencil.numerics.grid import Grid
from hpcstencil.numerics.integrators import INTEGRATORS, SUPER_STEPPING, stability_limits
from hpcstencil.simulation.diagnostics import Diagnostics
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.operators import Space

TAU = 2 * np.pi
BOX = {1: [64], 2: [48, 40], 3: [24, 20, 16]}


def box(ndim, cells=None):
    shape = cells or BOX[ndim]
    return {"shape": shape, "upper": [TAU] * ndim}


def heat_mode(ndim, order, n):
    """exp(-ndim t) Π cos(x_i) decays at rate ndim D."""
    product = "*".join(f"cos({a})" for a in "xyz"[:ndim])
    tables = {
        "grid": box(ndim, [n] * ndim),
        "equation": {"name": "heat", "D": 1.0},
        "initial": {"u": product},
        "numerics": {"order": order, "precision": "float64"},
        "time": {"end": 0.05, "dt": 0.0005},
    }
    return tables, lambda *x: np.exp(-ndim * 0.05) * np.prod([np.cos(a) for a in np.broadcast_arrays(*x)], axis=0)


def wave_mode(ndim, order, n):
    """cos(ω t) Π sin(x_i) with ω = c sqrt(ndim)."""
    product = "*".join(f"sin({a})" for a in "xyz"[:ndim])
    tables = {
        "grid": box(ndim, [n] * ndim),
        "equation": {"name": "wave", "c": 1.0},
        "initial": {"u": product},
        "numerics": {"order": order, "precision": "float64"},
        "time": {"end": 0.5, "dt": 0.001},
    }
    omega = np.sqrt(ndim)
    return tables, lambda *x: np.cos(omega * 0.5) * np.prod([np.sin(a) for a in np.broadcast_arrays(*x)], axis=0)


def moving_pulse(ndim, order, n):
    """u(x - v t) for D = 0."""
    terms = " + ".join(f"sin({a})" for a in "xyz"[:ndim])
    v = (1.0, -0.5, 0.25)[:ndim]
    tables = {
        "grid": box(ndim, [n] * ndim),
        "equation": {"name": "advection_diffusion", **{"v" + a: s for a, s in zip("xyz", v, strict=False)}},
        "initial": {"u": terms},
        "numerics": {"order": order, "precision": "float64"},
        "time": {"end": 0.5, "dt": 0.002},
    }
    return tables, lambda *x: sum(np.sin(a - s * 0.5) for a, s in zip(x, v, strict=True))


def error(make, ndim, order, n, field="u"):
    tables, exact = make(ndim, order, n)
    problem = problem_of(**tables)
    return np.abs(integrate(problem)[field] - exact(*coordinates(problem))).max()


CLOSED_FORMS = {"heat": heat_mode, "wave": wave_mode, "advection": moving_pulse}


def rows(table, chosen):
    """The rows of a table; all but the ``chosen`` ones belong to the long suite."""
    return [pytest.param(*row, marks=() if row in chosen else pytest.mark.long) for row in table]


@pytest.mark.parametrize("name, ndim", rows(  # each equation, and each number of axes
    itertools.product(CLOSED_FORMS, (1, 2, 3)), [("heat", 3), ("wave", 1), ("advection", 2)]
))  # fmt: skip
def test_closed_form(name, ndim):
    assert error(CLOSED_FORMS[name], ndim, 6, 24) < 2e-5


# First and second derivatives at each order: waves have the Laplacian of heat.
@pytest.mark.parametrize("name, order", rows(
    itertools.product(CLOSED_FORMS, (2, 4, 6, 8)),
    [("heat", 2), ("heat", 4), ("wave", 6), ("heat", 8), ("advection", 2), ("advection", 4), ("advection", 8)],
))  # fmt: skip
def test_observed_order_in_space(name, order):
    coarse, fine = (16, 32) if order < 8 else (12, 20)
    errors = [error(CLOSED_FORMS[name], 1, order, n) for n in (coarse, fine)]
    assert np.log(errors[0] / errors[1]) / np.log(fine / coarse) == pytest.approx(order, abs=0.2)


@pytest.mark.parametrize("integrator", [name for name, method in INTEGRATORS.items() if not method.partitioned])
def test_observed_order_in_time(integrator):
    """du/dt = -u + sin(3 t) in every cell, with the exact solution by variation of constants."""
    errors, stages = [], {"stages": 5} if integrator in SUPER_STEPPING else {}
    for dt in (0.05, 0.025) if INTEGRATORS[integrator].order > 3 else (0.02, 0.01):
        problem = problem_of(
            grid={"shape": [4]},
            equation={"name": "custom", "rhs": {"u": "sin(3*t) - u"}},
            initial={"u": "1"},
            numerics={"integrator": integrator, "precision": "float64", **stages},
            time={"end": 1.0, "dt": dt},
        )
        exact = (1 + 0.3) * np.exp(-1.0) + (np.sin(3.0) - 3 * np.cos(3.0)) / 10
        errors.append(np.abs(integrate(problem)["u"] - exact).max())
    assert np.log2(errors[0] / errors[1]) == pytest.approx(INTEGRATORS[integrator].order, abs=0.25)


@pytest.mark.parametrize("integrator", [name for name, method in INTEGRATORS.items() if method.partitioned])
def test_observed_order_in_time_of_partitioned_methods(integrator):
    """du/dt = v + 0.3 cos(t), dv/dt = -4 u: an oscillator that is pushed."""
    errors = []
    for dt in (0.02, 0.01):
        problem = problem_of(
            grid={"shape": [4]},
            equation={"name": "custom", "rhs": {"u": "v + 0.3*cos(t)", "v": "-4*u"}},
            initial={"u": "1"},
            numerics={"integrator": integrator, "precision": "float64"},
            time={"end": 1.0, "dt": dt},
        )
        # u'' + 4 u = -0.3 sin(t): u = cos(2 t) + A sin(2 t) - 0.1 sin(t), with u'(0) = 0.3
        exact = np.cos(2.0) + 0.2 * np.sin(2.0) - 0.1 * np.sin(1.0)
        errors.append(np.abs(integrate(problem)["u"] - exact).max())
    assert np.log2(errors[0] / errors[1]) == pytest.approx(INTEGRATORS[integrator].order, abs=0.2)


def test_leapfrog_keeps_energy():
    """The steps conserve ½ ∫ (v² - u ∇²u + ¼ dt² v ∇²v) exactly, which differs from the energy by O(dt²)."""
    problem = problem_of(
        grid={"shape": [32], "upper": [TAU]},
        equation={"name": "wave"},
        initial={"u": "cos(3*x)"},
        diagnostics={"energy": "0.5*integral(v**2 - u*laplacian(u) + 0.25*0.1**2*v*laplacian(v))"},
        numerics={"integrator": "leapfrog", "precision": "float64"},
        time={"end": 400.0, "dt": 0.1},
    )
    simulation = simulation_of(problem)
    diagnostics = Diagnostics(problem.diagnostics, simulation.diagnosed, problem.parameters)
    before = diagnostics.evaluate(simulation.initial_fields(), 0.0)["energy"]
    after = diagnostics.evaluate(simulation.put(integrate(problem)), 0.0)["energy"]
    assert after == pytest.approx(before, rel=1e-12)


# Extent along the negative real and the imaginary axis: Hairer & Wanner, II, 2nd ed. (1996), sect. IV.2; Carpenter &
# Kennedy (1994), table 2, for lsrk4; Meyer, Balsara & Aslam (2014), eq. (19), for rkl2 with 9 stages: at least 44.
REACH = {
    "euler": (2.0, 0.0), "ssprk2": (2.0, 0.0), "ssprk3": (2.51, 1.73), "rk4": (2.785, 2.828), "bs3": (2.51, 1.73),
    "dopri5": (3.307, 1.0), "lsrk4": (4.65, 3.34), "leapfrog": (np.inf, 2.0), "rkl2": (44.72, 0.0),
    "ab2": (1.0, 0.0),
}  # fmt: skip


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_stability_limits(integrator):
    assert stability_limits(INTEGRATORS[integrator]) == pytest.approx(REACH[integrator], abs=0.02)


WALLS = {
    "dirichlet": {"dirichlet": "exp(-t)*sin(x + 0.3)"},
    "neumann": {"lower": {"neumann": "-exp(-t)*cos(x + 0.3)"}, "upper": {"neumann": "exp(-t)*cos(x + 0.3)"}},
    "robin": {
        "lower": {"robin": {"a": 2.0, "b": 1.5, "value": "exp(-t)*(2*sin(x + 0.3) - 1.5*cos(x + 0.3))"}},
        "upper": {"robin": {"a": "x", "b": 0.5, "value": "exp(-t)*(x*sin(x + 0.3) + 0.5*cos(x + 0.3))"}},
    },
}


@pytest.mark.parametrize("kind", WALLS)
def test_boundary_closure_is_of_second_order(kind):
    """exp(-t) sin(x + 0.3) solves the heat equation on a box that is no multiple of its period."""
    errors = []
    for n in (20, 40):
        problem = problem_of(
            grid={"shape": [n], "upper": [2.0]},
            equation={"name": "heat"},
            initial={"u": "sin(x + 0.3)"},
            boundary={"x": WALLS[kind]},
            numerics={"precision": "float64"},
            time={"end": 0.3, "dt": 0.0005},
        )
        errors.append(np.abs(integrate(problem)["u"] - np.exp(-0.3) * np.sin(coordinates(problem)[0] + 0.3)).max())
    assert np.log2(errors[0] / errors[1]) == pytest.approx(2.0, abs=0.2)


@pytest.mark.parametrize("order", (pytest.param(4, marks=pytest.mark.long), 8))
def test_symmetric_solutions_keep_the_order_at_walls(order):
    """cos(x) is even at Neumann walls at 0 and π, sin(x) odd at Dirichlet walls there: mirror images are exact."""
    for wall, function in (({"neumann": 0.0}, "cos"), ({"dirichlet": 0.0}, "sin")):
        errors = []
        for n in (8, 16):
            problem = problem_of(
                grid={"shape": [n], "upper": [np.pi]},
                equation={"name": "heat"},
                initial={"u": f"{function}(x)"},
                boundary={"x": wall},
                numerics={"order": order, "precision": "float64"},
                time={"end": 0.01, "dt": 0.0005},
            )
            exact = np.exp(-0.01) * getattr(np, function)(coordinates(problem)[0])
            errors.append(np.abs(integrate(problem)["u"] - exact).max())
        assert np.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.3)


@pytest.mark.parametrize("ndim", (1, 2, 3))
def test_a_linear_profile_between_fixed_walls_stays(ndim):
    """u = 1 + 2 x is steady between Dirichlet walls with those values (and equals its own mirror construction)."""
    problem = problem_of(
        grid={"shape": [8, 6, 5][:ndim]},
        equation={"name": "heat", "D": 0.1},
        initial={"u": "1 + 2*x"},
        boundary={"x": {"lower": {"dirichlet": 1.0}, "upper": {"dirichlet": 17.0}}},
        numerics={"precision": "float64"},
        time={"end": 1.0, "dt": 0.1},
    )
    expected = np.broadcast_to(1 + 2 * coordinates(problem)[0], problem.config.grid.shape)
    np.testing.assert_allclose(integrate(problem)["u"], expected, rtol=1e-13)


@pytest.mark.parametrize("diffusivity", [0.7, "1 + 0.5*sin(x)*cos(y)"])
@pytest.mark.parametrize("walls", ["periodic", {"neumann": 0.0}])
def test_heat_keeps_its_mean(diffusivity, walls):
    problem = problem_of(
        grid={"shape": [37, 29], "upper": [TAU, TAU]},
        equation={"name": "heat", "D": diffusivity},
        boundary={"x": walls, "y": walls},
        numerics={"precision": "float64"},
    )
    simulation = simulation_of(problem)
    before = random_block(problem, simulation)["u"]
    after = stepped(problem, simulation, 200, 1e-3)["u"]
    assert after.std() < 0.2 * before.std()
    assert after.mean() == pytest.approx(before.mean(), rel=1e-13)


def test_gray_scott_balance():
    """d/dt ∫(u + v) = ∫(F (1 - u) - (F + k) v): the reaction itself moves mass from u to v, diffusion keeps it."""
    F, k, dt = 0.037, 0.06, 1e-3
    problem = problem_of(
        grid={"shape": [31, 23]},
        equation={"name": "gray_scott", "F": F, "k": k, "D_u": 0.2, "D_v": 0.1},
        numerics={"integrator": "euler", "precision": "float64"},
    )
    simulation = simulation_of(problem)
    start = random_block(problem, simulation)
    after = stepped(problem, simulation, 1, dt)
    change = (after["u"] + after["v"] - start["u"] - start["v"]).sum() / dt
    assert change == pytest.approx((F * (1 - start["u"]) - (F + k) * start["v"]).sum(), rel=1e-9)


TWINS = {
    "heat": ({"D": 0.7}, {"u": "D*laplacian(u)"}),
    "wave": ({"c": 0.8}, {"u": "v", "v": "c*c*laplacian(u)"}),
    "advection_diffusion": ({"D": 0.3, "vx": 0.7, "vy": 0.2}, {"u": "D*laplacian(u) - (vx*dx(u) + vy*dy(u))"}),
    "burgers": (
        {"nu": 0.05},
        {"u": "nu*laplacian(u) - (u*dx(u) + v*dy(u))", "v": "nu*laplacian(v) - (u*dx(v) + v*dy(v))"},
    ),
    "gray_scott": (
        {"F": 0.037, "k": 0.06, "D_u": 0.2, "D_v": 0.1},
        {"u": "D_u*laplacian(u) - u*v*v + F*(1 - u)", "v": "D_v*laplacian(v) + u*v*v - (F + k)*v"},
    ),
}


@pytest.mark.parametrize("name, kernel", rows(  # `conv` differs from `shift` by how a stencil is applied, which is as here
    itertools.product(TWINS, ("shift", "conv")), [*((name, "shift") for name in TWINS), ("heat", "conv")]
))  # fmt: skip
def test_a_custom_expression_equals_the_built_in(name, kernel):
    parameters, rhs = TWINS[name]
    results = []
    for equation in ({"name": name, **parameters}, {"name": "custom", **parameters, "rhs": rhs}):
        problem = problem_of(grid={"shape": [31, 23]}, equation=equation, numerics={"order": 4})
        results.append(stepped(problem, simulation_of(problem, kernel=kernel), 10, 1e-3))
    for field in results[0]:
        assert np.array_equal(results[0][field], results[1][field])


def test_kernels_agree_to_round_off():
    for order in (2, 8):
        problem = problem_of(
            grid={"shape": [31, 23]},
            equation={"name": "custom", "rhs": {"u": "dxy(u) + laplacian(u)"}},
            numerics={"order": order, "precision": "float64"},
        )
        shift, conv = (stepped(problem, simulation_of(problem, kernel=k), 5, 1e-3)["u"] for k in ("shift", "conv"))
        assert np.abs(shift - conv).max() < 1e-13


def test_diagnostics_are_sums_over_the_grid():
    problem = problem_of(
        grid={"shape": [37, 29], "upper": [3.7, 5.8]},
        equation={"name": "gray_scott"},
        diagnostics={"mass": "integral(u + v)", "ratio": "mean(u)/mean(v)", "top": "max(u)", "low": "min(u*v)",
                     "slope": "integral(gradient_squared(u))", "clock": "t*mean(1 + 0*u)"},
        numerics={"precision": "float64"},
    )  # fmt: skip
    simulation = simulation_of(problem)
    block = random_block(problem, simulation)
    diagnostics = Diagnostics(problem.diagnostics, simulation.diagnosed, problem.parameters)
    values = diagnostics.evaluate(simulation.put(block), 2.5)
    u, v = block["u"], block["v"]
    assert values["mass"] == pytest.approx((u + v).sum() * 0.1 * 0.2, rel=1e-14)
    assert values["ratio"] == pytest.approx(u.mean() / v.mean(), rel=1e-14)
    assert values["top"] == u.max() and values["low"] == (u * v).min()
    slope = sum(((np.roll(u, -1, a) - np.roll(u, 1, a)) / (2 * h)) ** 2 for a, h in ((0, 0.1), (1, 0.2)))
    assert values["slope"] == pytest.approx(slope.sum() * 0.02, rel=1e-12)
    assert values["clock"] == pytest.approx(2.5)


def test_the_result_of_an_operator_may_have_its_own_boundary():
    """∂u/∂t = -∇⁴u on a simply supported beam, u = ∇²u = 0 at both ends: exp(-t) sin(x) on [0, π]."""
    problem = problem_of(
        grid={"shape": [16], "upper": [np.pi]},
        equation={"name": "custom", "rhs": {"u": "-laplacian(laplacian(u))"}},
        initial={"u": "sin(x)"},
        boundary={"x": {"dirichlet": 0.0}, "operators": {"laplacian(u)": {"dirichlet": 0.0}}},
        numerics={"order": 4, "precision": "float64"},
        time={"end": 0.1, "dt": 1e-4},
    )
    assert np.abs(integrate(problem)["u"] - np.exp(-0.1) * np.sin(coordinates(problem)[0])).max() < 1e-5


def test_a_sponge_takes_waves_away():
    """A wave packet that runs into a sponge at each end is gone when it would be back."""
    problem = problem_of(
        grid={"shape": [400], "lower": [-10.0], "upper": [10.0]},
        equation={"name": "wave"},
        initial={"u": "cos(5*x)*exp(-x**2)"},
        boundary={"x": {"sponge": {"width": 6.0, "strength": 4.0}}},
        numerics={"precision": "float64"},
        time={"end": 25.0, "cfl": 0.5},
    )
    assert np.abs(integrate(problem)["u"]).max() < 1e-3


def remaining(boundary, half, order):
    """(u, v) of the inner box, 0.76 wide to each side, when a pulse has left it."""
    cells = int(50 * half)
    problem = problem_of(
        grid={"shape": [2 * cells, 2 * cells], "lower": [-half, -half], "upper": [half, half]},
        equation={"name": "wave"},
        initial={"u": "exp(-60*(x**2 + y**2))"},
        boundary={"x": boundary, "y": boundary},
        numerics={"precision": "float64", "order": order},
        time={"end": 1.6, "cfl": 0.5},
    )
    inner = slice(cells - 38, cells + 38)
    fields = integrate(problem)
    return fields["u"][inner, inner], fields["v"][inner, inner]


def energy(u, v):
    return (v**2 + sum(np.square(slope) for slope in np.gradient(u, 0.02))).sum()


def test_cpml_reflects_less_than_a_ten_thousandth_of_the_energy():
    """A layer of 10 cells, against a domain whose walls are too far away to matter."""
    layered, free = (
        remaining({"cpml": {"width": 0.2}}, 1.0, 4), remaining({"dirichlet": 0.0}, 2.0, 4)
    )  # fmt: skip
    x = (np.arange(-38, 38) + 0.5) * 0.02
    incident = energy(np.exp(-60 * (x[:, None] ** 2 + x**2)), 0.0)
    assert energy(*(a - b for a, b in zip(layered, free, strict=True))) < 1e-5 * incident


@pytest.mark.parametrize("integrator", ["rk4", "leapfrog"])
def test_a_cpml_does_not_know_the_layer_at_the_other_end(integrator):
    """A wave that has not reached the upper end, whose layer has other widths and speeds."""

    def below(upper):
        problem = problem_of(
            grid={"shape": [300]},
            equation={"name": "wave"},
            initial={"u": "exp(-(x - 12)**2/4)"},
            boundary={"x": {"lower": {"cpml": {"width": 5.0}}, "upper": upper}},
            numerics={"precision": "float64", "integrator": integrator},
            time={"end": 40.0, "dt": 0.2},
        )
        return integrate(problem)["u"][:60]

    alike = below({"dirichlet": 0.0})
    assert np.abs(alike[:30]).max() > 1e-4
    for width, speed in ((5.0, 1.0), (5.0, 3.0), (40.0, 1.0), (2.0, 1.0)):
        assert np.array_equal(below({"cpml": {"width": width, "speed": speed}}), alike), (width, speed)


@pytest.mark.parametrize("order", (2, 6))
def test_waves_leave_through_an_open_end(order):
    problem = problem_of(
        grid={"shape": [400], "lower": [-2.0], "upper": [2.0]},
        equation={"name": "wave", "c": 2.0},
        initial={"u": "exp(-20*x**2)"},
        boundary={"x": "open"},
        numerics={"precision": "float64", "order": order},
        time={"end": 2.5, "cfl": 0.5},
    )
    assert np.abs(integrate(problem)["u"]).max() < 5e-3


@pytest.mark.parametrize("wall", ("periodic", {"neumann": 0.0}))
def test_points_weigh_1_wherever_they_are(wall):
    places = {
        f"p{i}": f"at(1 + 0*u, {x}, {y})" for i, (x, y) in enumerate([(0, 0), (0.01, 1.2), (3.1, 0.55), (3.2, 2.4)])
    }
    problem = problem_of(
        grid={"shape": [32, 24], "upper": [3.2, 2.4]},
        equation={"name": "heat"},
        boundary={"x": wall},
        diagnostics=places,
        numerics={"precision": "float64"},
    )
    simulation = simulation_of(problem)
    diagnostics = Diagnostics(problem.diagnostics, simulation.diagnosed, problem.parameters)
    found = diagnostics.evaluate(simulation.initial_fields(), 0.0)
    assert found == {name: pytest.approx(1.0, rel=1e-12) for name in places}


def test_a_periodic_point_weighs_no_more_than_1_in_ghost_cells():
    space = Space(1, Grid((8,), (0.0,), (8.0,)), (True,))
    x = np.arange(-7.5, 16.0)  # a grid's width of ghost cells
    for place in (0.0, 0.25, 7.5, 8.0):
        distance = np.abs((x - place + 4.0) % 8.0 - 4.0)
        assert np.allclose(
            numpy_evaluate.evaluate(space.point(place), [x]), np.maximum(0.0, 1.0 - distance), atol=1e-15
        )


def test_a_point_source_in_an_acoustic_medium():
    """In 1-D, p = ½ ρ c ∫ ricker up to the time t - |x - x_s| / c, and the integral is (t - t0) exp(-(π f0 (t - t0))²)."""
    c, rho, f0, t0, end = 1.5, 2.0, 1.0, 1.2, 3.0
    problem = problem_of(
        grid={"shape": [500], "lower": [-3.0], "upper": [3.0]},
        equation={"name": "acoustic", "c": c, "rho": rho, "f0": f0, "t0": t0, "xs": 0.4321, "source": 3.0},
        boundary={"x": {"cpml": {"width": 0.6}}},
        diagnostics={"near": "at(p, 0.4321)", "far": "at(p, -1.7)"},
        numerics={"order": 4, "precision": "float64"},
        time={"end": end, "cfl": 0.5},
    )
    simulation = simulation_of(problem)
    diagnostics = Diagnostics(problem.diagnostics, simulation.diagnosed, problem.parameters)
    found = diagnostics.evaluate(simulation.put(integrate(problem)), end)
    for name, distance in (("near", 0.0), ("far", 2.1321)):
        late = end - distance / c - t0
        exact = 0.5 * rho * c * 3.0 * late * np.exp(-((np.pi * f0 * late) ** 2))
        assert found[name] == pytest.approx(exact, abs=2e-3)


def test_super_time_stepping_takes_long_steps():
    """Diffusion with a step 40 times that of forward Euler, to the accuracy of second order."""
    problem = problem_of(
        grid={"shape": [64], "upper": [TAU]},
        equation={"name": "heat"},
        initial={"u": "cos(x)"},
        numerics={"integrator": "rkl2", "order": 4, "precision": "float64"},
        time={"end": 1.0, "dt": 0.125},
    )
    assert problem.method.evaluations == 12
    assert np.abs(integrate(problem)["u"] - np.exp(-1.0) * np.cos(coordinates(problem)[0])).max() < 1e-3
