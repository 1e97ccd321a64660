"""The adjoint equals the transposed matrix in the cases of `boundary_transposes`: values on faces beside boundaries, wide
stencils with Robin conditions, open ends, arrays in boundary values."""

import numpy as np
import pytest
from support import problem_of
from test_transposes import BOUND, MIXED, ROBIN, SHIFTED, differences, tables

from hpcstencil.adjoint.derivation import adjoint_of
from hpcstencil.validation.errors import InputError

CHANNEL = {"x": "periodic", "y": {"dirichlet": "0.3 + x"}}
FACES = {
    "a": "difference_x(mean_x(u*k)*below_x(u))",
    "b": "difference_y(above_y(u)**2*mean_y(difference_y(mean_y(k))))",
    "c": "mean_y(difference_x(mean_x(mean_y(u)*difference_y(k))))",
    "d": "difference_x(where(mean_x(u) > 0.8, below_x(u**2 + mean_x(below_x(u*k))), above_x(k)/above_x(x + u)))",
}
WITH_NUMBERS = {
    "x": {"lower": {"dirichlet": "0.3*cos(t) + D*y"}, "upper": {"neumann": "D**2*sin(t) + E*y"}},
    "y": {"lower": {"robin": {"a": 1.0, "b": 0.2, "value": "D*x"}}, "upper": {"dirichlet": "0.1*E + D*E*t"}},
    "k": {"x": {"neumann": "0.3*exp(D)"}},
    "operators": {"u*u": {"dirichlet": "t*sin(D)"}},
}
NUMBERS = {
    "a": "laplacian(u) + dxy(u)",
    "b": "div_grad(k, u*u) + dx(u + E*x*y)",
    "f": "near(u) + 0.5*dy(near(u)) + D*u*E**2",
}
BY_PLACE = {
    "x": {
        "lower": {"robin": {"a": "1 + y", "b": "exp(y)", "value": "D"}},
        "upper": {"robin": {"a": "E", "b": "D*y", "value": 1.0}},
    },
    "y": {"lower": {"robin": {"a": "2 + x", "b": 0.3, "value": "x"}}, "upper": {"dirichlet": "D*x"}},
}
NEAR = {"a": "laplacian(u) + x*dx(u)", "b": "upwind(u, k - 0.5, -0.3*u) + dyy(u*k)"}
ROWS = [  # (right-hand sides, shape, boundary, order)
    ("numbers", NUMBERS, (3, 4), WITH_NUMBERS, 2),
    ("numbers-periodic", {"b": NUMBERS["b"], "f": NUMBERS["f"]}, (3, 4), {**WITH_NUMBERS, "x": "periodic", "k": {}}, 2),
    ("numbers-faces", SHIFTED, (3, 2), {**WITH_NUMBERS, "operators": {}}, 2),
    ("numbers-4", {"a": "laplacian(u)", "f": NUMBERS["f"]}, (4, 5), {"x": WITH_NUMBERS["x"]}, 4),
    ("faces", {**SHIFTED, **FACES}, (4, 5), MIXED, 2),
    ("faces-thin", SHIFTED, (2, 2), MIXED, 2),
    ("faces-robin", {**SHIFTED, **FACES}, (5, 4), ROBIN, 2),
    ("faces-channel", {**SHIFTED, **FACES}, (3, 4), CHANNEL, 2),
    ("faces-4", {**SHIFTED, "a": FACES["a"]}, (12, 9), {**MIXED, "y": ROBIN["x"]}, 4),
    ("mixed", {"a": "dxy(u) + difference_x(dxy(mean_x(u)))"}, (4, 3), BY_PLACE, 2),
    ("mixed-unknown", {"a": "dxy(u)"}, (4, 3), {"x": BY_PLACE["x"], "y": "periodic"}, 2),
    ("mixed-4", {"a": "dxy(u) + dxy(u*u)"}, (6, 7), BY_PLACE, 4),
    ("robin-4", NEAR, (4, 5), {"x": ROBIN["x"], "y": ROBIN["y"]}, 4),
    (
        "robin-8",
        {"a": NEAR["a"]},
        (8, 9),
        {"x": {"robin": {"a": "1 + y", "b": "exp(y)", "value": "D"}}, "y": ROBIN["y"]},
        8,
    ),
]
SELECTED = ("numbers", "faces-thin", "mixed", "robin-4")  # in CI


