"""The gradient of an ensemble has the same bits for every decomposition."""

import numpy as np
import pytest
from gradients import members_from
from support import on

from hpcstencil.runtime.communicator import connect, from_rank_0

pytestmark = [pytest.mark.mpi, pytest.mark.optimized]

GIVEN = {
    "grid": {"shape": [23, 19], "upper": [2.3, 1.9]},
    "equation": {"name": "custom", "D": 0.02, "A": 0.7, "rhs": {"u": "D*laplacian(u) - A*t*u*v", "v": "u - v"}},
    "initial": {"u": "1 + A*sin(5*x)*cos(3*y)", "v": "0.3*cos(4*y)"},
    "numerics": {"integrator": "euler"},
    "time": {"end": 0.05, "dt": 0.01},
    "probes": {"cable": {"field": "u", "x": [1.1, 0.1, 1.13, 2.3], "y": [0.9, 0.2, 0.94, 1.9], "every_steps": 2}},
    "objective": {"J": "0.5*sum((cable - 0.3)**2) + integral(u*v**2)"},
    "gradient": {"of": ["initial.u", "initial.v", "equation.A", "equation.D"]},
    "ensemble": {"equation.A": [0.7, 0.9, 0.4]},
}  # fmt: skip


@pytest.fixture(scope="module")
def communicator():
    return connect()


def found(communicator, kernel, states):
    """(objective, derivatives with respect to numbers, blocks, ranges) of this process."""
    members, _ = members_from(GIVEN, communicator, kernel=kernel).planned(lambda _: {})
    total = members.total(lambda _, sweep: sweep(sweep.forward.initial_fields(), states))
    numbers = {key: np.asarray(number).tobytes() for key, number in total.numbers.items()}
    return total.value, numbers, total.blocks, members.forward.ranges


@pytest.mark.parametrize("kernel", [
    pytest.param("shift", marks=pytest.mark.long),
    pytest.param("native", marks=on(3)),
])  # fmt: skip
def test_every_decomposition_gives_the_same_sum(communicator, kernel):
    value, numbers, whole, _ = from_rank_0(communicator, lambda: found(None, kernel, 5))
    assert whole["initial.u"].shape == (3, 23, 19) and whole["initial.v"].shape == (23, 19)
    others = found(communicator, kernel, 3)
    assert others[:2] == (value, numbers)
    index = (..., *(slice(*r) for r in others[3]))
    for key, block in others[2].items():
        assert block.tobytes() == np.ascontiguousarray(whole[key][index]).tobytes(), key
