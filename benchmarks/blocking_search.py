"""Measure what the search for a faster blocking gains over the choice of the cost model, in interleaved rounds.

Each row runs in a process of its own. When its searches have ended, calls with the blockings that they found take turns with
calls with the choice of the cost model. The inputs are those of `gradient.py`. Float32, native code.

.venv/bin/python benchmarks/blocking_search.py [rounds] [row ...]
"""

from __future__ import annotations

import ctypes
import datetime
import json
import math
import statistics
import sys
from functools import partial
from typing import Any

from common import machine, output_of, software
from gradient import seconds, tables

SECONDS = 0.2  # of a call of a plain run
STEPS, STATES = 100, 20  # of a gradient
QUIET, QUIET_GRADIENTS = 20, 2  # runs after which the searches have ended if none of them measured another blocking
# row: (case of gradient.py, cells per axis, other numerics, whether its gradient is measured)
ROWS: dict[str, tuple[str, int, dict[str, Any], bool]] = {
    "heat, 256³, euler": ("heat", 256, {}, False),
    "acoustic, 128³, leapfrog": ("model", 128, {"order": 4}, False),
    "acoustic, 256³, leapfrog": ("model", 256, {"order": 4}, False),
    "Gray-Scott, 160³, ssprk3": ("euler", 160, {"integrator": "ssprk3"}, False),
    "Gray-Scott, 160³, rk4": ("rk4", 160, {}, False),
    "gradient: acoustic, 128³, leapfrog": ("receivers", 128, {"order": 4}, True),
    "gradient: acoustic, 192³, leapfrog": ("receivers", 192, {"order": 4}, True),
    "gradient: Gray-Scott, 128³, euler": ("euler", 128, {}, True),
    "gradient: Gray-Scott, 128³, rk4": ("rk4", 128, {}, True),
}


def measure(name: str, rounds: int) -> None:
    """Print the seconds of each round with the choice of the cost model, and with the blockings that were found, as JSON."""
    from hpcstencil.backends.native import compiler

    libraries, loaded = list[ctypes.CDLL](), compiler.library

    def library(*given: Any, **more: Any) -> ctypes.CDLL:
        found = loaded(*given, **more)
        libraries.extend([found] if hasattr(found, "least_measured") else [])  # the others take no steps
        return found

    compiler.library = library
    import hpcstencil as hs

    case, cells, numerics, gradient = ROWS[name]
    given = tables(case, cells, STEPS, STATES)
    given["numerics"] |= {**numerics, "kernel": "native"}
    if not gradient:
        given["time"]["end"] = 1e9
    with hs.Simulation(given) as sim:
        run = sim.value_and_gradient if gradient else partial(sim.step, 16)
        run()
        if not gradient:
            run = partial(sim.step, 16 * max(1, int(SECONDS / seconds(run))))
        switches = [ctypes.c_double.in_dll(library, "least_measured") for library in libraries]
        least = switches[0].value

        def timed(searching: bool) -> float:
            for switch in switches:
                switch.value = least if searching else math.inf
            return seconds(run)

        known, quiet = 0, 0
        while quiet < (QUIET_GRADIENTS if gradient else QUIET):
            timed(True)
            before, known = known, sum(library.blockings_measured() for library in libraries)
            quiet = quiet + 1 if known == before else 0
        found = []
        for n in range(rounds):
            took = {searching: timed(searching) for searching in (n % 2 == 0, n % 2 == 1)}
            found.append((took[False], took[True]))
    print(json.dumps(found))


def main(rounds: int, names: list[str]) -> None:
    print(f"{machine()}; {software()}; {datetime.date.today()}. Medians of {rounds} round(s).\n")
    print("| row | by the cost model, s | found, s | ratio |\n|---|---|---|---|")
    for name in names or ROWS:
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
