"""What Python adds to the steps of a simulation: `sim.step` against the time that `hpcstencil run` spends computing.

.venv/bin/python benchmarks/python_steps.py [rounds]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import tomllib
from pathlib import Path

from common import machine, summary_of, told

import hpcstencil as hs

INPUT = """
[grid]
shape = [{n}, {n}]
[equation]
name = "heat"
D = 0.1
[initial]
u = "sin(x/20)*sin(y/20)"
[numerics]
integrator = "euler"
[time]
dt = 1.0
end = {steps}.0
"""
CALLS = 20  # of `sim.step` in a round, and thousands of steps of the command


def seconds(sim: hs.Simulation, steps: int) -> float:
    """Return the median time of a call of `sim.step`."""
    found = []
    for _ in range(CALLS):
        began = time.perf_counter()
        sim.step(steps)
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def simulation(n: int) -> hs.Simulation:
    """Return a simulation that has taken its first steps, on n x n cells."""
    sim = hs.Simulation(tomllib.loads(INPUT.format(n=n, steps=10**7)))
    sim.step(1000)
    return sim


def command_seconds(n: int, steps: int) -> float:
    """Return the seconds that a run spends computing."""
    with tempfile.TemporaryDirectory() as folder:
        return float(told(r"computing ([\d.]+) s", summary_of(INPUT.format(n=n, steps=steps), Path(folder))))


def main(rounds: int) -> None:
    """Print the medians of ``rounds`` interleaved rounds."""
    print(f"{machine()}; heat, order 2, euler, float32, {rounds} interleaved rounds")
    small, large = simulation(64), simulation(1024)
    each = statistics.median(seconds(small, 1) for _ in range(rounds))
    print(f"64^2 cells: {1e3 * each:.3f} ms per sim.step(1)")
    pairs = [(seconds(large, 1000), command_seconds(1024, 1000 * CALLS) / CALLS) for _ in range(rounds)]
    ours, command = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    print(
        f"1024^2 cells: {1e3 * ours:.1f} ms per sim.step(1000), {1e3 * command:.1f} ms by the command; ratio {ratio:.3f}"
    )


if __name__ == "__main__":
    main(int((sys.argv[1:] or ["5"])[0]))
