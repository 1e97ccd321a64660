"""Speed against loops compiled by numba: what `all.py` asks for, and, run by an interpreter that has numba, numba's side."""

from __future__ import annotations

import time
from typing import Any

from environment import python_with
from peer import GRAY_SCOTT, HEAT, Peer, Stencil

PROBLEMS = {
    "heat-3d-256": Stencil((256,) * 3, 320, **HEAT),
    "gray-scott-2d-4096": Stencil((4096,) * 2, 160, **GRAY_SCOTT),
}


def measure(problem: Stencil) -> tuple[float, float]:
    """(seconds, value of u in the central cell) of all steps, after a few to compile and warm up."""
    import numpy as np
    from numba_kernels import gray_scott_2d, heat_3d

    kernel, numbers = (gray_scott_2d, [0.16, 0.08, 0.035, 0.06]) if "v" in problem.rhs else (heat_3d, [])
    arguments = np.array([problem.dt, *numbers], problem.precision)

    def run(steps: int) -> tuple[float, Any]:
        old = [np.pad(problem.start(), 1) for _ in problem.rhs]  # a ring of cells that stay as they are
        new = [u.copy() for u in old]
        began = time.perf_counter()
        for _ in range(steps):
            kernel(*old, *new, *arguments)
            old, new = new, old
        return time.perf_counter() - began, old[0]

    run(4)
    seconds, u = run(problem.steps)
    return seconds, float(u[tuple(i + 1 for i in problem.centre)])


PEER = Peer(
    name="numba",
    package="numba",
    script=__file__,
    about="A parallel loop over the cells, written by hand (`numba_kernels.py`), compiled with `fastmath`, on all cores.",
    problems=PROBLEMS,
    install=lambda: python_with("numba", "numba"),
)

if __name__ == "__main__":
    PEER.answer(measure)
