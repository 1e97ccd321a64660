"""A gradient with states on disk that several processes begin and others continue has the same bits."""

import numpy as np
import pytest
from gradients import attempt, in_memory, members_from
from support import on

from hpcstencil.python.gradient import collected
from hpcstencil.runtime.communicator import OneProcess, connect, from_rank_0

pytestmark = [pytest.mark.mpi, on(2)]

GIVEN = {
    "grid": {"shape": [11, 9, 8]},
    "equation": {"name": "gray_scott", "D_u": 0.2, "D_v": 0.1},
    "initial": {"u": "1 + 0.2*sin(7*x)", "v": "0.3*cos(5*y + z)"},
    "boundary": {"y": {"dirichlet": 0.3}},
    "numerics": {"integrator": "euler"},
    "time": {"end": 1.7, "dt": 0.1},
    "objective": {"J": {"sum": "mean(v**2) + mean(u)", "every_steps": 4}},
    "gradient": {"of": ["initial.u", "equation.F"], "checkpoints": 3, "storage": "disk"},
    "checkpoint": {"every_steps": 5},
}


@pytest.fixture(scope="module")
def communicator():
    return connect()


def whole_of(members, total):
    """(objective, derivatives, whole on rank 0)."""
    whole = collected(members, total)
    return total.value, {key: None if value is None else np.asarray(value).tobytes() for key, value in whole.items()}


@pytest.mark.parametrize("method", ["auto", pytest.param("serial", marks=pytest.mark.long)])
def test_other_processes_continue(communicator, tmp_path_factory, method):
    folder = communicator.broadcast(tmp_path_factory.mktemp("gradient") if communicator.rank == 0 else None)
    given, path = {**GIVEN, "output": {"method": method}}, folder / "g.h5"

    def attempted(members):
        total = attempt(members, path, 10)
        return None if total is None else whole_of(members, total)

    made = []  # by rank 0 alone

    def alone():
        made.append(members_from(given, OneProcess(), kernel="native"))
        return whole_of(made[0], in_memory(made[0]))

    expected = from_rank_0(communicator, alone)
    together, found, attempts = members_from(given, communicator, kernel="native"), None, 0
    while found is None:
        attempts += 1
        found = attempted(together) if attempts % 2 else from_rank_0(communicator, lambda: attempted(made[0]))
    assert attempts > 2
    if communicator.rank == 0:
        assert found == expected
