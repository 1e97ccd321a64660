"""Measure the cost of a snapshot every 100 steps: 3-D heat, euler, float32, 256^3, native code, on 1 and 2 processes.

The reference is the same run with only its first and last snapshot, interleaved; compilation is excluded. For comparison, the
script also measures how fast the same number of plain files of a snapshot's size can be written to the same folder. These
writes go to fresh pages of the page cache and do not wait for the disk.

.venv/bin/python benchmarks/output.py [rounds] [cells per axis] [steps]
"""

from __future__ import annotations

import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

from common import HEAT, command, machine, output_of

EVERY = 100


def seconds(processes: int, n: int, steps: int, *more: str) -> float:
    """Return the wall time of a run in seconds, from its first output to the closed file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input.toml"
        path.write_text(HEAT.format(n=n, steps=steps))
        text = output_of(
            command(processes, "run", str(path), "--output", f"{folder}/o.h5", "--set", "numerics.kernel=native", *more)
        )
    before = ("starting up", "setting up", "compiling")
    wall, *parts = (
        float(found.group(1)) if (found := re.search(rf"{name} +([0-9.]+) s", text)) else 0.0
        for name in ("wall time", *before)
    )
    return wall - sum(parts)


def plain(size: int, count: int) -> list[float]:
    """Return the bytes per second at which each of ``count`` files of ``size`` bytes is written in one call."""
    speeds, content = [], bytes(size)
    with tempfile.TemporaryDirectory() as folder:
        for n in range(count):
            start = time.perf_counter()
            (Path(folder) / str(n)).write_bytes(content)
            speeds.append(size / (time.perf_counter() - start))
    return speeds


def main(rounds: int = 5, n: int = 256, steps: int = 1000) -> None:
    print(f"{machine()}; 3-D heat, euler, float32, {n}^3, {steps} steps, {rounds} interleaved rounds")
    written_plainly: list[float] = []
    for processes in (1, 2):
        pairs = []
        for _ in range(rounds):
            without = seconds(processes, n, steps)
            pairs.append((without, seconds(processes, n, steps, "--set", f"output.every_steps={EVERY}")))
            written_plainly += plain(4 * n**3, steps // EVERY)
        without, written = (statistics.median(times) for times in zip(*pairs, strict=True))
        loss = statistics.median(b / a - 1 for a, b in pairs)
        print(f"{processes} process(es): {without:.2f} s without, {written:.2f} s with a snapshot every {EVERY} steps: "
              f"{loss:+.1%}")  # fmt: skip
    low, median, high = min(written_plainly), statistics.median(written_plainly), max(written_plainly)
    print(f"plain files of {4 * n**3 / 1e6:.0f} MB: {median / 1e9:.2f} GB/s, from {low / 1e9:.2f} to {high / 1e9:.2f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
