"""Measure the time that diagnostics after every 10 steps add to a run.

The steps of 3-D heat by the Euler method are the cheapest, so diagnostics take the largest share of its time. The wave is a
pulse between tiny values, whose sums take longer. The runs with and without diagnostics are interleaved.

.venv/bin/python benchmarks/diagnostics.py [rounds]
"""

from __future__ import annotations

import datetime
import statistics
import sys
import tempfile
from pathlib import Path

from common import GRAY_SCOTT, machine, native_heat, software, stepping_seconds, summary_of

WAVE = """
grid.shape = [256, 256, 256]
equation.name = "wave"
initial.u = "exp(-((x - 128)**2 + (y - 128)**2 + (z - 128)**2)/200)"
numerics = { integrator = "leapfrog", kernel = "native", order = 4 }
time = { dt = 0.2, end = 60.0 }
"""
SHOTS = """
grid.shape = [512, 512]
equation = { name = "acoustic", source = 1.0, f0 = 0.05 }
ensemble.equation.xs = [50.0, 150.0, 250.0, 350.0, 400.0, 450.0]
initial.p = "exp(-((x - 256)**2 + (y - 256)**2)/200)"
numerics = { integrator = "leapfrog", kernel = "native" }
time = { dt = 0.25, end = 250.0 }
"""
MEMBERS = "acoustic, 6 members of 512², float32"
PROBLEMS = {
    "heat, 256³, float32": native_heat(1000),
    "heat, 256³, float64": native_heat(500, "float64"),
    "wave, order 4, 256³, float32": WAVE,
    "Gray-Scott, 2048², float32": GRAY_SCOTT.format(end=1000.0),
    MEMBERS: SHOTS,
}
OF_FIELD = ("integral(u)", "max(u)", "min(u)")
OF_EXPRESSIONS = (
    ("heat, 256³, float32", "integral(u**2)"),
    ("heat, 256³, float32", "integral(dx(u)**2 + dy(u)**2 + dz(u)**2)"),
    ("heat, 256³, float32", "max(abs(laplacian(u)))"),
    ("heat, 256³, float32", "max(abs(x*dx(u)))"),
    ("heat, 256³, float32", "max(abs(dx(u*u)))"),
    ("wave, order 4, 256³, float32", "integral(v**2 + dx(u)**2 + dy(u)**2 + dz(u)**2)"),
    ("Gray-Scott, 2048², float32", "integral(dx(u)**2 + dy(u)**2)"),
    (MEMBERS, "max(p)"),
    (MEMBERS, "integral(p**2 + dx(p)**2 + dy(p)**2)"),
)
ROWS = (
    *((problem, OF_FIELD) for problem in PROBLEMS if problem != MEMBERS),
    *((problem, (expression,)) for problem, expression in OF_EXPRESSIONS),
)


def with_diagnostics(text: str, diagnostics: tuple[str, ...]) -> str:
    """Return the input with these diagnostics."""
    lines = [f'd{n} = "{expression}"' for n, expression in enumerate(diagnostics)]
    return "\n".join([text, "[diagnostics]", "every_steps = 10", *lines])


def main(rounds: int = 5) -> None:
    print(f"{machine()}; {software()}; {datetime.date.today()}. Medians of {rounds} round(s).\n")
    print("| problem | diagnostics | s without | s with | added, % |\n|---|---|---|---|---|")
    for problem, diagnostics in ROWS:
        plain = PROBLEMS[problem]
        with tempfile.TemporaryDirectory() as folder:
            pairs = [
                tuple(
                    stepping_seconds(summary_of(text, Path(folder)))
                    for text in (plain, with_diagnostics(plain, diagnostics))
                )
                for _ in range(rounds)
            ]
        without, having = (statistics.median(column) for column in zip(*pairs, strict=True))
        added = 100 * (statistics.median(b / a for a, b in pairs) - 1)
        shown = ", ".join(f"`{each}`" for each in diagnostics)
        print(f"| {problem} | {shown} | {without:.2f} | {having:.2f} | {added:.0f} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
