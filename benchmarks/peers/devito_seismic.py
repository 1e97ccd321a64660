"""A seismic shot against Devito: the shot gathers of `inputs/layered_ground.toml`, and the time and the lines that they take.

  .venv/bin/python benchmarks/peers/devito_seismic.py [ROUNDS] [REFINE]

Both programs read the same files: speeds, wavelet, places of 500 receivers. They have the same cells, differences of order
8, the same free surface and the same CPML. Devito steps with the leapfrog method, as its users do (`devito_shot.py`),
hpcstencil with rk4 and with leapfrog.

The first table compares the gathers in float64 at the same step. The second one gives, for several steps in float32, the
error in time and seconds: medians of ROUNDS interleaved rounds (3), of which the first may compile. "Loop" leaves that out,
"whole" is the whole command. The error is the difference to rk4 in float64 with half the shortest step that rk4 has in the
table.

The third table gives the CPU time of a step on one core, which other programs on the machine disturb less, and what the layers
cost: `sponge` damps p and q in the same cells, "walls" has no layers.

REFINE (1) cuts each cell of the file's model into as many parts per axis, and each step too. Then there is no first table.
"""

from __future__ import annotations

import ast
import json
import os
import resource
import statistics
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import h5py
import numpy as np
from environment import python_with
from peer import common

INPUT, SHOT = common.ROOT / "inputs" / "layered_ground.toml", Path(__file__).parent / "devito_shot.py"
SAMPLE = 0.004  # seconds between two samples of the gathers; every step here divides it
LEAPFROG = ("numerics.integrator=leapfrog",)
RK4, OURS, THEIRS = "hpcstencil, rk4", "hpcstencil, leapfrog", "Devito, leapfrog"
STEPS = {RK4: (3, 4, 8), OURS: (3, 4, 8, 16, 32), THEIRS: (3, 4, 8, 16, 32)}  # per sample, before REFINE
COMPARED = (4, 8, 16)  # the same, of the first table
WALLS = "boundary={ x = { dirichlet = 0.0 }, y = { dirichlet = 0.0 } }"
SPONGE = "sponge = { width = 0.25, strength = 50.0 }"
SPONGES = f"boundary={{ x = {{ {SPONGE} }}, y = {{ lower = {{ dirichlet = 0.0 }}, upper = {{ {SPONGE} }} }} }}"
PLACES = {"cpml": (), "sponge": (SPONGES,), "walls": (WALLS,)}
LAYERS = {f"{place}, {method}": (*changed, *more) for method, more in (("rk4", ()), ("leapfrog", LEAPFROG))
          for place, changed in PLACES.items()}  # fmt: skip
FAR = 0.1  # from the source: receivers that the last column of the first table has


class Run(NamedTuple):
    """A gather, indexed (time, receiver); seconds of the time loop and of the whole command; CPU seconds, of the whole
    command for hpcstencil, so that only differences between runs mean something; the version."""

    gather: np.ndarray
    loop: float
    whole: float
    cpu: float
    version: str


def source() -> list[float]:
    """The place of the source."""
    equation = tomllib.loads(INPUT.read_text())["equation"]
    return [equation["xs"], equation["ys"]]


def model(refine: int, folder: Path) -> Path:
    """A file with the wavelet of the input, and its speeds with each cell cut into ``refine`` per axis."""
    path = folder / "model.hdf5"
    with h5py.File(INPUT.with_suffix(".hdf5")) as given, h5py.File(path, "w") as file:
        file["c"] = given["c"][:].repeat(refine, 0).repeat(refine, 1)
        file["signal"] = given["signal"][:]
    return path


def end() -> float:
    """When the shot ends."""
    return tomllib.loads(INPUT.read_text())["time"]["end"]


def changes(per_sample: int, precision: str, path: Path, until: float) -> list[str]:
    """The changes of the shipped input for `--set`: a fixed step, this model, and no output but the gather."""
    with h5py.File(path) as file:
        shape = list(file["c"].shape)
    return [
        f"grid.shape={shape}", f"equation.c={path}:c", f"equation.source.series={path}:signal",
        f"numerics.precision={precision}", f"time={{ end = {until}, dt = {SAMPLE / per_sample!r} }}",
        'output={ fields = ["p"] }', "diagnostics={}", f"probes.hydrophones.every_steps={per_sample}",
    ]  # fmt: skip


def ours(per_sample: int, precision: str, path: Path, until: float | None = None, more: Sequence[str] = ()) -> Run:
    """The shot by `hpcstencil run` of the shipped input, with ``more`` changes for `--set`."""
    output = path.parent / "run.h5"
    arguments = [
        word for change in (*changes(per_sample, precision, path, until or end()), *more) for word in ("--set", change)
    ]
    line = common.command(1, "run", str(INPUT), "--output", str(output), "--overwrite", *arguments)
    began, cpu = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    summary = common.output_of(line)
    whole, cpu = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - cpu
    with h5py.File(output) as file:
        gather = file["probes/hydrophones/values"][:]
    return Run(gather, common.stepping_seconds(summary), whole, cpu, common.told(r"kernel +(\S+)", summary))


