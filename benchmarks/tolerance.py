"""Compare adaptive steps, including their error estimates, in native code and in XLA's kernel, interleaved.

The problem is Gray-Scott in float32 on one process.

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
    ([1024, 1024], "bs3", 400.0),
    ([1024, 1024], "dopri5", 400.0),
    ([128, 128, 128], "bs3", 200.0),
)  # 100 to 200 steps


def main(rounds: int = 3) -> None:
    print(f"{machine()}; {software()}; {datetime.date.today()}. Medians of {rounds} round(s).\n")
    print("| grid and method | native, Mcell/s | shift, Mcell/s | ratio |\n|---|---|---|---|")
    for shape, integrator, end in PROBLEMS:
        pairs = [
            tuple(
                run_speed(INPUT.format(shape=shape, integrator=integrator, kernel=kernel, end=end))
                for kernel in ("native", "shift")
            )
            for _ in range(rounds)
        ]
        native, shift = (statistics.median(column) / 1e6 for column in zip(*pairs, strict=True))
        ratio = statistics.median(a / b for a, b in pairs)
        print(f"| {' x '.join(map(str, shape))}, {integrator} | {native:.0f} | {shift:.0f} | {ratio:.1f} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
