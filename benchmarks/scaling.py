"""The cost model of docs/scaling.md: fitted on this machine, checked against measurements, applied on paper.

The constants are fitted to computing without messages and to exchanges without computing, on two ranks. The predictions are
checked against whole steps on 1, 2 and 4 ranks. The tables are printed and written to docs/scaling.md.

.venv/bin/python benchmarks/scaling.py [rounds]      measures (minutes)
.venv/bin/python benchmarks/scaling.py --on-paper    computes the predictions for many GPUs, and draws them
"""

from __future__ import annotations

import datetime
import json
import math
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import HEAT, ROOT, launched, machine, output_of, software
from cost_model import Costs, Exchange, exchange_of, fitted

from hpcstencil.backends.native import cost_model as native_costs
from hpcstencil.problem import decomposition

PAGE = ROOT / "docs" / "scaling.md"
RANKS, FITTED_RANKS = (1, 2, 4), 2
COUNTS = (1, 2, 4, 8, 16)  # steps per exchange
PROBLEMS = {
    "heat, 256³": HEAT.format(n=256, steps=1).replace('"shift"', '"native"'),
    "Gray-Scott, rk4, 2048²": """
[grid]
shape = [2048, 2048]
[equation]
name = "gray_scott"
[initial]
u = "1 - 0.5*(abs(x - 1024) < 100)"
v = "0.25*(abs(y - 1024) < 100)"
[numerics]
integrator = "rk4"
kernel = "native"
[time]
end = 1.0
dt = 0.1
""",
}
Row = dict[str, Any]


def measure_as_rank(path: str) -> None:
    """Run a measurement as one rank, and print a line of JSON for every number of steps per exchange."""

    from hpcstencil.backends.native.cost_model import work_per_step
    from hpcstencil.cli.prepare import decomposed_of, devices_of, problem_of, processes
    from hpcstencil.runtime.devices import start_jax

    with processes() as communicator:
        config, problem = problem_of(Path(path), (), communicator)
        count, _ = devices_of(config, 1)
        decomposed = decomposed_of(problem, communicator.size, count)
        devices = start_jax(count)
        from hpcstencil.backends.native.program import program
        from hpcstencil.benchmark.shares import exchanging, stepping, steps_of_round, without_messages
        from hpcstencil.benchmark.timing import in_place, slowest, timings
        from hpcstencil.simulation.compose import compose
        from hpcstencil.simulation.prepared import Choice, prepared_with

        native, alone = Choice("native"), communicator.size == 1
        work = work_per_step(program(problem), decomposed.topology)
        auto = prepared_with(decomposed, native, communicator).plan.every
        by_messages = replace(config, decomposition=replace(config.decomposition, exchange="mpi4jax"))
        with_messages = decomposed_of(replace(problem, config=by_messages), communicator.size, count)
        for every in COUNTS[:1] if alone else COUNTS:
            prepared = prepared_with(with_messages, native, communicator, every)
            plan, steps = prepared.plan, steps_of_round(prepared.plan)
            sending = compose(prepared, communicator, devices)
            runs = {"step": stepping(sending, config.time.dt, steps)}
            if not alone:
                sharing = compose(prepared_with(decomposed, native, communicator, every), communicator, devices)
                runs["step, shared"] = stepping(sharing, config.time.dt, steps)
            if communicator.size == FITTED_RANKS:
                runs["exchange"] = exchanging(sending, steps)
                runs["computing"] = stepping(without_messages(sending), config.time.dt, steps)
            held = [sending.initial_fields()]
            times = timings([in_place(run, held) for run in runs.values()], communicator)
            seconds = {what: slowest(each) / steps for what, each in zip(runs, times, strict=True)}
            if "exchange" in seconds:
                seconds["exchange"] *= every
            exchange = exchange_of(plan, len(problem.fields), sending.dtype.itemsize)
            # A single rank takes as many steps per sweep through memory as is best for it.
            passes = min(map(work, range(1, decomposition.MOST_STEPS + 1))) if alone else work(every)
            if communicator.rank == 0:
                cells = math.prod(plan.topology.capacity())
                told = {"every": every, "auto": auto, "cells": cells, "work": passes, "exchange": vars(exchange)}
                print(json.dumps({**told, "seconds": seconds}), flush=True)


