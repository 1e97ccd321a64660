"""The damping of a field that is found in its time derivative, and the groups of leapfrog that follow from it."""

import numpy as np
import pytest
from support import problem_of

from hpcstencil.numerics.integrators import INTEGRATORS
from hpcstencil.problem.linear_damping import damping_rate
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.expressions import Field, Parameter, Time
from hpcstencil.symbolic.operators import Space
from hpcstencil.symbolic.parser import Scope, parse
from hpcstencil.validation.errors import InputError

FIELDS = ("u", "v")
X, T, G, C = 0.7, 2.0, 3.0, 5.0  # of the coordinate, the time, a parameter and a parameter with one value per cell


def rate(text):
    names = {**{name: Field(name) for name in FIELDS}, "g": Parameter("g"), "c": Field("parameter.c")}
    tree = parse(text, Scope(1, names, operators=True, space=Space(1)), "equation.rhs.u")
    return damping_rate(tree, "u", FIELDS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("v", 0.0),
        ("-u", 1.0),
        ("v - g*u", G),
        ("dx(v) - x*u*g/2 - (u + v)*2", X * G / 2 + 2),
        ("-(3*(u - v)/g)", 3 / G),
        ("v - c*u", C),
        ("where(x < 1, v - 2*u, 4*v)", 2.0),
        ("where(x > 1, v - 2*u, 4*v)", 0.0),
        ("where(x > 1, -u, -u) + sin(v)", 1.0),
        ("2*u - exp(-t)*u", np.exp(-T) - 2),
    ],
)
def test_rates(text, expected):
    values = {Parameter("g"): G, Field("parameter.c"): C, Time(): T}
    found = rate(text)
    assert found is not None
    assert float(numpy_evaluate.evaluate(found, [np.float64(X)], values)) == pytest.approx(expected)


@pytest.mark.parametrize(
    "text", ["u*u", "v*u", "-u*(1 + v)", "laplacian(u)", "dx(g*u)", "sin(u)", "1/u", "v - abs(u)", "where(u > 0, v, 2*v)",
             "where(v > 0, -u, -2*u)", "u**2", "(u > 0)*v"],
)  # fmt: skip
def test_what_is_no_linear_damping(text):
    assert rate(text) is None


def groups(rhs, **tables):
    return problem_of(
        grid={"shape": [24]}, equation={"name": "custom", "rhs": rhs}, numerics={"integrator": "leapfrog"}, **tables
    ).groups


def test_fields_beside_a_group_are_in_the_order_in_which_they_depend_on_each_other():
    assert groups({"u": "v - u", "v": "dxx(u)"}) == {"u": 0, "v": 1}
    assert groups({"u": "v", "v": "dxx(u) + a + b", "a": "dx(u) - a", "b": "a - b"}) == {"u": 0, "v": 1, "a": 3, "b": 5}
    assert groups({"u": "dx(v) + a", "v": "dx(u) + b", "a": "dx(v) - a", "b": "dx(u)"}) == {
        "u": 0,
        "v": 1,
        "a": 2,
        "b": 3,
    }
    assert groups({"u": "v", "v": "dxx(u)", "w": "u + v"}) == {"u": 2, "v": 1, "w": 0}


@pytest.mark.parametrize(
    "rhs",
    [
        {"u": "v + dx(u)", "v": "u"},
        {"u": "v - u**2", "v": "u"},
        {"u": "v + w", "v": "u + w", "w": "u + v"},
        {"u": "v", "v": "u", "a": "u + b", "b": "u + c", "c": "u + a"},
    ],
)
def test_other_fields_that_depend_on_their_own_group_are_refused(rhs):
    with pytest.raises(InputError, match='^numerics.integrator: "leapfrog" needs two groups .* besides linear damping'):
        groups(rhs)


def test_a_problem_without_damping_has_the_stages_and_trees_of_the_method():
    made = problem_of(grid={"shape": [9]}, equation={"name": "wave"}, numerics={"integrator": "leapfrog"})
    assert made.method == INTEGRATORS["leapfrog"] and len(made.method.stages) == 3
    assert made.slopes is made.trees