@pytest.mark.parametrize("rhs, shape, boundary, order", [
    pytest.param(*row[1:], id=row[0], marks=() if row[0] in SELECTED else pytest.mark.long) for row in ROWS
])  # fmt: skip
def test_the_adjoint_is_the_transpose(rhs, shape, boundary, order):
    found = differences(problem_of(**tables(rhs, shape, boundary, order)))
    assert not {pair: value for pair, value in found.items() if not value <= BOUND}


CLOSED = {
    "x": {"neumann": 0.0}, "y": {"neumann": 0.1}, "u": {"x": {"dirichlet": 0.0}}, "v": {"y": {"dirichlet": "0.1*t"}},
}  # fmt: skip
CONDUCTOR = {"x": {"dirichlet": "t"}, "y": {"dirichlet": 0.0}}
GAS = {
    "x": {"neumann": 0.0},
    "y": {"lower": {"neumann": 0.0}, "upper": {"dirichlet": 1.5}},
    "mx": {"x": {"dirichlet": 0.0}},
    "E": {"y": {"lower": {"neumann": 0.0}, "upper": {"dirichlet": 7.0}}},
}
LEAST = {"euler": {"E": 6.5}}  # so that the pressure is positive, also in ghost cells
EQUATIONS = {  # (equation, shape, boundary, order)
    "shallow_water": ({"name": "shallow_water", "f": 0.3, "nu": 0.2}, (5, 4), CLOSED, 2),
    "shallow_water-channel": (
        {"name": "shallow_water", "f": 0.3, "nu": 0.2},
        (4, 4),
        {"x": "periodic", "y": {"neumann": 0.2}, "v": {"y": {"dirichlet": "0.1*t"}}},
        2,
    ),
    "maxwell": ({"name": "maxwell", "c": 1.2}, (4, 3), CONDUCTOR, 2),
    "maxwell-4": ({"name": "maxwell", "c": 1.2}, (12, 9), {**CONDUCTOR, "y": "periodic"}, 4),
    "maxwell-cpml": (
        {"name": "maxwell", "c": 1.2},
        (6, 7),
        {"x": {"cpml": {"width": 0.2, "speed": 1.0}}, "y": "periodic"},
        2,
    ),
    "euler": ({"name": "euler"}, (7, 7), GAS, 2),
}


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name in ("shallow_water", "maxwell") else pytest.mark.long) for name in EQUATIONS
])  # fmt: skip
def test_the_adjoint_of_equations_on_faces(name):
    equation, shape, boundary, order = EQUATIONS[name]
    numbers = {"shallow_water": ("g", "nu"), "maxwell": ("c",), "euler": ("gamma",)}[equation["name"]]
    given = tables({}, shape, boundary, order)
    given |= {"equation": equation, "objective": {"J": "integral(x)"}}
    given["gradient"] = {"of": [f"equation.{number}" for number in numbers]}
    found = differences(problem_of(**given), numbers, least=LEAST.get(name))
    assert not {pair: value for pair, value in found.items() if not value <= BOUND}


def written(folder, shape):
    """The name of a file with an array."""
    np.save(folder / "array.npy", np.full(shape, 1.3))
    return str(folder / "array.npy")


GIVEN = {"x": {"lower": {"dirichlet": "k*sin(D*y)"}, "upper": {"robin": {"a": 1.0, "b": "2 + y", "value": "D*k**2"}}},
         "y": {"lower": {"neumann": "k + u_wall"}, "upper": {"dirichlet": "E*x"}}}  # fmt: skip


@pytest.mark.parametrize("order", [2, pytest.param(6, marks=pytest.mark.long)])
def test_arrays_in_boundary_values(order, tmp_path):
    """Boundary values use the array in the cells beside them. Numbers beside it count too."""
    given = tables({"a": "laplacian(u) + u*dx(u)", "b": "upwind(u*u, k, 0.1) + D*E*k"}, (6, 7), GIVEN, order)
    given["equation"] = {**given["equation"], "k": written(tmp_path, (6, 7)), "u_wall": 0.3}
    given["equation"]["rhs"].pop("k")
    of = [f"equation.{name}" for name in ("k", "D", "E", "u_wall")]
    found = differences(problem_of(**{**given, "gradient": {"of": of}}), ("D", "E", "u_wall"), ("k",))
    assert not {pair: value for pair, value in found.items() if not value <= BOUND}


