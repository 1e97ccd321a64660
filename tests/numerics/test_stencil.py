"""Finite-difference weights: exact where they must be, of the order that they claim."""

from fractions import Fraction

import numpy as np
import pytest

from hpcstencil.numerics.finite_differences import Stencil, biased, central, product, staggered, weights

ORDERS = (2, 4, 6, 8)


def apply(stencil: Stencil, function, at: float, dx: float) -> float:
    return sum(w * function(at + o[0] * dx) for o, w in zip(stencil.offsets, stencil.weights, strict=True))


def test_textbook_weights():
    points = tuple(Fraction(i) for i in (-2, -1, 0, 1, 2))
    assert weights(2, points) == tuple(Fraction(*w) for w in ((-1, 12), (4, 3), (-5, 2), (4, 3), (-1, 12)))
    assert weights(1, points) == tuple(Fraction(*w) for w in ((1, 12), (-2, 3), (0, 1), (2, 3), (-1, 12)))
    assert weights(4, points) == (1, -4, 6, -4, 1)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("derivative", (1, 2, 3, 4))
def test_central_weights_are_exact_for_polynomials(order, derivative):
    stencil = central(derivative, order, 0, (1.0,))
    offsets = [Fraction(o[0]) for o in stencil.offsets]
    exact = weights(derivative, tuple(offsets)) if 0 in offsets else None
    for degree in range(derivative + order):
        value = sum(
            Fraction(w).limit_denominator(10**9) * o**degree for o, w in zip(offsets, stencil.weights, strict=True)
        )
        factorial = 1
        for i in range(degree - derivative + 1, degree + 1):
            factorial *= i
        assert float(value) == pytest.approx(factorial if degree == derivative else 0, abs=1e-6)
    assert exact is None or tuple(float(w) for w in exact) == stencil.weights


STENCILS = {
    "first": (lambda p, dx: central(1, p, 0, (dx,)), np.cos, 0.0, 0),
    "second": (lambda p, dx: central(2, p, 0, (dx,)), lambda x: -np.sin(x), 0.0, 0),
    "lower": (lambda p, dx: biased(p, -1, 0, (dx,)), np.cos, 0.0, -1),
    "upper": (lambda p, dx: biased(p, +1, 0, (dx,)), np.cos, 0.0, -1),
    "face derivative": (lambda p, dx: staggered(1, p, +1, 0, (dx,)), np.cos, 0.5, 0),
    "face mean": (lambda p, dx: staggered(0, p, -1, 0, (dx,)), np.sin, -0.5, 0),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", STENCILS)
def test_observed_order(name, order):
    make, exact, shift, lost = STENCILS[name]
    errors = []
    for dx in (0.2, 0.1):
        errors.append(
            max(abs(apply(make(order, dx), np.sin, x, dx) - exact(x + shift * dx)) for x in np.linspace(0, 6, 50))
        )
    assert np.log2(errors[0] / errors[1]) == pytest.approx(order + lost, abs=0.2)


def test_product_is_the_mixed_derivative():
    mixed = product(central(1, 4, 0, (0.1, 0.2)), central(1, 4, 1, (0.1, 0.2)))
    value = sum(w * (0.1 * i) ** 3 * (0.2 * j) ** 2 for (i, j), w in zip(mixed.offsets, mixed.weights, strict=True))
    assert value == pytest.approx(0.0, abs=1e-12)
    at_one = sum(
        w * (1 + 0.1 * i) ** 3 * (1 + 0.2 * j) ** 2 for (i, j), w in zip(mixed.offsets, mixed.weights, strict=True)
    )
    assert at_one == pytest.approx(6.0)
    assert mixed.lower == mixed.upper == (2, 2)