def rows_of(name: str, ranks: int) -> list[Row]:
    """Return the measurements of a problem on ``ranks`` ranks."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input.toml"
        path.write_text(PROBLEMS[name])
        lines = output_of(launched(ranks, sys.executable, __file__, "--rank", str(path))).splitlines()
    return [{**json.loads(line), "problem": name, "ranks": ranks} for line in lines if line.startswith("{")]


def best(rounds: Sequence[list[Row]]) -> list[Row]:
    """Return the minimum of each measurement over all rounds, because disturbances only add time."""
    rows = []
    for same in zip(*rounds, strict=True):
        seconds = {what: min(row["seconds"][what] for row in same) for what in same[0]["seconds"]}
        rows.append({**same[0], "seconds": seconds, "exchange": Exchange(**same[0]["exchange"])})
    return rows


def costs_of(rows: Sequence[Row], cores: int) -> dict[str, Costs]:
    """Fit the constants of each problem. Those of messages are common to all problems, the time per cell is not."""
    both = [row for row in rows if row["ranks"] == FITTED_RANKS]
    terms = [(row["exchange"].messages, row["exchange"].bytes) for row in both]
    per_message, per_byte = fitted(terms, [row["seconds"]["exchange"] for row in both])
    found = {}
    for name in PROBLEMS:
        mine = [row for row in both if row["problem"] == name]
        terms = [(row["work"] * row["cells"] * FITTED_RANKS / cores,) for row in mine]
        found[name] = Costs(*fitted(terms, [row["seconds"]["computing"] for row in mine]), per_message, per_byte)
    return found


def report(rows: Sequence[Row], cores: int, rounds: int) -> str:
    """Return the constants and the tables in Markdown."""
    costs = costs_of(rows, cores)
    any_costs = next(iter(costs.values()))
    lines = [
        f"{machine()}; {software()}; {datetime.date.today()}. float32, native code, best of {rounds} rounds.",
        "",
        "| constant | fitted here | what `auto` assumes unmeasured |",
        "|---|---|---|",
        *(
            f"| σ, {name} | {each.per_cell * 1e9:.3f} ns per cell of a pass and core | "
            f"{native_costs.SECONDS_PER_WORK * 1e9:.3f} ns |"
            for name, each in costs.items()
        ),
        f"| λ | {any_costs.per_message * 1e6:.0f} µs per message | {native_costs.WAITING * 1e6:.0f} µs per exchange |",
        f"| β | {1e-9 / any_costs.per_byte:.1f} GB/s sent and received | no limit |",
        "",
        f"The parts that these were fitted to, on {FITTED_RANKS} ranks:",
        "",
        "| problem | k | w(k) | computing, ms per step | fitted | MB of an exchange | its ms | fitted |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row["ranks"] == FITTED_RANKS:
            each = costs[row["problem"]]
            computing = each.computing(row["ranks"], cores, row["cells"], row["work"])
            lines.append(
                f"| {row['problem']} | {row['every']} | {row['work']:.2f} | {row['seconds']['computing'] * 1e3:.2f} | "
                f"{computing * 1e3:.2f} | {row['exchange'].bytes / 1e6:.2f} | {row['seconds']['exchange'] * 1e3:.2f} | "
                f"{each.exchanging(row['ranks'], cores, row['exchange']) * 1e3:.2f} |"
            )
    lines += [
        "",
        "Whole steps, predicted and measured, in ms:",
        "",
        "| problem | ranks | k | messages: predicted | measured | error | shared memory: predicted | measured | error |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        each, alone = costs[row["problem"]], row["ranks"] == 1
        computing = each.computing(row["ranks"], cores, row["cells"], row["work"])
        exchanging = each.exchanging(row["ranks"], cores, row["exchange"]) / row["every"]
        cells = [row["problem"], str(row["ranks"]), "–" if alone else str(row["every"])]
        cells += compared(computing + exchanging, row["seconds"]["step"])
        cells += ["–"] * 3 if alone else compared(computing, row["seconds"]["step, shared"])
        lines.append(f"| {' | '.join(cells)} |")
    chosen = {f"{row['auto']} ({row['problem']}, {row['ranks']} ranks)": None for row in rows if row["ranks"] > 1}
    return "\n".join([*lines, "", f"`auto` takes k = {', '.join(chosen)}."])


def compared(predicted: float, measured: float) -> list[str]:
    """Format the cells of the table for a predicted and a measured time."""
    return [f"{predicted * 1e3:.2f}", f"{measured * 1e3:.2f}", f"{predicted / measured - 1:+.0%}"]


def put(section: str, text: str) -> None:
    """Print the text, and write it between the markers of a section of the page."""
    print(text)
    begin, end = f"<!-- {section}: begin, written by benchmarks/scaling.py -->", f"<!-- {section}: end -->"
    page, found = re.subn(
        f"(?s){begin}.*{end}", lambda _: f"{begin}\n\n{text}\n\n{end}", PAGE.read_text(encoding="utf-8")
    )
    assert found == 1, f"{PAGE} lacks the marks of {section}"
    PAGE.write_text(page, encoding="utf-8")


def main(rounds: int = 3) -> None:
    cases = [(name, ranks) for name in PROBLEMS for ranks in RANKS]
    measured: dict[tuple[str, int], list[list[Row]]] = {case: [] for case in cases}
    for _ in range(rounds):
        for case in cases:
            measured[case].append(rows_of(*case))
    rows = [row for case in cases for row in best(measured[case])]
    put("measured", report(rows, os.cpu_count() or 1, rounds))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        measure_as_rank(sys.argv[2])
    elif sys.argv[1:] == ["--on-paper"]:
        import on_paper

        put("on paper", on_paper.paper())
        on_paper.draw()
    else:
        main(*map(int, sys.argv[1:]))
