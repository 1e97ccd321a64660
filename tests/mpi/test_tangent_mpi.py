"""Derivatives along a direction have the same bits for every decomposition."""

import numpy as np
import pytest
from support import on, problem_of, simulation_of
from test_fit_mpi import GIVEN

from hpcstencil.numerics.schedule import Clock
from hpcstencil.python.tangent import TangentLinear
from hpcstencil.runtime.communicator import OneProcess, connect, from_rank_0
from hpcstencil.simulation.state import State

pytestmark = [pytest.mark.mpi]

RECEIVERS = {  # on both sides of the ranks' common faces; the cells at the end of x are all extreme
    "probes": {"p": {"field": "u", "x": [0.35, 0.9, 1.2], "y": [0.3, 0.74, 1.1], "every_steps": 2}},
    "objective": {"misfit": "sqrt(1 + sum((A*p - 0.2)**2)) + integral((u - 0.3*(1 + x*y/4))**2) + max(A*x)*min(u - v)"},
}
DIRECTION = {"initial.u": "sin(7*x)*y", "equation.A": 0.3}


@pytest.fixture(scope="module")
def communicator():
    return connect()


def found(communicator, devices=1, members=False):
    """(derivatives of the fields and the objective, product of the Hessian) as bytes, on rank 0."""
    given, direction = {**GIVEN, **RECEIVERS}, {**DIRECTION}
    if members:
        given["ensemble"], direction["equation.A"] = {"equation.A": [0.4, 0.5]}, [0.3, -0.2]
    simulation = simulation_of(problem_of(**given), communicator, devices, "native")
    tangent = TangentLinear(simulation, {}, {}, tuple(direction))
    state = State(Clock(), simulation.initial_fields())
    results = tangent.at(state, direction), tangent.hessian_product(state, direction)
    tangent.close()
    return [
        {key: None if value is None else np.asarray(value).tobytes() for key, value in one.items()} for one in results
    ]


@pytest.mark.parametrize("devices, members", [
    pytest.param(1, False, marks=on(3)),
    pytest.param(2, False, marks=pytest.mark.long),
    pytest.param(1, True, marks=pytest.mark.long),
])  # fmt: skip
def test_every_decomposition_gives_the_same_derivatives(communicator, devices, members):
    expected = from_rank_0(communicator, lambda: found(OneProcess(), members=members))
    assert set(expected[0]) == {"u", "v", "misfit"} and set(expected[1]) == set(DIRECTION)
    results = found(communicator, devices, members)
    if communicator.rank == 0:
        assert results == expected
    else:
        assert results[0]["misfit"] == expected[0]["misfit"]
        assert results[1]["equation.A"] == expected[1]["equation.A"]
