"""Measure short calls, `sim.step(1)` and `sim.step(2)`, with the fields stored in two arrays in turn and in place.

The columns "in turn" are those of a simulation whose calls are all short. The columns "in place" are those of one that has
taken a longer call before, which afterwards stores the fields in place. For comparison: a step of a long call, and a copy of
the fields by numpy on all cores. The rounds are interleaved.

.venv/bin/python benchmarks/short_calls.py [rounds]
"""

from __future__ import annotations

import datetime
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from common import machine, software

import hpcstencil as hs

BUMP = "exp(-((x - 100)**2 + (y - 90)**2)/200)"
EULER, LEAPFROG = {"integrator": "euler"}, {"integrator": "leapfrog", "order": 4}
CASES: dict[str, tuple[int, dict[str, Any]]] = {  # the number of fields that change, and the input
    "heat 256³": (1, {"equation": {"name": "heat"}, "initial": {"u": BUMP}, "numerics": EULER}),
    "wave 256³, order 4": (2, {"equation": {"name": "wave"}, "initial": {"u": BUMP}, "numerics": LEAPFROG}),
    "Gray-Scott 256³": (2, {
        "equation": {"name": "gray_scott", "D_u": 0.2, "D_v": 0.1},
        "initial": {"u": f"1 - 0.5*{BUMP}", "v": f"0.25*{BUMP}"},
        "numerics": EULER,
    }),
}  # fmt: skip
CELLS = 256  # along each axis
LONG = 100  # steps of a long call
SECONDS = 0.5  # how long each call is repeated


def median_of_calls(call: Callable[[], object], first: int = 20) -> float:
    """Return the median time of a call in milliseconds, after the ``first`` ones."""
    for _ in range(first):
        call()
    found, end = [], time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        began = time.perf_counter()
        call()
        found.append(1e3 * (time.perf_counter() - began))
    return statistics.median(found)


def copying(fields: int) -> float:
    """Return the milliseconds that a copy of the fields takes on all cores."""
    threads = len(os.sched_getaffinity(0))
    source, target = (np.full((threads, fields * CELLS**3 // threads), value, np.float32) for value in (1.0, 0.0))
    with ThreadPoolExecutor(threads) as pool:
        return median_of_calls(lambda: list(pool.map(np.copyto, target, source)))


def measured(fields: int, case: dict[str, Any]) -> list[float]:
    """Return milliseconds: of one and of two steps in turn, the same in place, of a step of a long call, and of a copy."""
    tables = {"grid": {"shape": [CELLS] * 3}, "time": {"end": 1e6, "dt": 0.1}, **case}
    with hs.Simulation(tables) as sim:
        in_turn = [median_of_calls(lambda steps=steps: sim.step(steps)) for steps in (1, 2)]
        long = median_of_calls(lambda: sim.step(LONG), first=2) / LONG
        in_place = [median_of_calls(lambda steps=steps: sim.step(steps)) for steps in (1, 2)]
    return [*in_turn, *in_place, long, copying(fields)]


def main(rounds: int = 3) -> None:
    print(f"{machine()}; {software()}; {datetime.date.today()}. Milliseconds, medians of {rounds} round(s).\n")
    print(
        "| problem, float32 | step(1) in turn | step(2) in turn | step(1) in place | step(2) in place | a step of a long call "
        "| a copy of the fields |\n|---|---|---|---|---|---|---|"
    )
    found: dict[str, list[list[float]]] = {name: [] for name in CASES}
    for _ in range(rounds):
        for name, case in CASES.items():
            found[name].append(measured(*case))
    for name, rows in found.items():
        print(f"| {name} | {' | '.join(f'{statistics.median(column):.1f}' for column in zip(*rows, strict=True))} |")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
