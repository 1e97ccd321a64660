"""Random problems on several processes and devices, against `reference.py`, which knows one grid."""

import pytest
from random_problems import Way, settled
from support import against_reference, dealt

from hpcstencil.runtime.communicator import connect
from hpcstencil.validation.errors import InputError

pytestmark = pytest.mark.mpi
WAYS = (Way(), Way("native"), Way(devices=2), Way(decomposition={"steps_per_exchange": 2}), Way("conv"))


@pytest.fixture(scope="module")
def communicator():
    return connect()


def on_processes(seed, way, communicator):
    tables, reference = settled(seed, scale=3)
    against_reference(tables, reference, way, communicator)


@pytest.mark.parametrize("seed", dealt(range(3)))
def test_a_random_problem(seed, communicator):
    on_processes(seed, WAYS[seed], communicator)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 200))
def test_more_random_problems(seed, communicator):
    try:
        on_processes(seed, WAYS[seed % len(WAYS)], communicator)
    except InputError as refusal:
        if not str(refusal).startswith("decomposition."):
            raise  # anything but a lack of room for halos
        pytest.skip(str(refusal))
