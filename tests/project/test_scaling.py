"""The cost models of docs/scaling.md: what they count, and that the predictions for GPUs on the page are those of today."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.decomposition import Plan

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import on_paper
import scaling


def plan(processes, every, stages=1):
    ones = (1,) * len(processes)
    return Plan(Topology((40, 30), (True, True), processes, ones, ones), every, (1, 1), stages)


@pytest.mark.parametrize(
    "processes, every, stages, messages, cells, per_step",
    [
        ((1, 1), 3, 1, 0, 0, 1 / 3),
        ((2, 1), 1, 1, 2, 2 * 30, 1),
        ((2, 1), 3, 2, 2, 2 * 6 * 30, 1 / 3),
        ((2, 3), 2, 1, 4, 2 * 2 * 10 + 2 * 2 * (20 + 4), 1 / 2),
        ((2, 1), 0, 4, 2, 2 * 30, 4),
    ],
)
def test_messages_and_bytes_of_an_exchange(processes, every, stages, messages, cells, per_step):
    given = plan(processes, every, stages)
    assert on_paper.messages(given) == messages
    assert given.halo_bytes_per_step(fields=5, itemsize=8) == pytest.approx(2 * cells * 5 * 8 * per_step)
    assert given.exchanges_per_step == per_step


def test_errors_and_choices_are_relative_to_the_median_of_the_rounds(monkeypatch):
    monkeypatch.setattr(scaling, "software", lambda: "software")

    def row(exchange, every, predicted, step):
        found = {"problem": "heat", "ranks": 2, "exchange": exchange, "every": every, "auto": 4}
        return {**found, "predicted": predicted, "step": step}

    rounds = [[row("mpi", 4, 2e-3, step), row("mpi", 8, 2e-3, 1e-3)] for step in (1e-3, 4e-3, 9e-3)]
    text = scaling.report(scaling.medians(rounds), 3)
    assert "| heat | 2 | messages | 4 | 2.00 | 4.00 | -50% |" in text
    assert "| heat | 2 | messages | 4 | 4.00 | 8 | 1.00 | 4.00 |" in text


def test_the_step_on_paper_is_the_sum_of_its_parts():
    case, field = on_paper.CASES[0], 4 * 512**3 / on_paper.MEMORY
    one, many = (on_paper.predict(case, gpus, on_paper.shape_of(gpus, 512)) for gpus in (1, 64))
    assert [each.seconds["own cells"] for each in (one, many)] == pytest.approx([2 * field, 2 * field])
    work, each_stage = (
        on_paper.Work.of(on_paper.problem_of(case, (2048,) * 3), None),
        replace(many.plan, steps_per_exchange=0),
    )
    hidden, by_mpi = (on_paper.parts(each_stage, work, way.between) for way in (on_paper.COLLECTIVES, on_paper.DIRECT))
    assert hidden["waiting for messages"] == 0  # behind the interior
    messages = 6 * on_paper.DIRECT.between.latency + 2 * 6 * 4 * 512**2 / on_paper.NETWORK
    assert by_mpi["waiting for messages"] == pytest.approx(messages)
    ways = [on_paper.predict(case, 64, on_paper.shape_of(64, 512), way).step for way in on_paper.WAYS]
    assert one.step < ways[0] < ways[1] < ways[2]


def test_each_launch_takes_time():
    found = on_paper.predict(on_paper.CASES[1], 10_000, (1024,) * 3)
    computing = ("own cells", "cells computed twice", "edges in rows", "starting kernels")
    assert sum(found.seconds[what] for what in computing) >= 4 * on_paper.KERNEL


def test_the_page_holds_what_is_predicted_today():
    assert on_paper.paper() in scaling.PAGE.read_text(encoding="utf-8"), "run benchmarks/scaling.py --on-paper"
