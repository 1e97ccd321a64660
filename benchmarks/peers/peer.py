"""What the speed scripts of the peers share: a problem for both sides, and the speed of either.

A script NAME_speed.py is imported by `all.py`, which takes its PEER, and is run by the peer's own interpreter with the name of
a problem as argument, when it computes that problem and prints its seconds. So modules of the peer, and of hpcstencil's
environment, are imported inside of functions only.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).parent.parent))
import common

# Equations that hpcstencil has a name for, as arguments of `Stencil`.
HEAT = {"rhs": {"u": "laplacian(u)"}, "builtin": 'name = "heat"\nD = 1.0'}
WAVE = {"rhs": {"u": "laplacian(u)"}, "builtin": 'name = "wave"\nc = 1.0', "integrator": "leapfrog"}
GRAY_SCOTT = {
    "rhs": {"u": "0.16*laplacian(u) - u*v**2 + 0.035*(1 - u)", "v": "0.08*laplacian(v) + u*v**2 - 0.095*v"},
    "builtin": 'name = "gray_scott"\nD_u = 0.16\nD_v = 0.08\nF = 0.035\nk = 0.06',
}
# Equations that neither side knows by name: the time derivative of each field, as hpcstencil writes it.
CUSTOM = {
    "allen-cahn": {"u": "laplacian(u) + u - u**3"},
    "cahn-hilliard": {"u": "laplacian(u**3 - u - laplacian(u))"},
    "kuramoto-sivashinsky": {"u": "-laplacian(u + laplacian(u)) - 0.5*gradient_squared(u)"},
    "brusselator": {"u": "laplacian(u) + 1 - 4*u + u**2*v", "v": "0.1*laplacian(v) + 3*u - u**2*v"},
    "fisher-drift": {"u": "laplacian(u) + u*(1 - u) - 0.5*dx(u)"},
}
START = 1.2  # the initial value of the central cell
TOLERANCE = 0.02  # of how much that cell changes: float32 rounds, and leapfrog can be begun in two ways


class Problem(Protocol):
    """What both sides compute: the same cells, discretization, precision and steps, on as many processes.

    ``field`` is the field whose central cell is compared.
    """

    shape: tuple[int, ...]
    steps: int
    processes: int
    field: str

    def method(self) -> str:
        """Grid, discretization, precision and steps, in words."""
        ...

    def input(self) -> str:
        """The input of `hpcstencil run`."""
        ...


class OnCells:
    """What problems on one process share that have a pulse in the middle of the grid."""

    shape: tuple[int, ...]
    processes = 1

    @property
    def centre(self) -> tuple[int, ...]:
        return tuple(n // 2 for n in self.shape)

    @property
    def cells(self) -> str:
        return " x ".join(map(str, self.shape))


@dataclass(frozen=True)
class Stencil(OnCells):
    """∂u/∂t = ``rhs`` (∂²u/∂t² with leapfrog) on cells of unit width, from a smooth bump at the centre.

    ``builtin`` is hpcstencil's own name and parameters for the equation; without it, it is given ``rhs`` as a custom equation.
    The boundary is periodic or, where peers differ, whatever is simplest for each: the centre does not feel it.
    """

    shape: tuple[int, ...]
    steps: int
    rhs: Mapping[str, str]
    builtin: str = ""
    order: int = 2
    precision: str = "float32"
    integrator: str = "euler"
    dt: float = 0.05
    periodic: bool = False
    field = "u"

    def method(self) -> str:
        return f"{self.cells}, order {self.order}, {self.integrator}, {self.precision}, {self.steps} steps"

    def input(self) -> str:
        axes = "xyz"[: len(self.shape)]
        bump = "*".join(f"cos(({axis} - {i + 0.5})/10)" for axis, i in zip(axes, self.centre, strict=True))
        boundary = '"periodic"' if self.periodic else "{ dirichlet = 0.0 }"
        return f"""
