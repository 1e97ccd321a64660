"""The acoustic wave with a Ricker source against Devito: traces at two receivers, for two steps in time.

  .venv/bin/python benchmarks/peers/devito_acoustic.py

Both take differences of order 4 on the same grid and spread the source and read the receivers linearly over the cells next
to them. Devito steps with the leapfrog method, hpcstencil with rk4, so the traces differ by what is left of Devito's error
in time: a quarter of it with half the step.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import h5py
import numpy as np
from environment import python_with
from peer import common

CELLS, DX, C, F0, T0, END = 161, 0.02, 1.5, 5.0, 0.3, 1.0
SOURCE, RECEIVERS = (1.613, 1.587), ((1.0, 1.6), (2.105, 2.05))
STEPS = (0.002, 0.001)
PEER = """
import json, sys
import numpy as np
import devito
from devito import Eq, Grid, Operator, SparseTimeFunction, TimeFunction, solve

devito.configuration["log-level"] = "ERROR"
task = json.load(open(sys.argv[1]))
n, dx, dt = task["cells"], task["dx"], task["dt"]
steps = round(task["end"]/dt)
# Devito's grid points stand where the cell centres are.
grid = Grid(shape=(n, n), extent=((n - 1)*dx, (n - 1)*dx), origin=(dx/2, dx/2), dtype=np.float64)
u = TimeFunction(name="u", grid=grid, time_order=2, space_order=4)
update = Eq(u.forward, solve(u.dt2 - task["c"]**2*u.laplace, u.forward))
t = np.arange(steps + 1)*dt
a = (np.pi*task["f0"]*(t - task["t0"]))**2
source = SparseTimeFunction(name="source", grid=grid, npoint=1, nt=steps + 1, coordinates=np.array([task["source"]]))
source.data[:, 0] = (1 - 2*a)*np.exp(-a)
receivers = SparseTimeFunction(name="receivers", grid=grid, npoint=len(task["receivers"]), nt=steps + 1,
                               coordinates=np.array(task["receivers"]))
inject = source.inject(field=u.forward, expr=source*dt**2*task["c"]**2/dx**2)
Operator([update] + inject + receivers.interpolate(expr=u))(time_M=steps - 1, dt=dt)
np.savez(task["traces"], t=t, traces=np.array(receivers.data))
print(devito.__version__)
"""


def theirs(dt: float, folder: Path) -> tuple[np.ndarray, str]:
    """(traces, one column per receiver, at every step; version) by Devito."""
    task = {"cells": CELLS, "dx": DX, "c": C, "f0": F0, "t0": T0, "end": END, "dt": dt, "source": SOURCE,
            "receivers": RECEIVERS, "traces": str(folder / "traces.npz")}  # fmt: skip
    (folder / "task.json").write_text(json.dumps(task))
    (folder / "peer.py").write_text(PEER)
    python = python_with("devito", "devito")
    told = subprocess.run(
        [python, folder / "peer.py", folder / "task.json"], check=True, stdout=subprocess.PIPE, text=True
    )
    return np.load(folder / "traces.npz")["traces"], told.stdout.split()[-1]


def ours(dt: float, folder: Path) -> np.ndarray:
    """The traces by `hpcstencil run`."""
    probes = "\n".join(f'r{i} = "at(p, {x}, {y})"' for i, (x, y) in enumerate(RECEIVERS))
    text = f"""
grid = {{ shape = [{CELLS}, {CELLS}], upper = [{CELLS * DX}, {CELLS * DX}] }}
equation = {{ name = "acoustic", c = {C}, source = 1.0, f0 = {F0}, t0 = {T0}, xs = {SOURCE[0]}, ys = {SOURCE[1]} }}
boundary = {{ x = {{ dirichlet = 0.0 }}, y = {{ dirichlet = 0.0 }} }}
numerics = {{ order = 4, integrator = "rk4", precision = "float64" }}
time = {{ end = {END}, dt = {dt} }}
[diagnostics]
every_steps = 1
{probes}
"""
    common.summary_of(text, folder)
    with h5py.File(folder / "run.h5") as file:
        return np.stack([file[f"diagnostics/r{i}"][:] for i in range(len(RECEIVERS))], axis=1)


def main() -> None:
    rows, version = [], ""
    for dt in STEPS:
        with tempfile.TemporaryDirectory() as name:
            found = ours(dt, Path(name))
            expected, version = theirs(dt, Path(name))
        n = min(len(found), len(expected) - 1)  # Devito reads its receivers up to the step before the last
        worst = np.abs(found[:n] - expected[:n]).max() / np.abs(expected).max()
        rows.append(f"{dt:<12g}{worst:>12.1e}")
    print(f"Devito {version}, {CELLS} x {CELLS} cells, order 4, c = {C}, Ricker source of frequency {F0}, float64")
    print(f"{'dt':<12}{'difference':>12}")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
