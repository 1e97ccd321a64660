"""The backend `native` for CPUs: C++ generated for one problem and compiled on this machine."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hpcstencil.backends.backend import BY_FFT, Advance, Attempt, Cellwise, Reductions, Steps, Unsupported, never_known
from hpcstencil.backends.native.compiler import begun, compiler
from hpcstencil.backends.native.cost_model import (
    account,
    cells_beside,
    least_work,
    reach_in,
    steps_between_exchanges,
)
from hpcstencil.backends.native.program import Program, program
from hpcstencil.backends.native.stencil_values import (
    EVALUATORS,
    FIRST_OF_STREAMS,
    OF_CELLS,
    OF_SUMS,
    CompiledValues,
    StencilValues,
    more_reach,
)
from hpcstencil.backends.native.value_program import ValueProgram, ValueTree
from hpcstencil.numerics.grid import AXES
from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.decomposition import Costs, Plan, most_steps
from hpcstencil.problem.problem import Problem
from hpcstencil.runtime.communicator import Communicator
from hpcstencil.runtime.threads import crowding, threads_for
from hpcstencil.symbolic.expressions import Field, Node
from hpcstencil.symbolic.stencil_reach import Needs
from hpcstencil.validation.errors import EnvironmentProblem

if TYPE_CHECKING:
    import ctypes

    import jax

    from hpcstencil.backends.native.ffi_call import Native
    from hpcstencil.distributed.device_grid import DeviceGrid
    from hpcstencil.distributed.exchange import Exchange

FIRST_CELLS = 2**29  # limit on (cells of a device) x (steps) in the first call, so that it takes a few seconds at most


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
        diagnosed, probed = StencilValues.of_diagnostics(problem), StencilValues.of_probes(problem, made.fields)
        lowered = LoweredToNative(problem, made, diagnosed, probed, StencilValues.of_streams(problem, made.fields))
        for values in lowered.all_values:
            check_room(values.program, problem, topology)
        return lowered

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

    ``diagnosed`` computes the values of diagnostics that apply stencils, and ``probed`` those of the expressions that receivers
    record; None if XLA does, or there are none. ``streamed`` compute those of streams.
    """

    problem: Problem
    program: Program
    diagnosed: StencilValues | None = None
    probed: StencilValues | None = None
    streamed: Sequence[StencilValues] = ()
    halo_wraps: bool = False
    ghosts_apart: bool = True

    @property
    def all_values(self) -> list[StencilValues]:
        return [each for each in (self.diagnosed, self.probed, *self.streamed) if each is not None]

    def begin(self) -> None:
        begun(self.program.text, self.program.driver)
        for values in self.all_values:
            values.begin()
        for trees in (self.problem.reduced(), self.problem.measured.values()):
            ValueProgram.of(self.program, self.problem, trees).begin()

    def lack(self, device: jax.Device, topology: Topology) -> str:
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
        library = begun(self.program.text, self.program.driver).result()
        seconds = seconds_per_step(self.program, library, self.problem, topology, threads)
        work = math.prod(shape) * least_work(self.program, topology, shape)
        return crowding(topology.device_count) * seconds / work

    def steps_per_exchange(self, topology: Topology, costs: Costs) -> tuple[int, float | None]:
        return steps_between_exchanges(self.program, self.problem, topology, costs)

    def reach(self, topology: Topology, every: int) -> tuple[int, ...] | None:
        if not every:
            return None  # sections know their own reach
        model = account(self.program)
        own, more = reach_in(model, topology.ndim, every), self._more_reach(model, topology.ndim, every)
        return own if more is None else tuple(map(sum, zip(own, more, strict=True)))

    def _more_reach(self, library: ctypes.CDLL, ndim: int, every: int) -> tuple[int, ...] | None:
        """Return how many cells further beyond a block ``every`` steps load because they record stencil values, per axis.

        None if they record none. ``library`` is the program, or its cost model.
        """
        recorded = self._recorded(library, ndim)
        return more_reach(recorded, library, self.program.fields, ndim, every) if any(recorded) else None

    def _recorded(self, library: ctypes.CDLL, ndim: int) -> list[StencilValues | None]:
        """Return the stencil values that steps record, by the number of their evaluator; None for those that they do not."""
        fields, frequent = self.program.fields, [each for each in self.streamed if each.every is not None]
        return [
            each if each is not None and each.recorded(library, fields, ndim) else None
            for each in (self.diagnosed, self.probed, *frequent)[:EVALUATORS]
        ]

    def _records_stencils(self, library: ctypes.CDLL, plan: Plan, widths: Sequence[int]) -> list[StencilValues | None]:
        """Return what `_recorded` does; none if these would have to read beyond halos of these ``widths``."""
        ndim, every = plan.topology.ndim, plan.steps_per_exchange
        recorded = self._recorded(library, ndim)
        none: list[StencilValues | None] = [None for _ in recorded]
        more = self._more_reach(library, ndim, every) if every else None
        if more is None:
            return none
        own = reach_in(library, ndim, every) if any(widths) else more
        fit = all(w == 0 or n + m <= w for n, m, w in zip(own, more, widths, strict=True))
        return recorded if fit else none

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

        The exchange of ``device_grid`` serves if decomposition.exchange requests it, if steps are adaptive, or if blocks are
        too thin for a whole step between two exchanges.
        """
        from hpcstencil.backends.native.edge_exchange import in_passes

        config, messages = self.problem.config, device_grid.exchange
        wanted = config.decomposition.exchange
        if wanted not in ("auto", "mpi") or config.time.tolerance is not None or not plan.steps_per_exchange:
            return messages
        itemsize = np.dtype(config.numerics.precision).itemsize
        widths, fields = device_grid.widths_of(plan.reach), len(self.problem.fields)
        return in_passes(
            messages, device_grid.topology, widths, fields, itemsize, communicator, share_memory=wanted == "auto"
        )

    def steps(self, plan: Plan, device_grid: DeviceGrid, communicator: Communicator) -> Steps:
        from hpcstencil.backends.native.edge_exchange import blocks_of
        from hpcstencil.backends.native.ffi_call import hash_of, native
        from hpcstencil.backends.native.field_records import recordable
        from hpcstencil.backends.native.field_sums import ByNative
        from hpcstencil.backends.native.injection import NativeInjection
        from hpcstencil.backends.native.region_records import region_records_of
        from hpcstencil.backends.native.stencil_records import recorder_of_cells
        from hpcstencil.backends.native.step_arrays import ReplayedInCalls, StoredInCalls
        from hpcstencil.backends.native.time_loop import (
            attempt_by_sections,
            attempt_in_a_call,
            by_attempts,
            by_sections,
            in_calls,
            into_room,
        )
        from hpcstencil.backends.xla.array_code import array_code
        from hpcstencil.distributed.cell_samples import CellSamples
        from hpcstencil.io.snapshot_buffers import Copies

        problem, members = self.problem, len(self.problem.members)
        array = array_code(problem, plan, device_grid, communicator)
        blocks = blocks_of(device_grid.exchange)
        code = native(
            self.program, threads_for(device_grid.topology.device_count), plan.steps_per_exchange, blocks, members
        )
        if not plan.steps_per_exchange:
            require_same_code(code.number, communicator)
        widths = device_grid.widths_of(plan.reach)
        alone = bool(blocks) or not any(widths)
        recorded = self._records_stencils(code.library, plan, widths)
        measures_fields_only = all(isinstance(tree, Field) for tree in problem.measured.values())

        def attempt() -> Attempt:
            """Return the function that attempts a step."""
            if plan.steps_per_exchange:
                return attempt_in_a_call(code, device_grid, widths, array.norm)
            return attempt_by_sections(code, device_grid, array.error_sums(), array.norm)

        def stepping(code: Native, grid: DeviceGrid) -> Advance:
            """Return the function that takes steps with ``code``, and exchanges by ``grid`` unless the code does."""
            if plan.steps_per_exchange:
                return in_calls(code, grid, plan.steps_per_exchange, widths, bool(code.blocks) or not any(widths))
            return by_sections(code, grid)

        adaptive = problem.config.time.tolerance is not None  # whose steps use the other memory themselves
        advance = by_attempts(attempt()) if adaptive else stepping(code, device_grid)
        one_at_a_time = not members and not device_grid.devices.several
        one_call = (alone or adaptive) and not device_grid.devices.several
        # The steps of an adaptive run may be rejected, and sections of steps are separate calls.
        records = bool(plan.steps_per_exchange) and not device_grid.devices.several and problem.has_common_steps

        def compiled(wanted: StencilValues | None, trees: Collection[Node]) -> CompiledValues | None:
            """Return what computes the values ``wanted``, if all are ``trees``; None if XLA does. Collective."""
            if wanted is None or not set(wanted.trees) <= set(trees):
                return None
            found = None
            with suppress(Unsupported):
                found = wanted.compiled(outside_passes(device_grid), members)
            if communicator.any(not found):
                return None
            require_same_code(hash_of(wanted.program.text), communicator)
            return found

        def reductions(needs: Needs, trees: Sequence[Node]) -> Reductions:
            """Return the reductions of ``trees``, whose extrema and sums native code finds. Collective."""
            made, values = ValueProgram.of(self.program, problem, trees), dict[Node, ValueTree]()
            if made.trees:
                with suppress(Unsupported):
                    values = made.loaded()
                if communicator.any(not values):
                    values = {}
            given = code.library, self.program.fields, trees, one_call and not members, records, made, values
            reducer = ByNative(
                device_grid, *given, compiled(self.diagnosed, trees), recorded[OF_SUMS] is not None, members
            )
            return array.reductions(needs, trees, reducer if problem.has_common_steps or not members else None)

        probes = compiled(self.probed, problem.probed.values())
        recorded_probes = probes if records and recorded[OF_CELLS] else None
        streamed = [compiled(each, each.trees) for each in {each.trees: each for each in self.streamed}.values()]
        computed = {each.trees: each for each in (probes, *streamed) if each is not None}
        evaluators = {
            (values.trees, values.every): (number, computed[values.trees])
            for number, values in enumerate(recorded)
            if number >= FIRST_OF_STREAMS and values is not None and values.every and values.trees in computed
        }

        def cellwise(needs: Needs, trees: Sequence[Node]) -> Cellwise:
            """Return the function that computes the values of ``trees``."""
            found = computed.get(tuple(trees))
            return found.evaluate if found else array.cellwise(needs, trees)

        def inside() -> Advance:
            """Return the same steps for use inside other compiled code.

            That code may run while a simulation steps, and call the steps several times at once. So its calls record nothing,
            and XLA's code exchanges: calls would share the edge memory, and XLA may start them in a different order on each
            device and process.
            """
            grid = outside_passes(device_grid)
            _ = grid.places  # cached from here on: not to be computed while JAX traces
            return stepping(replace(code, blocks=0, first_block=0, records=False), grid)

        return Steps(
            advance=advance,
            attempt=attempt,
            slopes=array.slopes,
            reductions=reductions,
            cellwise=cellwise,
            snapshot_buffers=code.copies if alone and not device_grid.devices.several else Copies,
            cell_samples=partial(
                recorder_of_cells, self.program, code.library, communicator, recorded_probes, tuple(problem.probed)
            )
            if plan.steps_per_exchange and not device_grid.devices.several
            else CellSamples,
            stayed_finite=code.all_finite if measures_fields_only else never_known,
            first_cells=FIRST_CELLS,
            inside=inside,
            into=into_room(code, device_grid, widths)
            if plan.steps_per_exchange and alone and one_at_a_time and not adaptive
            else None,
            storing=StoredInCalls(code.library, self.program.fields)
            if records and alone and one_at_a_time and recordable(code.library, self.program.fields, problem.changing)
            else None,
            replaying=ReplayedInCalls(code.library, problem.replayed) if problem.replayed else None,
            injection=(lambda most: NativeInjection(code.library, device_grid.topology, self.program.injections, most))
            if self.program.injections and plan.steps_per_exchange and one_at_a_time
            else None,
            region_records=partial(region_records_of, code.library, self.program.fields, evaluators)
            if records
            else None,
            attempt_of_member=None
            if any(widths) or not plan.steps_per_exchange
            else lambda: attempt_in_a_call(replace(code, members=0), device_grid, widths, array.norm),
        )


def outside_passes(device_grid: DeviceGrid) -> DeviceGrid:
    """Return the device grid whose exchange is that of XLA's code, not inside the passes of native code."""
    from hpcstencil.backends.native.edge_exchange import InPasses

    exchange = device_grid.exchange
    return replace(device_grid, exchange=exchange.messages) if isinstance(exchange, InPasses) else device_grid


def require_same_code(number: int, communicator: Communicator) -> None:
    """Raise EnvironmentProblem, on all processes, unless all have the program with this number. Collective.

    Processes that exchange arrays between the passes of a step refer to them by their numbers in the program.
    """
    largest, least = communicator.maximum(np.array([number, -number]))
    if largest != -least:
        raise EnvironmentProblem(
            "numerics.kernel: expected the same native code on all processes, but it differs; run with numerics.kernel = "
            '"shift", and report this input as a bug'
        )
