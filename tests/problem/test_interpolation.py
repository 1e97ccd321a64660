"""Point sources and receivers between cells: order, what the weights keep, and waves against a Green's function."""

import itertools
import math

import numpy as np
import pytest
from support import integrate, problem_of, simulation_of

from hpcstencil.numerics.grid import Grid
from hpcstencil.simulation.diagnostics import Diagnostics
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.operators import Space

ORDERS = (2, 4, 6, 8)


def weights(grid, place, order, periodic, x):
    space = Space(1, grid, (periodic,), order=order)
    return grid.spacing[0] * np.broadcast_to(numpy_evaluate.evaluate(space.point(place), [x]), x.shape)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("periodic", (False, True))
@pytest.mark.parametrize("half", (0.0, 0.5))
def test_weights_reproduce_polynomials(order, periodic, half):
    """Everywhere in the grid, boundaries included, for values at cell centres and on lower faces, also on short grids."""
    rng = np.random.default_rng(order)
    for n in (1, 2, 3, 5, 8, 9, 20):
        grid = Grid((n,), (0.25,), (2.25,))
        x = grid.centres(0) - half * grid.spacing[0]
        for place in [*rng.uniform(*grid.lower, *grid.upper, 9), *grid.lower, *grid.upper, x[n // 2]]:
            found = weights(grid, place, order, periodic, x)
            way = (x - place + 1.0) % 2.0 - 1.0 if periodic else x - place
            points = min(order, n)
            degrees = max(1, points - points % 2) if periodic else points
            for degree in range(degrees):
                assert found @ way**degree == pytest.approx(0.0**degree, abs=1e-9), (n, place)


@pytest.mark.parametrize("order", ORDERS)
def test_a_point_on_a_centre_is_one_cell(order):
    grid = Grid((16,), (0.0,), (16.0,))  # whose places are exact
    for i in (0, 1, 7, 15):
        for periodic in (False, True):
            assert np.array_equal(weights(grid, i + 0.5, order, periodic, grid.centres(0)), np.arange(16) == i)


def test_order_2_has_linear_weights():
    grid = Grid((40,), (0.0,), (1.0,))
    x = grid.centres(0)
    for place in np.random.default_rng(0).uniform(x[0], x[-1], 50):
        linear = np.maximum(0.0, 1.0 - np.abs(x - place) / grid.spacing[0])
        assert np.array_equal(weights(grid, place, 2, False, x), grid.spacing[0] * (linear * (1 / grid.spacing[0])))


def receivers(n, order, boundary, places):
    """Errors of at() of a smooth function at places in two dimensions."""
    problem = problem_of(
        grid={"shape": [n, n], "upper": [1.0, 1.0]},
        equation={"name": "heat"},
        initial={"u": "cos(2*pi*x)*exp(0.5*sin(2*pi*y))"},
        boundary={"x": boundary, "y": boundary},
        diagnostics={f"p{i}": f"at(u, {x!r}, {y!r})" for i, (x, y) in enumerate(places)},
        numerics={"order": order, "precision": "float64"},
    )
    simulation = simulation_of(problem)
    found = Diagnostics(problem.diagnostics, simulation.diagnosed, problem.parameters).evaluate(
        simulation.initial_fields(), 0.0
    )
    x, y = np.transpose(places)
    exact = np.cos(2 * np.pi * x) * np.exp(0.5 * np.sin(2 * np.pi * y))
    return np.abs(np.array([found[f"p{i}"] for i in range(len(places))]) - exact).max()


IN_CI = (("periodic", 2), ({"neumann": 0.0}, 8))  # test_weights_reproduce_polynomials has the weights of all


@pytest.mark.parametrize("boundary, order", [
    pytest.param(*row, marks=() if row in IN_CI else pytest.mark.long)
    for row in itertools.product(("periodic", {"neumann": 0.0}), ORDERS)
])  # fmt: skip
def test_receivers_converge_at_the_order(order, boundary):
    """Wherever they are: in the corner of the grid, beside its walls, and between cells."""
    places = [(0.0, 1.0), (0.5, 0.25), (0.001, 0.75)]
    coarse, fine = (receivers(n, order, boundary, places) for n in (44, 88))
    assert order - 0.7 < math.log2(coarse / fine) < order + 1.6


def test_beside_solid_cells_the_fluid_counts():
    """Linear weights of the fluid cells, divided by their sum; within the solid there is no value."""
    problem = problem_of(
        grid={"shape": [8], "upper": [8.0]},
        equation={"name": "heat"},
        initial={"u": "x"},
        boundary={"x": {"neumann": 0.0}},
        mask={"solid": "x > 4", "surface": "no_flux"},
        diagnostics={"free": "at(u, 2.25)", "beside": "at(u, 3.75)", "wall": "at(u, 0.1)", "within": "at(u, 6.2)"},
        numerics={"precision": "float64"},
    )
    simulation = simulation_of(problem)
    found = Diagnostics(problem.diagnostics, simulation.diagnosed, problem.parameters).evaluate(
        simulation.initial_fields(), 0.0
    )
    assert math.isnan(found.pop("within"))
    assert found == pytest.approx({"free": 2.25, "beside": 3.5, "wall": 0.5})


def test_a_mask_does_not_change_what_is_at_the_seam_of_a_periodic_axis():
    def found(**mask):
        problem = problem_of(
            grid={"shape": [8]},
            equation={"name": "heat"},
            initial={"u": "2 + sin(pi*x/4)"},
            diagnostics={"below": "at(u, 0.25)", "above": "at(u, 7.8)"},
            numerics={"precision": "float64"},
            **mask,
        )
        simulation = simulation_of(problem)
        diagnosed = Diagnostics(problem.diagnostics, simulation.diagnosed, problem.parameters)
        return diagnosed.evaluate(simulation.initial_fields(), 0.0)

    assert found(mask={"solid": "abs(x - 4) < 1"}) == pytest.approx(found(), rel=1e-14)


def pressure(n, order, source, places, end, dt, kernel="shift", f0=1.0, c=None):
    """p at places at time ``end`` in a square of side 6 around a point source."""
    problem = problem_of(
        grid={"shape": [n, n], "upper": [6.0, 6.0]},
        equation={"name": "acoustic", "source": 1.0, "f0": f0, "xs": source[0], "ys": source[1], "c": c or 1.0},
        boundary={"x": {"dirichlet": 0.0}, "y": {"neumann": 0.0}},
        diagnostics={f"p{i}": f"at(p, {x!r}, {y!r})" for i, (x, y) in enumerate(places)},
        numerics={"order": order, "precision": "float64"},
        time={"end": end, "dt": dt},
    )
    simulation = simulation_of(problem, kernel=kernel)
    diagnostics = Diagnostics(problem.diagnostics, simulation.diagnosed, problem.parameters)
    found = diagnostics.evaluate(simulation.put(integrate(problem, kernel)), end)
    return np.array([found[f"p{i}"] for i in range(len(places))])


def green(distance, time, f0=1.0, t0=1.2):
    """∫ ricker(t - r cosh θ) dθ / 2π, the solution in the plane with c = ρ = 1; the integrand has left before θ = 8."""
    step = 4e-4
    late = time - distance * np.cosh(step * np.arange(20001)) - t0
    a = (np.pi * f0 * late) ** 2
    ricker = (1.0 - 2.0 * a) * np.exp(-a)
    return (ricker.sum() - 0.5 * ricker[0]) * step / (2.0 * np.pi)


def errors_against_green(n, order, offset, f0, dt, kernel="shift"):
    """The greatest error, relative to the greatest value, with the source and all receivers ``offset`` cells from corners."""
    dx, end = 6.0 / n, 3.4
    source = (3.0 + offset * dx,) * 2
    ways = [(0.1 * i, 0.04 * i) for i in range(8, 23, 7)]
    places = [tuple((round((3.0 + way) / dx) + offset) * dx for way in pair) for pair in ways]
    exact = np.array([green(math.dist(source, place), end, f0) for place in places])
    found = pressure(n, order, source, places, end, dt, kernel, f0)
    return np.abs(found - exact).max() / np.abs(exact).max()


def test_a_wave_from_corner_to_corner_is_as_good_as_from_centre_to_centre():
    """12 cells per wavelength, order 6: 0.3 %. Linear weights are wrong by 8 %."""
    corners, centres = (errors_against_green(72, 6, offset, 1.0, 0.025) for offset in (0.0, 0.5))
    assert corners < 2.0 * centres < 0.02


@pytest.mark.long
def test_waves_against_the_green_function():
    """300 x 300 cells, order 8, 25 cells per wavelength: the table of docs/verification.md."""
    for offset in (0.0, 0.25, 0.5):
        assert errors_against_green(300, 8, offset, 2.0, 0.0025, "native") < 2e-5


@pytest.mark.parametrize("kernel", ("shift", "native"))
def test_source_and_receiver_may_change_places(kernel):
    """In a medium of variable speed and a closed box: p at B of a source at A, divided by (ρ c²)(A) = c² there."""
    a, b = (2.03, 3.31), (0.02, 4.77)
    speed = lambda x, y: 1.0 + 0.3 * math.sin(x) * math.cos(y)  # noqa: E731
    text = "1.0 + 0.3*sin(x)*cos(y)"
    (there,), (back,) = (
        pressure(40, 8, source, [place], 3.5, 0.03, kernel, 0.6, text) for source, place in ((a, b), (b, a))
    )
    assert speed(*a) != speed(*b)
    assert there == pytest.approx(back, rel=1e-10)
