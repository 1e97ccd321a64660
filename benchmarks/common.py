"""What the benchmark scripts share: starting hpcstencil as a user would, and reading what it says."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
HEAT = """
[grid]
shape = [{n}, {n}, {n}]
[equation]
name = "heat"
D = 0.1
[initial]
u = "sin(x/20)*sin(y/20)*sin(z/20)"
[numerics]
integrator = "euler"
kernel = "shift"
[time]
end = {steps}.0
dt = 1.0
"""
MPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
}


def command(processes: int, *arguments: str) -> list[str]:
    """hpcstencil on so many processes."""
    launcher = [] if processes == 1 else ["mpirun", "-n", str(processes)]
    return [*launcher, sys.executable, "-m", "hpcstencil", *arguments]


def output_of(line: list[str], **environment: str) -> str:
    """Standard output of a command; ends the benchmark if it fails."""
    result = subprocess.run(
        line,
        env={**os.environ, **MPI_ENVIRONMENT, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        sys.exit(f"{' '.join(line)} ended with {result.returncode}:\n{result.stderr}")
    return result.stdout


def run_speed(input_text: str, processes: int = 1, devices: int = 1, **environment: str) -> float:
    """Cells per second of `hpcstencil run` on an input, as its closing summary says (compiling and output apart)."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input.toml"
        path.write_text(input_text)
        arguments = ["run", str(path), "--output", f"{folder}/out.h5", "--devices", str(devices)]
        text = output_of(command(processes, *arguments), **environment)
    found = re.search(r"speed +([0-9.]+) Mcell/s", text)
    assert found, text
    return float(found.group(1)) * 1e6


def machine() -> str:
    """Processor and cores of this machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), "unknown processor")
    return f"{model}, {os.cpu_count()} cores"


def ratio_line(name: str, values: list[float], reference: list[float]) -> str:
    """Median speed of a row, and the median of its ratios to the reference runs it was interleaved with."""
    ratio = statistics.median(v / r for v, r in zip(values, reference, strict=True))
    return f"{name:<44}{statistics.median(values) / 1e6:>10.0f} Mcell/s{ratio:>8.2f}"
