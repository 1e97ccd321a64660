"""Measure the seconds before the first step of every shipped input, with an empty cache and with a filled one.

A wrapper around the C++ compiler adds up its time, although two programs may compile side by side. The remaining time goes to
XLA's compilation, the initial state, and, if `auto` cannot use native code, the measurement of kernels. The summary of
`hpcstencil run` counts all of it as "compiling", except for what the compiler does while JAX is imported. The time of the whole
command, which takes one or two steps, includes the start of Python and JAX. All figures are medians over the rounds.

.venv/bin/python benchmarks/compiling.py [rounds]
"""

from __future__ import annotations

import datetime
import statistics
import sys
import tempfile
import time
from pathlib import Path

from common import ROOT, command, machine, output_of, software, told

from hpcstencil.backends.native.compiler import compiler

# Writes a line with the compiler's seconds for each program, but not when it is asked for its version.
TIMED = """#!/bin/sh
before=$(date +%s.%N)
{compiler} "$@" || exit
case "$*" in *program.cpp*) echo "$before $(date +%s.%N)" >>'{log}' ;; esac
"""


def seconds(path: Path) -> tuple[float, float, float, float, float, str]:
    """Measure an input, and return the times in seconds and the name of the kernel.

    The times are that of the C++ compiler, and those before the first step and of the whole command, each with an empty and a
    filled cache.
    """
    with tempfile.TemporaryDirectory() as folder:
        wrapper, log = Path(folder) / "c++", Path(folder) / "compiled"
        wrapper.write_text(TIMED.format(compiler=" ".join(compiler()), log=log))
        wrapper.chmod(0o755)
        run = command(1, "run", str(path), "--output", f"{folder}/o.h5", "--overwrite", "--set", "time.end=1e-9")
        texts, whole = [], []
        for _ in range(2):
            start = time.perf_counter()
            texts.append(output_of(run, XDG_CACHE_HOME=folder, CXX=str(wrapper)))
            whole.append(time.perf_counter() - start)
        lines = log.read_text().splitlines() if log.exists() else []
    spans = [tuple(map(float, line.split())) for line in lines]
    before = [float(told(r"compiling ([0-9.]+) s", text)) for text in texts]
    return sum(end - start for start, end in spans), *before, *whole, told(r"kernel +(\w+)", texts[0])


def main(rounds: int = 1) -> None:
    print(f"{machine()}; {software()}; {datetime.date.today()}. Medians of {rounds} round(s), in s.\n")
    print(
        "| input | kernel | C++ | before the first step, nothing kept | the same, everything kept "
        "| whole command, nothing kept | the same, everything kept |\n|---|---|---|---|---|---|---|"
    )
    for path in sorted((ROOT / "inputs").glob("*.toml")):
        found = [seconds(path) for _ in range(rounds)]
        *times, _ = zip(*found, strict=True)
        cells = " | ".join(f"{statistics.median(column):.2f}" for column in times)
        print(f"| {path.stem} | {found[0][-1]} | {cells} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
