"""The adjoint of right-hand sides is the transpose of their matrix, for every operator, boundary, order and staggering."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import problem_of, traced_slopes

from hpcstencil.adjoint.derivation import adjoint_of
from hpcstencil.adjoint.differentiate import Sum
from hpcstencil.adjoint.names import ADJOINT, GRADIENT, TRANSPOSED
from hpcstencil.distributed.windows import STEP_SIZE
from hpcstencil.symbolic.expressions import Constant, Field, Neighbour, parameter_field, total
from hpcstencil.validation.errors import InputError

BOUND = 1e-12
# Right-hand sides of fields that nothing else depends on, so that each is a row of the matrix of its own.
EVERYWHERE = {
    "a": "laplacian(u) + x*dx(u) - u*dy(k)",
    "b": "dxy(u) + y*dxx(u*u)",
    "c": "upwind(u, k - 0.5, -0.3*u)",
    "d": "laplacian(u**3 - k*laplacian(u))",
    "e": "where(u > k, exp(u)*dx(k), minimum(dx(u), dy(u*k)) + maximum(u, k)**1.5 + abs(dy(u)) + sqrt(u)/k)",
    "f": "near(u*k) + 0.5*dy(near(u)) + sin(u) - cos(k) + tanh(u*k) + log(k) + tan(u/2) + D*u*E**2",
    "g": "gradient_squared(u) + divergence(u*k, D*x*u)",
}
CONSERVATIVE = {"h": "div_grad(k, u) + div_grad(1 + x*y, u*u) + D*div_grad(u*k, k)"}
SHIFTED = {
    "i": "difference_x(mean_x(u*u)*k_x) + mean_y(above_y(u)) - below_x(difference_x(u*k))".replace("k_x", "mean_x(k)")
}
NEAR = [[0.1, 0.2, -0.3], [0.4, -1.2, 0.35], [0.25, 0.1, -0.1]]  # without symmetry
MIXED = {
    "x": {"lower": {"dirichlet": "0.3*cos(t) + y"}, "upper": {"neumann": "0.1*sin(t) + y"}},
    "y": {"lower": {"neumann": 0.2}, "upper": {"dirichlet": "0.1 + 0.2*t"}},
    "k": {"x": {"neumann": 0.3}},
}
ROBIN = {"x": {"robin": {"a": 1.0, "b": 0.2, "value": 0.1}}, "y": {"lower": {"robin": {"a": 2.0, "b": 0.0, "value": "x"}},
         "upper": {"robin": {"a": 0.0, "b": 1.5, "value": "x"}}}}  # fmt: skip
PERIODIC = {"x": "periodic", "y": "periodic"}
# Conditions of inner results, which differ from that of the field.
INNER = {
    "a": "laplacian(laplacian(u)) + dxy(u*u)",
    "b": "dx(u*u) + upwind(u*u, k - 1, 0.2) + dyy(u*u)",
    "h": "div_grad(k*u, u*u) + div_grad(u*u, k)",
}
OPERATORS = {
    "operators": {
        "laplacian(u)": {"x": {"dirichlet": 0.1}, "y": {"robin": {"a": 1.0, "b": "1 + x", "value": "x"}}},
        "u*u": {"dirichlet": "t"},
        "k*u": {"robin": {"a": 0.5, "b": 1.0, "value": 0.0}},
    }
}


def tables(rhs, shape, boundary, order):
    return {
        "grid": {"shape": list(shape), "upper": [0.1 * n + 0.3 for n in shape]},
        "equation": {"name": "custom", "D": 0.7, "E": 1.3, "rhs": {"u": "0", "k": "0", **rhs},
                     **({"stencils": {"near": NEAR}} if "f" in rhs else {})},
        "boundary": boundary,
        "numerics": {"order": order, "precision": "float64"},
        "objective": {"J": "integral(u)" if "f" in rhs else "D*E*integral(u)"},
        "gradient": {"of": ["initial.u", "equation.D", "equation.E"]},
    }  # fmt: skip


def matrices(problem, least):
    """(Jacobian of the right-hand sides, matrix of the adjoint) by pairs of fields, and the same for D, at a random state.

    The values of a field are from ``least[field]``, or else 0.5, to 1 above.
    """
    adjoint = adjoint_of(problem, ()).problem
    rng, shape = np.random.default_rng(1), problem.config.grid.shape
    state = {name: jnp.asarray(least.get(name, 0.5) + rng.random(shape)) for name in problem.fields}
    parameters = {name: jnp.asarray(value) for name, value in {**problem.parameters, STEP_SIZE: 0.3}.items()}
    slopes, transposed = traced_slopes(problem), traced_slopes(adjoint)
    both = jax.jit(jax.jacfwd(slopes, (0, 1)))(state, parameters, 0.3)
    fields, by_parameter = ({row: pair[n] for row, pair in both.items()} for n in (0, 1))
    zeros = {name: jnp.zeros(shape) for name in adjoint.trees}

    @jax.jit
    @jax.jacfwd
    def of_adjoint(seeds):
        return transposed({**state, **zeros, **seeds}, parameters, 0.3)

    found = of_adjoint({ADJOINT + name: jnp.zeros(shape) for name in problem.trees})
    return fields, by_parameter, found


def stay_zero(problem, jacobian):
    """The cells in which memories of absorbing layers stay 0, by field: the rate there depends on the memory there alone."""
    cells, found = problem.config.grid.cells, {}
    for memory in problem.begin_at_zero:
        sizes = {name: np.abs(np.reshape(matrix, (cells, cells))) for name, matrix in jacobian[memory].items()}
        np.fill_diagonal(sizes[memory], 0.0)
        found[memory] = sum(sizes.values()).sum(1) == 0.0
    return found


def differences(problem, numbers=("D", "E"), arrays=(), least=None):
    """The largest difference of the adjoint from the transpose, relative to the largest entry, by (right-hand side, field).

    Derivatives with respect to a memory may be left out, as zeros, in the cells in which it stays 0, since no other derivative
    depends on them. The random state is that of `matrices`.
    """
    columns = {name: TRANSPOSED + name for name in problem.trees}
    columns |= {parameter_field(name).name: GRADIENT + name for name in arrays}
    fields, by_parameter, found = matrices(problem, least or {})
    cells, unmoved = problem.config.grid.cells, stay_zero(problem, fields)
    result = {}
    for row in problem.trees:
        for name, column in columns.items():
            matrix = np.array(fields[row][name]).reshape(cells, cells)
            other = np.asarray(found[column][ADJOINT + row]).reshape(cells, cells)
            if name in unmoved:
                matrix[:, unmoved[name] & ~other.any(1)] = 0.0
            result[row, name] = np.abs(matrix.T - other).max() / max(1.0, np.abs(matrix).max())
        for name in numbers:
            vector = np.asarray(by_parameter[row][name]).ravel()
            other = np.asarray(found[GRADIENT + name][ADJOINT + row]).reshape(cells, cells).sum(0)
            result[row, name] = np.abs(vector - other).max() / max(1.0, np.abs(vector).max())
    return result


ROWS = [
    *((f"periodic-{order}", {**EVERYWHERE, **CONSERVATIVE, **SHIFTED}, (5, 4), PERIODIC, order) for order in (2, 4, 6)),
    ("periodic-thin", {**EVERYWHERE, **CONSERVATIVE, **SHIFTED}, (1, 2), PERIODIC, 4),
    *((f"walls-{order}", EVERYWHERE, (order, order + 1), MIXED, order) for order in (2, 4, 8)),
    ("walls-conservative", CONSERVATIVE, (2, 3), MIXED, 2),
    ("walls-operators", INNER, (4, 5), {**MIXED, **OPERATORS}, 2),
    ("robin-conservative", CONSERVATIVE, (3, 4), ROBIN, 2),
    (
        "robin",
        {"a": EVERYWHERE["a"], "b": EVERYWHERE["b"], "c": EVERYWHERE["c"], "f": EVERYWHERE["f"]},
        (3, 4),
        ROBIN,
        2,
    ),
    ("channel", {**EVERYWHERE, **CONSERVATIVE}, (4, 5), {"x": "periodic", "y": {"dirichlet": 0.3}}, 2),
    ("flux-4", {"a": "div_grad(k, u)", "b": "div_grad(u, k)"}, (6, 5), PERIODIC, 4),
    ("flux-walls-4", {"a": "div_grad(1 + y, laplacian(u) + x)"}, (6, 8), {"x": {"dirichlet": 0.1}, "y": "periodic"}, 4),
]


SELECTED = (
    "periodic-thin",
    "walls-2",
    "walls-conservative",
    "walls-operators",
    "robin-conservative",
    "flux-4",
)  # in CI


@pytest.mark.parametrize("rhs, shape, boundary, order", [
    pytest.param(*row[1:], id=row[0], marks=() if row[0] in SELECTED else pytest.mark.long) for row in ROWS
])  # fmt: skip
def test_the_adjoint_is_the_transpose(rhs, shape, boundary, order):
    given = tables(rhs, shape, boundary, order)
    found = differences(problem_of(**given))
    wrong = {pair: value for pair, value in found.items() if not value <= BOUND}
    assert not wrong


def test_the_adjoint_with_implicit_damping():
    rhs = {"a": "laplacian(u) - D*E*(1 + x)*a + u*k", "b": "dx(a) - where(y > 0.4, D, 0.1)*b/E"}
    given = tables(rhs, (3, 4), MIXED, 2)
    problem = problem_of(**{**given, "numerics": {**given["numerics"], "integrator": "leapfrog"}})
    assert set(problem.damped) == {"a", "b"}
    wrong = {pair: value for pair, value in differences(problem).items() if not value <= BOUND}
    assert not wrong


BESIDE_SOLID = {name: EVERYWHERE[name] for name in "abcd"} | CONSERVATIVE
SOLID = [
    ("no-flux", MIXED, BESIDE_SOLID, None),
    ("value", {"x": "periodic", "y": {"dirichlet": 0.3}}, BESIDE_SOLID, {"value": "0.3*x"}),
    ("faces", PERIODIC, SHIFTED, None),
]


@pytest.mark.parametrize("boundary, rhs, surface", [
    pytest.param(*row[1:], id=row[0], marks=pytest.mark.long if row[0] == "value" else ()) for row in SOLID
])  # fmt: skip
def test_the_adjoint_beside_solid_cells(boundary, rhs, surface):
    mask = {"solid": "(x - 0.4)**2 + (y - 0.3)**2 < 0.04", **({"surface": surface} if surface else {})}
    problem = problem_of(**tables(rhs, (6, 5), boundary, 2), mask=mask)
    wrong = {pair: value for pair, value in differences(problem).items() if not value <= BOUND}
    assert not wrong


@pytest.mark.parametrize("boundary", [PERIODIC, MIXED], ids=["periodic", "walls"])
def test_the_adjoint_of_a_neighbour(boundary):
    """Equations cannot name this operator, which problems with solid cells use."""
    problem = problem_of(**tables({"a": "D*E*u", "b": "0"}, (3, 2), boundary, 2))
    u = Field("u")
    around = [Neighbour(u * u, 0, -1), Neighbour(u, 1, 1), Neighbour(Neighbour(u, 1, -1), 0, 1)]
    problem = replace(problem, trees={**problem.trees, "b": total([(n + 2.0) * part for n, part in enumerate(around)])})
    wrong = {pair: value for pair, value in differences(problem).items() if not value <= BOUND}
    assert not wrong


WALLS = {"x": {"dirichlet": 0.0}, "y": "periodic"}
REFUSED = [  # (right-hand side of u, boundary, other tables, words of the message)
    (
        "difference_x(div_grad(mean_x(u), mean_x(u)))",
        WALLS,
        {},
        "boundary: gradients are not available yet for div_grad beside open ends",
    ),
    (
        "near(u)",
        {"x": {"robin": {"a": 1.0, "b": 1.0, "value": 0.0}}},
        {"numerics": {"order": 4}, "equation": {"stencils": {"near": np.eye(5).tolist()}}},
        "more than one ghost cell",
    ),
    (
        "near(u)",
        {"x": {"robin": {"a": "1 + y", "b": 1.0, "value": 0.0}}},
        {"equation": {"stencils": {"near": NEAR}}},
        "coefficients depend on the place",
    ),
    ("div_grad(1 + x, u)", WALLS, {"numerics": {"order": 4}}, "only if the coefficient has zero normal derivative"),
    ("div_grad(u, sin(x))", WALLS, {"numerics": {"order": 4}}, "with respect to the coefficient of div_grad"),
    (
        "D + near(u)",
        {"x": {"robin": {"a": "D", "b": 1.0, "value": 0.0}}},
        {"gradient": {"of": ["equation.D"]}, "equation": {"stencils": {"near": NEAR}}},
        "unknowns in robin conditions",
    ),
    (
        "u*c",
        {},
        {"equation": {"c": "sin(x)"}, "gradient": {"of": ["equation.c"]}},
        "but equation.c is an expression; give",
    ),
    ("u", {}, {"gradient": {"of": ["initial.w"]}}, 'unknown name "initial.w"'),
    ("u", {}, {"gradient": {}}, "gradient.of: expected names"),
    ("u", {}, {"objective": {}}, "objective: expected an expression"),
    ("near(u)", {}, {"equation": {"stencils": {"near": {"weights": NEAR, "method": "fft"}}}}, 'with method = "fft"'),
]


@pytest.mark.parametrize("rhs, boundary, others, words", REFUSED, ids=[row[-1] for row in REFUSED])
def test_everything_else_is_refused(rhs, boundary, others, words):
    given = {
        "grid": {"shape": [12, 12]},
        "equation": {
            "name": "custom",
            "rhs": {"u": rhs},
            **({"D": 1.0} if "D" in rhs else {}),
            **others.get("equation", {}),
        },
        "boundary": boundary,
        "objective": {"J": "integral(u**2)"},
        "gradient": {"of": ["initial.u"]},
    }
    given |= {name: table for name, table in others.items() if name != "equation"}
    problem = problem_of(**given)
    with pytest.raises(InputError, match=re.escape(words)):
        adjoint_of(problem, problem.initial)


def test_a_layer_whose_strength_follows_from_the_parameters_is_refused():
    given = {"grid": {"shape": [12]}, "equation": {"name": "wave"}, "boundary": {"x": {"cpml": {"width": 3.0}}}}
    given["objective"] = {"J": "integral(u)"}
    problem = problem_of(**given, gradient={"of": ["equation.c"]})
    with pytest.raises(InputError, match="the strength of a cpml layer follows from the parameters"):
        adjoint_of(problem, ())
    assert adjoint_of(problem_of(**given, gradient={"of": ["initial.u"]}), ())


def test_a_branch_that_is_not_taken_adds_exactly_nothing():
    """At u = 0 the root has an infinite derivative, and the quotient none."""
    problem = problem_of(
        grid={"shape": [4]}, equation={"name": "custom", "rhs": {"u": "where(u > 0, sqrt(u) + u/u, 3*u)"}},
        objective={"J": "integral(u)"}, gradient={"of": ["initial.u"]}, numerics={"precision": "float64"},
    )  # fmt: skip
    slopes = traced_slopes(adjoint_of(problem, ()).problem)
    u, ones = jnp.array([0.0, 4.0, -1.0, 0.0]), jnp.ones(4)
    found = slopes({"u": u, ADJOINT + "u": ones, TRANSPOSED + "u": 0 * ones}, {}, 0.0)[TRANSPOSED + "u"]
    assert np.array_equal(found, [3.0, 0.25, 3.0, 3.0])


def test_equal_products_are_added_up_to_one_term():
    a, b = Field("a"), Field("b")
    found = Sum()
    assert found.tree == Constant(0.0)
    for tree in (a * b, Constant(3.0) * a, Constant(0.0), b * (Constant(0.5) * a), a * Constant(-3.0)):
        found.add(tree)
    assert found.tree == Constant(1.5) * (b * a)
