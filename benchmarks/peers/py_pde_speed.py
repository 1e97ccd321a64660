"""Speed against py-pde on custom equations: what `all.py` asks for, and, run by an interpreter that has it, py-pde's side."""

from __future__ import annotations

import time
from collections.abc import Mapping

from environment import python_with
from peer import CUSTOM, Peer, Stencil

THEIRS = {"laplacian": "laplace", "dx(": "d_dx("}  # operators that py-pde has under another name
PROBLEMS = {
    f"{name}-2048": Stencil((2048,) * 2, 100, rhs, dt=0.01, precision="float64", periodic=True)
    for name, rhs in CUSTOM.items()
}


def translated(rhs: Mapping[str, str]) -> dict[str, str]:
    """The equations as py-pde writes them."""
    found = dict(rhs)
    for ours, theirs in THEIRS.items():
        found = {name: text.replace(ours, theirs) for name, text in found.items()}
    return found


def measure(problem: Stencil) -> tuple[float, float]:
    """(seconds, value of u in the central cell) of all steps, after one to compile."""
    import pde

    grid = pde.CartesianGrid([[0, n] for n in problem.shape], problem.shape, periodic=True)
    start = problem.start()

    def initial() -> pde.FieldCollection:
        return pde.FieldCollection([pde.ScalarField(grid, start) for _ in problem.rhs], labels=list(problem.rhs))

    state = initial()
    step = pde.EulerSolver(pde.PDE(translated(problem.rhs))).make_stepper(state, dt=problem.dt)
    step(state, 0.0, problem.dt)
    state = initial()
    began = time.perf_counter()
    step(state, 0.0, problem.steps * problem.dt)
    return time.perf_counter() - began, float(state[0].data[problem.centre])


PEER = Peer(
    name="py-pde",
    package="py-pde",
    script=__file__,
    about="py-pde compiles the equation with numba, which uses all cores on grids of this size. It works in float64.",
    problems=PROBLEMS,
    install=lambda: python_with("py-pde", "py-pde"),
)

if __name__ == "__main__":
    PEER.answer(measure)
