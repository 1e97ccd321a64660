"""Measure gradients of equations with many terms: steps reversed in small groups, as planned, against groups of 16 stages.

The number of operations limits the groups (`adjoint.plan.MOST_OPERATIONS`). The times are medians of interleaved rounds. They
leave out the first gradient, which compiles.

.venv/bin/python benchmarks/gradient_groups.py [rounds]
"""

from __future__ import annotations

import datetime
import statistics
import sys
import time
from typing import Any

from common import machine, software

import hpcstencil as hs
from hpcstencil.adjoint import plan

BASIN: dict[str, Any] = {
    "equation": {"name": "shallow_water", "g": 1.0, "nu": 0.01},
    "initial": {"h": "10 + sin(6*x)"},
    "objective": {"J": "integral(h**2)"},
    "gradient": {"of": ["initial.h", "equation.nu"]},
}
CASES: dict[str, tuple[int, float, dict[str, Any]]] = {  # cells per axis, dt in cell widths, tables
    "Burgers, rk4": (640, 0.05, {
        "equation": {"name": "burgers", "nu": 1e-4},
        "initial": {"u": "sin(6*x)", "v": "cos(6*y)"},
        "numerics": {"integrator": "rk4"},
        "objective": {"J": "integral(u**2)"},
        "gradient": {"of": ["initial.u", "equation.nu"]},
    }),
    "shallow water, ssprk3": (640, 0.02, {**BASIN, "numerics": {"integrator": "ssprk3"}}),
    "shallow water, rk4": (640, 0.02, {**BASIN, "numerics": {"integrator": "rk4"}}),
    "Euler, rk4": (128, 0.05, {
        "equation": {"name": "euler"},
        "initial": {"rho": "1 + 0.1*sin(6.283185*x)", "mx": 0.1, "my": "0.1*sin(6.283185*y)", "E": 3.0},
        "numerics": {"integrator": "rk4"},
        "objective": {"J": "integral(rho**2 + E)"},
        "gradient": {"of": ["initial.rho", "initial.E", "equation.gamma"]},
    }),
}  # fmt: skip
STEPS = 100
LARGE = 10**9  # operations, more than any group has


def simulation(case: str) -> Any:
    """Return the simulation of a row."""
    cells, dt, tables = CASES[case]
    grid, step = {"shape": [cells] * 2, "upper": [1.0, 1.0]}, dt / cells
    return hs.Simulation({**tables, "grid": grid, "time": {"dt": step, "end": STEPS * step}})


def seconds(sim: Any) -> float:
    """Return the time of a gradient."""
    began = time.perf_counter()
    sim.value_and_gradient()
    return time.perf_counter() - began


def main(rounds: int = 3) -> None:
    print(
        f"{machine()}; {software()}; {datetime.date.today()}. {STEPS} steps, float32, medians of {rounds} round(s).\n"
    )
    print("| problem | cells | as planned, s | 16 stages, s | ratio |\n|---|---|---|---|---|")
    planned = plan.MOST_OPERATIONS
    for case, (cells, _, _) in CASES.items():
        sims = dict[int, Any]()
        for limit in (planned, LARGE):
            plan.MOST_OPERATIONS = limit
            sims[limit] = simulation(case)
            sims[limit].value_and_gradient()
        rounds_of = [{limit: seconds(sim) for limit, sim in sims.items()} for _ in range(rounds)]
        now, before = (statistics.median(each[limit] for each in rounds_of) for limit in sims)
        print(f"| {case} | {cells}² | {now:.2f} | {before:.2f} | {before / now:.2f} |", flush=True)
        for sim in sims.values():
            sim.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
