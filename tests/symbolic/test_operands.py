"""What operators find beyond the boundary, as docs/input.md says it: against ghost cells made by hand, and never changed by
what stands elsewhere in the input."""

import numpy as np
import pytest
from support import integrate, integrated, problem_of, simulation_of

from hpcstencil.backends.backend import Unsupported
from hpcstencil.backends.native import step
from hpcstencil.backends.native.program import program
from hpcstencil.simulation.diagnostics import Diagnostics
from hpcstencil.validation.errors import InputError

KERNELS = ("shift", "conv", "native", "pallas")
EULER = {"numerics": {"integrator": "euler", "precision": "float64"}, "time": {"end": 1.0, "dt": 1.0}}


def rates(expressions, initial, boundary, shape, kernel="shift", devices=1, **tables):
    """The right-hand sides of fields whose initial values are given by name; one step of forward Euler adds them."""
    equation = {"name": "custom", "rhs": {name: expressions.get(name, "0") for name in (*initial, *expressions)}}
    problem = problem_of(
        grid={"shape": shape}, equation=equation, initial=initial, boundary=boundary, **EULER, **tables
    )
    return integrated(problem, simulation_of(problem, kernel=kernel, devices=devices))[0]


# ---- operands of coordinates alone: evaluated where they are -----------------------------------------------------------

# name -> (right-hand side, what it is in closed form: stencils of order 2 are exact for these)
COORDINATES = {
    "a": ("div_grad(1 + x, y**2)", lambda x, y: 2 * (1 + x) + 0 * y),
    "b": ("div_grad(1 + x, x**2)", lambda x, y: 2 + 4 * x + 0 * y),
    "c": ("div_grad(1 + x + y, x*y)", lambda x, y: x + y),
    "d": ("gradient_squared(x*y)", lambda x, y: x**2 + y**2),
    "e": ("upwind(x*y, y, -1)", lambda x, y: y**2 - x),
    "f": ("divergence(x*y, y**2)", lambda x, y: 3 * y + 0 * x),
    "g": ("dxy(x*y) + dxx(y**2)", lambda x, y: 1 + 0 * x * y),
    "h": ("mean_x(mean_x(y**2)) + difference_x(mean_x(x*y))", lambda x, y: y**2 + y + 0 * x),
    "i": ("div_grad(y, laplacian(x**2*y**2))", lambda x, y: 12 * y + 0 * x),
    "j": ("div_grad(w, y**2)", lambda x, y: 2 * (5 + 0 * x * y)),  # of a field that is 5 everywhere
    "k": ("mean_y(div_grad(1 + x, mean_y(y**2)))", lambda x, y: 2 * (1 + x) + 0 * y),
}  # fmt: skip
PLACES = np.meshgrid(np.arange(10) + 0.5, np.arange(6) + 0.5, indexing="ij")
CLOSED = {"x": {"neumann": 0.0}, "y": {"neumann": 0.0}}


@pytest.mark.parametrize("kernel, devices", [*((kernel, 1) for kernel in KERNELS), ("shift", 2)])
def test_coordinates_are_those_of_the_place_beyond_the_boundary(kernel, devices):
    expressions = {name: text for name, (text, _) in COORDINATES.items()}
    found = rates(expressions, {"w": "5"}, CLOSED, [10, 6], kernel, devices)
    for name, (text, exact) in COORDINATES.items():
        np.testing.assert_allclose(found[name], exact(*PLACES), rtol=1e-12, atol=1e-12, err_msg=text)


def test_diagnostics_of_coordinates_alone():
    problem = problem_of(
        grid={"shape": [10, 6]}, equation={"name": "custom", "rhs": {"u": "-u"}}, boundary=CLOSED, **EULER,
        diagnostics={name: f"mean({text})" for name, (text, _) in COORDINATES.items() if "w" not in text},
    )  # fmt: skip
    simulation = simulation_of(problem)
    diagnostics = Diagnostics(problem.diagnostics, simulation.diagnosed, problem.parameters)
    for name, value in diagnostics.evaluate(simulation.initial_fields(), 0.0).items():
        text, exact = COORDINATES[name]
        assert value == pytest.approx(exact(*PLACES).mean(), rel=1e-12), text


# ---- inner results, and operands of what leads half a cell away --------------------------------------------------------

