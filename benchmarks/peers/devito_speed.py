"""Speed against Devito: what `all.py` asks for, and, run by an interpreter that has Devito, Devito's side of a problem."""

from __future__ import annotations

import os
import time

from environment import python_with
from peer import CUSTOM, GRAY_SCOTT, HEAT, WAVE, Peer, Stencil, Waves

PROBLEMS = {
    "heat-3d-256-f32": Stencil((256,) * 3, 320, **HEAT),
    "heat-3d-256-f64": Stencil((256,) * 3, 320, **HEAT, precision="float64"),
    "heat-3d-512-f32": Stencil((512,) * 3, 80, **HEAT),
    "heat-3d-512-f64": Stencil((512,) * 3, 80, **HEAT, precision="float64"),
    "heat-2d-8192": Stencil((8192,) * 2, 96, **HEAT),
    **{f"wave-2d-4096-order-{p}": Stencil((4096,) * 2, 160, **WAVE, order=p) for p in (2, 4, 8)},
    **{f"wave-3d-256-order-{p}": Stencil((256,) * 3, 160, **WAVE, order=p) for p in (2, 4, 8)},
    "gray-scott-2d-4096": Stencil((4096,) * 2, 160, **GRAY_SCOTT),
    "gray-scott-3d-256": Stencil((256,) * 3, 160, **GRAY_SCOTT),
    "custom-gray-scott-2d-4096": Stencil((4096,) * 2, 160, GRAY_SCOTT["rhs"]),
    **{
        f"custom-{name}-2d-4096": Stencil((4096,) * 2, 160, CUSTOM[name], dt=0.01)
        for name in ("cahn-hilliard", "kuramoto-sivashinsky")
    },
    "acoustic-3d-160-cpml": Waves("acoustic", "p", (160,) * 3, 480, order=4, dt=0.3),
    "maxwell-3d-160-cpml": Waves("maxwell", "Ez", (160,) * 3, 480, order=2, dt=0.3),
}


def measure(problem: Stencil | Waves) -> tuple[float, float]:
    """(seconds, value of ``field`` in the central cell) of applying Devito's operator for all steps, after a few to warm up."""
    os.environ["OMP_NUM_THREADS"] = str(len(os.sched_getaffinity(0)))
    if isinstance(problem, Waves):
        import devito_waves

        return devito_waves.measure(problem)
    import devito
    import numpy as np

    devito.configuration["log-level"] = "ERROR"
    devito.configuration["language"] = "openmp"
    grid = devito.Grid(problem.shape, extent=[n - 1.0 for n in problem.shape], dtype=np.dtype(problem.precision).type)
    levels = 2 if problem.integrator == "leapfrog" else 1
    fields = {
        name: devito.TimeFunction(name=name, grid=grid, time_order=levels, space_order=problem.order)
        for name in problem.rhs
    }
    names = {
        **fields,
        "laplacian": lambda a: a.laplace,
        "gradient_squared": lambda a: a.dxc**2 + a.dyc**2,
    }
    equations = []
    for name, text in problem.rhs.items():
        u, rate = fields[name], eval(text, names)
        after = 2 * u - u.backward + problem.dt**2 * rate if levels == 2 else u + problem.dt * rate
        equations.append(devito.Eq(u.forward, after))
    operator = devito.Operator(equations)
    operator.apply(time_m=levels - 1, time_M=levels + 2, dt=problem.dt)
    start = problem.start()
    for u in fields.values():
        u.data[:] = start
    last = levels - 1 + problem.steps
    began = time.perf_counter()
    operator.apply(time_m=levels - 1, time_M=last - 1, dt=problem.dt)
    seconds = time.perf_counter() - began
    return seconds, float(fields["u"].data[(last % (levels + 1), *problem.centre)])


PEER = Peer(
    name="Devito",
    package="devito",
    script=__file__,
    about="Devito generates C with OpenMP for the equation. It runs on all cores with its default settings.",
    problems=PROBLEMS,
    install=lambda: python_with("devito", "devito"),
)

if __name__ == "__main__":
    PEER.answer(measure)
