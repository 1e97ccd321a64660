"""A gradient with states on disk that several processes begin and others continue has the same bits."""

import numpy as np
import pytest
from gradients import attempt, sweep_of

from hpcstencil.gradient.compose import planned
from hpcstencil.python.gradient import collected
from hpcstencil.runtime.communicator import OneProcess, connect, from_rank_0
from hpcstencil.runtime.launcher import environment_size

pytestmark = [pytest.mark.mpi, *([] if environment_size() in (2, 3) else [pytest.mark.long])]

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


def whole_of(sweep, result):
    """(objective, derivatives, whole on rank 0)."""
    whole = collected(sweep, result)
    return result.value, {key: None if value is None else np.asarray(value).tobytes() for key, value in whole.items()}


@pytest.mark.parametrize("method", ["auto", pytest.param("serial", marks=pytest.mark.long)])
def test_other_processes_continue(communicator, tmp_path_factory, method):
    folder = communicator.broadcast(tmp_path_factory.mktemp("gradient") if communicator.rank == 0 else None)
    given, path = {**GIVEN, "output": {"method": method}}, folder / "g.h5"

    def alone():
        sweep = sweep_of(given, OneProcess(), kernel="native")
        fields = sweep.forward.initial_fields()
        return whole_of(sweep, sweep(fields, planned(sweep, fields)[1].states))

    def attempt_alone():
        sweep = sweep_of(given, OneProcess(), kernel="native")
        result = attempt(sweep, path, 12)
        return None if result is None else whole_of(sweep, result)

    expected = from_rank_0(communicator, alone)
    found, attempts, sweeps = None, 0, [sweep_of(given, communicator, devices, "native") for devices in (1, 2)]
    while found is None:
        attempts += 1
        if attempts % 3 == 0:
            found = from_rank_0(communicator, attempt_alone)
            continue
        sweep = sweeps[attempts % 3 - 1]
        result = attempt(sweep, path, 12)
        found = None if result is None else whole_of(sweep, result)
    assert attempts > 3
    if communicator.rank == 0:
        assert found == expected