G, Q, N = 1.3, 0.4, 12  # u = G at the lower end, ∂u/∂n = Q at the upper one
U = "1 + 0.3*x - 0.02*x**2"


def with_ghosts(u, n):
    """u with n ghost cells on each side."""
    low = [2 * G - u[j] for j in range(n)]
    high = [u[-1 - j] + (2 * j + 1) * Q for j in range(n)]
    return np.array([*low[::-1], *u, *high])


def mirrored(a):
    return np.array([a[0], *a, a[-1]])


def second(a):
    return a[2:] - 2 * a[1:-1] + a[:-2]


def twice_mean(a):
    return (a[2:] + 2 * a[1:-1] + a[:-2]) / 4


BEYOND = {
    "a": ("laplacian(2*u)", lambda u: second(mirrored(2 * u))),
    "b": ("2*laplacian(u)", lambda u: 2 * second(with_ghosts(u, 1))),
    "c": ("difference_x(difference_x(u**2))", lambda u: second(with_ghosts(u, 1) ** 2)),
    "d": ("laplacian(u**2) - difference_x(difference_x(u**2))",
          lambda u: second(mirrored(u**2)) - second(with_ghosts(u, 1) ** 2)),
    "e": ("mean_x(mean_x(laplacian(u**2)))", lambda u: twice_mean(second(with_ghosts(u, 2) ** 2))),
    "f": ("laplacian(mean_x(mean_x(u)))", lambda u: second(mirrored(twice_mean(with_ghosts(u, 1))))),
    "g": ("laplacian(mean_x(mean_x(u))) + mean_x(mean_x(mean_x(mean_x(u))))",
          lambda u: second(mirrored(twice_mean(with_ghosts(u, 1)))) + twice_mean(twice_mean(with_ghosts(u, 2)))),
    "h": ("difference_x(mean_x(u*u)*difference_x(x*u))", lambda u: np.diff(
        (with_ghosts(u, 1)[1:] ** 2 + with_ghosts(u, 1)[:-1] ** 2) / 2
        * np.diff((np.arange(-1, N + 1) + 0.5) * with_ghosts(u, 1)))),
}  # fmt: skip


@pytest.mark.parametrize("kernel, short", [*((kernel, step.SHORT) for kernel in KERNELS), ("native", 0)])
def test_what_holds_beyond_a_boundary_belongs_to_the_operand(kernel, short, monkeypatch):
    monkeypatch.setattr(step, "SHORT", short)  # statements from which on native code keeps operands in arrays
    boundary = {"x": {"lower": {"dirichlet": G}, "upper": {"neumann": Q}}}
    expressions = {name: text for name, (text, _) in BEYOND.items()}
    devices = 2 if kernel == "shift" else 1
    found = rates(expressions, {"u": U}, boundary, [N], kernel, devices)
    x = np.arange(N) + 0.5
    for name, (text, exact) in BEYOND.items():
        np.testing.assert_allclose(found[name], exact(1 + 0.3 * x - 0.02 * x**2), atol=1e-12, err_msg=text)


# ---- corners, and values at walls that depend on fields ----------------------------------------------------------------

WALLS = {
    "x": {"lower": {"dirichlet": "1 + 0.3*y"}, "upper": {"neumann": "0.2*y"}},
    "y": {"lower": {"neumann": "0.1*x"}, "upper": {"dirichlet": "2 + 0.1*x*x"}},
}


@pytest.mark.parametrize("kernel, devices", [*((kernel, 1) for kernel in KERNELS), ("shift", 2)])
def test_corners_are_filled_along_x_first(kernel, devices):
    """A corner holds what the condition at y makes of the ghost cells beyond x, with its value at the corner's x."""
    x, y = np.arange(-1, 7) + 0.5, np.arange(-1, 6) + 0.5
    u = np.outer(x, y)
    u[0, 1:-1], u[-1, 1:-1] = 2 * (1 + 0.3 * y[1:-1]) - u[1, 1:-1], u[-2, 1:-1] + 0.2 * y[1:-1]
    u[:, 0], u[:, -1] = u[:, 1] + 0.1 * x, 2 * (2 + 0.1 * x * x) - u[:, -2]
    expected = (u[2:, 2:] - u[2:, :-2] - u[:-2, 2:] + u[:-2, :-2]) / 4
    found = rates({"a": "dxy(u)"}, {"u": "x*y"}, WALLS, [6, 5], kernel, devices)["a"]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