grid.shape = {list(self.shape)}
numerics = {{ order = {self.order}, integrator = "{self.integrator}", precision = "{self.precision}" }}
time = {{ end = {self.steps * self.dt}, dt = {self.dt} }}
output.fields = ["u"]
[boundary]
{_lines(axes, boundary)}
[initial]
{_lines(self.rhs, f'"1 + 0.2*{bump}"')}
[equation]
{self.builtin or custom(self.rhs)}
"""

    def start(self) -> Any:
        """The initial values of every field, as in the input, as an array."""
        import numpy as np

        along = [np.cos((np.arange(n) - i) / 10) for n, i in zip(self.shape, self.centre, strict=True)]
        return 1 + 0.2 * reduce(np.multiply, (a.astype(self.precision) for a in np.ix_(*along)))


@dataclass(frozen=True)
class Waves(OnCells):
    """A pulse in a medium whose properties depend on the place, on cells of unit width, with a CPML at every end of every axis.

    ``equation`` is "acoustic", with the speed of sound C and the density RHO, or "maxwell" on Yee's grid, with the speed of
    light C. ``field`` begins as START times a Gaussian around ``centre``, and the others as 0. ``layer`` is the number of cells
    of a CPML.
    """

    equation: str
    field: str
    shape: tuple[int, ...]
    steps: int
    order: int
    dt: float
    layer: int = 10
    precision: str = "float32"
    C, RHO, WIDTH, FASTEST = "1 - 0.2*sin(y/20)", "1 + 0.2*sin(x/20)", 30.0, 1.2

    def method(self) -> str:
        return f"{self.cells}, CPML of {self.layer} cells, order {self.order}, leapfrog, {self.precision}, {self.steps} steps"

    def input(self) -> str:
        axes = "xyz"[: len(self.shape)]
        squares = " + ".join(f"({axis} - {i + 0.5})**2" for axis, i in zip(axes, self.centre, strict=True))
        rho = f'rho = "{self.RHO}"' if self.equation == "acoustic" else ""
        return f"""
grid.shape = {list(self.shape)}
numerics = {{ order = {self.order}, integrator = "leapfrog", precision = "{self.precision}" }}
time = {{ end = {self.steps * self.dt}, dt = {self.dt} }}
output.fields = ["{self.field}"]
[boundary]
{_lines(axes, f"{{ cpml = {{ width = {self.layer}.0, speed = {self.FASTEST} }} }}")}
[initial]
{self.field} = "{START}*exp(-({squares})/{self.WIDTH})"
[equation]
name = "{self.equation}"
c = "{self.C}"
{rho}
"""


def _lines(names: Any, value: str) -> str:
    return "\n".join(f"{name} = {value}" for name in names)


def custom(rhs: Mapping[str, str]) -> str:
    """The [equation] of hpcstencil's input for time derivatives given as text."""
    return 'name = "custom"\n[equation.rhs]\n' + "\n".join(f"{name} = {json.dumps(text)}" for name, text in rhs.items())


@dataclass(frozen=True)
class Measured:
    """One side's speed (cells times steps per second, compiling and output apart) and the last value of u in the central
    cell, where that is to be compared. ``by``: hpcstencil's kernel, or the peer's version."""

    cells_per_second: float
    value: float | None
    by: str
    t_eff: float = 0.0


def ours(problem: Problem) -> Measured:
    """`hpcstencil run`."""
    import h5py

    with tempfile.TemporaryDirectory() as name:
        summary = common.summary_of(problem.input(), Path(name), problem.processes)
        with h5py.File(f"{name}/run.h5") as file:
            u = file[problem.field]
            value = float(u[(-1, *(n // 2 for n in u.shape[1:]))])
    t_eff = float(common.told(r"T_eff ([0-9.]+) GB/s", summary)) * 1e9
    return Measured(common.speed_of(summary), value, common.told(r"kernel +(\S+)", summary), t_eff)


@dataclass(frozen=True, eq=False)
class Peer:
    """A program to compare with. ``install`` returns an interpreter that has its ``package`` or raises NotInstalled, ``about``
    says what is compared."""

    name: str
    package: str
    script: str
    about: str
    problems: Mapping[str, Problem]
    install: Callable[[], Path]

    def theirs(self, name: str) -> Measured:
        """The peer's side of one of its problems."""
        problem = self.problems[name]
        line = common.launched(problem.processes, str(self.install()), self.script, name)
        reply = json.loads(common.output_of(line).splitlines()[-1])
        cells = problem.steps
        for n in problem.shape:
            cells *= n
        return Measured(cells / reply["seconds"], reply["value"], reply["version"])

    def answer(self, measure: Callable[[Any], tuple[float, float | None] | None]) -> None:
        """What the script does when the peer's interpreter runs it: print what ``measure`` returns for the problem named,
        seconds and a value; None on processes that say nothing."""
        measured = measure(self.problems[sys.argv[1]])
        if measured:
            seconds, value = measured
            version = importlib.metadata.version(self.package)
            print(json.dumps({"seconds": seconds, "value": value, "version": version}))
