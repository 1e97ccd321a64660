"""Compare the peak resident memory of `hpcstencil run`, beyond that on 16^3 cells, with the estimate of `hpcstencil check`.

.venv/bin/python benchmarks/memory.py [cells per axis]
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from common import HEAT, command, machine, output_of

GRAY_SCOTT = """
[grid]
shape = [{n}, {n}, {n}]
[equation]
name = "gray_scott"
F = 0.037
k = 0.060
D_u = 0.1
D_v = 0.05
[initial]
u = "1 - 0.5*(abs(x - 8) < 4)*(abs(y - 8) < 4)"
v = "0.25*(abs(x - 8) < 4)*(abs(y - 8) < 4)"
[time]
end = {steps}.0
dt = 1.0
"""
STEPS = 8
WRITING = ("output.every_steps=2", "checkpoint.every_steps=4", 'diagnostics.mass="integral(u)"')
ROWS = [
    ("heat, euler", HEAT, 1, ("numerics.integrator=euler",)),
    ("heat, rk4", HEAT, 1, ("numerics.integrator=rk4",)),
    ("Gray-Scott, rk4", GRAY_SCOTT, 1, ("numerics.integrator=rk4",)),
    ("heat, euler, float64", HEAT, 1, ("numerics.precision=float64",)),
    ("heat, euler, files written", HEAT, 1, WRITING),
    ("the same, write_behind = false", HEAT, 1, (*WRITING, "output.write_behind=false")),
    ("heat, euler, 2 processes", HEAT, 2, ()),
]
UNITS = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
# Runs a command and prints the peak memory of its own process, without that of a compiler that it starts.
MEASURE = """
import re, subprocess, sys, time
run, peak = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL), []
while run.poll() is None:
    with open(f"/proc/{run.pid}/status") as status:
        peak = re.findall(r"VmHWM:\\s+(\\d+) kB", status.read()) or peak
    time.sleep(0.005)
print("peak", *peak)
sys.exit(run.returncode)
"""


def measured(text: str, n: int, processes: int, options: list[str]) -> tuple[float, float]:
    """Return (peak resident bytes of a process of a run on n^3 cells, bytes of arrays estimated by `check`)."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input.toml"
        path.write_text(text.format(n=n, steps=STEPS))
        *launcher, python, module, name = command(processes)
        line = [python, module, name, "run", str(path), "--output", f"{folder}/out.h5", "--quiet", *options]
        said = output_of([*launcher, python, "-c", MEASURE, *line])
        plan = output_of([python, module, name, "check", str(path), "--processes", str(processes), *options])
    peak = max(int(found) * 1024 for found in re.findall(r"peak (\d+)", said))
    found = re.search(r"memory per process +([0-9.e+]+) (\w+)", plan)
    assert found, plan
    return peak, float(found.group(1)) * UNITS[found.group(2)]


def main(n: int = 256) -> None:
    print(f"{machine()}; {n}^3 cells, float32 where nothing else is said; MB")
    print(f"{'':<32}{'kernel':<8}{'plan':>8}{'peak':>8}{'ratio':>8}{'own':>8}")
    for name, text, processes, settings in ROWS:
        for kernel in ("native", "shift"):
            options = [part for value in (*settings, f"numerics.kernel={kernel}") for part in ("--set", value)]
            own, _ = measured(text, 16, processes, options)
            whole, plan = measured(text, n, processes, options)
            print(f"{name:<32}{kernel:<8}{plan / 1e6:>8.0f}{(whole - own) / 1e6:>8.0f}{(whole - own) / plan:>8.2f}"
                  f"{own / 1e6:>8.0f}")  # fmt: skip


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
