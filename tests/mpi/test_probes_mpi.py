"""Probes have the same bits on every decomposition."""

import jax
import numpy as np
import pytest
from probed import ROWS, file_of, samples, with_probes
from support import dealt

from hpcstencil.runtime.communicator import connect, from_rank_0

pytestmark = [pytest.mark.mpi, pytest.mark.optimized]
WAYS = [  # devices of each process, and tables of the input
    (1, {"numerics": {"kernel": "native"}}),
    (2, {"numerics": {"kernel": "native"}}),
    (1, {"numerics": {"kernel": "native"}, "decomposition": {"exchange": "mpi4jax"}}),
    (1, {"numerics": {"kernel": "native"}, "decomposition": {"processes": "last"}}),
    (2, {"numerics": {"kernel": "shift"}}),
]


@pytest.fixture(scope="module")
def communicator():
    return connect()


@pytest.mark.parametrize(("row", "way"), dealt(ROWS, WAYS))
def test_every_decomposition_records_the_same(communicator, tmp_path_factory, row, way):
    devices, changes = way
    folder = communicator.broadcast(tmp_path_factory.mktemp("probes") if communicator.rank == 0 else None)
    given = with_probes(row)
    given["numerics"] |= changes["numerics"]
    alone = from_rank_0(communicator, lambda: samples(file_of(folder / "alone.h5", given)))
    given["decomposition"] = {**given["decomposition"], **changes.get("decomposition", {})}
    if given["decomposition"].get("processes") == "last":  # windows are cut within their rows
        given["decomposition"]["processes"] = [1] * (len(given["grid"]["shape"]) - 1) + [communicator.size]
    path = file_of(folder / "run.h5", given, communicator, min(devices, len(jax.local_devices())))
    found = from_rank_0(communicator, lambda: samples(path))
    for name, parts in alone.items():
        for one, other in zip(parts, found[name], strict=True):
            assert one.tobytes() == other.tobytes(), (name, np.abs(one - other).max())
