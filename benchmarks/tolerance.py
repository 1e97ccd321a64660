"""Compare adaptive steps, including their error estimates, in native code on one and two processes and in XLA's kernel,
interleaved.

The problem is Gray-Scott in float32. XLA's kernel runs on one process.

.venv/bin/python benchmarks/tolerance.py [rounds]
"""

from __future__ import annotations

import datetime
import statistics
import sys

from common import machine, run_speed, software

INPUT = """
[grid]
shape = {shape}
[equation]
name = "gray_scott"
D_u = 0.2
D_v = 0.1
[initial]
u = "1 - 0.5*sin(x/10)**2"
v = "0.25*sin(x/10)**2"
[numerics]
integrator = "{integrator}"
kernel = "{kernel}"
[time]
end = {end}
tolerance = 1e-6
"""
PROBLEMS = (
    ([128, 128], "bs3", 6000.0),
    ([1024, 1024], "bs3", 400.0),
    ([1024, 1024], "dopri5", 400.0),
    ([128, 128, 128], "bs3", 200.0),
)  # 1400 steps of the first, 100 to 200 of the others


def main(rounds: int = 3) -> None:
    print(f"{machine()}; {software()}; {datetime.date.today()}. Medians of {rounds} round(s).\n")
    print("| grid and method | native, Mcell/s | on 2 processes | shift, Mcell/s | native / shift |")
    print("|---|---|---|---|---|")
    for shape, integrator, end in PROBLEMS:
        rounds_of = [
            tuple(
                run_speed(INPUT.format(shape=shape, integrator=integrator, kernel=kernel, end=end), processes)
                for kernel, processes in (("native", 1), ("native", 2), ("shift", 1))
            )
            for _ in range(rounds)
        ]
        native, on_two, shift = (statistics.median(column) / 1e6 for column in zip(*rounds_of, strict=True))
        ratio = statistics.median(a / c for a, _, c in rounds_of)
        grid = " x ".join(map(str, shape))
        print(f"| {grid}, {integrator} | {native:.0f} | {on_two:.0f} | {shift:.0f} | {ratio:.1f} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
