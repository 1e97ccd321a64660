"""What a snapshot every 100 steps costs: 3-D heat, euler, float32, 256^3, native code, against the same run with none between
its first and last state, interleaved; on 1 and 2 processes. Compiling apart. With them, how fast as many plain files of a
snapshot's size are written to the same place (fresh pages of the cache; the disk is not waited for).

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
    """Wall time of a run, from its first output to its closed file."""
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
    """Bytes per second of each of ``count`` files of ``size`` bytes, written as a whole."""
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
