"""Probes have the same bits on every decomposition."""

import h5py
import jax
import numpy as np
import pytest
from probed import ROWS, counted_calls, file_of, probing_expressions, samples, with_probes
from support import dealt

from hpcstencil.runtime.communicator import connect, from_rank_0
from hpcstencil.runtime.launcher import environment_size
from hpcstencil.simulation.streams.probes import Probes

pytestmark = [pytest.mark.mpi, pytest.mark.optimized]
WAYS = [  # devices of each process, and tables of the input
    (1, {"numerics": {"kernel": "native"}}),
    (2, {"numerics": {"kernel": "native"}}),
    (1, {"numerics": {"kernel": "native"}, "decomposition": {"exchange": "mpi4jax"}}),
    (1, {"numerics": {"kernel": "native"}, "decomposition": {"processes": "last"}}),
    (2, {"numerics": {"kernel": "shift"}}),
]
# Slices give probes the fields themselves, whatever the equation: CI compiles the equations that XLA compiles quickly.
QUICK = ("heat-2d-walls", "heat-1d", "wave-2d", "shallow-2d", "schroedinger-2d")


def rows():
    """Each row and way on one number of processes. One process has only the ways that cut its block among devices."""
    for param in dealt(ROWS, WAYS, hands=7):
        (name, *_), (devices, changes) = param.values
        slow = changes["numerics"]["kernel"] == "shift" and name not in QUICK
        spare = environment_size() == 1 and devices == 1
        yield pytest.param(*param.values, id=param.id, marks=pytest.mark.long if slow or spare else param.marks)


@pytest.fixture(scope="module")
def communicator():
    return connect()


@pytest.mark.parametrize("row, way", dealt([ROWS[n] for n in (0, 2, 6, 8, 9)], WAYS[:4], hands=7))
def test_every_decomposition_records_the_same_expressions(communicator, tmp_path_factory, monkeypatch, row, way):
    devices, changes = way
    given = probing_expressions(row)
    given["numerics"] |= changes["numerics"]
    calls = counted_calls(monkeypatch, Probes)
    compare(
        communicator, tmp_path_factory, given, min(devices, len(jax.local_devices())), changes.get("decomposition", {})
    )
    assert max(calls) > 2 or devices > 1 or row[0] == "gas-2d"  # whose blocks are too thin for whole steps


def test_members_are_recorded_the_same(communicator, tmp_path_factory):
    given = with_probes(("heat-3d", 2, "float32", "euler"), ensemble={"equation.D": [0.7, 1.0]})
    compare(communicator, tmp_path_factory, given, min(2, len(jax.local_devices())), {})


@pytest.mark.parametrize(("row", "way"), list(rows()))
def test_every_decomposition_records_the_same(communicator, tmp_path_factory, row, way):
    devices, changes = way
    given = with_probes(row)
    given["numerics"] |= changes["numerics"]
    compare(
        communicator, tmp_path_factory, given, min(devices, len(jax.local_devices())), changes.get("decomposition", {})
    )


@pytest.mark.parametrize("order", [2, pytest.param(4, marks=pytest.mark.long)])
def test_probes_on_one_process_do_not_change_the_fields(communicator, tmp_path_factory, order):
    """Native code joins steps unless many cells are recorded between them. All processes join the same ones, since they
    exchange what a joined step stores."""
    folder = communicator.broadcast(tmp_path_factory.mktemp("probes") if communicator.rank == 0 else None)
    places = np.stack(np.meshgrid(*[np.arange(1, 9) + 0.5] * 2), -1).reshape(-1, 2).T.tolist()
    given = {
        "grid": {"shape": [96, 80]},
        "equation": {"name": "wave"},
        "initial": {"u": "exp(-((x - 40)**2 + (y - 30)**2)/20)"},
        "numerics": {"kernel": "native", "integrator": "leapfrog", "order": order},
        "time": {"end": 30.0, "dt": 0.5},
        "output": {"every": 30.0},
        "decomposition": {"processes": [communicator.size, 1]},
    }
    alone = {**given, "decomposition": {}}
    expected = from_rank_0(communicator, lambda: last_fields(file_of(folder / "alone.h5", alone)))
    given["probes"] = {"corner": {"field": "u", "x": places[0], "y": places[1]}}
    path = file_of(folder / "run.h5", given, communicator)
    found = from_rank_0(communicator, lambda: last_fields(path))
    for name, field in expected.items():
        assert found[name].tobytes() == field.tobytes(), (name, np.abs(found[name] - field).max())


def last_fields(path):
    """The fields of the last snapshot of a file."""
    with h5py.File(path) as file:
        return {name: file[name][-1] for name in ("u", "v")}


def compare(communicator, tmp_path_factory, given, devices, decomposition):
    """A run on all processes records what one process does, bit for bit."""
    folder = communicator.broadcast(tmp_path_factory.mktemp("probes") if communicator.rank == 0 else None)
    alone = from_rank_0(communicator, lambda: samples(file_of(folder / "alone.h5", given)))
    given["decomposition"] = {**given["decomposition"], **decomposition}
    if given["decomposition"].get("processes") == "last":  # windows are cut within their rows
        given["decomposition"]["processes"] = [1] * (len(given["grid"]["shape"]) - 1) + [communicator.size]
    path = file_of(folder / "run.h5", given, communicator, devices)
    found = from_rank_0(communicator, lambda: samples(path))
    for name, parts in alone.items():
        for one, other in zip(parts, found[name], strict=True):
            assert one.tobytes() == other.tobytes(), (name, np.abs(one - other).max())
