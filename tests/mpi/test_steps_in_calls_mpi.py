"""Many steps in a call, each of a size that all processes find together: the same steps and bits as on one process."""

import numpy as np
import pytest
from measured import FOLLOWING, TOLERANT, stepping_of

from hpcstencil.backends.native.edge_exchange import InPasses
from hpcstencil.runtime.communicator import connect, from_rank_0

pytestmark = pytest.mark.mpi
STEPS = 30


@pytest.fixture(scope="module")
def communicator():
    return connect()


def taken(stepping):
    """(clock, this process's blocks by name, number of calls) after some steps, which calls may take together."""
    done = calls = 0
    while done < STEPS:
        done, calls = done + stepping.advance(lambda *_: None, STEPS - done, None, lambda leap: True), calls + 1
    simulation = stepping.simulation
    return stepping.clock, simulation.get(dict(stepping.state.fields), simulation.problem.fields), calls


@pytest.mark.parametrize("exchange", ["auto", "mpi", "mpi4jax"])
@pytest.mark.parametrize("tables", [FOLLOWING["shallow_water"], TOLERANT["gray_scott"]], ids=["cfl", "tolerance"])
def test_steps_chosen_within_calls_are_the_same(communicator, tables, exchange):
    tables = {**tables, "decomposition": {"exchange": exchange}}
    clock, alone, _ = from_rank_0(communicator, lambda: taken(stepping_of(tables)))
    stepping = stepping_of(tables, communicator=communicator)
    between_calls = exchange == "mpi4jax" and communicator.size > 1
    in_passes = isinstance(stepping.simulation.device_grid.exchange, InPasses)
    assert in_passes == (communicator.size > 1 and not between_calls)
    here, blocks, calls = taken(stepping)
    one_step_each = between_calls and stepping.simulation.control is None
    assert (here, calls) == (clock, STEPS if one_step_each else 1)
    for name, block in blocks.items():
        assert np.array_equal(block, alone[name][tuple(slice(*r) for r in stepping.simulation.ranges)]), name
