"""Steps that follow the solution are the same on every decomposition: all processes measure the extremes of the whole grid."""

import jax
import pytest
from measured import FOLLOWING, measured, stepping_of
from support import dealt

from hpcstencil.runtime.communicator import connect, from_rank_0

pytestmark = pytest.mark.mpi
WAYS = [
    (1, "auto"),
    (1, "mpi"),
    (2, "auto"),
    (1, "mpi4jax"),
]  # devices of each process, and how processes exchange edges


@pytest.mark.parametrize("case, way", dealt(FOLLOWING, WAYS))
def test_every_decomposition_measures_the_same(case, way):
    communicator, (devices, exchange) = connect(), way
    alone = from_rank_0(communicator, lambda: measured(stepping_of(FOLLOWING[case]), 8))
    tables = {**FOLLOWING[case], "decomposition": {"exchange": exchange}}
    assert measured(stepping_of(tables, "native", communicator, min(devices, len(jax.local_devices()))), 8) == alone
