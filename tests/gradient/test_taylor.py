"""For every built-in equation: its adjoint is that of jax.vjp, and Taylor remainders of its gradient are of second order."""

import itertools

import numpy as np
import pytest
from gradients import differences_from_jax, sweep_of, taylor_slopes
from support import problem_of, simulation_of

from hpcstencil.adjoint.derivation import adjoint_of
from hpcstencil.equations import EQUATIONS

WALLS = {"dirichlet": 0.2}, {"neumann": 0.1}
# Values with which an equation has a smooth solution, and depends on all of its parameters: tables to replace.
OWN = {
    "euler": {"initial": {"rho": "1 + 0.2*sin(5*x)", "mx": "0.3 + 0.1*cos(3*x)", "E": "3 + 0.2*sin(2*x)"}},
    "acoustic": {"equation": {"source": 2.0, "xs": 0.43}},
    "maxwell": {"equation": {"source": 2.0, "xs": 0.43}},
    "nonlinear_diffusion": {"equation": {"m": 1.5}},
}
NOT_NUMBERS = ("ys", "zs", "vy", "vz")  # in one dimension
IN_CI = ("gray_scott", "shallow_water")


def tables(name, boundary, integrator="euler"):
    equation, ndim = EQUATIONS[name](), 2 if name == "shallow_water" else 1
    names, own = equation.fields(ndim), OWN.get(name, {})
    numbers = [parameter for parameter in equation.parameters if parameter not in NOT_NUMBERS]
    sides = boundary
    if not isinstance(boundary, dict):
        sides = dict(zip("xy"[:ndim], ((boundary or ("periodic",) * 2)[:ndim]), strict=True))
    squares = " + ".join(f"integral({field}**2*(1.5 + sin(x)))" for field in names)
    return {
        "grid": {"shape": [11, 7][:ndim], "upper": [1.1, 0.7][:ndim]},
        "equation": {"name": name, **own.get("equation", {})},
        "initial": own.get("initial", {field: f"1 + 0.3*sin(5.7*x + {n})" for n, field in enumerate(names)}),
        "boundary": sides,
        "numerics": {"integrator": integrator, "precision": "float64"},
        "time": {"end": 4e-5, "dt": 1e-5} if name in ("swift_hohenberg", "kuramoto_sivashinsky", "cahn_hilliard")
        else {"end": 4e-3, "dt": 1e-3},
        "objective": {"J": squares},
        "gradient": {"of": [*(f"initial.{field}" for field in names), *(f"equation.{number}" for number in numbers)]},
    }  # fmt: skip


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in IN_CI else pytest.mark.long) for name in EQUATIONS
])  # fmt: skip
def test_remainders_are_of_second_order(name):
    sweep = sweep_of(tables(name, None))
    blocks = sweep.forward.get(sweep.forward.initial_fields(), sweep.forward.problem.fields)
    slopes = taylor_slopes(sweep, {field: np.array(block) for field, block in blocks.items()})
    assert all(abs(slope - 2.0) <= 0.05 for slope in slopes), slopes


LAYERS = {"cpml": {"width": 0.4, "speed": 1.3}}
SPONGE = {"sponge": {"width": 0.3, "strength": 20.0}}
BASIN = {
    "x": {"neumann": 0.0}, "y": {"neumann": 0.1}, "u": {"x": {"dirichlet": 0.2}}, "v": {"y": {"dirichlet": "t"}},
}  # fmt: skip
ON_FACES = {  # equations that take other conditions than WALLS
    "euler": {"x": {"neumann": 0.0}, "mx": {"x": {"dirichlet": 0.1}}},
    "maxwell": ({"dirichlet": 0.0},),
    "shallow_water": BASIN,
}
BESIDE = {  # an equation, the boundary of each axis, the integrator
    "cpml": ("acoustic", (LAYERS,), "euler"),
    "cpml-leapfrog": ("acoustic", (LAYERS,), "leapfrog"),
    "sponge": ("wave", (SPONGE,), "euler"),
    "sponge-leapfrog": ("wave", (SPONGE,), "leapfrog"),
    "dirichlet": ("nonlinear_diffusion", ({"dirichlet": "1 + t"},), "euler"),
    "robin": ("fitzhugh_nagumo", ({"robin": {"a": 1.0, "b": 0.3, "value": 0.2}},), "euler"),
    "transfer": ("fitzhugh_nagumo", ({"robin": {"a": "b", "b": "I + epsilon", "value": "a*x"}},), "rk4"),
    "open": ("wave", ("open",), "leapfrog"),
    "basin": ("shallow_water", BASIN, "euler"),
    "basin-ab2": ("shallow_water", BASIN, "ab2"),
    "gas": ("euler", ON_FACES["euler"], "euler"),
    "conductor": ("maxwell", ({"dirichlet": 0.0},), "leapfrog"),
    "conductor-cpml": ("maxwell", ({"lower": {"dirichlet": "t"}, **{"upper": LAYERS}},), "leapfrog"),
    "neumann": ("burgers", ({"lower": {"neumann": 0.2}, "upper": {"dirichlet": 0.5}},), "euler"),
}


@pytest.mark.parametrize("kind", [
    pytest.param(kind, marks=() if kind in ("cpml-leapfrog", "transfer") else pytest.mark.long) for kind in BESIDE
])  # fmt: skip
def test_remainders_beside_boundaries(kind):
    sweep = sweep_of(tables(*BESIDE[kind]))
    blocks = sweep.forward.get(sweep.forward.initial_fields(), sweep.forward.problem.fields)
    slopes = taylor_slopes(sweep, {field: np.array(block) for field, block in blocks.items()})
    assert all(abs(slope - 2.0) <= 0.05 for slope in slopes), slopes


@pytest.mark.parametrize("name, boundary", [
    pytest.param(name, boundary, marks=pytest.mark.long if boundary is None and name in ("euler", "shallow_water") else (),
                 id=f"{name}-{'walls' if boundary else 'periodic'}")
    for name, boundary in itertools.product(EQUATIONS, (None, WALLS))
])  # fmt: skip
def test_every_equation_has_the_adjoint_of_jax(name, boundary):
    """A new equation has to have one too."""
    problem = problem_of(**tables(name, boundary and ON_FACES.get(name, boundary)))
    simulation, rng = simulation_of(problem), np.random.default_rng(1)
    state = simulation.get(simulation.initial_fields(), problem.fields)
    state = {field: u + 0.1 * rng.random(u.shape) for field, u in state.items()}
    wrong = {of: far for of, far in differences_from_jax(adjoint_of(problem, ()), state, 2).items() if not far < 1e-13}
    assert not wrong
