"""The backend `native` for CPUs: C++ generated for one problem and compiled on this machine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hpcstencil.backends.backend import BY_FFT, Steps, Unsupported
from hpcstencil.backends.native.compiler import compile_in_background, compiler
from hpcstencil.backends.native.cost_model import (
    account,
    cells_beside,
    least_work,
    reach_of_steps,
    steps_between_exchanges,
)
from hpcstencil.backends.native.program import Program, program
from hpcstencil.backends.native.stencil_values import ValuesOfRun
from hpcstencil.backends.native.value_program import ValueProgram
from hpcstencil.numerics.grid import AXES
from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.decomposition import Costs, Plan, most_steps
from hpcstencil.problem.problem import Problem
from hpcstencil.runtime.communicator import Communicator
from hpcstencil.runtime.threads import crowding, threads_for

if TYPE_CHECKING:
    import jax

    from hpcstencil.distributed.device_grid import DeviceGrid
    from hpcstencil.distributed.exchange import Exchange


@dataclass(frozen=True)
class NativeBackend:
    """The backend `native`: C++ generated for each problem, for CPUs."""

    name: str = "native"
    preferred: bool = True

    def lower(self, problem: Problem, topology: Topology) -> LoweredToNative:
        if problem.by_fft:
            raise Unsupported(BY_FFT.format(problem.by_fft))
        compiler()  # raises Unsupported if there is none
        made = program(problem)
        check_room(made, problem, topology)
        values = ValuesOfRun.of(problem, made.fields)
        for each in values.all:
            check_room(each.program, problem, topology)
        return LoweredToNative(problem, made, values)

    def unsuited(self, device: jax.Device) -> str:
        return "" if device.platform == "cpu" else f"native code is for processors, and this is a {device.platform}"

    def remark(self, device: jax.Device) -> str:
        return ""


def check_room(program: Program, problem: Problem, topology: Topology) -> None:
    """Raise Unsupported if a section of a step reads further beyond a block than the narrowest block is wide.

    Sections matter only if blocks are too thin for a whole step, so that each section has its own exchange.
    """
    if most_steps(problem, topology):
        return
    for axis, cells in enumerate(topology.narrowest()):
        reach = max(section.reach[axis] for section in program.sections)
        if topology.is_split(axis) and cells < reach:
            raise Unsupported(
                f"blocks have {cells} cells along {AXES[axis]}, but native code reads {reach} cells of a neighbour"
            )


@dataclass(frozen=True)
class LoweredToNative:
    """A problem prepared for native code, with its program; see `backend.Lowered`.

    ``values`` are those that the run wants besides fields.
    """

    problem: Problem
    program: Program
    values: ValuesOfRun
    halo_wraps: bool = False
    ghosts_apart: bool = True

    def begin(self) -> None:
        compile_in_background(self.program.text, self.program.driver)
        for values in self.values.all:
            values.begin()
        for trees in (self.problem.reduced(), self.problem.measured.values()):
            ValueProgram.of(self.program, self.problem, trees).begin()

    def lack(self, topology: Topology) -> str:
        """Compile the program and return the compiler's error message, or "" if it compiles; see `backend.Lowered`.

        One process per host compiles while the others wait. Rank 0 also compiles the cost model, by which it chooses the
        number of steps between two exchanges.
        """
        from hpcstencil.backends.native.ffi_call import native

        try:
            native(self.program, 1)
            if topology.rank == 0 and topology.size * topology.device_count > 1:
                account(self.program)
        except Unsupported as reason:
            return str(reason)
        return ""

    def seconds_per_work(self, topology: Topology) -> float | None:
        from hpcstencil.backends.native.speed_probe import probe_shape, seconds_per_step

        if self.problem.replayed:
            return None  # its steps need arrays of their own
        threads, shape = threads_for(topology.device_count), probe_shape(topology, self.program.fixed)
        library = compile_in_background(self.program.text, self.program.driver).result()
        seconds = seconds_per_step(self.program, library, self.problem, topology, threads)
        work = math.prod(shape) * least_work(self.program, topology, shape)
        return crowding(topology.device_count) * seconds / work

    def steps_per_exchange(self, topology: Topology, costs: Costs) -> tuple[int, float | None]:
        return steps_between_exchanges(self.program, self.problem, topology, costs)

    def reach(self, topology: Topology, every: int) -> tuple[int, ...] | None:
        if not every:
            return None  # sections know their own reach
        model = account(self.program)
        own, more = reach_of_steps(model, topology.ndim, every), self.values.more_reach(model, topology.ndim, every)
        return own if more is None else tuple(map(sum, zip(own, more, strict=True)))

    def cells_held(self, plan: Plan) -> tuple[int, int]:
        """Return (values held between steps, values held while stepping) on each device; see `backend.Lowered`.

        Both count the state, the working arrays with ghost cells, and the arrays of functions of several coordinates. An
        ensemble holds the state four times, because its members are transposed for native code and back. Each thread may
        step a member.
        """
        topology, fields = plan.topology, len(self.problem.fields)
        whole = math.prod(n + 2 * h for n, h in zip(topology.capacity(), plan.halo, strict=True))
        members, threads = len(self.problem.members), threads_for(topology.device_count)
        if members:
            at_once = min(members, threads)
            beside = (
                3 * fields * whole
                + cells_beside(self.program, topology, plan.steps_per_exchange, 1) * at_once // members
            )
        else:
            beside = cells_beside(self.program, topology, plan.steps_per_exchange, threads)
        held = fields * whole + beside + self.program.fixed * math.prod(topology.capacity())
        return held, held

    def exchange(self, plan: Plan, device_grid: DeviceGrid, communicator: Communicator) -> Exchange:
        """Return the exchange inside the passes, or that of ``device_grid`` where it cannot be used. Collective.

        The exchange of ``device_grid`` serves if decomposition.exchange requests it, or if blocks are too thin for a whole step
        between two exchanges.
        """
        from hpcstencil.backends.native.edge_exchange import in_passes

        config, messages = self.problem.config, device_grid.exchange
        wanted = config.decomposition.exchange
        if wanted not in ("auto", "mpi") or not plan.steps_per_exchange:
            return messages
        itemsize = np.dtype(config.numerics.precision).itemsize
        widths, fields = device_grid.widths_of(plan.reach), len(self.problem.fields)
        return in_passes(
            messages, device_grid.topology, widths, fields, itemsize, communicator, share_memory=wanted == "auto"
        )

    def steps(self, plan: Plan, device_grid: DeviceGrid, communicator: Communicator) -> Steps:
        from hpcstencil.backends.native.step_functions import StepFunctions

        return StepFunctions(self.problem, self.program, self.values, plan, device_grid, communicator).steps()
