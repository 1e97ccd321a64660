"""Five custom equations against py-pde: the same grid, initial state, method (forward Euler) and step.

  .venv/bin/python benchmarks/peers/py_pde.py

Prints the largest difference of the two results, relative to the largest value. Both use second-order central differences,
so that only the order of the sums differs.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

import h5py
import numpy as np
from environment import python_with
from peer import CUSTOM, common, custom
from py_pde_speed import translated

SHAPE, DT, STEPS = (64, 48), 0.01, 500
PEER = """
import json, sys
import numpy as np
import pde

task = json.load(open(sys.argv[1]))
grid = pde.CartesianGrid([[0, n] for n in task["shape"]], task["shape"], periodic=True)
start = np.load(task["start"])
state = pde.FieldCollection([pde.ScalarField(grid, start[name]) for name in task["rhs"]], labels=list(task["rhs"]))
equation = pde.PDE(task["rhs"])
result = equation.solve(state, t_range=task["dt"]*task["steps"], dt=task["dt"], solver="euler", tracker=None)
np.savez(task["end"], **{name: result[i].data for i, name in enumerate(task["rhs"])})
print(pde.__version__)
"""


def theirs(rhs: dict[str, str], start: Path, folder: Path) -> tuple[dict[str, np.ndarray], str]:
    """(fields at the end, version) by py-pde."""
    task = {
        "shape": SHAPE,
        "rhs": translated(rhs),
        "dt": DT,
        "steps": STEPS,
        "start": str(start),
        "end": str(folder / "end.npz"),
    }
    (folder / "task.json").write_text(json.dumps(task))
    (folder / "peer.py").write_text(PEER)
    python = python_with("py-pde", "py-pde")
    told = subprocess.run(
        [python, folder / "peer.py", folder / "task.json"], check=True, stdout=subprocess.PIPE, text=True
    )
    return dict(np.load(folder / "end.npz")), told.stdout.split()[-1]


def ours(rhs: dict[str, str], start: Path, folder: Path) -> dict[str, np.ndarray]:
    """The fields at the end by `hpcstencil run`."""
    with h5py.File(folder / "start.h5", "w") as file:
        for name, values in np.load(start).items():
            file[name] = values
    text = f"""
grid.shape = {list(SHAPE)}
initial.file = "start.h5"
numerics = {{ integrator = "euler", precision = "float64", kernel = "shift" }}
time = {{ end = {DT * STEPS}, dt = {DT} }}
[equation]
{custom(rhs)}
"""
    common.summary_of(text, folder)
    with h5py.File(folder / "run.h5") as file:
        return {name: file[name][-1] for name in rhs}


def main() -> None:
    rng = np.random.default_rng(1)
    rows, version = [], ""
    for label, rhs in CUSTOM.items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            np.savez(folder / "start.npz", **{field: 1 + 0.2 * rng.standard_normal(SHAPE) for field in rhs})
            found = ours(rhs, folder / "start.npz", folder)
            expected, version = theirs(rhs, folder / "start.npz", folder)
        worst = max(np.abs(found[field] - expected[field]).max() / np.abs(expected[field]).max() for field in rhs)
        rows.append(f"{label:<24}{worst:>12.1e}")
    print(f"py-pde {version}, {SHAPE[0]} x {SHAPE[1]} cells, {STEPS} steps of forward Euler, float64")
    print(f"{'equation':<24}{'difference':>12}")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
