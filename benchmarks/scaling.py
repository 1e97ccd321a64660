"""The cost models of docs/scaling.md: that of native code against measurements, that of GPU kernels on paper.

A run measures the constants of its cost model when it begins. This script measures them in the same way, and compares the
predictions with whole steps on 1, 2 and 4 ranks, which exchange by shared memory or messages. It prints the tables
and writes them to docs/scaling.md.

.venv/bin/python benchmarks/scaling.py [rounds]      measures (minutes)
.venv/bin/python benchmarks/scaling.py --on-paper    computes the predictions for many GPUs, and draws them
"""

from __future__ import annotations

import datetime
import json
import re
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import HEAT, ROOT, launched, machine, output_of, software
from messages import WAVE

from hpcstencil.problem.decomposition import MOST_STEPS_PER_EXCHANGE, most_steps

PAGE = ROOT / "docs" / "scaling.md"
RANKS = (1, 2, 4)
COUNTS = (1, 2, 4, 8, 16)  # steps per exchange
WORDS = {"auto": "shared memory", "mpi": "messages"}
EXCHANGES = tuple(WORDS)  # of decomposition.exchange
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
    "wave, order 4, 256³": WAVE,
}
Row = dict[str, Any]


def measure_as_rank(path: str) -> None:
    """Run a measurement as one rank, and print a line of JSON for every number of steps per exchange."""

    from hpcstencil.backends.native.cost_model import step_time
    from hpcstencil.cli.prepare import decomposed_of, devices_of, problem_of, processes
    from hpcstencil.runtime.devices import start_jax

    with processes() as communicator:
        config, problem = problem_of(Path(path), (), communicator)
        count, _ = devices_of(config, 1)
        devices = start_jax(count)
        from hpcstencil.backends.native.program import program
        from hpcstencil.benchmark.shares import stepping, steps_of_round
        from hpcstencil.benchmark.timing import in_place, slowest, timings
        from hpcstencil.simulation.compose import compose
        from hpcstencil.simulation.cost_measurement import measured_costs
        from hpcstencil.simulation.prepared import Choice, prepared_with

        native, alone = Choice("native"), communicator.size == 1
        ways = {}
        for exchange in EXCHANGES[:1] if alone else EXCHANGES:
            asked = replace(config, decomposition=replace(config.decomposition, exchange=exchange))
            decomposed = decomposed_of(replace(problem, config=asked), communicator.size, count)
            lowered = decomposed.lowered("native")
            lowered.lack(decomposed.topology)
            costs = measured_costs(lowered, decomposed.problem, decomposed.topology, communicator)
            auto = prepared_with(decomposed, native, communicator, costs=costs).plan.steps_per_exchange
            ways[exchange] = decomposed, costs, auto
        most = most_steps(problem, next(iter(ways.values()))[0].topology)
        counts = {auto for _, _, auto in ways.values()} | ({1} if alone else set(COUNTS))
        for every in sorted(k for k in counts if k <= most):
            runs, held, predicted = {}, [], {}
            for exchange, (decomposed, costs, _) in ways.items():
                simulation = compose(prepared_with(decomposed, native, communicator, every), communicator, devices)
                steps = steps_of_round(simulation.plan)
                runs[exchange] = stepping(simulation, config.time.dt, steps)
                held = held or [simulation.initial_fields()]
                if communicator.rank == 0:
                    seconds = step_time(program(problem), decomposed.problem, decomposed.topology, costs)
                    # A single rank takes as many steps per sweep through memory as is best for it.
                    predicted[exchange] = (
                        min(map(seconds, range(1, MOST_STEPS_PER_EXCHANGE + 1))) if alone else seconds(every)
                    )
            times = timings([in_place(run, held) for run in runs.values()], communicator)
            measured = {what: slowest(each) / steps for what, each in zip(runs, times, strict=True)}
            if communicator.rank == 0:
                for exchange, (_, costs, auto) in ways.items():
                    found = {"every": every, "auto": auto, "exchange": exchange, "costs": vars(costs)}
                    seconds = {"predicted": predicted[exchange], "step": measured[exchange]}
                    print(json.dumps({**found, **seconds}), flush=True)


def rows_of(name: str, ranks: int) -> list[Row]:
    """Return the measurements of a problem on ``ranks`` ranks."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input.toml"
        path.write_text(PROBLEMS[name])
        lines = output_of(launched(ranks, sys.executable, __file__, "--rank", str(path))).splitlines()
    return [{**json.loads(line), "problem": name, "ranks": ranks} for line in lines if line.startswith("{")]


def medians(rounds: Sequence[list[Row]]) -> list[Row]:
    """Return the median of each measured and predicted time over the rounds that have the row."""
    rows: dict[tuple[Any, ...], list[Row]] = {}
    for row in (row for rows_ in rounds for row in rows_):
        rows.setdefault(tuple(row[what] for what in ("problem", "ranks", "exchange", "every")), []).append(row)
    times = ("predicted", "step")
    found = [
        {**same[0], **{what: statistics.median(row[what] for row in same) for what in times}} for same in rows.values()
    ]
    return sorted(found, key=lambda row: (row["problem"], row["ranks"], row["exchange"], row["every"]))


def report(rows: Sequence[Row], rounds: int) -> str:
    """Return the tables in Markdown."""
    lines = [
        f"{machine()}; {software()}; {datetime.date.today()}. float32, native code, medians of {rounds} rounds.",
        "",
        "| problem | ranks | exchange | k | predicted, ms per step | measured | error |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        alone = row["ranks"] == 1
        where = ["–", "–"] if alone else [WORDS[row["exchange"]], str(row["every"])]
        cells = [row["problem"], str(row["ranks"]), *where, *compared(row["predicted"], row["step"])]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "The number of steps between two exchanges that `auto` takes, and the best one of the table:",
        "",
        "| problem | ranks | exchange | `auto`: k | ms per step | best: k | ms per step | `auto` / best |",
        "|---|---|---|---|---|---|---|---|",
    ]
    cases = dict.fromkeys((row["problem"], row["ranks"], row["exchange"]) for row in rows if row["ranks"] > 1)
    for case in cases:
        mine = [row for row in rows if (row["problem"], row["ranks"], row["exchange"]) == case]
        best, auto = (
            min(mine, key=lambda row: row["step"]),
            next(row for row in mine if row["every"] == mine[0]["auto"]),
        )
        given = [f"{row['every']} | {milliseconds(row['step'])}" for row in (auto, best)]
        lines.append(
            f"| {case[0]} | {case[1]} | {WORDS[case[2]]} | {' | '.join(given)} | {auto['step'] / best['step']:.2f} |"
        )
    return "\n".join(lines)


def milliseconds(seconds: float) -> str:
    """Format a time."""
    return f"{seconds * 1e3:.2f}"


def compared(predicted: float, measured: float) -> list[str]:
    """Format the cells of the table for a predicted and a measured time."""
    return [milliseconds(predicted), milliseconds(measured), f"{predicted / measured - 1:+.0%}"]


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
    measured = [rows_of(*case) for _ in range(rounds) for case in cases]
    put("measured", report(medians(measured), rounds))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        measure_as_rank(sys.argv[2])
    elif sys.argv[1:] == ["--on-paper"]:
        import on_paper

        put("on paper", on_paper.paper())
        on_paper.draw()
    else:
        main(*map(int, sys.argv[1:]))
