"""Measure the throughput on two hosts against the network delay between them, for halos of different widths.

Two processes run, one on each of two simulated hosts (tests/hosts/network.py). The rows are: both processes on one host, with
shared memory; two hosts connected by a veth pair; two hosts connected by a user-space switch, with delays from 0 on. Each cell
has the median Mcell/s over the rounds, and the median of the ratios within a round: relative to the first row for the veth
pair, and relative to no delay for the switch. Needs root.

    .venv/bin/python benchmarks/network_delay.py [rounds] [2d or 3d] [bits per second]
"""

from __future__ import annotations

import re
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from common import ROOT, command, machine, output_of

sys.path.insert(0, str(ROOT / "tests" / "hosts"))
from network import TwoHosts, unavailable

DELAYS = (0.0, 1e-4, 5e-4, 2e-3, 5e-3)  # seconds, one way
WIDTHS = ("1", "4", "8", "16", '"auto"')  # steps_per_exchange
SHAPES = {"2d": [2048, 2048], "3d": [256, 256, 256]}
STEPS = {"2d": 960, "3d": 96}
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
Launch = Callable[..., list[str]]


def speed(kind: str, width: str, launch: Launch) -> tuple[float, str]:
    """Return the Mcell/s of a run, and its means of exchange; ``launch`` returns the command line that starts it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input.toml"
        path.write_text(INPUT.format(shape=SHAPES[kind], steps=STEPS[kind], width=width))
        text = output_of(launch("run", str(path), "--output", f"{folder}/out.h5"))
    found = re.search(r"speed +([0-9.]+) Mcell/s", text)
    assert found, text
    return float(found.group(1)), next(line for line in text.splitlines() if line.startswith("exchange"))


def on_two_hosts(kind: str, width: str, delay: float | None, rate: float | None) -> tuple[float, str]:
    """Return `speed` on two hosts, connected by the switch with this ``delay`` in seconds, or with None by the veth pair."""
    with TwoHosts(delay=delay or 0.0, switched=delay is not None, rate=rate) as hosts:
        return speed(kind, width, lambda *line: hosts.mpirun(2, sys.executable, "-m", "hpcstencil", *line, folder=ROOT))


def main(rounds: int = 3, kind: str = "2d", rate: float | None = None) -> None:
    if reason := unavailable():
        sys.exit(f"two hosts cannot be had here: {reason}")
    rows: dict[str, Callable[[str], tuple[float, str]]] = {
        "one host": lambda width: speed(kind, width, lambda *line: command(2, *line)),
        "veth": lambda width: on_two_hosts(kind, width, None, rate),
    }
    for delay in DELAYS:
        rows[f"{delay * 1e3:g} ms"] = lambda width, delay=delay: on_two_hosts(kind, width, delay, rate)  # type: ignore[misc]
    found: dict[tuple[str, str], list[float]] = {(row, width): [] for row in rows for width in WIDTHS}
    chosen: dict[str, str] = {}
    for _ in range(rounds):
        for row, width in found:
            value, exchange = rows[row](width)
            found[row, width].append(value)
            chosen[row] = exchange
    shape = " x ".join(map(str, SHAPES[kind]))
    link = f", {rate:g} bit/s" if rate else ""
    print(f"{machine()}, network namespaces{link}; heat, euler, float32, {shape}, {rounds} interleaved rounds")
    print("\n| | " + " | ".join(f"k = {width}" for width in WIDTHS) + " |\n" + "|---" * (len(WIDTHS) + 1) + "|")
    for row in rows:
        reference = "one host" if row in ("one host", "veth") else f"{DELAYS[0] * 1e3:g} ms"
        cells = []
        for width in WIDTHS:
            pairs = zip(found[row, width], found[reference, width], strict=True)
            ratio = statistics.median(value / other for value, other in pairs)
            cells.append(f"{statistics.median(found[row, width]):.0f} ({ratio:.2f})")
        print(f"| {row} | " + " | ".join(cells) + " |")
    print("\nThe last run of each row with auto:")
    for row, exchange in chosen.items():
        print(f"{row:>10}: {exchange}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]), *sys.argv[2:3], *map(float, sys.argv[3:4]))
