"""Diagnostics have the same bits on every decomposition, recorded while steps are taken or not."""

import jax
import pytest
from probed import (
    ROWS,
    counted_calls,
    diagnostics,
    file_of,
    with_diagnostics,
    with_expressions,
    with_nested,
    with_stencils,
)
from support import dealt

from hpcstencil.runtime.communicator import connect, from_rank_0

pytestmark = [pytest.mark.mpi, pytest.mark.optimized]
WAYS = [  # devices of each process, and how processes exchange edges; rows are recorded by one device that exchanges in passes
    (1, "auto"),
    (1, "mpi"),
    (2, "auto"),
    (1, "mpi4jax"),
]


ROWS_OF = {with_diagnostics: (0, 2, 6), with_expressions: (2, 7, 9), with_stencils: (2, 4, 6), with_nested: (2, 4)}
CASES = {f"{ROWS[n][0]}-{having.__name__}": (having, ROWS[n]) for having, rows in ROWS_OF.items() for n in rows}


def with_members(row):
    """The input of `with_stencils` as an ensemble."""
    given = with_stencils(row)
    name, text = next(iter(given["initial"].items()))
    return {**given, "ensemble": {f"initial.{name}": [text, f"1.5*({text})", f"0.9*({text})"]}}


CASES["members"] = (with_members, ROWS[2])


@pytest.fixture(scope="module")
def communicator():
    return connect()


@pytest.mark.parametrize("case, way", dealt(CASES, WAYS, hands=7))
def test_every_decomposition_has_the_same_rows(communicator, tmp_path_factory, monkeypatch, case, way):
    having, row = CASES[case]
    devices, exchange = way
    given = having(row)
    given["numerics"]["kernel"] = "native"
    folder = communicator.broadcast(tmp_path_factory.mktemp("rows") if communicator.rank == 0 else None)
    alone = from_rank_0(communicator, lambda: diagnostics(file_of(folder / "alone.h5", given)))
    given["decomposition"] = {**given["decomposition"], "exchange": exchange}
    calls = counted_calls(monkeypatch)
    path = file_of(folder / "run.h5", given, communicator, min(devices, len(jax.local_devices())))
    assert max(calls) > 3 or devices > 1  # steps between two rows: calls do not end there
    found = from_rank_0(communicator, lambda: diagnostics(path))
    for name, column in alone.items():
        assert column.tobytes() == found[name].tobytes(), name