def theirs(per_sample: int, precision: str, path: Path, until: float | None = None, weights: str = "lagrange") -> Run:
    """The shot by Devito, with the step and the weights of source and receivers."""
    shot = tomllib.loads(INPUT.read_text())
    task = {
        "model": str(path), "receivers": str(INPUT.with_suffix(".csv")), "precision": precision, "weights": weights,
        "dt": SAMPLE / per_sample, "steps": round((until or end()) / SAMPLE) * per_sample, "every": per_sample,
        "upper": shot["grid"]["upper"], "layer": shot["boundary"]["x"]["cpml"]["width"],
        "signal_dt": shot["equation"]["source"]["dt"], "source": source(),
        "gather": str(path.parent / "gather.npy"),
    }  # fmt: skip
    (path.parent / "task.json").write_text(json.dumps(task))
    line = [str(python_with("devito-h5py", "devito", "h5py")), str(SHOT), str(path.parent / "task.json")]
    began = time.perf_counter()
    told = common.output_of(line, OMP_NUM_THREADS=str(len(os.sched_getaffinity(0))))
    whole = time.perf_counter() - began
    reply = json.loads(told.splitlines()[-1])
    return Run(np.load(task["gather"]), reply["seconds"], whole, reply["cpu"], reply["version"])


def differences(found: np.ndarray, expected: np.ndarray) -> tuple[float, float]:
    """Of two gathers, relative: root of the sum of squares, and the largest."""
    rest = found.astype(float) - expected
    return np.linalg.norm(rest) / np.linalg.norm(expected), np.abs(rest).max() / np.abs(expected).max()


def lines(path: Path) -> int:
    """Lines of a program or an input that are neither empty nor comments nor docstrings."""
    text = path.read_text()
    count = sum(bool(line.strip()) and not line.strip().startswith("#") for line in text.splitlines())
    if path.suffix == ".py":
        bare = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Expr))
        for node in bare:
            if isinstance(node.value, ast.Constant):
                count -= sum(bool(line.strip()) for line in text.splitlines()[node.lineno - 1 : node.end_lineno])
    return count


def compare(path: Path) -> None:
    """Print how far the gathers are from each other."""
    places = np.loadtxt(INPUT.with_suffix(".csv"), delimiter=",", skiprows=1)
    far = np.hypot(*(places - source()).T) > FAR
    print(f"{'dt':<12}{'hpcstencil':<12}{'weights in Devito':<24}{'L2':>10}{'largest':>10}{'L2, far':>10}")
    rows = [(per_sample, "lagrange") for per_sample in COMPARED]
    for per_sample, weights in [*rows, (COMPARED[-1], "sinc"), (COMPARED[-1], "linear")]:
        its = theirs(per_sample, "float64", path, weights=weights)
        name = "those of hpcstencil" if weights == "lagrange" else f"Devito's {weights}"
        for method, more in (("rk4", ()), ("leapfrog", LEAPFROG)):
            mine = ours(per_sample, "float64", path, more=more)
            two, largest = differences(its.gather, mine.gather)
            two_far, _ = differences(its.gather[:, far], mine.gather[:, far])
            told = f"{two:>10.1e}{largest:>10.1e}{two_far:>10.1e}"
            print(f"{SAMPLE / per_sample:<12.4g}{method:<12}{name:<24}{told}", flush=True)


def measure(rounds: int, refine: int, path: Path) -> None:
    """Print errors in time and seconds."""
    exact = ours(2 * max(STEPS[RK4]) * refine, "float64", path).gather
    sides = {RK4: ours, OURS: partial(ours, more=LEAPFROG), THEIRS: theirs}
    cases = [(name, each * refine) for name in sides for each in STEPS[name]]
    found: dict[tuple[str, int], list[Run]] = {case: [] for case in cases}
    for _ in range(rounds):
        for name, per_sample in cases:
            found[name, per_sample].append(sides[name](per_sample, "float32", path))
    print(f"{'program':<24}{'dt':>12}{'error, L2':>12}{'loop, s':>10}{'whole, s':>10}")
    for (name, per_sample), runs in found.items():
        error, _ = differences(runs[0].gather, exact)
        loop, whole = (statistics.median(getattr(run, key) for run in runs) for key in ("loop", "whole"))
        print(f"{name:<24}{SAMPLE / per_sample:>12.4g}{error:>12.1e}{loop:>10.2f}{whole:>10.2f}")


def measure_one_core(rounds: int, refine: int, path: Path) -> None:
    """Print CPU time per step."""
    per_sample = COMPARED[0] * refine
    whole, part = (SAMPLE * max(3, round(share * end() / SAMPLE / refine**2)) for share in (5, 1))
    steps = round((whole - part) / SAMPLE * per_sample)
    sides = {f"hpcstencil, {name}": partial(ours, more=more) for name, more in LAYERS.items()}
    sides["Devito, cpml, leapfrog"] = theirs
    found: dict[str, list[float]] = {name: [] for name in sides}
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        for side in sides.values():
            side(per_sample, "float32", path, part)  # compiles
        for _ in range(rounds):
            for name, side in sides.items():
                spent = [side(per_sample, "float32", path, until).cpu for until in (whole, part)]
                found[name].append((spent[0] - spent[1]) / steps)
    finally:
        os.sched_setaffinity(0, cores)
    print(f"{'one core':<28}{'CPU time per step, ms':>24}{'ns per cell':>14}")
    with h5py.File(path) as file:
        cells = file["c"].size
    for name, values in found.items():
        value = statistics.median(values)
        print(f"{name:<28}{1e3 * value:>24.3g}{1e9 * value / cells:>14.3g}")


def main(rounds: int = 3, refine: int = 1) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = model(refine, Path(name))
        with h5py.File(path) as file:
            nx, ny = file["c"].shape
        its = theirs(COMPARED[0] * refine, "float32", path)
        print(f"{common.machine()}; {nx} x {ny} cells, {its.gather.shape[1]} receivers; Devito {its.version}")
        print(f"lines: {lines(INPUT)} in {INPUT.name}, {lines(SHOT)} in {SHOT.name}", flush=True)
        if refine == 1:
            compare(path)
        measure(rounds, refine, path)
        measure_one_core(rounds, refine, path)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
