"""Throughput on two hosts against the delay of the network between them, for halos of different widths.

Two processes, one on each of two pretended hosts (tests/hosts/network.py), through the user-space switch at every delay,
0 included. A cell: median Mcell/s of the rounds, and the median of its ratios to the same column without delay in the
same round. Needs root.

.venv/bin/python benchmarks/network_delay.py [rounds] [2d or 3d]
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import tempfile
from pathlib import Path

import h5py
from common import ROOT, machine, output_of

sys.path.insert(0, str(ROOT / "tests" / "hosts"))
from network import TwoHosts, unavailable

DELAYS = (0.0, 1e-4, 5e-4, 2e-3, 5e-3)  # seconds, one way
WIDTHS = ("1", "2", "4", "8", "16", '"auto"')  # steps_per_exchange
SHAPES = {"2d": [2048, 2048], "3d": [256, 256, 256]}
INPUT = """
[grid]
shape = {shape}
[equation]
name = "heat"
D = 0.1
[initial]
u = "sin(x/20)*sin(y/20)"
[numerics]
integrator = "euler"
kernel = "native"
[time]
end = {steps}.0
dt = 1.0
[decomposition]
steps_per_exchange = {width}
"""


def measure(shape: list[int], delay: float, width: str) -> tuple[float, str]:
    """Cells per second of a run on two hosts, and the steps between two exchanges that it took."""
    steps = 3200 if delay < 1e-3 else 640  # some seconds at most, at one exchange per step
    with tempfile.TemporaryDirectory() as folder, TwoHosts(delay=delay, switched=True) as hosts:
        path = Path(folder) / "input.toml"
        path.write_text(INPUT.format(shape=shape, steps=steps, width=width))
        run = (sys.executable, "-m", "hpcstencil", "run", path, "--output", f"{folder}/out.h5")
        text = output_of(hosts.mpirun(2, *run, folder=ROOT))
        with h5py.File(f"{folder}/out.h5") as file:
            chosen = json.loads(file.attrs["decomposition"])["steps_per_exchange"]
    found = re.search(r"speed +([0-9.]+) Mcell/s", text)
    assert found, text
    return float(found.group(1)), str(chosen)


def main(rounds: int = 3, kind: str = "2d") -> None:
    if reason := unavailable():
        sys.exit(f"two hosts cannot be had here: {reason}")
    found: dict[tuple[float, str], list[float]] = {(delay, width): [] for delay in DELAYS for width in WIDTHS}
    auto = "?"
    for _ in range(rounds):
        for delay, width in found:
            speed, chosen = measure(SHAPES[kind], delay, width)
            found[delay, width].append(speed)
            auto = chosen if "auto" in width else auto
    shape = " x ".join(map(str, SHAPES[kind]))
    print(f"{machine()}, network namespaces; heat, euler, float32, {shape}, {rounds} interleaved rounds")
    heads = [*(f"k = {width}" for width in WIDTHS[:-1]), f"auto (k = {auto})"]
    print("\n| one-way delay, ms | " + " | ".join(heads) + " |\n" + "|---" * (len(heads) + 1) + "|")
    for delay in DELAYS:
        cells = []
        for width in WIDTHS:
            values, without = found[delay, width], found[0.0, width]
            ratio = statistics.median(v / w for v, w in zip(values, without, strict=True))
            cells.append(f"{statistics.median(values):.0f} ({ratio:.2f})")
        print(f"| {delay * 1e3:g} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *sys.argv[2:3])
