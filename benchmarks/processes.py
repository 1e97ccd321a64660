"""Compare two processes, or two devices, with one process that uses both cores: 3-D heat, euler, float32, 256^3.

.venv/bin/python benchmarks/processes.py [rounds] [cells per axis]
"""

from __future__ import annotations

import sys

from common import HEAT, machine, ratio_line, run_speed

STEPS = 60
ROWS = {
    "1 process x 1 device": (1, 1),
    "1 process x 2 devices": (1, 2),
    "2 processes x 1 device": (2, 1),
    "2 processes x 2 devices": (2, 2),
}


def main(rounds: int = 5, n: int = 256) -> None:
    found: dict[str, list[float]] = {name: [] for name in ROWS}
    for _ in range(rounds):
        for name, (processes, devices) in ROWS.items():
            found[name].append(run_speed(HEAT.format(n=n, steps=STEPS), processes, devices))
    print(f"{machine()}; 3-D heat, euler, float32, {n}^3, {rounds} interleaved rounds")
    for name, values in found.items():
        print(ratio_line(name, values, found["1 process x 1 device"]))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
