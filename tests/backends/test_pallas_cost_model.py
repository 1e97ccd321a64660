"""The cost model of the GPU kernels: what it counts, and the steps between two exchanges that follow from it."""

from types import SimpleNamespace

import pytest
from support import problem_of

from hpcstencil.backends.pallas import cost_model
from hpcstencil.backends.pallas.cost_model import Links, Work, arrays_moved, parts, steps_between_exchanges
from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.decomposition import UNMEASURED, Costs, Plan
from hpcstencil.runtime.communicator import OneProcess
from hpcstencil.simulation import backend_choice, measurement_cache
from hpcstencil.simulation.cost_measurement import ByStepping, measured_costs
from hpcstencil.simulation.prepared import Decomposed

FAST, SLOW = Links(1e-5, 1e11, collective=True), Links(1e-5, 1e11, collective=False)


def problem(equation="heat", integrator="euler", n=512, ndim=3, **given):
    return problem_of(
        grid={"shape": [n] * ndim}, equation={"name": equation}, numerics={"integrator": integrator}, **given
    )


def plan(every, processes=(2, 1, 1), n=256, stages=1):
    ones = (1,) * len(processes)
    shape = tuple(n * p for p in processes)
    return Plan(Topology(shape, (True,) * len(shape), processes, ones, ones), every, ones, stages)


@pytest.mark.parametrize(
    "equation, integrator, arrays",
    [
        ("heat", "euler", 2),
        ("heat", "rk4", 17),
        ("gray_scott", "rk4", 34),
        ("heat", "ab2", 4),  # the slopes of the previous step are read, and these are written
        ("cahn_hilliard", "euler", 4),  # a kernel for what the outer Laplacian is taken of
    ],
)
def test_arrays_that_a_step_reads_or_writes(equation, integrator, arrays):
    assert arrays_moved(problem(equation, integrator)) == arrays


def test_messages_cost_nothing_while_the_interior_takes_longer():
    work = Work(1e-11, fields=1, itemsize=4, inner=0, corners=False, stores=False)
    hidden, waited = (parts(plan(1), work, links) for links in (FAST, SLOW))
    assert hidden["waiting for messages"] == 0.0
    assert waited["waiting for messages"] == pytest.approx(2e-5 + 2 * 2 * 4 * 256**2 / 1e11)
    assert {**hidden, "waiting for messages": 0} == {**waited, "waiting for messages": 0}
    small = parts(plan(1, n=32), work, FAST)["waiting for messages"]
    assert small == pytest.approx(2e-5 + 2 * 2 * 4 * 32**2 / 1e11 - cost_model.KERNEL - 1e-11 * 30 * 32**2)


def test_corners_are_cut_axis_by_axis():
    """By two kernels of XLA's per axis, instead of one for all axes."""
    star, mixed = (
        Work(1e-8, fields=1, itemsize=4, inner=0, corners=corners, stores=False) for corners in (False, True)
    )
    at_once, in_turn = (parts(plan(0, (2, 2, 2), n=64), work, FAST)["starting kernels"] for work in (star, mixed))
    assert in_turn - at_once == pytest.approx(5 * cost_model.KERNEL, rel=0.01)


def test_stored_strips_are_not_cut():
    """That saves a launch too. Several evaluations after an exchange cut them, with corners."""
    cuts, stores = (Work(1e-9, fields=1, itemsize=4, inner=0, corners=False, stores=stores) for stores in (False, True))
    cut, stored = (parts(plan(0, n=64), work, FAST) for work in (cuts, stores))
    assert cut["making strips"] == pytest.approx(2 * 4 * 64**2 * 2 / cost_model.CUTTING)
    assert stored["making strips"] == pytest.approx(2 * 4 * 64**2 / cost_model.STORING)
    assert cut["starting kernels"] - stored["starting kernels"] == pytest.approx(cost_model.KERNEL)
    assert parts(plan(2, n=64), cuts, FAST) == parts(plan(2, n=64), stores, FAST)


def test_halo_cells_are_computed_twice_evaluation_by_evaluation():
    found = parts(plan(3, n=64), Work(1e-9, fields=1, itemsize=4, inner=0, corners=False, stores=False), FAST)
    assert found["cells computed twice"] == pytest.approx(1e-9 * (4 + 2) * 64**2 / 3)
    assert found["own cells"] == pytest.approx(1e-9 * 64**3)
    assert (
        "cells computed twice" in found
        and parts(plan(0, n=64), Work(1e-9, 1, 4, 0, False, False), FAST)["cells computed twice"] == 0
    )


def interval(n, costs, processes=8, integrator="euler"):
    given = problem("heat", integrator, n=2 * n)
    return steps_between_exchanges(given, Decomposed.of(given, processes, 1).topology, 0, costs)


def test_steps_between_exchanges_follow_from_the_cell_rate():
    """A cell of a GPU costs picoseconds: cells computed twice are cheap beside a message."""
    cheap, dear = Costs(3e-6, 1e11, 3e-12), Costs(3e-6, 1e11, 1e-9)
    assert interval(96, cheap)[0] > 4 and interval(96, dear)[0] <= 1
    assert interval(96, cheap)[1] == pytest.approx(interval(96, cheap)[1]) and interval(96, UNMEASURED)[1] is None
    assert interval(96, UNMEASURED)[0] > 4  # as published, not as on a CPU
    alone = problem(n=96)
    assert steps_between_exchanges(alone, Decomposed.of(alone, 1, 1).topology, 0, cheap)[0] == 1


def test_blocks_too_thin_for_a_step_exchange_at_each_stage():
    assert interval(3, UNMEASURED, integrator="rk4")[0] == 0


def test_a_gpu_is_measured_by_stepping(monkeypatch, tmp_path):
    """Per kernel and kind of device, once."""
    monkeypatch.setattr(measurement_cache, "store", lambda: tmp_path / "measured.json")
    monkeypatch.setattr(backend_choice, "probe", lambda problem, device, kernel: lambda: 0.5)
    given = problem(integrator="rk4", n=64)
    gpu = SimpleNamespace(platform="gpu", device_kind="some card")
    per_cell = backend_choice.seconds_per_cell(given, gpu, "pallas")
    assert per_cell == pytest.approx(0.5 / (64**3 * 4))
    made, alone = Decomposed.of(given, 1, 1), OneProcess()

    def measured(what, seconds):
        by_stepping = ByStepping(what, lambda: seconds)
        return measured_costs(made.lowered("pallas"), given, made.topology, alone, by_stepping).seconds_per_work

    assert [measured("pallas:a", 1.0), measured("pallas:a", 2.0), measured("pallas:b", 3.0)] == [1.0, 1.0, 3.0]


def test_a_run_on_gpus_measures_them(monkeypatch):
    asked = {}
    monkeypatch.setattr(
        backend_choice, "measured_costs", lambda *arguments: asked.update(by_stepping=arguments[-1]) or Costs()
    )
    monkeypatch.setattr(
        backend_choice, "seconds_per_cell", lambda problem, device, kernel: (device.device_kind, kernel)
    )
    gpu = SimpleNamespace(platform="gpu", device_kind="some card")
    given = problem_of(grid={"shape": [64, 64]}, equation={"name": "heat"}, numerics={"kernel": "pallas"})
    backend_choice.prepare(Decomposed.of(given, 1, 2), [gpu, gpu], OneProcess())
    assert asked["by_stepping"].what == "pallas:some card"
    assert asked["by_stepping"].seconds_per_work() == ("some card", "pallas")
