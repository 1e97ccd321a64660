"""Random objectives: sums over receivers of several tables, with numbers and data, and data on the grid and on faces.

Every third one is beside a solid cell or two.
"""

import random

import numpy as np
import pytest

import hpcstencil as hs

SPOT = "exp(-20*((x - 0.5)**2 + (y - 0.4)**2))"
EQUATIONS = {
    "custom": {
        "equation": {"name": "custom", "D": 0.02, "A": 0.5, "rhs": {"u": "D*laplacian(u) + A*u*v", "v": "dx(u) - v**3 + A"}},
        "initial": {"u": "A*sin(3*x)*cos(2*y)", "v": "0.3 + 0.1*x"},
        "boundary": {"x": {"neumann": 0.0}},
    },
    "acoustic": {
        "equation": {"name": "acoustic", "c": 1.1},
        "initial": {"p": SPOT},
        "boundary": {"x": {"cpml": {"width": 0.2, "speed": 1.0}}},
    },
    "shallow_water": {
        "equation": {"name": "shallow_water", "g": 1.2, "f": 0.3},
        "initial": {"h": f"1 + 0.1*{SPOT}"},
        "boundary": {"x": {"neumann": 0.0}, "u": {"x": {"dirichlet": 0.0}}},
    },
    "wave": {"equation": {"name": "wave", "c": 0.9}, "initial": {"u": "sin(3*x)*y"}},
}  # fmt: skip
FIELDS = {"custom": "uv", "acoustic": "p", "shallow_water": "huv", "wave": "u"}
NUMBERS = {"custom": "DA", "acoustic": "c", "shallow_water": "gf", "wave": "c"}
INTEGRATORS = {
    "custom": ("euler", "rk4", "ab2", "ssprk3"), "acoustic": ("leapfrog", "rk4"), "shallow_water": ("ab2", "ssprk2"),
    "wave": ("leapfrog", "rk4"),
}  # fmt: skip


def input_of(seed):
    """A random input."""
    choice, rng = random.Random(seed), np.random.default_rng(seed)
    name = choice.choice(list(EQUATIONS))
    shape, steps = [choice.choice((9, 12, 14)), choice.choice((8, 11))], choice.choice((5, 8, 12))
    probes, data, terms = {}, {}, []
    for table in ("t", "q", "r")[: choice.choice((1, 2, 3))]:
        field, every, count = choice.choice(FIELDS[name]), choice.choice((1, 2, 3)), choice.choice((1, 3))
        slope = choice.random() < 0.3 and name != "shallow_water"
        probes[f"of_{table}"] = {
            **({"expression": f"2*dx({field})"} if slope else {"field": field}),
            "x": rng.uniform(0.2, 1.0, count).tolist(), "y": rng.uniform(0.2, 0.9, count).tolist(), "every_steps": every,
        }  # fmt: skip
        sample, p = f"of_{table}", choice.choice(NUMBERS[name])
        if choice.random() < 0.6:
            data[f"seen_{table}"] = rng.standard_normal((steps // every + 1, count))
            sample = f"(of_{table} - seen_{table})"
        texts = (
            f"sum({sample}**2)", f"sqrt(1 + sum({p}*{sample}**2))", f"sum(sin({p}*{sample})*exp(-t))",
            f"{p}*sum({sample}**3 + {p})",
        )  # fmt: skip
        terms.append(choice.choice(texts))
    for field in FIELDS[name]:
        if choice.random() < 0.4:
            on_face = name == "shallow_water" and field == "u"  # between walls
            data[f"target_{field}"] = rng.standard_normal([shape[0] + on_face, shape[1]])
            terms.append(f"integral(({field} - target_{field})**2)")
    misfit = " + ".join(terms) if choice.random() < 0.7 else "*".join(f"(2 + {term})" for term in terms)
    kernel = choice.choice(("native", "native", "shift"))
    solid = (
        {"mask": {"solid": "(x - 0.6)**2 + (y - 0.5)**2 < 0.008"}} if seed % 3 == 1 and name != "shallow_water" else {}
    )
    return {
        **EQUATIONS[name],
        **solid,
        "grid": {"shape": shape, "upper": [1.2, 1.0]},
        "numerics": {"precision": "float64", "integrator": choice.choice(INTEGRATORS[name]), "kernel": kernel},
        "time": {"end": 0.004 * steps, "dt": 0.004},
        "probes": probes,
        "objective": {"misfit": misfit, "data": data},
        "gradient": {
            "of": [f"initial.{FIELDS[name][0]}", f"equation.{NUMBERS[name][0]}"], "checkpoints": choice.choice((2, 4, 20)),
        },
    }  # fmt: skip


def product(a, b):
    return sum(float(np.sum(np.asarray(a[key]) * b[key])) for key in b)


@pytest.mark.filterwarnings("ignore:time.dt")  # a few steps do not blow up
@pytest.mark.parametrize("seed", [5, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(100, 120))])
def test_a_tangent_is_the_gradient_along_a_direction_and_a_hessian_is_symmetric(seed):
    given = input_of(seed)
    field, number = given["gradient"]["of"]
    rng, shape = np.random.default_rng(seed), given["grid"]["shape"]
    v, w = ({field: 0.1 * rng.standard_normal(shape), number: size} for size in (0.1, -0.2))
    with hs.Simulation(given) as sim:
        gradient, slope = sim.value_and_gradient()[1], sim.tangent(v)["misfit"]
        of_v, of_w = sim.hessian_product(v), sim.hessian_product(w)
    assert slope == pytest.approx(product(gradient, v), rel=1e-11) != 0
    assert product(of_v, w) == pytest.approx(product(of_w, v), rel=1e-10) != 0
