"""Measure the cost of probes: a run with receivers that record every step, against the same run without them.

A single receiver shows the cost of stepping in a way that allows recording.

.venv/bin/python benchmarks/probes.py [rounds] [case ...]
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
from pathlib import Path

from common import machine, stepping_seconds, summary_of

# the key of the table, what it records of a field, and by how many receivers
RECORDED = (("field", "{}", 1), ("field", "{}", 1000), ("expression", "dx({})", 1000))
INPUT = """
[grid]
shape = [1024, 1024]
[equation]
{equation}
[initial]
{field} = "exp(-((x - 512)**2 + (y - 512)**2)/200)"
{more}
[numerics]
integrator = "{integrator}"
order = {order}
[time]
dt = {dt}
end = {end}
"""
SHOTS = "[ensemble]\nequation.xs = [200.0, 400.0, 600.0, 800.0]"
LAYER = "[boundary]\nx = { cpml = { width = 30 } }\ny = { cpml = { width = 30 } }"
CASES = {
    "heat, order 2, euler": ("u", INPUT.format(
        equation='name = "heat"\nD = 0.1', field="u", more="", integrator="euler", order=2, dt=1.0, end=20000.0)),
    "wave, order 4, leapfrog": ("u", INPUT.format(
        equation='name = "wave"', field="u", more="", integrator="leapfrog", order=4, dt=0.25, end=2500.0)),
    "acoustic with CPML, order 8, rk4": ("p", INPUT.format(
        equation='name = "acoustic"\nc = 1.0', field="p", more=LAYER, integrator="rk4", order=8, dt=0.25, end=250.0)),
    "acoustic, 4 members, order 4, leapfrog": ("p", INPUT.format(
        equation='name = "acoustic"\nsource = 1.0\nf0 = 0.05', field="p", more=SHOTS, integrator="leapfrog", order=4, dt=0.25,
        end=125.0)),
}  # fmt: skip


def seconds(text: str) -> float:
    """Return the seconds of a run from its first step to its end."""
    with tempfile.TemporaryDirectory() as folder:
        return stepping_seconds(summary_of(text, Path(folder)))


def probes(key: str, recorded: str, receivers: int) -> str:
    """Return a table of receivers at random positions, as TOML."""
    rng = random.Random(1)
    places = [[round(rng.uniform(1, 1023), 3) for _ in range(receivers)] for _ in range(2)]
    return f'[probes.receivers]\n{key} = "{recorded}"\nx = {places[0]}\ny = {places[1]}\n'


def main(rounds: int, cases: list[str]) -> None:
    print(f"{machine()}; 1024^2 cells, float32, receivers after every step, {rounds} interleaved rounds\n")
    kinds = [f"{receivers} of `{what.format('u')}`" for _, what, receivers in RECORDED]
    print(f"| problem | without, s | {' | '.join(kinds)} |\n|{'---|' * (2 + len(kinds))}")
    for case in cases:
        field, text = CASES[case]
        inputs = [text, *(text + probes(key, what.format(field), receivers) for key, what, receivers in RECORDED)]
        found = [[seconds(each) for each in inputs] for _ in range(rounds)]
        without, *_ = (statistics.median(column) for column in zip(*found, strict=True))
        more = [statistics.median(row[n] / row[0] for row in found) - 1 for n in range(1, len(inputs))]
        print(f"| {case} | {without:.2f} | {' | '.join(f'{100 * part:.0f} %' for part in more)} |", flush=True)


if __name__ == "__main__":
    main(int((sys.argv[1:] or ["3"])[0]), sys.argv[2:] or list(CASES))
