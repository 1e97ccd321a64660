"""Random right-hand sides, of every operator and function: their adjoint is that of jax.vjp to 1e-12, or it is refused."""

import numpy as np
import pytest
from gradients import differences_from_jax
from random_problems import Author
from support import problem_of

from hpcstencil.adjoint.derivation import adjoint_of
from hpcstencil.validation.errors import InputError

BOUND = 1e-12
WORDS = (
    "not available yet",
    "are available for order 2",
    "no expression uses it",
    'unknown name "equation.p"',
)  # of refusals
SEEDS = [12, 13, 17, 21]  # in CI; their adjoints are derived, not refused
MORE = [seed for seed in range(120) if seed not in SEEDS]


def problem_for(seed):
    """(problem, its adjoint) of a random input in at most two dimensions; None where it is refused."""
    author = Author(seed)
    tables = author.tables()
    if author.ndim > 2:
        return None
    fields = [f"initial.{name}" for name in tables["equation"]["rhs"]]
    tables |= {"time": {"end": 1e-3, "dt": 1e-3}, "objective": {"J": "integral(u)"}, "diagnostics": {}}
    for of in ([*fields, "equation.p"], fields):  # p may be in a boundary condition
        try:
            problem = problem_of(**tables, gradient={"of": of})
            return problem, adjoint_of(problem, ())
        except InputError as error:
            assert any(words in str(error) for words in WORDS), error
    return None


@pytest.mark.parametrize("seed", [*SEEDS, *(pytest.param(seed, marks=pytest.mark.long) for seed in MORE)])
def test_the_adjoint_is_that_of_jax(seed):
    found = problem_for(seed)
    if found is None:
        assert seed not in SEEDS
        return
    problem, adjoint = found
    rng, shape = np.random.default_rng(seed), problem.config.grid.shape
    state = {name: 0.3 + rng.random(shape) for name in problem.fields}
    wrong = {name: value for name, value in differences_from_jax(adjoint, state, seed).items() if not value <= BOUND}
    assert not wrong
