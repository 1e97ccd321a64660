"""A new kind of exchange is a class and a line in a table; an unknown kind is an error."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from support import on, problem_of, simulation_of, stepped

from hpcstencil.distributed.exchange import BETWEEN_PROCESSES, BY_BACKEND, Ghosts, InCompiledCode, Mpi4jax, Outer
from hpcstencil.numerics.topology import Topology
from hpcstencil.runtime.communicator import connect, from_rank_0
from hpcstencil.validation.errors import InputError

pytestmark = pytest.mark.mpi
STEPS = 5
sent_bytes: dict[int, int] = {}  # axis -> bytes of the strips of one exchange


@dataclass(frozen=True)
class Counted(InCompiledCode):
    """Messages whose bytes are counted when an exchange is compiled."""

    topology: Topology
    communicator: Any
    name = "counted messages"

    def along(self, axis: int, first: Any, last: Any, outer: Outer) -> Ghosts:
        sent_bytes[axis] = (first.size + last.size) * first.dtype.itemsize
        return Mpi4jax(self.topology, self.communicator).along(axis, first, last, outer)


@pytest.fixture(scope="module")
def communicator():
    return connect()


def problem(kind):
    """Two fields on a periodic grid, exchanged every two steps by a ``kind`` that the reader of inputs may not know."""
    made = problem_of(
        grid={"shape": [40, 40]}, equation={"name": "gray_scott"}, decomposition={"steps_per_exchange": 2}
    )
    config = replace(made.config, decomposition=replace(made.config.decomposition, exchange=kind))
    return replace(made, config=config)


@pytest.mark.parametrize("kernel, devices", [("shift", 1), ("native", 1), pytest.param("shift", 2, marks=on(1, 2))])
def test_a_kind_of_exchange_is_added_in_one_place(communicator, monkeypatch, kernel, devices):
    monkeypatch.setitem(BETWEEN_PROCESSES, "counted", Counted)
    sent_bytes.clear()
    expected = from_rank_0(
        communicator, lambda: stepped(problem("auto"), simulation_of(problem("auto"), kernel=kernel), STEPS, 1e-3)
    )
    simulation = simulation_of(problem("counted"), communicator, devices, kernel)
    block = stepped(problem("counted"), simulation, STEPS, 1e-3)
    for name in ("u", "v"):
        assert np.array_equal(block[name], expected[name][tuple(slice(*r) for r in simulation.ranges)])
    if communicator.size == 1:
        assert simulation.exchange == "" and not sent_bytes
        return
    assert simulation.exchange == "counted messages"
    if devices == 1:
        plan, itemsize = simulation.plan, simulation.dtype.itemsize
        both_ways = 2 * sum(sent_bytes.values())  # as many are received
        assert both_ways == plan.steps_per_exchange * plan.halo_bytes_per_step(2, itemsize)
    assert sent_bytes


def test_an_unknown_kind_of_exchange_is_an_error(communicator):
    with pytest.raises(
        InputError, match='decomposition.exchange: expected one of "auto", "mpi", "mpi4jax", but got "pigeons"'
    ):
        simulation_of(problem("pigeons"), communicator)


@pytest.mark.parametrize("kind", [*BY_BACKEND, *BETWEEN_PROCESSES])
def test_the_reader_of_inputs_knows_every_kind_of_exchange(kind):
    made = problem_of(grid={"shape": [8]}, equation={"name": "heat"}, decomposition={"exchange": kind})
    assert made.config.decomposition.exchange == kind
