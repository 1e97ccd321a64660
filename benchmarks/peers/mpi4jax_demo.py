"""The shallow-water demo of mpi4jax against `shallow_water`, number for number, over a model day on 360 x 180 cells.

  .venv/bin/python benchmarks/peers/mpi4jax_demo.py

The demo is taken from mpi4jax's source package and run in float64 as it stands, and with three corrections, each beside
the same run of ours on 1, 2 and 4 processes:

  friction  of v, whose gradients it forms between v and u
  halo      it does not exchange the velocities that friction has changed before it uses them again, so that what it
            computes depends on the decomposition
  wall      it has no gradient of v between the lower boundary and the first faces above it, but one at the upper boundary

With all three nothing but round-off is left.
"""

from __future__ import annotations

import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

import h5py
import numpy as np
from environment import FOLDER, install
from peer import common

VERSION, DAY, NX, NY, DX = "0.9.1", 86400.0, 360, 180, 5e3
PROCESSES = (1, 2, 4)
EQUATION = Path(__file__).with_name("mpi4jax_demo_equation.py")
CORRECTIONS = {
    "friction": [
        ("(v[1:-1, 2:] - u[1:-1, 1:-1])", "(v[1:-1, 2:] - v[1:-1, 1:-1])"),
        ("(v[2:, 1:-1] - u[1:-1, 1:-1])", "(v[2:, 1:-1] - v[1:-1, 1:-1])"),
    ],
    "halo": [
        (
            "    return ModelState(h, u, v, dh_new",
            '    u, v = enforce_boundaries(u, "u"), enforce_boundaries(v, "v")\n    return ModelState(h, u, v, dh_new',
        ),
    ],
    "wall": [
        (
            "        v = v.at[1:-1, 1:-1].add(\n            dt\n            * (\n                (fe[1:-1, 1:-1] - fe",
            "        if proc_idx[0] == 0:\n"
            "            fn = fn.at[0, 1:-1].set(LATERAL_VISCOSITY * v[1, 1:-1] / dy)\n"
            "        v = v.at[1:-1, 1:-1].add(\n            dt\n            * (\n                (fe[1:-1, 1:-1] - fe",
        ),
    ],
}
# Runs the demo for a day and writes its first and last state, put together on rank 0.
DRIVER = """
import sys
import numpy as np
source = open(sys.argv[1]).read()
sys.argv = sys.argv[:1] + ["--benchmark"] + sys.argv[2:]
demo = {"__name__": "demo"}
exec(compile(source, "shallow_water.py", "exec"), demo)
states = demo["solve_shallow_water"](86400.0, num_multisteps=100)
found = {}
for label, state in (("first", states[0]), ("last", states[-1])):
    for name in "huv":
        block = np.asarray(getattr(state, name))[1:-1, 1:-1]
        blocks = demo["mpi_comm"].gather((demo["proc_idx"], block))
        if demo["mpi_rank"] == 0:
            ny, nx = block.shape
            whole = np.empty((demo["ny_global"] - 2, demo["nx_global"] - 2))
            for (j, i), part in blocks:
                whole[j * ny : (j + 1) * ny, i * nx : (i + 1) * nx] = part
            found[f"{label}_{name}"] = whole
if demo["mpi_rank"] == 0:
    np.savez(sys.argv[2], dt=demo["dt"], steps=1 + 100 * (len(states) - 2), **found)
"""
# The demo's problem in hpcstencil's words.
INPUT = """
[grid]
shape = [{nx}, {ny}]
upper = [{length}, {width}]
[equation]
name = "{equation}"
g = 9.81
f = "2e-4 + 2e-11*(y - {dx})"
nu = {nu!r}
[initial]
{initial}
[boundary]
x = "periodic"
y = {{ neumann = 0.0 }}
v = {{ y = {{ dirichlet = 0.0 }} }}
[numerics]
integrator = "ab2"
epsilon = 0.1
precision = "{precision}"
kernel = "{kernel}"
[time]
end = {end!r}
dt = {dt!r}
"""


