"""Measure the cost of messages between blocks: the step loop with messages, or with several devices, against one without.

Each row is `hpcstencil bench` on an input, and the rows of a case take turns. The last column is the median of the ratios to
the case's first row in the same round.

    .venv/bin/python benchmarks/messages.py [rounds] [case ...]
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from common import HEAT, ROOT, command, machine, output_of, ratio_line

WAVE = """
[grid]
shape = [256, 256, 256]
[equation]
name = "wave"
[initial]
u = "exp(-((x - 128)**2 + (y - 128)**2 + (z - 128)**2)/100)"
[numerics]
order = 4
integrator = "leapfrog"
[time]
end = 60.0
dt = 0.2
"""
INPUTS = {
    "heat": HEAT.format(n=256, steps=60).replace('kernel = "shift"', 'kernel = "native"'),
    "wave": WAVE,
    "main": (ROOT / "inputs" / "gray_scott.toml").read_text(),
}
# The rows of each case: (processes, devices per process, decomposition.exchange). The first row is the reference.
CASES = {
    "heat": [
        (2, 1, "auto"), (1, 1, "auto"), (2, 1, "mpi"), (2, 1, "mpi4jax"), (4, 1, "auto"), (4, 1, "mpi"), (4, 1, "mpi4jax"),
        (1, 2, "auto"), (2, 2, "auto"), (2, 2, "mpi"),
    ],
    "wave": [(2, 1, "auto"), (2, 1, "mpi"), (2, 1, "mpi4jax")],
    "main": [(2, 1, "auto"), (2, 1, "mpi"), (2, 2, "auto"), (1, 2, "auto")],
}  # fmt: skip


def speed(path: Path, processes: int, devices: int, exchange: str) -> float:
    """Measure the cell updates per second of a row."""
    given = ["--devices", str(devices), "--set", f"decomposition.exchange={exchange}", "--json"]
    return float(json.loads(output_of(command(processes, "bench", str(path), *given)))["rows"][0]["cells_per_second"])


def main(rounds: int, cases: list[str]) -> None:
    print(f"{machine()}; `hpcstencil bench`, {rounds} interleaved rounds")
    for case in cases:
        found: dict[tuple[int, int, str], list[float]] = {row: [] for row in CASES[case]}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "input.toml"
            path.write_text(INPUTS[case])
            for _ in range(rounds):
                for row, values in found.items():
                    values.append(speed(path, *row))
        for (processes, devices, exchange), values in found.items():
            name = f"{case}, {processes} x {devices}, {exchange}"
            print(ratio_line(name, values, found[CASES[case][0]]), flush=True)


if __name__ == "__main__":
    main(int((sys.argv[1:] or ["3"])[0]), sys.argv[2:] or list(CASES))
