"""The table of the invariance tests: problems on awkward sizes, and ways to cut them."""

from __future__ import annotations

import itertools
from typing import Any

MIXED = {
    "u": "dxy(u) + 0.1*laplacian(u**3 - u - 0.01*laplacian(u)) + 0.1*div_grad(1 + 0.5*sin(x), u)"
    " + upwind(u, sin(t) + x, 0.3*u) + dx(x*x*cos(y)) - 0.3*x*dy(u) + where(u > 0.5, exp(-u), tanh(u))"
    " + 0.01*div_grad(1 + x, y**2) + 0.1*difference_x(mean_x(u*u)) + 0.05*laplacian(mean_y(mean_y(u)))",
}
MASKED = {"u": "0.3*laplacian(u) + dxy(u) - upwind(u, x, 0.3) - 0.2*dx(u) + 0.1*div_grad(1 + 0.5*sin(x), u)"}
# A stencil without symmetry; and a large one, which is summed in loops, whose rows have gaps.
STENCILS = {
    "near": [[0.1, 0.2, -0.3], [0.4, -1.2, 0.3], [0.2, 0.1, -0.1]],
    "wide": [[((3 * i + 5 * j) % 11 - 5) / 200 for j in range(9)] for i in range(11)],
}
BLURRED = {"u": "near(u**2) + wide(u) - 0.5*u + 0.1*wide(x*cos(y)) + 0.2*laplacian(u) + 0.3*near(mean_x(mean_x(u)))"}
# With OWN, every kind of condition at both sides of some axis (tests/problem/test_decompositions.py).
WALLS = {
    "x": {"lower": {"dirichlet": "0.3*cos(t)"}, "upper": {"neumann": "0.1*sin(t)"}},
    "y": {"lower": {"neumann": 0.2}, "upper": {"dirichlet": "0.1 + 0.2*t"}},
    "z": {
        "lower": {"robin": {"a": 1.0, "b": "0.2 + x*x", "value": "0.1*t"}},
        "upper": {"sponge": {"width": 0.7, "strength": 3.0}},
    },
}
ADVECTION = {"D": 0.3, "vx": 0.7, "vy": -0.4, "vz": 0.2}

