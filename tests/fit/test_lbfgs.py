"""L-BFGS with bounds on functions whose minimum is known."""

import math

import numpy as np
import pytest

from hpcstencil.fit.lbfgs import Box, Point, first_state, next_state
from hpcstencil.fit.space import Vectors
from hpcstencil.runtime.communicator import OneProcess
from hpcstencil.validation.errors import NumericsError


class Problem:
    """A function of blocks, with the space and the box of its unknowns, and the number of its evaluations."""

    def __init__(self, function, start, lower=-math.inf, upper=math.inf, scale=1.0, frozen=False):
        self.function, self.evaluations = function, 0
        self.start = {"x": np.asarray(start)}
        each = np.shape(start)
        self.box = Box(
            {"x": np.broadcast_to(lower, each)},
            {"x": np.broadcast_to(upper, each)},
            {"x": scale},
            {"x": np.broadcast_to(frozen, each)},
        )
        precision = np.finfo(self.start["x"].dtype).eps
        self.space = Vectors(OneProcess(), self.start["x"].size, precision, {})

    def __call__(self, x):
        self.evaluations += 1
        value, gradient = self.function(x["x"])
        if not math.isfinite(value):
            return None
        free = np.where(self.box.frozen["x"], 0, gradient * self.box.scale["x"])
        return Point(x, float(value), {"x": free.astype(x["x"].dtype)})

    def found(self, steps=200, tolerance=1e-10, history=10):
        """The last state."""
        state = first_state(self.space, self.box, self(self.start))
        for _ in range(steps):
            if state.rows[-1].norm <= tolerance * state.rows[0].norm:
                break
            after = next_state(self.space, self.box, self, state, history)
            if after is None:
                break
            state = after
        return state


def rosenbrock(x):
    a, b = x[:-1], x[1:]
    gradient = np.zeros_like(x)
    gradient[:-1] = -400 * a * (b - a**2) - 2 * (1 - a)
    gradient[1:] += 200 * (b - a**2)
    return (100 * (b - a**2) ** 2 + (1 - a) ** 2).sum(), gradient


def test_a_curved_valley():
    problem = Problem(rosenbrock, np.full(20, -1.0))
    x = problem.found().point.unknowns["x"]
    assert np.abs(x - 1).max() < 1e-7
    assert problem.evaluations < 200  # L-BFGS-B of SciPy takes 110


def quadratic(seed, n=30):
    """(function, matrix, shift) with eigenvalues from 1 to 1000."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.standard_normal((n, n)))
    matrix = basis @ np.diag(np.logspace(0, 3, n)) @ basis.T
    shift = rng.standard_normal(n)
    return lambda x: (0.5 * (x - shift) @ matrix @ (x - shift), matrix @ (x - shift)), matrix, shift


@pytest.mark.parametrize("seed", range(4))
def test_bounds_hold_and_the_gradient_pushes_against_them(seed):
    """The conditions of Karush, Kuhn and Tucker, which are sufficient for a convex function."""
    function, _, _ = quadratic(seed)
    problem = Problem(function, np.zeros(30), lower=-0.3, upper=0.4)
    x = problem.found(400).point.unknowns["x"]
    g = function(x)[1]
    at_lower, at_upper = x == -0.3, x == 0.4
    assert ((x >= -0.3) & (x <= 0.4)).all() and at_lower.any() and at_upper.any()
    largest = np.abs(function(np.zeros(30))[1]).max()
    assert (g[at_lower] > 0).all() and (g[at_upper] < 0).all()
    assert np.abs(g[~at_lower & ~at_upper]).max() < 1e-8 * largest
    assert problem.evaluations < 250


def test_frozen_components_keep_their_values():
    function, matrix, shift = quadratic(7)
    frozen = np.arange(30) < 5
    x = Problem(function, np.full(30, 0.25), frozen=frozen).found(400).point.unknowns["x"]
    assert (x[:5] == 0.25).all()
    rest = np.linalg.solve(matrix[5:, 5:], -matrix[5:, :5] @ (0.25 - shift[:5]))
    assert np.abs(x[5:] - shift[5:] - rest).max() < 1e-6  # the square root of the rounding of f


def test_the_scale_is_a_change_of_units():
    """f(1000 z) with scale 1000 takes the steps of f(z)."""
    function, _, _ = quadratic(3)
    first = Problem(function, np.full(30, 0.5)).found(30)

    def far(x):
        value, gradient = function(x / 1024)
        return value, gradient / 1024

    other = Problem(far, np.full(30, 512.0), scale=1024.0).found(30)
    assert [row.objective for row in other.rows] == [row.objective for row in first.rows]
    assert np.array_equal(other.point.unknowns["x"], 1024 * first.point.unknowns["x"])


def test_a_value_that_is_not_finite_shortens_the_step():
    def walled(x):
        if (np.abs(x) > 1.05).any():
            return math.nan, x
        return ((x - 1) ** 2 * np.array([1, 30])).sum(), 2 * (x - 1) * np.array([1, 30])

    problem = Problem(walled, np.array([-1.0, 0.9]))
    assert np.abs(problem.found().point.unknowns["x"] - 1).max() < 1e-8


def test_single_precision_ends_at_its_rounding():
    function, _, shift = quadratic(5)

    def single(x):
        value, gradient = function(x.astype(np.float64))
        return np.float32(100 + value), gradient

    problem = Problem(single, np.zeros(30, np.float32))
    state = problem.found(300, tolerance=1e-9)
    assert len(state.rows) < 150 and problem.evaluations < 200  # it ends by itself
    assert state.point.unknowns["x"].dtype == np.float32
    assert np.abs(state.point.unknowns["x"] - shift).max() < 0.01


def test_products_have_the_same_bits_in_any_order():
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(5000) * 10.0 ** rng.integers(-9, 9, 5000) for _ in range(2))
    space, order = Vectors(OneProcess(), 5000, 1e-16, {}), rng.permutation(5000)
    exact = math.fsum(a * b)
    assert space.dot({"x": a}, {"x": b}) == space.dot({"x": a[order]}, {"x": b[order]})
    assert space.dot({"x": a}, {"x": b}) == pytest.approx(exact, rel=1e-13)
    tiny = {"x": np.full(5000, 1e-30, np.float32)}  # whose square is 0 in float32
    assert space.dot(tiny, tiny) == pytest.approx(5000 * float(np.float32(1e-30)) ** 2, rel=1e-12)


@pytest.mark.parametrize("vector", [{"x": np.full(7, 1e200)}, {"x": 1e200}, {"x": np.ones(7), "y": 1e200}])
def test_products_beyond_float64_are_refused(vector):
    space = Vectors(OneProcess(), 7, 1e-16, {})
    with pytest.raises(NumericsError, match="^fit: expected scalar products"):
        space.dot(vector, vector)
