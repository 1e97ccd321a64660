"""Five custom equations against py-pde: the same grid, initial state, method (forward Euler) and step.

  .venv/bin/python benchmarks/peers/py_pde.py

Prints the largest difference of the two results, relative to the largest value. Both use second-order central differences,
so that only the order of the sums differs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
from environment import python_with

SHAPE, DT, STEPS = (64, 48), 0.01, 500
# name -> time derivatives as hpcstencil writes them; py-pde has other names for some operators
EQUATIONS = {
    "Allen-Cahn": {"u": "laplacian(u) + u - u**3"},
    "Cahn-Hilliard": {"u": "laplacian(u**3 - u - laplacian(u))"},
    "Kuramoto-Sivashinsky": {"u": "-laplacian(u + laplacian(u)) - 0.5*gradient_squared(u)"},
    "Brusselator": {"u": "laplacian(u) + 1 - 4*u + u**2*v", "v": "0.1*laplacian(v) + 3*u - u**2*v"},
    "Fisher with drift": {"u": "laplacian(u) + u*(1 - u) - 0.5*dx(u)"},
}
THEIRS = {"laplacian": "laplace", "dx(": "d_dx("}
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
    translated = {}
    for name, text in rhs.items():
        for ours, other in THEIRS.items():
            text = text.replace(ours, other)
        translated[name] = text
    task = {
        "shape": SHAPE,
        "rhs": translated,
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
    equation = "\n".join(f"{name} = {json.dumps(text)}" for name, text in rhs.items())
    (folder / "input.toml").write_text(f"""
grid.shape = {list(SHAPE)}
initial.file = "start.h5"
numerics = {{ integrator = "euler", precision = "float64", kernel = "shift" }}
time = {{ end = {DT * STEPS}, dt = {DT} }}
output.path = {json.dumps(str(folder / "run.h5"))}
[equation]
name = "custom"
[equation.rhs]
{equation}
""")
    subprocess.run([sys.executable, "-m", "hpcstencil", "run", folder / "input.toml", "--quiet"], check=True)
    with h5py.File(folder / "run.h5") as file:
        return {name: file[name][-1] for name in rhs}


def main() -> None:
    rng = np.random.default_rng(1)
    rows, version = [], ""
    for label, rhs in EQUATIONS.items():
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