# name -> (equation table, shape, periodic axes)
PROBLEMS: dict[str, tuple[dict[str, Any], tuple[int, ...], str]] = {
    "heat-1d": ({"name": "heat", "D": 0.7}, (101,), "x"),
    "heat-2d-walls": ({"name": "heat", "D": "1 + 0.5*sin(x)*cos(y)"}, (101, 67), ""),
    "heat-3d": ({"name": "heat", "D": 0.7}, (37, 29, 23), "xz"),
    "advection-1d": ({"name": "advection_diffusion", "D": 0.3, "vx": 0.7}, (83,), ""),
    "advection-2d": ({"name": "advection_diffusion", "D": 0.3, "vx": 0.7, "vy": -0.4}, (61, 47), "y"),
    "advection-3d": ({"name": "advection_diffusion", **ADVECTION}, (37, 29, 23), "xyz"),
    "wave-1d": ({"name": "wave", "c": 0.8}, (97,), ""),
    "wave-2d": ({"name": "wave", "c": "1 + 0.2*sin(y)"}, (101, 67), "xy"),
    "wave-3d": ({"name": "wave", "c": 0.8}, (37, 29, 23), "y"),
    "open-2d": ({"name": "wave", "c": "1 + 0.2*sin(y)"}, (61, 47), ""),
    "acoustic-2d": (
        {"name": "acoustic", "c": "1 + 0.2*sin(y)", "rho": "1 + 0.1*x", "source": 2.0, "xs": 3.0, "ys": 0.03},
        (61, 47),
        "",
    ),
    "burgers-1d": ({"name": "burgers", "nu": 0.05}, (101,), "x"),
    "burgers-2d": ({"name": "burgers", "nu": 0.05}, (61, 47), "x"),
    "burgers-3d": ({"name": "burgers", "nu": 0.05}, (37, 29, 23), ""),
    "gray-scott-1d": ({"name": "gray_scott", "D_u": 0.2, "D_v": 0.1}, (101,), ""),
    "gray-scott-2d": ({"name": "gray_scott", "D_u": 0.2, "D_v": 0.1}, (101, 67), "xy"),
    "gray-scott-3d": ({"name": "gray_scott", "D_u": 0.2, "D_v": 0.1}, (37, 29, 23), "z"),
    "mixed-2d": ({"name": "custom", "rhs": MIXED}, (61, 47), ""),
    "mask-2d": ({"name": "custom", "rhs": MASKED}, (61, 47), "y"),
    "stencils-2d": ({"name": "custom", "rhs": BLURRED, "stencils": STENCILS}, (61, 47), "y"),
    "beam-2d": ({"name": "custom", "rhs": {"u": "-0.001*laplacian(laplacian(u))"}}, (61, 47), ""),
    "cahn-hilliard-2d": ({"name": "cahn_hilliard", "M": 0.01, "kappa": 0.1}, (61, 47), "x"),
    "schroedinger-2d": ({"name": "schroedinger", "V": "x*x"}, (61, 47), "y"),
    "porous-2d": ({"name": "nonlinear_diffusion", "D": "1 + 0.5*sin(x)", "m": 1.5}, (61, 47), "x"),
    "shallow-2d": ({"name": "shallow_water", "g": 1.0, "f": "0.1 + x", "nu": 0.05}, (61, 47), "x"),
    "euler-1d": ({"name": "euler"}, (101,), ""),
    "euler-2d": ({"name": "euler"}, (61, 47), "y"),
    "gas-2d": ({"name": "euler"}, (41, 37), "y"),
    "maxwell-3d": (
        {"name": "maxwell", "c": "1 + 0.2*sin(y)", "source": 2.0, "xs": 1.0, "ys": 1.5, "zs": 1.0},
        (31, 29, 23),
        "z",
    ),
    "ensemble-2d": ({"name": "gray_scott", "D_u": 0.2, "D_v": 0.1}, (61, 47), "x"),
    "mixed-2d-periodic": ({"name": "custom", "rhs": MIXED}, (61, 47), "xy"),
}
# The tables that some problems have of their own, by the first word of the name; boundaries beside or in place of WALLS.
OWN: dict[str, dict[str, Any]] = {
    "open": {
        "boundary": {
            "x": {"lower": {"sponge": {"width": 0.7, "strength": 3.0}}, "upper": "open"},
            "y": {"lower": "open", "upper": {"robin": {"a": "1 + x", "b": 0.2, "value": "0.1*t"}}},
        }
    },
    "acoustic": {
        "boundary": {
            "x": {"cpml": {"width": 1.0}},
            "y": {"lower": {"dirichlet": 0.0}, "upper": {"cpml": {"width": 0.8}}},
        }
    },
    "euler": {  # from random fields a gas would have a negative pressure
        "initial": {
            "rho": "1 + 0.3*sin(5*x) + 0.1*noise(1)",
            "mx": "0.2*noise(2)",
            "E": "2 + 0.5*cos(7*x) + 0.2*noise(3)",
        },
        "boundary": {"x": {"neumann": 0.0}, "mx": {"x": {"dirichlet": "0.1*t"}}},
    },
    "gas": {  # around solids, one of them a cell away from the boundary, where ghost cells are solid
        "initial": {
            "rho": "1 + 0.3*sin(5*x) + 0.1*noise(1)",
            "mx": "0.2*noise(2)",
            "E": "2 + 0.5*cos(7*x) + 0.2*noise(3)",
        },
        "boundary": {"x": {"neumann": 0.0}, "mx": {"x": {"dirichlet": 0.0}}},
        "mask": {"solid": "((x - 2)**2 + (y - 1.8)**2 < 0.4) + (x > 0.1)*(x < 0.2)*(y < 1)"},
    },
    "shallow": {"boundary": {"v": {"y": {"dirichlet": "0.1*sin(x)*t"}}}},
    "maxwell": {
        "boundary": {
            field: {axis: {"dirichlet": "0.1*z*t"} for axis in axes}
            for field, axes in {"Ex": "y", "Ey": "x", "Ez": "xy", "Bx": "x", "By": "y"}.items()
        }
    },
    "beam": {
        "boundary": {
            "operators": {
                "laplacian(u)": {"x": {"dirichlet": "0.1*t"}, "y": {"robin": {"a": 1.0, "b": 2.0, "value": 0.1}}}
            }
        }
    },
    "mask": {
        "mask": {
            "solid": "((x - 3)**2 + (y - 2.3)**2 < 1) + (x > 5.9)*(y < 1)",
            "surface": {"value": "0.3*sin(x + t)"},
        }
    },
    "ensemble": {"ensemble": {"equation.F": [0.03, 0.04, 0.05]}},
}
# What CI runs, each row on one number of processes alone, since it compiles for seconds on each of them; on the others a row
# is left to the long tests. The kinds of terms, fields, methods and orders are spread over the rows, so no row is spare.
SELECTED: dict[int, list[tuple[str, int, str, str]]] = {  # (problem, order, precision, integrator)
    1: [
        ("wave-2d", 2, "float32", "leapfrog"),
    ],
    2: [
        ("mixed-2d", 4, "float64", "euler"),
        ("shallow-2d", 2, "float64", "ab2"),
        ("heat-2d-walls", 2, "float64", "euler"),
        ("advection-2d", 6, "float32", "dopri5"),
        ("cahn-hilliard-2d", 2, "float64", "rkl2"),
        ("ensemble-2d", 2, "float32", "euler"),
        ("mask-2d", 2, "float32", "euler"),
        ("gas-2d", 2, "float32", "ssprk2"),
        ("open-2d", 2, "float64", "euler"),
    ],
    3: [
        ("heat-1d", 2, "float32", "ssprk3"),
        ("heat-3d", 4, "float32", "rk4"),
        ("maxwell-3d", 2, "float32", "leapfrog"),
        ("euler-1d", 2, "float32", "ssprk2"),
        ("beam-2d", 2, "float32", "ssprk2"),
    ],
    4: [
        ("burgers-3d", 2, "float32", "euler"),
        ("gray-scott-2d", 2, "float32", "lsrk4"),
        ("acoustic-2d", 8, "float32", "euler"),
        ("acoustic-2d", 4, "float32", "leapfrog"),  # with memories of cpml beside a group
        ("stencils-2d", 2, "float32", "euler"),
        ("wave-1d", 8, "float64", "rk4"),
    ],
}
EVERYTHING = [
    (name, order, precision, integrator)
    for name, order, precision, integrator in itertools.product(
        PROBLEMS, (2, 4, 8), ("float32", "float64"), ("euler", "ssprk3", "rk4")
    )
    if order == 2 or not name.startswith(("mask", "euler", "gas"))  # which go with order 2
]


def tables(name: str, order: int, precision: str, integrator: str, **decomposition: Any) -> dict[str, Any]:
    """The input of a row, with the decomposition given."""
    equation, shape, periodic = PROBLEMS[name]
    own = OWN.get(name.partition("-")[0], {})
    sides = {a: "periodic" if a in periodic else WALLS[a] for a in "xyz"[: len(shape)]}
    return {
        "grid": {"shape": list(shape), "upper": [0.1 * n for n in shape]},
        "equation": equation,
        "numerics": {"order": order, "precision": precision, "integrator": integrator},
        "decomposition": decomposition,
        **own,
        "boundary": {**sides, **own.get("boundary", {})},
    }


def step_for(name: str) -> float:
    """A step at which the problem stays finite at every order."""
    return 2e-6 if name.startswith(("mixed", "beam")) else 5e-4