def channel(nx: int, ny: int, dt: float, steps: int, **rest: str) -> str:
    """The input of hpcstencil for the demo's problem on nx x ny cells; ``rest``: equation, initial, precision, kernel."""
    return INPUT.format(
        nx=nx, ny=ny, length=nx * DX, width=ny * DX, dx=DX, nu=1e-3 * 2e-4 * DX**2, dt=dt, end=steps * dt, **rest
    )


def demo_source() -> str:
    """The text of the demo, from mpi4jax's source package."""
    archive = FOLDER / f"mpi4jax-{VERSION}.tar.gz"
    if not archive.exists():
        download = ["download", "--quiet", "--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
        install(sys.executable, "-m", "pip", *download, f"mpi4jax=={VERSION}", CUDA_PATH="")
    with tarfile.open(archive) as package:
        member = package.extractfile(f"mpi4jax-{VERSION}/examples/shallow_water.py")
        assert member is not None
        return member.read().decode()


def corrected(source: str, names: tuple[str, ...]) -> str:
    for name in names:
        for old, new in CORRECTIONS[name]:
            assert old in source, f"{name}: the demo is not the one that is known"
            head, found, tail = source.rpartition(old)
            source = head + found.replace(old, new) + tail
    return source


def theirs(source: str, processes: int, folder: Path) -> dict[str, np.ndarray]:
    """First and last fields of the demo, indexed as ours: (x, y), velocities on lower faces."""
    (folder / "demo.py").write_text(source)
    (folder / "driver.py").write_text(DRIVER)
    line = common.launched(processes, sys.executable, "driver.py", "demo.py", "demo.npz")
    common.output_of(line, folder, JAX_ENABLE_X64="1", JAX_PLATFORMS="cpu")
    with np.load(folder / "demo.npz") as loaded:
        found = dict(loaded)
    for label in ("first", "last"):
        found[f"{label}_h"] = found[f"{label}_h"].T
        found[f"{label}_u"] = np.roll(found[f"{label}_u"].T, 1, 0)
        v = found[f"{label}_v"].T
        found[f"{label}_v"] = np.concatenate([np.zeros((NX, 1)), v[:, :-1], np.zeros((NX, 1))], 1)
    return found


def ours(start: dict[str, np.ndarray], slips: bool, processes: int, folder: Path) -> dict[str, np.ndarray]:
    """The last fields of our run from the same start; ``slips`` gives it the friction of the demo."""
    equation = Path(shutil.copy(EQUATION, folder)).name + ":DemoShallowWater" if slips else "shallow_water"
    with h5py.File(folder / "start.h5", "w") as file:
        for name in "huv":
            file[name] = start[f"first_{name}"]
    text = channel(
        NX, NY, float(start["dt"]), int(start["steps"]), equation=equation,
        initial='file = "start.h5"', precision="float64", kernel="shift",
    )  # fmt: skip
    common.summary_of(text, folder, processes, JAX_PLATFORMS="cpu")
    with h5py.File(folder / "run.h5") as file:
        return {name: file[name][-1] for name in "huv"}


def main() -> None:
    source = demo_source()
    cases = {
        "as it stands": (),
        "friction corrected": ("friction",),
        "friction, halo and wall corrected": ("friction", "halo", "wall"),
    }
    print(f"largest difference to the demo of mpi4jax {VERSION} after a model day, relative to the largest value")
    print(f"{'demo':36s}{'processes':>10s}{'steps':>8s}{'h - 100':>12s}{'u':>12s}{'v':>12s}")
    for label, names in cases.items():
        for processes in PROCESSES:
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                expected = theirs(corrected(source, names), processes, folder)
                found = ours(expected, not names, processes, folder)
            parts = []
            for field, level in (("h", 100.0), ("u", 0.0), ("v", 0.0)):
                whole = expected[f"last_{field}"]
                parts.append(np.abs(found[field] - whole).max() / np.abs(whole - level).max())
            numbers = "".join(f"{part:12.1e}" for part in parts)
            print(f"{label:36s}{processes:10d}{int(expected['steps']):8d}{numbers}", flush=True)


if __name__ == "__main__":
    main()
