"""Measure what streams add to a run: averages over time, expressions, and small parts of the grid that are written often.

The runs with and without streams are interleaved. The time includes that of writing the records.

.venv/bin/python benchmarks/streams.py [rounds]
"""

from __future__ import annotations

import datetime
import statistics
import sys
import tempfile
from pathlib import Path

from common import GRAY_SCOTT, machine, native_heat, software, stepping_seconds, summary_of

HEAT_2D = """
grid.shape = [1024, 1024]
equation = { name = "heat", D = 0.1 }
initial.u = "sin(x/20)*sin(y/20)"
numerics = { integrator = "euler", kernel = "native" }
time = { dt = 1.0, end = 4000.0 }
"""
PROBLEMS = {"heat, 256³": native_heat(400), "heat, 1024²": HEAT_2D, "Gray-Scott, 2048²": GRAY_SCOTT.format(end=200.0)}
STREAMS = {
    "mean of u over 100 steps": 'every_steps = 100\naverage = true\nfields = ["u"]',
    "mean of u*u over 100 steps": 'every_steps = 100\naverage = true\nexpressions = { square = "u*u" }',
    "a plane of u every 10 steps": 'every_steps = 10\nfields = ["u"]\nregion = { x = 10.0 }',
    "a plane of dx(u) every 10 steps": 'every_steps = 10\nexpressions = { slope = "dx(u)" }\nregion = { x = 10.0 }',
    "a plane of u every step": 'every_steps = 1\nfields = ["u"]\nregion = { x = 10.0 }',
    "u every 50 steps": 'every_steps = 50\nfields = ["u"]',
    "laplacian(u) every 50 steps": 'every_steps = 50\nexpressions = { curvature = "laplacian(u)" }',
}


def main(rounds: int = 3) -> None:
    print(f"{machine()}; {software()}; {datetime.date.today()}. Medians of {rounds} round(s), float32.\n")
    print(f"| problem | without, s | {' | '.join(STREAMS)} |\n|{'---|' * (2 + len(STREAMS))}")
    for problem, text in PROBLEMS.items():
        inputs = [text, *(f"{text}\n[output.streams.part]\n{stream}\n" for stream in STREAMS.values())]
        with tempfile.TemporaryDirectory() as folder:
            found = [[stepping_seconds(summary_of(each, Path(folder))) for each in inputs] for _ in range(rounds)]
        without = statistics.median(row[0] for row in found)
        factors = [statistics.median(row[n] / row[0] for row in found) for n in range(1, len(inputs))]
        print(f"| {problem} | {without:.2f} | {' | '.join(f'{factor:.1f} x' for factor in factors)} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
