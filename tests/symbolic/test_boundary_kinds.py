"""A kind of boundary condition is one entry: a new one works in the input, in every kernel and in `verify`."""

import numpy as np
import pytest
from support import problem_of, simulation_of, stepped

from hpcstencil.config import boundary_conditions
from hpcstencil.symbolic import boundary_kinds
from hpcstencil.symbolic.boundary_kinds import KINDS, Face, Kind
from hpcstencil.symbolic.expressions import Constant
from hpcstencil.validation.errors import InputError
from hpcstencil.verify.manufactured import default_solution, manufactured


def tables(wall, kernel="shift"):
    return {
        "grid": {"shape": [24, 19]},
        "equation": {"name": "heat", "D": 1e-3},
        "initial": {"u": "sin(3*x) + cos(2*y)"},
        "boundary": {"x": wall, "y": {"neumann": 0.0}},
        "numerics": {"kernel": kernel, "precision": "float64"},
    }


def fields(kernel, wall):
    problem = problem_of(**tables(wall, kernel))
    return stepped(problem, simulation_of(problem, kernel=kernel), 3, 1e-3)["u"]


@pytest.fixture
def exchanging(monkeypatch):
    """∂u/∂n = c (g - u), u taken half-way between the two cells: the robin condition with a = c, b = 1, value = c g."""

    def ghost(number, mirror, height, rate, value):
        half = height * number(0.5) * rate
        return (height * rate * value + (number(1.0) - half) * mirror) / (number(1.0) + half)

    kind = Kind(
        ghost,
        lambda values, u, slope: (values[0], u + slope / values[0]),
        values=("rate", "value"),
        example="{ rate = 1.0, value = 0.0 }",
    )
    monkeypatch.setitem(KINDS, "exchange", kind)
    # The table of the input follows from KINDS at import, as the last test of this file asserts.
    form = boundary_conditions.Form(kind.values, kind.example)
    monkeypatch.setitem(boundary_conditions.KINDS, "exchange", form)


@pytest.mark.parametrize("kernel", ["shift", "native", "pallas"])
def test_a_new_kind_works_in_every_kernel(exchanging, kernel):
    robin = fields(kernel, {"robin": {"a": 2.0, "b": 1.0, "value": "2*(1 + y)"}})
    assert np.allclose(fields(kernel, {"exchange": {"rate": 2.0, "value": "1 + y"}}), robin, rtol=1e-12, atol=0)
    assert not np.allclose(fields(kernel, {"neumann": 0.0}), robin, rtol=1e-4)


def test_verify_asks_the_entry_for_the_values_of_a_solution(exchanging):
    problem = problem_of(**tables({"exchange": {"rate": 2.0, "value": "1 + y"}}))
    faces = manufactured(problem, default_solution(problem, 1.0)).problem.faces
    kinds = {face.kind for (_, axis, _), face in faces.items() if axis == 0}
    assert kinds == {"exchange"} and all(
        face.values[0] == Constant(2.0) for face in faces.values() if len(face.values) > 1
    )


@pytest.mark.parametrize("kernel", ["shift", "native", "pallas"])
def test_a_kind_that_nobody_knows_is_an_error(kernel):
    problem = problem_of(**tables({"neumann": 0.0}, kernel))
    object.__setattr__(problem, "faces", {part: Face("radiation", (Constant(0.0),)) for part in problem.faces})
    with pytest.raises(KeyError, match="radiation"):
        stepped(problem, simulation_of(problem, kernel=kernel), 1, 1e-3)


def test_the_input_knows_the_kinds_that_have_values():
    ghost_kinds = set(KINDS) - {boundary_kinds.WALL, boundary_kinds.OUTSIDE}
    assert set(boundary_conditions.GHOST_KINDS) == ghost_kinds
    forms = {name: boundary_conditions.Form(KINDS[name].values, KINDS[name].example) for name in ghost_kinds}
    assert boundary_conditions.KINDS.items() >= forms.items()
    with pytest.raises(InputError, match="boundary.x.lower.robin: expected a or b other than 0"):
        problem_of(**tables({"robin": {"a": 0.0, "b": 0.0, "value": 1.0}}))
