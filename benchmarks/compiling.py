"""Measure the seconds before the first step of every shipped input: of the first run on a machine, of the first run of this
equation there, and of a later run.

A wrapper around the C++ compiler notes when it runs. Texts that it compiles at the same time count once. The remaining time
goes to XLA's compilation, the initial state, and, if `auto` cannot use native code, the measurement of kernels. The summary of
`hpcstencil run` counts all of it as "compiling", except for what the compiler does while JAX is imported. The time of the whole
command, which takes one or two steps, includes the start of Python and JAX. All figures are medians over the rounds.

.venv/bin/python benchmarks/compiling.py [rounds [input ...]]
"""

from __future__ import annotations

import datetime
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from common import ROOT, command, machine, output_of, software, told

from hpcstencil.backends.native.compiler import compiler
from hpcstencil.config.reader import load

OTHER = ROOT / "inputs" / "heat.toml"

# Writes a line with the times at which the compiler began and ended, for each text that it compiles.
TIMED = """#!/bin/sh
before=$(date +%s.%N)
{compiler} "$@" || exit
case "$*" in *.cpp*) echo "$before $(date +%s.%N)" >>'{log}' ;; esac
"""


def covered(spans: Iterable[tuple[float, ...]]) -> float:
    """Return the seconds that lie in at least one of some spans (begin, end)."""
    total = last = 0.0
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, last))
        last = max(last, end)
    return total


def seconds(path: Path) -> tuple[list[float], list[float], list[float], str]:
    """Measure an input, and return the times in seconds and the name of the kernel.

    The times are those of the C++ compiler, before the first step, and of the whole command: each with an empty cache, with
    what a run of another equation with the same precision keeps there, and with what the same run keeps.
    """
    precision = load(path).numerics.precision
    with tempfile.TemporaryDirectory() as folder:
        wrapper, log = Path(folder) / "c++", Path(folder) / "compiled"
        wrapper.write_text(TIMED.format(compiler=" ".join(compiler()), log=log))
        wrapper.chmod(0o755)
        options = ("--output", f"{folder}/o.h5", "--overwrite", "--set", "time.end=1e-9")
        run = command(1, "run", str(path), *options)
        other = command(
            1, "run", str(OTHER), *options, "--set", f"numerics.precision={precision}", "--set", "numerics.order=8"
        )
        compiled, before, whole = [], [], []
        for cache, what in (("first", run), ("second", other), ("second", run), ("second", run)):
            log.unlink(missing_ok=True)
            start = time.perf_counter()
            text = output_of(what, XDG_CACHE_HOME=f"{folder}/{cache}", CXX=str(wrapper))
            if what is run:
                whole.append(time.perf_counter() - start)
                before.append(float(told(r"compiling ([0-9.]+) s", text)))
                spans = [
                    tuple(map(float, line.split())) for line in (log.read_text() if log.exists() else "").splitlines()
                ]
                compiled.append(covered(spans))
    return compiled, before, whole, told(r"kernel +(\w+)", text)


def main(rounds: str = "1", *names: str) -> None:
    print(f"{machine()}; {software()}; {datetime.date.today()}. Medians of {rounds} round(s), in s.\n")
    columns = [f"{kind}: first | new | again" for kind in ("C++", "before the first step", "whole command")]
    print(f"| input | kernel | {' | '.join(columns)} |\n{'|---' * 11}|")
    for path in sorted((ROOT / "inputs").glob("*.toml")):
        if names and path.stem not in names:
            continue
        found = [seconds(path) for _ in range(int(rounds))]
        measured = zip(*(itertools.chain(*row[:3]) for row in found), strict=True)
        cells = " | ".join(f"{statistics.median(column):.2f}" for column in measured)
        print(f"| {path.stem} | {found[0][-1]} | {cells} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
