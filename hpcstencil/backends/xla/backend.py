"""The backends `shift` and `conv`: XLA compiles array code, which applies stencils by one of the `stencil_kernels`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstencil.backends.backend import Steps
from hpcstencil.numerics.integrators import Method
from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.decomposition import Costs, Plan, steps_between_exchanges
from hpcstencil.problem.problem import Problem
from hpcstencil.runtime.communicator import Communicator

if TYPE_CHECKING:
    import jax

    from hpcstencil.distributed.device_grid import DeviceGrid
    from hpcstencil.distributed.exchange import Exchange


TRANSFORMED = 6  # temporary arrays of block size while a stencil is applied by Fourier transforms


@dataclass(frozen=True)
class XlaBackend:
    """A backend of array code. ``name`` is its stencil kernel, "shift" or "conv"."""

    name: str
    preferred: bool = False

    def lower(self, problem: Problem, topology: Topology) -> LoweredToArrays:
        return LoweredToArrays(problem, self.name)

    def unsuited(self, device: jax.Device) -> str:
        return ""

    def remark(self, device: jax.Device) -> str:
        return ""


@dataclass(frozen=True)
class LoweredToArrays:
    """A problem prepared for array code, which supports every problem; see `backend.Lowered`.

    ``kernel`` is the name of the stencil kernel.
    """

    problem: Problem
    kernel: str
    ghosts_apart: bool = False

    @property
    def halo_wraps(self) -> bool:
        return not self.problem.by_fft

    def begin(self) -> None:
        return None

    def lack(self, topology: Topology) -> str:
        return ""

    def seconds_per_work(self, topology: Topology) -> float | None:
        return None

    def steps_per_exchange(self, topology: Topology, costs: Costs) -> tuple[int, float | None]:
        return steps_between_exchanges(self.problem, topology, costs=costs), None

    def reach(self, topology: Topology, every: int) -> tuple[int, ...] | None:
        return None

    def cells_held(self, plan: Plan) -> tuple[int, int]:
        return cells_held(self.problem, plan, arrays_per_stencil=len(plan.radius) if self.kernel == "conv" else 1)

    def exchange(self, plan: Plan, device_grid: DeviceGrid, communicator: Communicator) -> Exchange:
        return device_grid.exchange

    def steps(self, plan: Plan, device_grid: DeviceGrid, communicator: Communicator) -> Steps:
        from hpcstencil.backends.xla.array_code import array_code
        from hpcstencil.backends.xla.time_loop import by_stepper
        from hpcstencil.distributed.cell_samples import CellSamples
        from hpcstencil.io.snapshot_buffers import Copies

        code = array_code(self.problem, plan, device_grid, communicator, self.kernel)
        return Steps(
            advance=by_stepper(code.stepper, together=2 if device_grid.devices.on_gpu else 1),
            attempt=code.attempt,
            slopes=code.slopes,
            reductions=code.reductions,
            cellwise=code.cellwise,
            snapshot_buffers=Copies,
            cell_samples=CellSamples,
        )


def cells_held(problem: Problem, plan: Plan, arrays_per_stencil: int = 1) -> tuple[int, int]:
    """Estimate (values held between steps, values held while stepping) on each device, for array code.

    Both are numbers of array elements for all fields. XLA decides what it really keeps; the estimate fits right-hand
    sides without nested operators. ``arrays_per_stencil`` is the number of arrays that applying a stencil to one array makes.
    """
    fields, capacity = len(problem.fields), plan.topology.capacity()
    whole = math.prod(n + 2 * h for n, h in zip(capacity, plan.halo, strict=True))
    transformed = TRANSFORMED * whole if problem.by_fft else 0
    return fields * math.prod(capacity), fields * whole * _arrays(
        problem.method, fields
    ) * arrays_per_stencil + transformed


def _arrays(method: Method, fields: int) -> int:
    """Return the number of arrays per field that XLA holds during a step, as ``benchmarks/memory.py`` measures it.

    A partitioned method, whose stages change some of the fields each, holds two. A loop over uniform stages holds five:
    u, the last two stage values, and the slopes at u and at the last value. Any other method holds u, one slope per
    stage, one stage value if there are several fields and stages, and two more arrays with an error estimate.
    """
    if method.partitioned:
        return 2
    if method.uniform_from < len(method.stages):
        return 5
    stages = method.evaluations
    return 1 + stages + (fields > 1 and stages > 1) + 2 * bool(method.error)
