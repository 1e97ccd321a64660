"""Peak resident memory of `hpcstencil run`, above what importing everything takes, in copies of the field.

.venv/bin/python benchmarks/memory.py [cells per axis]
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from common import HEAT, command, machine, output_of

MEASURE = (
    "import resource, subprocess, sys; code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode; "
    "print('peak', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(code)"
)


def peak(n: int, kernel: str) -> int:
    """Peak resident bytes of a run of 5 steps on n^3 cells."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input.toml"
        path.write_text(HEAT.format(n=n, steps=5))
        line = command(
            1, "run", str(path), "--output", f"{folder}/out.h5", "--quiet", "--set", f"numerics.kernel={kernel}"
        )
        text = output_of([sys.executable, "-c", MEASURE, *line])
    found = re.search(r"peak (\d+)", text)
    assert found, text
    return int(found.group(1)) * 1024


def main(n: int = 256) -> None:
    field = 4 * n**3
    print(f"{machine()}; 3-D heat, euler, float32, {n}^3, field of {field / 1e6:.0f} MB")
    for kernel in ("native", "shift"):
        baseline, whole = peak(8, kernel), peak(n, kernel)
        print(f"{kernel:<8} baseline (8^3) {baseline / 1e6:.0f} MB, peak {whole / 1e6:.0f} MB: "
              f"{(whole - baseline) / field:.2f} copies of the field")  # fmt: skip


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
