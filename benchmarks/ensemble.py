"""Measure the members of an ensemble against a single run of as many cells, in interleaved rounds.

16 members of 256 x 256 cells with different parameters, and one run of 1024 x 1024 cells. Float32, native code, one process.

.venv/bin/python benchmarks/ensemble.py [rounds] [problem ...]
"""

from __future__ import annotations

import datetime
import statistics
import sys
from collections.abc import Sequence

from common import machine, run_speed, software

MEMBERS = 16
HEAT = """
equation = { name = "heat", D = 0.1 }
initial.u = "sin(x/10)*cos(y/7)"
numerics = { integrator = "euler", kernel = "native" }
time = { dt = 1.0, end = 20000.0 }
"""
GRAY_SCOTT = """
equation.name = "gray_scott"
equation.D_u = 0.2
equation.D_v = 0.1
initial.u = "1 - 0.5*sin(x/10)**2"
initial.v = "0.25*sin(y/10)**2"
numerics.integrator = "{integrator}"
numerics.kernel = "native"
time.dt = 0.5
time.end = {end}
"""
WAVE = """
equation.name = "wave"
initial.u = "exp(-((x - 100)**2 + (y - 100)**2)/200)"
numerics = { integrator = "leapfrog", kernel = "native", order = 4 }
time = { dt = 0.4, end = 2000.0 }
"""
# problem: (the input without grid, the parameter that differs between members, its first and last value)
PROBLEMS = {
    "heat, euler": (HEAT, "equation.D", 0.05, 0.15),
    "Gray-Scott, euler": (GRAY_SCOTT.format(integrator="euler", end=4000.0), "equation.F", 0.03, 0.06),
    "Gray-Scott, rk4": (GRAY_SCOTT.format(integrator="rk4", end=1000.0), "equation.F", 0.03, 0.06),
    "wave, order 4, leapfrog": (WAVE, "equation.c", 0.5, 1.0),
}


def ensemble(text: str, key: str, first: float, last: float) -> str:
    """Return the input of the members."""
    values = [first + (last - first) * n / (MEMBERS - 1) for n in range(MEMBERS)]
    return f'grid.shape = [256, 256]\n{text}\n[ensemble]\n"{key}" = {values}'


def main(rounds: int, names: Sequence[str]) -> None:
    print(f"{machine()}; {software()}; {datetime.date.today()}. Medians of {rounds} round(s).\n")
    print(f"| problem | {MEMBERS} members, Mcell/s | one run, Mcell/s | ratio |\n|---|---|---|---|")
    for name in names or PROBLEMS:
        text, *varied = PROBLEMS[name]
        pairs = [
            (run_speed(ensemble(text, *varied)), run_speed("grid.shape = [1024, 1024]\n" + text)) for _ in range(rounds)
        ]
        members, one = (statistics.median(column) / 1e6 for column in zip(*pairs, strict=True))
        print(f"| {name} | {members:.0f} | {one:.0f} | {statistics.median(a / b for a, b in pairs):.2f} |", flush=True)


if __name__ == "__main__":
    words = sys.argv[1:]
    main(int(words.pop(0)) if words and words[0].isdigit() else 5, words)
