"""Measure what the search for a faster blocking gains over the choice of the cost model, in interleaved rounds.

Each row runs in a process of its own. When its searches have ended, calls with the blockings that they found take turns with
calls with the choice of the cost model. Float32, native code.

.venv/bin/python benchmarks/blocking_search.py [rounds] [case ...]
"""

from __future__ import annotations

import ctypes
import datetime
import json
import math
import statistics
import sys
import time
from typing import Any

from common import machine, output_of, software

SECONDS = 0.2  # of a call
QUIET = 20  # calls after which a search has ended if they measured no other blocking; 2 gradients have many calls
SPOT = "exp(-((x - 60)**2 + (y - 60)**2 + (z - 60)**2)/300)"
LINE = {"field": "p", "x": [float(n) for n in range(10, 110, 2)], "y": 40.0, "z": 60.0}


def case(name: str) -> tuple[dict[str, Any], bool]:
    """Return (the input of a row, whether its gradient is measured)."""
    import numpy as np

    what, cells, method = name.split(", ")
    n = int(cells)
    made: dict[str, Any] = {
        "grid": {"shape": [n] * 3},
        "numerics": {"integrator": method, "kernel": "native"},
        "time": {"end": 10.0 if "gradient" in what else 1e9, "dt": 0.1},
        **EQUATIONS[what.removesuffix(" gradient")],
    }
    if what.startswith("acoustic"):
        made["equation"] = {**made["equation"], "c": np.linspace(0.8, 1.0, n)[:, None, None] * np.ones((n, n, n))}
        made["numerics"]["order"] = 4
    if what == "acoustic gradient":
        made |= {"probes": {"line": LINE}, "objective": {"J": "sum(line**2)"}, "gradient": {"of": ["equation.c"]}}
    elif what == "Gray-Scott gradient":
        made |= {"objective": {"J": "integral(v**2)"}, "gradient": {"of": ["equation.F", "equation.k"]}}
    return made, "gradient" in what


EQUATIONS = {
    "heat": {"equation": {"name": "heat", "D": 0.5}, "initial": {"u": SPOT}},
    "Gray-Scott": {"equation": {"name": "gray_scott"}, "initial": {"u": "1 - 0.5*" + SPOT, "v": SPOT}},
    "acoustic": {"equation": {"name": "acoustic"}, "initial": {"p": SPOT}},
}
CASES = (
    "heat, 256, euler", "acoustic, 128, leapfrog", "acoustic, 256, leapfrog", "Gray-Scott, 160, ssprk3", "Gray-Scott, 160, rk4",
    "acoustic gradient, 128, leapfrog", "acoustic gradient, 192, leapfrog", "Gray-Scott gradient, 128, euler",
    "Gray-Scott gradient, 128, rk4",
)  # fmt: skip


def measure(name: str, rounds: int) -> None:
    """Print the seconds per round with the choice of the cost model, and with the blocking that was found, as JSON."""
    from hpcstencil.backends.native import compiler

    libraries, loaded = list[ctypes.CDLL](), compiler.library

    def library(*given: Any, **more: Any) -> ctypes.CDLL:
        found = loaded(*given, **more)
        libraries.extend([found] if hasattr(found, "least_measured") else [])  # the others take no steps
        return found

    compiler.library = library
    import hpcstencil as hs

    tables, gradient = case(name)
    with hs.Simulation(tables) as sim:
        sim.value_and_gradient() if gradient else sim.step(16)
        began = time.perf_counter()
        sim.value_and_gradient() if gradient else sim.step(16)
        steps = max(16, int(16 * SECONDS / (time.perf_counter() - began)) // 16 * 16)

        switches = [ctypes.c_double.in_dll(library, "least_measured") for library in libraries]
        least = switches[0].value

        def seconds(searching: bool) -> float:
            for each in switches:
                each.value = least if searching else math.inf
            began = time.perf_counter()
            sim.value_and_gradient() if gradient else sim.step(steps)
            return time.perf_counter() - began

        measured, quiet = 0, 0
        while quiet < (2 if gradient else QUIET):
            seconds(True)
            now = sum(library.blockings_measured() for library in libraries)
            measured, quiet = now, quiet + 1 if now == measured else 0
        found = []
        for _ in range(rounds):
            first = seconds(len(found) % 2 == 0)
            second = seconds(len(found) % 2 == 1)
            found.append((second, first) if len(found) % 2 == 0 else (first, second))
    print(json.dumps(found))


def main(rounds: int, names: list[str]) -> None:
    print(f"{machine()}; {software()}; {datetime.date.today()}. Medians of {rounds} round(s).\n")
    print("| case | by the cost model, s | found, s | ratio |\n|---|---|---|---|")
    for name in names or CASES:
        pairs = json.loads(output_of([sys.executable, __file__, "measure", name, str(rounds)]).splitlines()[-1])
        chosen, found = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(one / other for one, other in pairs)
        print(f"| {name} | {chosen:.3f} | {found:.3f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[:1] == ["measure"]:
        measure(words[1], int(words[2]))
    else:
        main(int(words.pop(0)) if words and words[0].isdigit() else 7, words)
