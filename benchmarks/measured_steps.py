"""Measure what it costs to measure the stable step of the solution after every step (`time.dt_every = 1`, the default), against
the same run that measures it once.

The equations have rates that depend on the solution: on fields, or on functions of them such as the speed of sound. The runs
are interleaved. They take about the same steps, so the times are per step.

.venv/bin/python benchmarks/measured_steps.py [rounds]
"""

from __future__ import annotations

import datetime
import statistics
import sys
import tempfile
from pathlib import Path

from common import machine, software, stepping_seconds, summary_of, told

BUMP = "exp(-50*((x - 0.5)**2 + (y - 0.5)**2))"
EQUATIONS = {
    "Burgers": f"""
equation = {{ name = "burgers", nu = 1e-4 }}
initial = {{ u = "{BUMP}", v = "0.5*{BUMP}" }}
numerics.integrator = "ssprk3"
""",
    "shallow water": f"""
equation = {{ name = "shallow_water", g = 1.0 }}
initial.h = "1 + 0.1*{BUMP}"
numerics.integrator = "ssprk3"
""",
    "Euler": f"""
equation.name = "euler"
initial = {{ rho = "1.0", E = "2.5 + {BUMP}" }}
numerics.integrator = "ssprk2"
""",
}
GRIDS = (128, 512, 1024)
STEPS = {128: 3000, 512: 600, 1024: 200}
INPUT = """
grid = {{ shape = [{cells}, {cells}], upper = [1.0, 1.0] }}
time = {{ end = {end}, cfl = 0.4, dt_every = {every} }}
{equation}
"""


def per_step(equation: str, cells: int, every: int, folder: Path) -> float:
    """Return the milliseconds per step of a run, from its first step to its end."""
    end = 0.15 * STEPS[cells] / cells  # about that many steps
    summary = summary_of(INPUT.format(cells=cells, end=end, every=every, equation=equation), folder)
    return 1e3 * stepping_seconds(summary) / int(told(r"steps +(\d+)", summary))


def main(rounds: int = 3) -> None:
    print(f"{machine()}; {software()}; {datetime.date.today()}. Medians of {rounds} interleaved round(s).\n")
    print(
        "| equation | cells | measured once, ms a step | measured after every step, ms | added, % |\n|---|---|---|---|---|"
    )
    for name, equation in EQUATIONS.items():
        for cells in GRIDS:
            with tempfile.TemporaryDirectory() as folder:
                pairs = [
                    tuple(per_step(equation, cells, every, Path(folder)) for every in (100_000, 1))
                    for _ in range(rounds)
                ]
            once, always = (statistics.median(column) for column in zip(*pairs, strict=True))
            added = 100 * (statistics.median(b / a for a, b in pairs) - 1)
            print(f"| {name} | {cells}² | {once:.3f} | {always:.3f} | {added:.0f} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
