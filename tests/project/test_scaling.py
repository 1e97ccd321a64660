"""The cost model of docs/scaling.md: what it counts, what it fits, and that its predictions on the page are those of today."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.decomposition import Plan

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import on_paper
import scaling
from cost_model import Costs, Exchange, exchange_of, fitted


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
    assert exchange_of(given, fields=5, itemsize=8) == Exchange(messages, pytest.approx(2 * cells * 5 * 8))
    assert given.exchanges_per_step == per_step


def test_ranks_share_cores():
    costs, exchange = Costs(per_cell=1e-9, per_message=1e-5, per_byte=1e-9), Exchange(4, 10**5)
    assert costs.computing(ranks=1, cores=2, cells=10**6, work=3.0) == pytest.approx(1.5e-3)
    assert costs.computing(ranks=4, cores=2, cells=10**6, work=3.0) == pytest.approx(6e-3)
    assert [costs.exchanging(ranks, 2, exchange) for ranks in (1, 2, 4)] == pytest.approx([1.4e-4, 1.4e-4, 2.8e-4])


def test_the_fit_finds_the_costs_behind_measurements():
    terms = [(2, 1e5), (4, 1e6), (4, 3e7)]
    seconds = np.array(terms) @ [3e-5, 2e-10]
    assert fitted(terms, seconds) == pytest.approx([3e-5, 2e-10])
    disturbed = fitted(terms, seconds * [1.0, 1.1, 0.9])
    assert disturbed == pytest.approx([3e-5, 2e-10], rel=0.1) and min(disturbed) > 0


def test_no_cost_is_negative():
    assert fitted([(2, 1e5), (2, 1e6)], [1e-5, 1.1e-4])[0] == 0


def test_measurements_that_follow_the_model_show_no_error(monkeypatch):
    monkeypatch.setattr(scaling, "software", lambda: "software")
    costs, cores, rows = Costs(3e-10, 2e-5, 2e-10), 2, []
    for name in scaling.PROBLEMS:
        for ranks in scaling.RANKS:
            for every in scaling.COUNTS[: None if ranks > 1 else 1]:
                exchange = Exchange(ranks, 1e5 * every) if ranks > 1 else Exchange(0, 0.0)
                row = {
                    "problem": name,
                    "ranks": ranks,
                    "every": every,
                    "auto": 8,
                    "cells": 10**6 // ranks,
                    "work": 1 + 3 / every,
                }
                computing = costs.computing(ranks, cores, row["cells"], row["work"])
                exchanging = costs.exchanging(ranks, cores, exchange)
                seconds = {"step": computing + exchanging / every, "step, shared": computing}
                parts = {"computing": computing, "exchange": exchanging} if ranks == scaling.FITTED_RANKS else {}
                slower = {what: 1.5 * each for what, each in (seconds | parts).items()}
                rows.append(
                    [[{**row, "exchange": vars(exchange), "seconds": each}] for each in (slower, seconds | parts)]
                )
    text = scaling.report([row for both in rows for row in scaling.best(both)], cores, rounds=2)
    compared = [line for line in text.splitlines() if "%" in line]
    assert len(compared) == len(rows) and not any(re.search("[1-9][0-9]*%", line) for line in compared)
    assert all(f"| {told} " in text for told in ("0.300 ns", "20 µs", "5.0 GB/s"))


def test_the_step_on_paper_is_the_sum_of_its_parts():
    case, field = on_paper.CASES[0], 4 * 512**3 / on_paper.MEMORY
    one, many = (on_paper.predict(case, gpus, on_paper.shape_of(gpus, 512)) for gpus in (1, 64))
    assert [each.seconds["own cells"] for each in (one, many)] == pytest.approx([2 * field, 2 * field])
    work, each_stage = on_paper.Work.of(on_paper.problem_of(case, (2048,) * 3), None), replace(many.plan, every=0)
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
