"""The backend of GPU kernels, written with Pallas: one kernel per stage of the integrator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpcstencil.backends.backend import BY_FFT, Steps, Unsupported
from hpcstencil.backends.pallas.cost_model import steps_between_exchanges, steps_per_round
from hpcstencil.backends.xla.backend import cells_held
from hpcstencil.numerics.finite_differences import UNROLLED, is_large
from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.decomposition import Costs, Plan, most_steps
from hpcstencil.problem.problem import Problem
from hpcstencil.runtime.communicator import Communicator
from hpcstencil.symbolic.expressions import Convolution, Series, walk
from hpcstencil.validation.errors import InputError

if TYPE_CHECKING:
    import jax

    from hpcstencil.distributed.device_grid import DeviceGrid
    from hpcstencil.distributed.exchange import Exchange


@dataclass(frozen=True)
class PallasBackend:
    """The backend `pallas`: kernels for GPUs, generated for each problem."""

    name: str = "pallas"
    preferred: bool = False

    def lower(self, problem: Problem, topology: Topology) -> LoweredToPallas:
        if problem.by_fft:
            raise Unsupported(BY_FFT.format(problem.by_fft))
        if problem.members:
            raise Unsupported("ensembles are computed by the other kernels")
        if problem.config.time.tolerance is not None:
            raise Unsupported("steps that follow a tolerance are taken by the other kernels")
        if leaves_compiled_code(topology) and not most_steps(problem, topology):
            raise Unsupported("blocks are too thin for a whole step between two exchanges outside compiled code")
        parts = [part for tree in problem.differentiated() for part in walk(tree)]
        if problem.sampled or any(isinstance(part, Series) for part in parts):
            raise Unsupported("time series are computed by the other kernels")
        if any(isinstance(part, Convolution) and is_large(part.stencil) for part in parts):
            raise Unsupported(f"stencils of more than {UNROLLED} weights are summed by the other kernels")
        return LoweredToPallas(problem)

    def unsuited(self, device: jax.Device) -> str:
        return "" if device.platform == "gpu" else "there is no GPU"

    def remark(self, device: jax.Device) -> str:
        return "" if device.platform == "gpu" else "interpreted, for tests: there is no GPU"


@dataclass(frozen=True)
class LoweredToPallas:
    """A problem prepared for GPU kernels; see `backend.Lowered`. On a CPU the kernels are interpreted, for tests."""

    problem: Problem
    halo_wraps: bool = False
    ghosts_apart: bool = True

    def begin(self) -> None:
        return None

    def lack(self, topology: Topology) -> str:
        import jax

        try:
            import jax.experimental.pallas.triton
        except ImportError:
            return f"this jax ({jax.__version__}) has no Triton for Pallas"
        return ""

    def seconds_per_work(self, topology: Topology) -> float | None:
        return None

    def steps_per_exchange(self, topology: Topology, costs: Costs) -> tuple[int, float | None]:
        least = int(leaves_compiled_code(topology))
        return steps_between_exchanges(self.problem, topology, least, costs)

    def reach(self, topology: Topology, every: int) -> tuple[int, ...] | None:
        return None

    def cells_held(self, plan: Plan) -> tuple[int, int]:
        return cells_held(self.problem, plan)

    def exchange(self, plan: Plan, device_grid: DeviceGrid, communicator: Communicator) -> Exchange:
        return device_grid.exchange

    def steps(self, plan: Plan, device_grid: DeviceGrid, communicator: Communicator) -> Steps:
        from hpcstencil.backends.pallas.step import kernels
        from hpcstencil.backends.pallas.time_loop import advance
        from hpcstencil.backends.xla.array_code import array_code
        from hpcstencil.distributed.cell_samples import CellSamples
        from hpcstencil.io.snapshot_buffers import Copies

        if plan.steps_per_exchange == 0 and leaves_compiled_code(plan.topology):
            raise InputError(
                'decomposition: blocks are too thin for numerics.kernel = "pallas", which takes a whole step between two '
                "exchanges of several processes with several devices; use fewer processes or devices, or numerics.kernel = "
                '"shift"'
            )
        code, on_gpu = array_code(self.problem, plan, device_grid, communicator), device_grid.devices.on_gpu
        made = kernels(self.problem, code.rules, interpret=not on_gpu)
        return Steps(
            advance=advance(
                made,
                device_grid,
                plan.steps_per_exchange,
                together=steps_per_round(made.method.evaluations) if on_gpu else 1,
            ),
            attempt=code.attempt,
            slopes=code.slopes,
            reductions=code.reductions,
            cellwise=code.cellwise,
            snapshot_buffers=Copies,
            cell_samples=CellSamples,
        )


def leaves_compiled_code(topology: Topology) -> bool:
    """Return whether strips are exchanged outside compiled code: between several processes with several devices each."""
    return topology.size > 1 and topology.device_count > 1
