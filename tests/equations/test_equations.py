"""Every built-in equation against a solution in closed form or a linear growth rate: one row per equation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from support import coordinates, integrate, problem_of

from hpcstencil.equations import EQUATIONS

TAU = 2 * np.pi
SMALL = 1e-6  # amplitude at which an equation is linear


@dataclass(frozen=True)
class Truth:
    """A run of which the end is known: ``exact`` fields as functions of the coordinates, and the ``bound`` of the largest
    difference for ``cells`` per axis; the order of convergence that is observed on refinement, None where it is not smooth."""

    tables: Mapping[str, Any]
    exact: Mapping[str, Callable[..., Any]]
    bound: float
    cells: int = 24
    order: float | None = 6


def periodic(equation, initial, end, dt, **more):
    return {
        "grid": {"lower": [0.0], "upper": [TAU]}, "equation": equation, "initial": initial,
        "numerics": {"order": 6, "precision": "float64"}, "time": {"end": end, "dt": dt}, **more,
    }  # fmt: skip


def growing(name, field, rate, end, dt, background="0", **parameters):
    """A small wave, cos(2 x) on a uniform background, grows at the rate that the linearized equation gives."""
    return Truth(
        periodic({"name": name, **parameters}, {field: f"{background} + {SMALL}*cos(2*x)"}, end, dt),
        {field: lambda x: float(background) + SMALL * np.exp(rate * end) * np.cos(2 * x)},
        bound=1e-3 * SMALL,
        order=None,
    )


def travelling_front():
    """FitzHugh-Nagumo with ε = 0: v stays, and a front between the outer roots of u - u³/3 - v runs at a speed in closed
    form (J. D. Murray, "Mathematical Biology" I, 3rd ed. (2002), eq. (13.79))."""
    middle = -0.2
    lower, upper = np.roots([1.0, middle, middle**2 - 3.0])[[1, 0]]
    lower, upper = min(lower, upper), max(lower, upper)
    v = -lower * middle * upper / 3
    speed, steep = np.sqrt(1 / 6) * (lower + upper - 2 * middle), np.sqrt(1 / 6) * (upper - lower)

    def front(x, t):
        return lower + (upper - lower) / (1 + np.exp(steep * (x - speed * t)))

    text = f"{lower} + {upper - lower}/(1 + exp({steep}*x))"
    return Truth(
        {
            "grid": {"lower": [-20.0], "upper": [20.0]},
            "equation": {"name": "fitzhugh_nagumo", "epsilon": 0.0},
            "initial": {"u": text, "v": f"{v}"}, "boundary": {"x": {"neumann": 0.0}},
            "numerics": {"order": 6, "precision": "float64"}, "time": {"end": 4.0, "dt": 0.005},
        },
        {"u": lambda x: front(x, 4.0), "v": lambda x: v + 0 * x},
        bound=2e-4,
        cells=160,
    )  # fmt: skip


def barenblatt():
    """G. I. Barenblatt, Prikl. Mat. Mekh. 16 (1952) 67-78: u = t^-1/3 (C - x² t^-2/3 / 6)₊ for ∂u/∂t = (u u_x)_x."""

    def u(x, t):
        return np.maximum(t ** (-1 / 3) * (0.5 - x**2 * t ** (-2 / 3) / 6), 0)

    return Truth(
        {
            "grid": {"lower": [-4.0], "upper": [4.0]},
            "equation": {"name": "nonlinear_diffusion", "D": 1.0, "m": 1.0},
            "initial": {"u": "maximum(0.5 - x**2/6, 0)"}, "boundary": {"x": {"neumann": 0.0}},
            "numerics": {"order": 2, "precision": "float64", "integrator": "ssprk3"}, "time": {"end": 1.0, "dt": 5e-4},
        },
        {"u": lambda x: u(x, 2.0)},
        bound=5e-3,
        cells=160,
        order=None,
    )  # fmt: skip


def burgers_wave():
    """u = c - a tanh(a (x - c t) / (2 ν)) (Whitham, "Linear and Nonlinear Waves" (1974), sect. 4.3)."""
    c, a, nu = 0.5, 0.4, 0.05
    wave = f"{c} - {a}*tanh({a}*(x - {c}*t)/(2*{nu}))"
    return Truth(
        {
            "grid": {"lower": [-2.0], "upper": [2.0]}, "equation": {"name": "burgers", "nu": nu},
            "initial": {"u": wave.replace("*t)", "*0)")}, "boundary": {"x": {"dirichlet": wave}},
            "numerics": {"order": 4, "precision": "float64"}, "time": {"end": 0.5, "dt": 0.0005},
        },
        {"u": lambda x: c - a * np.tanh(a * (x - c * 0.5) / (2 * nu))},
        bound=2e-5,
        cells=400,
        order=None,
    )  # fmt: skip


def still_interface():
    """Allen-Cahn: tanh(x / (√2 ε)) is at rest (Allen & Cahn (1979), eq. (6))."""
    return Truth(
        {
            "grid": {"lower": [-20.0], "upper": [20.0]}, "equation": {"name": "allen_cahn", "M": 2.0, "epsilon": 1.3},
            "initial": {"u": "tanh(x/(sqrt(2)*1.3))"}, "boundary": {"x": {"neumann": 0.0}},
            "numerics": {"order": 6, "precision": "float64"}, "time": {"end": 2.0, "dt": 0.005},
        },
        {"u": lambda x: np.tanh(x / (np.sqrt(2) * 1.3))},
        bound=1e-4,
        cells=100,
    )  # fmt: skip


def plane_wave(k=2, V=0.7, end=1.0):
    """exp(i (k x - ω t)) with ω = k²/2 + V."""
    phase = k * k / 2 + V
    return Truth(
        periodic({"name": "schroedinger", "V": V}, {"re": f"cos({k}*x)", "im": f"sin({k}*x)"}, end, 0.002),
        {"re": lambda x: np.cos(k * x - phase * end), "im": lambda x: np.sin(k * x - phase * end)},
        bound=2e-3,
    )


def inertia_gravity_wave(H=2.0, g=1.5, f=0.8, k=2, end=0.5):
    """ω² = f² + g H k² (A. Gill, "Atmosphere-Ocean Dynamics" (1982), eq. (8.2.8)), along x."""
    omega = np.sqrt(f * f + g * H * k * k)
    u, v = SMALL * omega / (H * k), SMALL * f / (H * k)
    tables = periodic(
        {"name": "shallow_water", "g": g, "f": f},
        {"h": f"{H} + {SMALL}*cos({k}*x)", "u": f"{u}*cos({k}*x)", "v": f"{v}*sin({k}*x)"}, end, 0.002,
    )  # fmt: skip
    return Truth(
        {**tables, "grid": {"lower": [0.0, 0.0], "upper": [TAU, TAU]}},
        {
            "h": lambda x, y: H + SMALL * np.cos(k * x - omega * end) + 0 * y,
            "u": lambda x, y: u * np.cos(k * x - omega * end) + 0 * y,
            "v": lambda x, y: v * np.sin(k * x - omega * end) + 0 * y,
        },
        bound=1e-3 * SMALL,
    )


def cavity(m=2, n=1, c=1.5, end=0.7):
    """A mode of a box with perfectly conducting walls: ω = c sqrt(m² + n²) (J. D. Jackson, "Classical Electrodynamics",
    3rd ed. (1999), sect. 8.4)."""
    omega = c * np.hypot(m, n)
    return Truth(
        {
            "grid": {"lower": [0.0, 0.0], "upper": [np.pi, np.pi]},
            "equation": {"name": "maxwell", "c": c}, "initial": {"Ez": f"sin({m}*x)*sin({n}*y)"},
            "boundary": {"x": {"dirichlet": 0.0}, "y": {"dirichlet": 0.0}},
            "numerics": {"order": 4, "precision": "float64"}, "time": {"end": end, "dt": 0.002},
        },
        {
            "Ez": lambda x, y: np.sin(m * x) * np.sin(n * y) * np.cos(omega * end),
            "Bx": lambda x, y: -n / omega * np.sin(m * x) * np.cos(n * y) * np.sin(omega * end),
            "By": lambda x, y: m / omega * np.cos(m * x) * np.sin(n * y) * np.sin(omega * end),
        },
        bound=1e-3,
        order=4,
    )  # fmt: skip


def carried_density(u=0.8, p=2.0, end=0.3):
    """A wave of density at rest in a gas that moves as a whole: every ρ(x - u t) with uniform u and p."""
    rho = "(2 + sin(x))"
    return Truth(
        {
            "grid": {"lower": [0.0], "upper": [TAU]}, "equation": {"name": "euler"},
            "initial": {"rho": rho, "mx": f"{u}*{rho}", "E": f"{p}/0.4 + 0.5*{u}*{u}*{rho}"},
            "numerics": {"precision": "float64", "integrator": "ssprk3"}, "time": {"end": end, "dt": 0.002},
        },
        {
            "rho": lambda x: 2 + np.sin(x - u * end), "mx": lambda x: u * (2 + np.sin(x - u * end)),
            "E": lambda x: p / 0.4 + 0.5 * u * u * (2 + np.sin(x - u * end)),
        },
        bound=2e-2,
        cells=48,
        order=None,
    )  # fmt: skip


F, K = 0.037, 0.06
OMEGA = 1.5 * np.sqrt(4 + 1 / 16)
TRUTHS: dict[str, Truth] = {
    "heat": Truth(
        periodic({"name": "heat", "D": 0.7}, {"u": "cos(2*x)"}, 0.1, 0.0005),
        {"u": lambda x: np.exp(-0.28) * np.cos(2 * x)},
        bound=5e-4,
    ),
    "nonlinear_diffusion": barenblatt(),
    "advection_diffusion": Truth(
        periodic({"name": "advection_diffusion", "D": 0.1, "vx": -0.6}, {"u": "sin(2*x)"}, 0.5, 0.002),
        {"u": lambda x: np.exp(-0.2) * np.sin(2 * (x + 0.3))},
        bound=5e-3,
    ),
    "wave": Truth(
        periodic({"name": "wave", "c": 1.5}, {"u": "cos(2*x)"}, 0.5, 0.001),
        {"u": lambda x: np.cos(1.5) * np.cos(2 * x), "v": lambda x: -3.0 * np.sin(1.5) * np.cos(2 * x)},
        bound=5e-3,
    ),
    # With ρ = exp(-x/2), p = exp(-x/4) cos(2 x - ω t) is a wave whose amplitude follows the density: ω² = c² (4 + 1/16).
    "acoustic": Truth(
        {
            "grid": {"lower": [0.0], "upper": [2.0]},
            "equation": {"name": "acoustic", "c": 1.5, "rho": "exp(-x/2)"},
            "initial": {"p": "exp(-x/4)*cos(2*x)", "q": f"{OMEGA}*exp(-x/4)*sin(2*x)"},
            "boundary": {"x": {"dirichlet": f"exp(-x/4)*cos(2*x - {OMEGA}*t)"}},
            "numerics": {"order": 2, "precision": "float64"}, "time": {"end": 0.5, "dt": 0.002},
        },
        {"p": lambda x: np.exp(-x / 4) * np.cos(2 * x - OMEGA * 0.5)},
        bound=1e-2,
        cells=80,
        order=2,
    ),
    "euler": carried_density(),
    "maxwell": cavity(),
    "shallow_water": inertia_gravity_wave(),
    "burgers": burgers_wave(),
    # u = 1, v = 0 is stable: what is small decays by the linear terms alone.
    "gray_scott": Truth(
        periodic(
            {"name": "gray_scott", "F": F, "k": K, "D_u": 0.2, "D_v": 0.1},
            {"u": f"1 + {SMALL}*cos(2*x)", "v": f"{SMALL}*cos(2*x)"}, 1.0, 0.01,
        ),
        {
            "u": lambda x: 1 + SMALL * np.exp(-(F + 0.8)) * np.cos(2 * x),
            "v": lambda x: SMALL * np.exp(-(F + K + 0.4)) * np.cos(2 * x),
        },
        bound=1e-3 * SMALL,
        order=None,
    ),
    "fitzhugh_nagumo": travelling_front(),
    "allen_cahn": still_interface(),
    "cahn_hilliard": growing("cahn_hilliard", "c", 2.0 * 4 * (1 - 0.1 * 4), 0.2, 0.0005, M=2.0, kappa=0.1),
    "swift_hohenberg": growing("swift_hohenberg", "u", 0.3 - (1.5**2 - 4) ** 2, 0.2, 0.0002, r=0.3, q=1.5, g=0.4),
    "kuramoto_sivashinsky": growing("kuramoto_sivashinsky", "u", 4 - 0.2 * 16, 0.5, 0.001, nu=0.2),
    "schroedinger": plane_wave(),
}  # fmt: skip


def error(truth: Truth, cells: int, order: int | None = None) -> float:
    """The largest difference of any field from the truth."""
    grid = truth.tables["grid"]
    problem = problem_of(**{**truth.tables, "grid": {**grid, "shape": [cells] * len(grid["lower"])}})
    result = integrate(problem)
    return max(np.abs(result[name] - exact(*coordinates(problem, name))).max() for name, exact in truth.exact.items())


def test_every_equation_has_a_row():
    assert set(TRUTHS) == set(EQUATIONS)


@pytest.mark.parametrize("name", TRUTHS)
def test_truth(name):
    assert error(TRUTHS[name], TRUTHS[name].cells) < TRUTHS[name].bound


# In CI, orders where an equation uses an operator in a way of its own: coefficients between cells, and each staggered grid. The
# others are made of operators whose orders test_truth.py and test_verify.py observe.
ORDERS = ("acoustic", "maxwell", "shallow_water")


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in ORDERS else pytest.mark.long)
    for name, truth in TRUTHS.items() if truth.order is not None
])  # fmt: skip
def test_observed_order(name):
    """With the step so short that the error is that of space."""
    truth = TRUTHS[name]
    coarse, fine = truth.cells, int(1.5 * truth.cells)
    observed = np.log(error(truth, coarse) / error(truth, fine)) / np.log(fine / coarse)
    assert observed == pytest.approx(truth.order, abs=0.5)


@pytest.mark.parametrize("name", EQUATIONS)
def test_docstring_opens_with_the_equation(name):
    assert "∂" in EQUATIONS[name].__doc__.splitlines()[0]
