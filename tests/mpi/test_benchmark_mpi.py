"""Rows of `hpcstencil bench` on a part of the processes, and step loops without messages."""

import math

import jax
import numpy as np
import pytest
from support import on, problem_of, simulation_of, stepped

from hpcstencil.benchmark import rows, timing
from hpcstencil.benchmark.rows import counts, measure, scaling_cases
from hpcstencil.benchmark.shares import stepping, without_messages
from hpcstencil.runtime.communicator import connect, from_rank_0, on_first
from hpcstencil.validation.errors import InputError

pytestmark = [pytest.mark.mpi, pytest.mark.optimized, on(1, 3)]
HEAT = {"grid": {"shape": [48, 20]}, "equation": {"name": "heat"}, "numerics": {"integrator": "ssprk2"}}


@pytest.fixture(scope="module")
def communicator():
    return connect()


def test_the_first_processes_exchange_on_a_communicator_of_their_own(communicator):
    problem = problem_of(**HEAT)
    expected = from_rank_0(communicator, lambda: stepped(problem, simulation_of(problem), 5, 0.1)["u"])

    def on_part(part):
        simulation = simulation_of(problem, part)
        used = None if part.size == 1 else simulation.device_grid.exchange.communicator
        assert part.size == 1 or used.Get_size() == part.size and used.Get_rank() == communicator.rank
        block = stepped(problem, simulation, 5, 0.1)["u"]
        assert np.array_equal(block, expected[tuple(slice(*r) for r in simulation.ranges)])
        return part.size

    for count in counts(communicator.size):
        found = on_first(communicator, count, on_part)
        assert found == (count if communicator.rank < count else None)


def test_what_the_first_processes_refuse_is_raised_on_all(communicator):
    def refuse(part):
        raise InputError(f"on {part.size}")

    for count in counts(communicator.size):
        with pytest.raises(InputError, match=f"^on {count}$"):
            on_first(communicator, count, refuse)


@pytest.mark.parametrize("devices, x", [(1, {"neumann": 0.0}), (2, "periodic")])
def test_without_messages_a_block_gets_its_own_strips_back(communicator, devices, x):
    """A field that is constant on each process stays so without messages, and does not with them."""
    problem = problem_of(**HEAT, boundary={"x": x})
    speaking = simulation_of(problem, communicator, devices)

    def constant_after_steps(simulation):
        block = np.full([stop - start for start, stop in simulation.ranges], communicator.rank, np.float32)
        fields = stepping(simulation, 0.1, 3)(simulation.put({"u": block}), 2)
        return bool((simulation.block(fields["u"]) == communicator.rank).all())

    assert constant_after_steps(without_messages(speaking))
    assert constant_after_steps(speaking) == (communicator.size == 1)


def test_rows_of_a_scaling_study(communicator, monkeypatch):
    monkeypatch.setattr(timing, "SECONDS_PER_TIMING", 0.0)
    monkeypatch.setattr(timing, "COPY_CELLS", 2**10)
    monkeypatch.setattr(timing, "REPEATS", 2)
    monkeypatch.setattr(rows, "counts", lambda processes: sorted({1, processes}))
    monkeypatch.setattr(rows, "remember_step_speed", lambda *_: None)
    problem = problem_of(**{**HEAT, "numerics": {"kernel": "shift", "integrator": "euler"}})
    bandwidth, found = measure(scaling_cases(problem, communicator.size, 1), communicator, jax.local_devices()[:1])
    expected = [(kind, count) for kind in ("strong", "weak") for count in sorted({1, communicator.size})]
    assert [(row["scaling"], len(row["waiting_fraction"])) for row in found] == expected
    for row in found:
        count = math.prod(row["processes"])
        assert count == len(row["waiting_fraction"]) and all(0 <= share < 1 for share in row["waiting_fraction"])
        assert (row["roof"] == bandwidth) == (count == communicator.size)
        alone = next(other for other in found if other["scaling"] == row["scaling"])
        assert row["efficiency"] == pytest.approx(row["cells_per_second"] / alone["cells_per_second"] / count)
        assert row["grid"] == [48 * (count if row["scaling"] == "weak" else 1), 20]
    assert found == communicator.broadcast(found)
