"""Measure the cost of functions in an equation: a run whose equation has one, against the same run with a linear term instead.

.venv/bin/python benchmarks/functions.py [rounds] [expression ...]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from common import machine, stepping_seconds, summary_of

WITHOUT = "u"
TERMS = (
    "sqrt(u + 2)", "exp(-u)", "log(u + 2)", "sin(u)", "tan(u)", "tanh(u)", "u**3", "(u + 2)**1.5", "(u + 2)**0.3",
    "tanh(x - t)*u", "sin(x)*cos(t)*u",
)  # fmt: skip
INPUT = """
grid.shape = [1024, 1024]
initial.u = "0.5 + 0.3*sin(x/50)*cos(y/50)"
numerics = {{ integrator = "euler", kernel = "native", precision = "{precision}" }}
time = {{ dt = 1e-4, end = 0.2 }}
[equation]
name = "custom"
rhs.u = "laplacian(u) + {term}"
"""


def seconds(term: str, precision: str) -> float:
    """Return the seconds of a run from its first step to its end."""
    with tempfile.TemporaryDirectory() as folder:
        return stepping_seconds(summary_of(INPUT.format(term=term, precision=precision), Path(folder)))


def main(rounds: int, terms: list[str]) -> None:
    print(
        f"{machine()}; 1024^2 cells, 2000 steps, {rounds} interleaved rounds; time relative to `laplacian(u) + {WITHOUT}`\n"
    )
    print("| ∇²u and | float32 | float64 |\n|---|---|---|")
    for term in terms:
        ratios = []
        for precision in ("float32", "float64"):
            found = [(seconds(WITHOUT, precision), seconds(term, precision)) for _ in range(rounds)]
            ratios.append(statistics.median(of_term / without for without, of_term in found))
        print(f"| `{term}` | {ratios[0]:.1f} | {ratios[1]:.1f} |", flush=True)


if __name__ == "__main__":
    main(int((sys.argv[1:] or ["3"])[0]), sys.argv[2:] or list(TERMS))