TRANSFER = {
    "x": {
        "lower": {"robin": {"a": "k*D", "b": "0.4 + k", "value": "D*E*k + y"}},
        "upper": {"robin": {"a": "E", "b": "E*D + y", "value": "E"}},
    },
    "y": {"lower": {"neumann": 0.2}, "upper": {"robin": {"a": "k", "b": 1.0, "value": "D"}}},
}


@pytest.mark.parametrize("rhs, order", [
    ("laplacian(u) + div_grad(k, u)", 2),
    pytest.param("x*dx(u) + upwind(u, k - 0.5, -0.3*u) + dyy(u*k) + div_grad(1 + x*u, k)", 2, marks=pytest.mark.long),
    pytest.param("laplacian(u) + x*dx(u) + upwind(u, k - 0.5, -0.3*u) + dyy(u*k)", 6, marks=pytest.mark.long),
])  # fmt: skip
def test_parameters_in_the_coefficients_of_robin_conditions(rhs, order, tmp_path):
    shape = (order + 1, order)
    given = tables({"a": rhs}, shape, TRANSFER, order)
    given["equation"] = {**given["equation"], "k": written(tmp_path, shape)}
    given["equation"]["rhs"].pop("k")
    of = [f"equation.{name}" for name in ("k", "D", "E")]
    found = differences(problem_of(**{**given, "gradient": {"of": of}}), ("D", "E"), ("k",))
    assert not {pair: value for pair, value in found.items() if not value <= BOUND}


def test_numbers_beside_given_arrays_count_once(tmp_path):
    """Also in the conditions of an operand that does not change."""
    inner = {"x": {"neumann": "E"}, "y": {"robin": {"a": "D", "b": 1.0, "value": 0.3}}}
    boundary = {"x": {"robin": {"a": "k", "b": 1.0, "value": "D"}}, "operators": {"k*x": inner}}
    given = tables({"a": "dxx(u) + dyy(k*x)"}, (3, 2), {**boundary, "y": {"neumann": 0.0}}, 2)
    given["equation"] = {**given["equation"], "k": written(tmp_path, (3, 2))}
    given["equation"]["rhs"].pop("k")
    found = differences(problem_of(**given))
    assert not {pair: value for pair, value in found.items() if not value <= BOUND}


@pytest.mark.parametrize("order", [2, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize("speed", ["number", "array"])
def test_open_ends(order, speed, tmp_path):
    given = tables({}, (6, 5), {"x": "open", "y": {"lower": "open", "upper": {"dirichlet": 0.0}}}, order)
    given |= {"equation": {"name": "wave", "c": 1.3 if speed == "number" else written(tmp_path, (6, 5))}}
    problem = problem_of(
        **{**given, "objective": {"J": "integral(u)"}, "gradient": {"of": ["initial.u", "equation.c"]}}
    )
    found = differences(problem, *((("c",), ()) if speed == "number" else ((), ("c",))))
    assert not {pair: value for pair, value in found.items() if not value <= BOUND}


@pytest.mark.parametrize("rhs, boundary, order, words", [
    ("k + dxy(u)", {"x": {"dirichlet": 0.0}, "y": {"robin": {"a": "k", "b": 1.0, "value": 0.0}}}, 2, "read the corners"),
    ("k + dxy(u)", {"x": {"dirichlet": 0.0}, "y": {"dirichlet": "k"}}, 2, "read the corners of the domain beside"),
    ("k + div_grad(1 + u, u)", {"x": {"dirichlet": "k"}}, 4, "not available yet for div_grad beside"),
    ("near(u) + D*E*k", {"x": {"dirichlet": "k"}}, 2, "not available yet for stencils along several axes"),
])  # fmt: skip
def test_arrays_that_are_refused(rhs, boundary, order, words, tmp_path):
    given = tables({"f" if "near" in rhs else "a": rhs}, (6, 7), boundary, order)
    given["equation"] = {**given["equation"], "k": written(tmp_path, (6, 7))}
    given["equation"]["rhs"].pop("k")
    problem = problem_of(**{**given, "gradient": {"of": ["equation.k"]}})
    with pytest.raises(InputError, match=words):
        adjoint_of(problem, ())
