"""Speed against Devito (C and OpenMP, made for the equation as ours is): the same stencils, precision and steps, interleaved.

  .venv/bin/python benchmarks/peers/speed.py [ROUNDS] [PROBLEM ...]

Both use every core; compiling is apart. Ours is what `hpcstencil run` says it took to compute; theirs the time of applying
the operator once more. The ratio beside the single-sweep roofline is that of T_eff, each field read once and written once per
step, to the copy bandwidth measured in the same rounds.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from environment import python_with

DEVITO = """
import json, os, sys, time
import numpy as np
import devito
from devito import Eq, Grid, Operator, TimeFunction, solve

devito.configuration["log-level"] = "ERROR"
devito.configuration["language"] = "openmp"
task = json.loads(sys.argv[1])
dtype = {"float32": np.float32, "float64": np.float64}[task["precision"]]
grid = Grid(shape=tuple(task["shape"]), extent=tuple(float(n - 1) for n in task["shape"]), dtype=dtype)
order, dt = task["order"], task["dt"]

def field(name, time_order=1):
    f = TimeFunction(name=name, grid=grid, time_order=time_order, space_order=order)
    f.data[:] = np.random.default_rng(1).random(f.data.shape).astype(dtype)
    return f

if task["equation"] == "heat":
    u = field("u")
    equations = [Eq(u.forward, u + dt*u.laplace)]
elif task["equation"] == "wave":
    u = field("u", 2)
    equations = [Eq(u.forward, 2*u - u.backward + dt**2*u.laplace)]
else:
    u, v = field("u"), field("v")
    equations = [Eq(u.forward, u + dt*(0.16*u.laplace - u*v*v + 0.035*(1 - u))),
                 Eq(v.forward, v + dt*(0.08*v.laplace + u*v*v - (0.035 + 0.06)*v))]
operator = Operator(equations)
operator.apply(time_M=3, dt=dt)
start = time.perf_counter()
operator.apply(time_M=task["steps"] - 1 + (task["equation"] == "wave"), dt=dt)
seconds = time.perf_counter() - start
print(json.dumps([seconds, devito.__version__]))
"""
EQUATIONS = {
    "heat": 'name = "heat"\nD = 1.0',
    "wave": 'name = "wave"\nc = 1.0',
    "gray_scott": 'name = "gray_scott"\nD_u = 0.16\nD_v = 0.08\nF = 0.035\nk = 0.06',
}
# name -> (equation, cells per axis, order, precision, steps)
PROBLEMS: dict[str, tuple[str, tuple[int, ...], int, str, int]] = {
    "heat-3d-256-f32": ("heat", (256,) * 3, 2, "float32", 320),
    "heat-3d-256-f64": ("heat", (256,) * 3, 2, "float64", 320),
    "heat-3d-512-f32": ("heat", (512,) * 3, 2, "float32", 80),
    "heat-3d-512-f64": ("heat", (512,) * 3, 2, "float64", 80),
    "heat-2d-8192": ("heat", (8192,) * 2, 2, "float32", 96),
    **{f"wave-2d-4096-order-{p}": ("wave", (4096,) * 2, p, "float32", 160) for p in (2, 4, 8)},
    **{f"wave-3d-256-order-{p}": ("wave", (256,) * 3, p, "float32", 160) for p in (2, 4, 8)},
    "gray-scott-2d-4096": ("gray_scott", (4096,) * 2, 2, "float32", 160),
    "gray-scott-3d-256": ("gray_scott", (256,) * 3, 2, "float32", 160),
}


def ours(name: str, folder: Path) -> tuple[float, str]:
    """(cells per second, kernel) of `hpcstencil run`."""
    equation, shape, order, precision, steps = PROBLEMS[name]
    dt = 0.05
    still = "\n".join(f"{axis} = {{ dirichlet = 0.0 }}" for axis in "xyz"[: len(shape)])
    names = {"heat": ["u"], "wave": ["u"], "gray_scott": ["u", "v"]}[equation]
    start = "\n".join(f'{field} = "0.5 + 0.1*noise({n})"' for n, field in enumerate(names))
    integrator = "leapfrog" if equation == "wave" else "euler"
    source = folder / f"{name}.toml"
    source.write_text(f"""
[grid]
shape = {list(shape)}
upper = {[float(n) for n in shape]}
[equation]
{EQUATIONS[equation]}
[initial]
{start}
[boundary]
{still}
[numerics]
order = {order}
precision = "{precision}"
integrator = "{integrator}"
[time]
end = {steps * dt}
dt = {dt}
[output]
path = {json.dumps(str(folder / "run.h5"))}
fields = ["u"]
every_steps = {steps}
""")
    command = [sys.executable, "-m", "hpcstencil", "run", str(source)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (folder / "run.h5").unlink()
    speed, kernel = re.search(r"speed +([\d.]+) Mcell/s", told), re.search(r"kernel +(\S+)", told)
    assert speed and kernel, told
    return float(speed[1]) * 1e6, kernel[1]


def theirs(name: str) -> tuple[float, str]:
    """(cells per second, version) of Devito."""
    equation, shape, order, precision, steps = PROBLEMS[name]
    task = {"equation": equation, "shape": shape, "order": order, "precision": precision, "steps": steps, "dt": 0.05}
    environment = {**os.environ, "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))}
    told = subprocess.run(
        [python_with("devito", "devito"), "-c", DEVITO, json.dumps(task)],
        check=True, stdout=subprocess.PIPE, text=True, env=environment,
    ).stdout  # fmt: skip
    seconds, version = json.loads(told.splitlines()[-1])
    cells = steps
    for n in shape:
        cells *= n
    return cells / seconds, version


def copy_bandwidth() -> float:
    """Bytes per second, read plus written, as `hpcstencil bench` measures it."""
    small = [f"grid.shape={[32] * 3}", "grid.upper=[1.0, 1.0, 1.0]"]
    command = [sys.executable, "-m", "hpcstencil", "bench", "--json", *(x for s in small for x in ("--set", s))]
    told: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return float(told["copy_bandwidth"])


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    chosen = sys.argv[2:] or list(PROBLEMS)
    bandwidth = statistics.median(copy_bandwidth() for _ in range(rounds))
    print(f"copy bandwidth {bandwidth / 1e9:.1f} GB/s; medians of {rounds} interleaved rounds, Gcell/s\n")
    print("| problem | kernel | hpcstencil | Devito | ratio | T_eff / copy bandwidth |\n|---|---|---|---|---|---|")
    for name in chosen:
        equation, _, _, precision, _ = PROBLEMS[name]
        mine, peer, kernel, version = [], [], "", ""
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(rounds):
                speed, kernel = ours(name, Path(folder))
                mine.append(speed)
                speed, version = theirs(name)
                peer.append(speed)
        a, b = statistics.median(mine), statistics.median(peer)
        fields = 1 if equation == "heat" else 2
        share = a * 2 * fields * {"float32": 4, "float64": 8}[precision] / bandwidth
        print(
            f"| {name} | {kernel} | {a / 1e9:.2f} | {b / 1e9:.2f} ({version}) | {a / b:.2f} | {share:.2f} |", flush=True
        )


if __name__ == "__main__":
    main()
