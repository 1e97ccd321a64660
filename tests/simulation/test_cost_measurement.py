"""Measured costs: what is measured, what is kept, and what follows from it for the steps between two exchanges."""

import json
import math
import time
from dataclasses import replace

import pytest
from support import problem_of

from hpcstencil.backends.native.speed_probe import PROBE_CELLS, PROBE_SECONDS, probe_shape, seconds_per_step
from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.decomposition import UNMEASURED, Costs
from hpcstencil.runtime.communicator import OneProcess
from hpcstencil.simulation import backend_choice, cost_measurement, measurement_cache
from hpcstencil.simulation.backend_choice import prepare
from hpcstencil.simulation.cost_measurement import measured_costs
from hpcstencil.simulation.prepared import Choice, Decomposed, prepared_with
from hpcstencil.simulation.summary import Summary, report


def decomposed(processes, shape=(600, 500), **tables):
    heat = {"equation": {"name": "heat"}, "numerics": {"integrator": "euler"}}
    problem = problem_of(grid={"shape": list(shape)}, **heat, **tables)
    return Decomposed.of(problem, processes, 1)


def interval(costs, **given):
    return prepared_with(decomposed(2, **given), Choice("native"), OneProcess(), costs=costs).plan


def test_slow_messages_mean_longer_intervals():
    fast, slow = Costs(1e-6, 1e10, 1.5e-10), Costs(5e-3, 1e8, 1.5e-10)
    cube = (128, 128, 128)
    assert interval(fast, shape=cube).steps_per_exchange < interval(slow, shape=cube).steps_per_exchange
    assert interval(fast, shape=cube).seconds < interval(slow, shape=cube).seconds


def test_dear_cells_mean_shorter_intervals():
    """Cells that are computed twice cost more, beside the same exchange."""
    cheap, dear = Costs(1e-6, 1e10, 1e-11), Costs(1e-6, 1e10, 1e-7)
    assert interval(dear, shape=(64, 64)).steps_per_exchange < interval(cheap, shape=(64, 64)).steps_per_exchange


def test_nothing_is_predicted_without_measurements():
    assert interval(UNMEASURED).seconds is None


def test_messages_that_a_sweep_hides_cost_nothing():
    alone, hidden = Costs(0.0, math.inf, 1e-8), Costs(1e-4, math.inf, 1e-8)
    assert interval(hidden) == interval(alone)


def test_a_backend_is_measured_once_per_machine(monkeypatch, tmp_path):
    monkeypatch.setattr(measurement_cache, "store", lambda: tmp_path / "measured.json")
    made, topology = decomposed(2), replace(decomposed(2).topology, rank=0)
    lowered = made.lowered("native")
    monkeypatch.setattr(cost_measurement, "message_costs", None)  # one process sends nothing
    first = measured_costs(lowered, made.problem, topology, OneProcess())
    assert 0 < first.seconds_per_work < 1e-5
    monkeypatch.setattr(type(lowered), "seconds_per_work", None)
    assert measured_costs(lowered, made.problem, topology, OneProcess()) == first


@pytest.mark.parametrize("stored", ["NaN", "Infinity", "-1.0", "0.0", '"fast"'])
def test_a_stored_number_that_nothing_takes_is_measured_again(stored, tmp_path, monkeypatch):
    made, path = decomposed(2), tmp_path / "measurements.json"
    monkeypatch.setattr(measurement_cache, "store", lambda: path)
    lowered, topology = made.lowered("native"), replace(made.topology, rank=0)
    measured_costs(lowered, made.problem, topology, OneProcess())
    (name,) = json.loads(path.read_text())
    path.write_text(f'{{"{name}": {stored}}}')
    monkeypatch.setattr(type(lowered), "seconds_per_work", lambda *_: 3e-10)
    assert measured_costs(lowered, made.problem, topology, OneProcess()).seconds_per_work == 3e-10
    assert json.loads(path.read_text()) == {name: 3e-10}


@pytest.mark.parametrize("processes, wish", [(1, "auto"), (2, 3)])
def test_nothing_is_measured_where_nothing_follows_from_it(processes, wish, monkeypatch):
    import jax

    monkeypatch.setattr(backend_choice, "measured_costs", None)
    made = decomposed(processes, decomposition={"steps_per_exchange": wish})
    assert prepare(made, jax.local_devices()[:1], OneProcess()).plan.steps_per_exchange == (
        1 if wish == "auto" else wish
    )


def test_other_backends_are_not_measured():
    import jax

    made = decomposed(2)
    topology = replace(made.topology, rank=0)
    assert measured_costs(made.lowered("shift"), made.problem, topology, OneProcess()).seconds_per_work is None
    assert prepare(decomposed(1), jax.local_devices()[:1], OneProcess()).plan.seconds is None


@pytest.mark.parametrize("shape", [(100,), (5000, 5000), (300, 400, 500), (4, 3000, 3000)])
def test_the_block_that_is_measured_is_small(shape):
    ones = (1,) * len(shape)
    block = probe_shape(Topology(shape, (True,) * len(shape), ones, ones, ones))
    assert all(0 < b <= n for b, n in zip(block, shape, strict=True))
    assert math.prod(block) <= max(PROBE_CELLS, 16 * math.prod(shape[1:]))


class SlowToBegin:
    """A native library whose first call fills memory for the next ones."""

    called = False

    def advance(self, call):
        time.sleep(0.0 if self.called else 2 * PROBE_SECONDS)
        self.called = True

    def stored_not_finite(self):
        return 0


def test_the_first_call_does_not_count():
    made = decomposed(2)
    seconds = seconds_per_step(made.lowered("native").program, SlowToBegin(), made.problem, made.topology, 1)
    assert seconds < PROBE_SECONDS / 2


def test_coefficients_of_several_coordinates_shorten_the_block_that_is_measured():
    """They take a microsecond per cell, so that those of the whole block would take seconds."""
    whole, ones = (2000, 2000), (1, 1)
    for fixed in (1, 4):
        block = probe_shape(Topology(whole, (True, True), ones, ones, ones), fixed)
        assert 10_000 < math.prod(block) < PROBE_CELLS // 60 // fixed


def test_the_summary_shows_prediction_and_measurement():
    summary = Summary(path=None, steps=10, exchange="MPI messages", steps_per_exchange=8, predicted=2e-3)
    summary = replace(summary, seconds={**summary.seconds, "computing": 0.03})
    assert "by MPI messages, every 8 steps; a step took 3 ms, 2 ms predicted" in report(summary)
    assert "by MPI messages, every step\n" in report(replace(summary, steps_per_exchange=1, predicted=None))
