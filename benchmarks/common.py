"""Helpers of the benchmark scripts: they start hpcstencil as a user would, and parse its output."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
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
GRAY_SCOTT = """
grid.shape = [2048, 2048]
equation.name = "gray_scott"
initial.u = "1 - 0.5*exp(-((x - 1000)**2 + (y - 1000)**2)/200)"
initial.v = "0.25*exp(-((x - 1000)**2 + (y - 1000)**2)/200)"
numerics = {{ integrator = "euler", kernel = "native" }}
time = {{ dt = 0.5, end = {end} }}
"""
MPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
}


def native_heat(steps: int, precision: str = "float32") -> str:
    """Return the input of 3-D heat on 256^3 cells, by native code."""
    kernel = f'kernel = "native"\nprecision = "{precision}"'
    return HEAT.format(n=256, steps=steps).replace('kernel = "shift"', kernel)


def launched(processes: int, *line: str) -> list[str]:
    """Return the launcher's part of a command line that starts ``processes`` processes."""
    return [*(["mpirun", "-n", str(processes)] if processes > 1 else []), *line]


def command(processes: int, *arguments: str) -> list[str]:
    """Return the command line that starts hpcstencil on ``processes`` processes."""
    return launched(processes, sys.executable, "-m", "hpcstencil", *arguments)


def output_of(line: list[str], folder: Path = ROOT, **environment: str) -> str:
    """Run a command in ``folder`` and return its standard output; end the benchmark if the command fails."""
    result = subprocess.run(
        line,
        env={**os.environ, **MPI_ENVIRONMENT, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        sys.exit(f"{' '.join(line)} ended with {result.returncode}:\n{result.stderr}")
    return result.stdout


def summary_of(input_text: str, folder: Path, processes: int = 1, devices: int = 1, **environment: str) -> str:
    """Run `hpcstencil run` on an input and return its closing summary. The output is ``folder``/run.h5."""
    path = folder / "input.toml"
    path.write_text(input_text)
    arguments = ["run", str(path), "--output", str(folder / "run.h5"), "--overwrite", "--devices", str(devices)]
    return output_of(command(processes, *arguments), **environment)


def told(pattern: str, summary: str) -> str:
    """Return the text that the group of a regular expression matches in a summary."""
    found = re.search(pattern, summary)
    assert found, summary
    return found.group(1)


def speed_of(summary: str) -> float:
    """Return the cell updates per second in a closing summary, which exclude compilation and output."""
    return float(told(r"speed +([0-9.]+) Mcell/s", summary)) * 1e6


def stepping_seconds(summary: str) -> float:
    """Seconds of a run from its first step to its end, as a closing summary says."""
    parts = told(r"wall time +[\d.]+ s: (.*)", summary).split(", ")
    spent = {name: float(value) for name, value, _ in (part.rsplit(" ", 2) for part in parts)}
    return sum(value for name, value in spent.items() if name not in ("starting up", "setting up", "compiling"))


def run_speed(input_text: str, processes: int = 1, devices: int = 1, **environment: str) -> float:
    """Run `hpcstencil run` on an input, and return its cell updates per second."""
    with tempfile.TemporaryDirectory() as folder:
        return speed_of(summary_of(input_text, Path(folder), processes, devices, **environment))


def copy_bandwidth() -> float:
    """Measure the copy bandwidth in bytes per second, read plus written, by `hpcstencil bench` on a small grid."""
    small = ["--set", "grid.shape=[32,32,32]", "--set", "grid.upper=[1.0,1.0,1.0]"]
    return float(json.loads(output_of(command(1, "bench", "--json", *small)))["copy_bandwidth"])


def machine() -> str:
    """Describe this machine by its processor, cores and memory."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), "unknown processor")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{model}, {os.cpu_count()} cores, {memory / 1e9:.0f} GB"


def software() -> str:
    """Describe the versions of the software on which speed depends."""
    from hpcstencil import __version__
    from hpcstencil.doctor.local import found_compiler

    tools = [tool for tool in (found_compiler(), shutil.which("mpirun")) if tool]
    first_lines = [output_of([*tool.split(), "--version"]).splitlines()[0] for tool in tools]
    packages = [f"{name} {importlib.metadata.version(name)}" for name in ("jax", "numpy")]
    return ", ".join([
        platform.freedesktop_os_release()["PRETTY_NAME"], *first_lines,
        f"Python {platform.python_version()}", *packages, f"hpcstencil {__version__}",
    ])  # fmt: skip


def ratio_line(name: str, values: list[float], reference: list[float]) -> str:
    """Format the median speed of a row, and the median of its ratios to the interleaved reference runs."""
    ratio = statistics.median(v / r for v, r in zip(values, reference, strict=True))
    return f"{name:<44}{statistics.median(values) / 1e6:>10.0f} Mcell/s{ratio:>8.2f}"