WAVES = """
class Waves:
    parameters = {}

    def fields(self, ndim):
        return ("u", "v")

    def rhs(self, f, p, space):
        return {"u": f.v, "v": space.laplacian(f.u) + 0.3*space.derivative(f.u, 0, 1)}

    def radiation(self, f, p):
        return {"u": -f.v, "v": -0.5*f.u}
"""


@pytest.mark.parametrize("sides", [
    pytest.param({"x": {"neumann": 0.1}, "y": "open"}, id="y", marks=pytest.mark.long),
    pytest.param({"x": "open", "y": "open"}, id="xy"),
])  # fmt: skip
def test_open_ends_beside_cuts_and_corners(sides, tmp_path):
    (tmp_path / "waves.py").write_text(WAVES)
    problem = problem_of(
        grid={"shape": [14, 11], "upper": [1.4, 1.1]},
        equation={"name": f"{tmp_path / 'waves.py'}:Waves"},
        initial={"u": "exp(-9*((x - 0.3)**2 + (y - 0.9)**2))", "v": "x*y"},
        boundary=sides,
        numerics={"precision": "float64", "integrator": "ssprk2"},
        time={"end": 0.2, "dt": 0.02},
    )
    alone = integrate(problem)
    with pytest.raises(Unsupported, match="reads corners"):
        program(problem)
    for kernel, devices in (("shift", 2), ("conv", 2), ("pallas", 1)):
        found, _ = integrated(problem, simulation_of(problem, kernel=kernel, devices=devices))
        for name, block in found.items():
            atol = 0 if kernel == "shift" else 1e-13
            np.testing.assert_allclose(block, alone[name], rtol=0, atol=atol, err_msg=f"{kernel}, {devices} devices")


# ---- what stands elsewhere in the input changes nothing ----------------------------------------------------------------

DIFFUSION = {
    "grid": {"shape": [16]},
    "initial": {"u": "1 + 0.1*x"},
    "boundary": {"x": {"dirichlet": 1.0}},
    "numerics": {"precision": "float64"},
    "time": {"end": 4.0, "dt": 0.1},
}
RATE = "0.1*laplacian(u**2)"
BESIDE = {
    "a diagnostic": {"diagnostics": {"m": "mean(mean_x(u) + below_x(laplacian(u**2)))"}},
    "a field": {"equation": {"name": "custom", "rhs": {"u": RATE, "w": "mean_x(mean_x(u**2))"}}},
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_stands_beside_an_expression_does_not_change_it(kernel):
    tables = {**DIFFUSION, "equation": {"name": "custom", "rhs": {"u": RATE}}}
    alone = integrate(problem_of(**tables), kernel)["u"]
    assert alone[-1] == pytest.approx(2.4392191338845, rel=1e-12)
    for name, beside in BESIDE.items():
        assert np.array_equal(integrate(problem_of(**{**tables, **beside}), kernel)["u"], alone), name


def test_conditions_of_inner_results_beside_operands_without():
    """2 u with its own condition is 2 u with that of u; an operand of difference_x() has none to be given."""
    rhs = {"u": "laplacian(2*u) + difference_x(difference_x(u**2))"}
    own = {"x": {"dirichlet": G}, "operators": {"2*u": {"dirichlet": 2 * G}}}
    tables = {**DIFFUSION, "time": {"end": 0.1, "dt": 0.01}}
    with_own = integrate(problem_of(**{**tables, "equation": {"name": "custom", "rhs": rhs}, "boundary": own}))
    plain = {"u": "2*laplacian(u) + difference_x(difference_x(u**2))"}
    same = {**tables, "equation": {"name": "custom", "rhs": plain}, "boundary": {"x": {"dirichlet": G}}}
    np.testing.assert_allclose(with_own["u"], integrate(problem_of(**same))["u"], rtol=1e-12)
    lost = {"x": {"dirichlet": G}, "operators": {"u**2": {"dirichlet": 1.0}}}
    with pytest.raises(InputError, match=r"operators\.\"?u\*\*2.*no derivative is taken of this expression"):
        problem_of(**{**tables, "equation": {"name": "custom", "rhs": rhs}, "boundary": lost})
