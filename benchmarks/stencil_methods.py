"""Compare the direct sum and Fourier transforms for user-defined stencils of several sizes, in interleaved rounds.

.venv/bin/python benchmarks/stencil_methods.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
from common import machine

import hpcstencil as hs

ROUNDS, STEPS = 3, 5
CASES = [(512, (3, 3)), (512, (9, 9)), (512, (17, 17)), (512, (31, 31)), (512, (65, 33)), (2048, (65, 33))]


def steps_of(cells: int, counts: tuple[int, int], precision: str, method: str) -> Callable[[], float]:
    """Return a function that measures the milliseconds per step of Euler's method for du/dt = blur(u) - u."""
    weights = np.random.default_rng(1).random(counts)
    sim = hs.Simulation(
        {
            "grid": {"shape": [cells, cells]},
            "equation": {
                "name": "custom",
                "rhs": {"u": "blur(u) - u"},
                "stencils": {"blur": {"weights": weights / weights.sum(), "method": method}},
            },
            "initial": {"u": "noise(1)"},
            "numerics": {"integrator": "euler", "precision": precision},
            "time": {"end": 1000.0, "dt": 0.1},
        }
    )
    sim.step(2)

    def measured() -> float:
        start = time.perf_counter()
        sim.step(STEPS)
        return (time.perf_counter() - start) / STEPS * 1e3

    return measured


def main() -> None:
    print(f"{machine()}\n\n| grid | weights | precision | direct, ms | fft, ms | ratio |\n|---|---|---|---|---|---|")
    for cells, counts in CASES:
        for precision in ("float32", "float64"):
            pair = [steps_of(cells, counts, precision, method) for method in ("direct", "fft")]
            rounds = [[measured() for measured in pair] for _ in range(ROUNDS)]
            direct, fft = (statistics.median(times) for times in zip(*rounds, strict=True))
            size, shape = f"{cells} x {cells}", " x ".join(map(str, counts))
            print(f"| {size} | {shape} | {precision} | {direct:.2f} | {fft:.2f} | {direct / fft:.2g} |", flush=True)


if __name__ == "__main__":
    main()
