"""Measure the time that diagnostics add to a run: the integral and the extrema of a field after every 10 steps.

The problem is 3-D heat by the Euler method, whose steps are the cheapest, so the share is the largest. The runs with and
without diagnostics are interleaved.

.venv/bin/python benchmarks/diagnostics.py [rounds]
"""

from __future__ import annotations

import datetime
import statistics
import sys
import tempfile
from pathlib import Path

from common import HEAT, machine, software, stepping_seconds, summary_of

DIAGNOSTICS = """
[diagnostics]
every_steps = 10
heat = "integral(u)"
warmest = "max(u)"
coldest = "min(u)"
"""
PROBLEMS = ((256, "float32", 1000), (256, "float64", 500))  # cells per axis, precision, steps


def main(rounds: int = 5) -> None:
    print(f"{machine()}; {software()}; {datetime.date.today()}. Medians of {rounds} round(s).\n")
    print("| cells | precision | s without | s with | added, % |\n|---|---|---|---|---|")
    for n, precision, steps in PROBLEMS:
        text = HEAT.format(n=n, steps=steps).replace(
            'kernel = "shift"', f'kernel = "native"\nprecision = "{precision}"'
        )
        with tempfile.TemporaryDirectory() as folder:
            pairs = [
                tuple(stepping_seconds(summary_of(text + more, Path(folder))) for more in ("", DIAGNOSTICS))
                for _ in range(rounds)
            ]
        without, having = (statistics.median(column) for column in zip(*pairs, strict=True))
        added = 100 * (statistics.median(b / a for a, b in pairs) - 1)
        print(f"| {n}³ | {precision} | {without:.2f} | {having:.2f} | {added:.1f} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
