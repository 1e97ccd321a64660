"""The expression language: what it means, and what it refuses, naming the place."""

import numpy as np
import pytest

from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.expressions import Constant, Coordinate, Derivative, Field, Parameter, Pointwise
from hpcstencil.symbolic.parser import Scope, parse
from hpcstencil.validation.errors import InputError

SCOPE = Scope(2, {"u": Field("u"), "v": Field("v"), "D": Parameter("D")}, operators=True)
PLAIN = Scope(2, {"D": Parameter("D")}, time=False, noise=True)


def test_the_tree_of_an_expression():
    u, d = Field("u"), Parameter("D")
    laplacian = Derivative(u, (2, 0)) + Derivative(u, (0, 2))
    assert parse("D*laplacian(u) - u*v", SCOPE, "k") == d * laplacian - u * Field("v")
    assert parse("-2", SCOPE, "k") == Constant(-2.0)
    assert parse("x < 1", SCOPE, "k") == Pointwise("less", (Coordinate(0), Constant(1.0)))
    assert parse("dxy(u)", SCOPE, "k") == Derivative(u, (1, 1))


VALUES = {
    "1 + 2*3**2": 19.0, "-2**2": -4.0, "2**-1": 0.5, "7/2": 3.5, "abs(-3)": 3.0, "where(1 > 2, 5, 6)": 6.0,
    "minimum(3, maximum(1, 2))": 2.0, "sign(-4)": -1.0, "(1 < 2)*(2 <= 2)": 1.0, "pi": np.pi, "exp(log(5))": 5.0,
    "sqrt(16)": 4.0, "tanh(0) + cos(0) + sin(0) + tan(0)": 1.0, "(1 != 1) + (1 == 1) + (1 >= 1)": 2.0, "+3": 3.0,
}  # fmt: skip


@pytest.mark.parametrize("text", VALUES)
def test_values(text):
    assert numpy_evaluate.evaluate(parse(text, PLAIN, "k")) == pytest.approx(VALUES[text])


REFUSED = {
    "D*laplacin(u)": ("did you mean 'laplacian'", 2),
    "poisson(u)": ("unknown function 'poisson', at character 1 of 'poisson(u)'; expressions solve no equations", 0),
    "inverse_laplacian(u)": ("expressions solve no equations: a field p whose", 0),
    "laplace(u)": ("write laplacian(a)", 0),
    "curl(u)": ("write its components with dx, dy and dz, such as dx(v) - dy(u)", 0),
    "Grad(u)": ("write its components dx(a), dy(a), dz(a), or gradient_squared(a)", 0),
    "max(u, 1)": ("write maximum(a, b)", 0),
    "bessel(u)": ("known here: above_x", 0),
    "arctan(u)": ("no inverses of sin, cos and tan", 0),
    "uu + 1": ("unknown name 'uu'", 0),
    "u + ": ("cannot be read", None),
    "": ("cannot be read", None),
    "u.real": ("not part of the expression language", 0),
    "u[0]": ("not part of the expression language", 0),
    "lambda: 1": ("not part of the expression language", 0),
    "[u for u in v]": ("not part of the expression language", 0),
    "'text'": ("not part of the expression language", 0),
    "__import__('os')": ("unknown function '__import__'", 0),
    "u and v": ("'and'", 0),
    "not u": ("'and', 'or' and 'not'", 0),
    "u % 2": ("only the operators", 2),
    "0 < u < 1": ("cannot be chained", 0),
    "laplacian(u, v)": ("takes 1 argument(s) here, not 2", 0),
    "laplacian": ("is a function", 0),
    "u(3)": ("is not a function", 0),
    "sin(u, base=2)": ("only plain calls", 0),
    "1 + dz(u)": ("unknown function 'dz'", 4),
    "noise(1)": ("noise() is for [initial]", 0),
    "2*mean(u)": ("mean() is for [diagnostics]", 2),
    "d2_dx2(u)": ("write dxx(a)", 0),
    "u_xx": ("write dxx(u)", 0),
    "u*e": ("write exp(1)", 2),
    "dot(u, u)": ("write the sum of the products", 0),
    "1j": ("not part of the expression language", 0),
    "10**400 + 1e400*" + "9" * 400: ("too large", None),
    "(" * 300 + "u" + ")" * 300: ("cannot be read", None),
    "-" * 250 + "u": ("nested more than", None),
    "u+" * 6000 + "u": ("characters", None),
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:40])
def test_refused_in_one_line_with_the_place(text):
    words, column = REFUSED[text]
    with pytest.raises(InputError) as caught:
        parse(text, SCOPE, "equation.rhs.u")
    sentence = str(caught.value)
    assert sentence.startswith("equation.rhs.u: ") and words in sentence
    assert "\n" not in sentence and len(sentence) < 400
    if column is not None:
        assert f"at character {column + 1} of {text!r}" in sentence


def test_noise_wants_whole_numbers():
    with pytest.raises(InputError, match="whole numbers"):
        parse("noise(0.5)", PLAIN, "initial.u")
    with pytest.raises(InputError, match="whole numbers"):
        parse("noise(x)", PLAIN, "initial.u")
