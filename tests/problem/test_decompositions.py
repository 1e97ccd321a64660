"""The table of the invariance tests has every kind of boundary condition at each side, and so has what CI runs of it."""

import itertools

import pytest
from decompositions import PROBLEMS, SELECTED, tables
from support import problem_of

from hpcstencil.config.boundary_conditions import KINDS, PLAIN

IN_CI = {name for rows in SELECTED.values() for name, *_ in rows}


@pytest.mark.parametrize("names", (PROBLEMS, IN_CI), ids=("all", "in CI"))
def test_every_kind_of_condition_is_at_each_side(names):
    found = set()
    for name in names:
        boundary = problem_of(**tables(name, 2, "float64", "euler")).config.boundary
        sides = [*boundary.axes, *(pair for own in boundary.fields.values() for pair in own if pair is not None)]
        found |= {(condition.kind, side) for pair in sides for side, condition in enumerate(pair)}
    assert found == set(itertools.product((*PLAIN, *KINDS), (0, 1)))
