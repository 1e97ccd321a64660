"""The functions of `backend.Steps` for native code: its calls, and what they record, on this process's devices."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np

from hpcstencil.backends.backend import (
    Advance,
    Attempt,
    Cellwise,
    Into,
    Reductions,
    Steps,
    Unsupported,
    never_known,
)
from hpcstencil.backends.native.chosen_steps import AttemptsInCalls, StepsInCalls
from hpcstencil.backends.native.edge_exchange import InPasses, blocks_of
from hpcstencil.backends.native.ffi_call import Native, hash_of, native
from hpcstencil.backends.native.field_records import recordable
from hpcstencil.backends.native.field_sums import ByNative
from hpcstencil.backends.native.injection import NativeInjection
from hpcstencil.backends.native.program import Program
from hpcstencil.backends.native.region_records import region_records_of
from hpcstencil.backends.native.stencil_records import recorder_of_cells
from hpcstencil.backends.native.stencil_values import (
    FIRST_OF_STREAMS,
    OF_CELLS,
    OF_SUMS,
    CompiledValues,
    StencilValues,
    ValuesOfRun,
)
from hpcstencil.backends.native.step_arrays import ReplayedInCalls, StoredInCalls
from hpcstencil.backends.native.time_loop import (
    attempt_by_sections,
    attempt_in_a_call,
    by_attempts,
    by_sections,
    in_calls,
    into_room,
)
from hpcstencil.backends.native.value_program import ValueProgram, ValueTree
from hpcstencil.backends.xla.array_code import array_code
from hpcstencil.distributed.cell_samples import CellSamples
from hpcstencil.distributed.device_grid import DeviceGrid
from hpcstencil.io.snapshot_buffers import Copies
from hpcstencil.numerics.error_norm import error_norm
from hpcstencil.problem.decomposition import Plan
from hpcstencil.problem.problem import Problem
from hpcstencil.runtime.communicator import Communicator
from hpcstencil.runtime.threads import threads_for
from hpcstencil.symbolic.expressions import Field, Node
from hpcstencil.symbolic.stencil_reach import Needs
from hpcstencil.validation.errors import EnvironmentProblem

FIRST_CELLS = 2**29  # limit on (cells of a device) x (steps) in the first call, so that it takes a few seconds at most


class StepFunctions:
    """The functions that step a problem by calls of its ``program``, exchanging halos as ``plan`` says. Collective.

    ``values`` are those that the run wants besides fields. What native code does not compute, XLA computes (``array``).
    """

    def __init__(
        self,
        problem: Problem,
        program: Program,
        values: ValuesOfRun,
        plan: Plan,
        device_grid: DeviceGrid,
        communicator: Communicator,
    ) -> None:
        self.problem, self.program, self.values = problem, program, values
        self.plan, self.device_grid, self.communicator = plan, device_grid, communicator
        self.members, several = len(problem.members), device_grid.devices.several
        self.adaptive = problem.config.time.tolerance is not None
        self.array = array_code(self.problem, plan, device_grid, communicator)
        blocks, threads = blocks_of(device_grid.exchange), threads_for(device_grid.topology.device_count)
        self.code = native(self.program, threads, plan.steps_per_exchange, blocks, self.members)
        if not plan.steps_per_exchange:
            require_same_code(self.code.number, communicator)
        self.widths = device_grid.widths_of(plan.reach)
        # Whether a call needs no exchange, or exchanges inside its passes; whether it steps one block of a single run.
        self.alone = bool(blocks) or not any(self.widths)
        self.one_block = not self.members and not several
        # The steps of an adaptive run may be rejected, and sections of steps are separate calls.
        self.records = bool(plan.steps_per_exchange) and not several and self.problem.has_common_steps
        ndim, every = plan.topology.ndim, plan.steps_per_exchange
        self.recorded = values.recorded_within(self.code.library, ndim, every, self.widths)
        self.probes = self._compiled(values.probed, problem.probed.values())
        streams = {each.trees: each for each in values.streamed}.values()
        streamed = [self._compiled(each, each.trees) for each in streams]
        self.computed = {each.trees: each for each in (self.probes, *streamed) if each is not None}

    def steps(self) -> Steps:
        """Return the functions."""
        plan, several, library = self.plan, self.device_grid.devices.several, self.code.library
        fields, whole_steps, into = self.program.fields, bool(plan.steps_per_exchange), self._into()
        measures_fields_only = all(isinstance(tree, Field) for tree in self.problem.measured.values())
        return Steps(
            advance=by_attempts(self.attempt()) if self.adaptive else self._stepping(self.code, self.device_grid),
            attempt=self.attempt,
            slopes=self.array.slopes,
            reductions=self.reductions,
            cellwise=self.cellwise,
            snapshot_buffers=self.code.copies if self.alone and not several else Copies,
            cell_samples=self._cell_samples() if whole_steps and not several else CellSamples,
            stayed_finite=self.code.all_finite if measures_fields_only else never_known,
            first_cells=FIRST_CELLS,
            inside=self.inside,
            into=into,
            choosing=None if into is None else StepsInCalls(library),
            choosing_attempts=self._choosing_attempts(),
            storing=StoredInCalls(library, fields) if self._can_store() else None,
            replaying=ReplayedInCalls(library, self.problem.replayed) if self.problem.replayed else None,
            injection=self.injection if self.program.injections and whole_steps and self.one_block else None,
            region_records=partial(region_records_of, library, fields, self._evaluators()) if self.records else None,
            attempt_of_member=None if any(self.widths) or not whole_steps else self.attempt_of_member,
        )

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _stepping(self, code: Native, grid: DeviceGrid) -> Advance:
        """Return the function that takes steps with ``code``, and exchanges by ``grid`` unless the code does."""
        every = self.plan.steps_per_exchange
        if not every:
            return by_sections(code, grid)
        return in_calls(code, grid, every, self.widths, bool(code.blocks) or not any(self.widths))

    def _into(self) -> Into | None:
        """Return the form of the steps that stores results in other memory; None for adaptive ones, which do so anyway."""
        if not (self.plan.steps_per_exchange and self.alone and self.one_block) or self.adaptive:
            return None
        return into_room(self.code, self.device_grid, self.widths)

    def attempt(self) -> Attempt:
        """Return the function that attempts a step."""
        if self.plan.steps_per_exchange:
            return attempt_in_a_call(self.code, self.device_grid, self.widths, self.array.norm, self.alone)
        return attempt_by_sections(self.code, self.device_grid, self.array.error_sums(), self.array.norm)

    def _choosing_attempts(self) -> AttemptsInCalls | None:
        """Return what lets calls go on with further attempts; None if halos are exchanged between calls."""
        if not (self.adaptive and self.alone and self.plan.steps_per_exchange) or self.device_grid.devices.several:
            return None
        cells = self.device_grid.grid.cells

        def norm(sums: np.ndarray) -> np.ndarray:
            return error_norm(self.communicator.total(sums), cells)

        return AttemptsInCalls(self.code.library, len(self.program.errors), norm)

    def attempt_of_member(self) -> Attempt:
        """Return the function that attempts a step of one member of an ensemble."""
        return attempt_in_a_call(
            replace(self.code, members=0), self.device_grid, self.widths, self.array.norm, self.alone
        )

    def inside(self) -> Advance:
        """Return the same steps for use inside other compiled code.

        That code may run while a simulation steps, and call the steps several times at once. So its calls record nothing,
        and XLA's code exchanges: calls would share the edge memory, and XLA may start them in a different order on each
        device and process.
        """
        grid = outside_passes(self.device_grid)
        _ = grid.places  # cached from here on: not to be computed while JAX traces
        return self._stepping(replace(self.code, blocks=0, first_block=0, records=False), grid)

    def injection(self, most: int) -> NativeInjection:
        """Return what adds values to single cells, in calls of at most ``most`` steps."""
        return NativeInjection(self.code.library, self.device_grid.topology, self.program.injections, most)

    # ---- values and records of them ----------------------------------------------------------------------------------

    def _compiled(self, wanted: StencilValues | None, trees: Collection[Node]) -> CompiledValues | None:
        """Return what computes the values ``wanted``, if all are ``trees``; None if XLA does. Collective."""
        if wanted is None or not set(wanted.trees) <= set(trees):
            return None
        found = None
        with suppress(Unsupported):
            found = wanted.compiled(outside_passes(self.device_grid), self.members)
        if self.communicator.any(not found):
            return None
        require_same_code(hash_of(wanted.program.text), self.communicator)
        return found

    def reductions(self, needs: Needs, trees: Sequence[Node]) -> Reductions:
        """Return the reductions of ``trees``, whose extrema and sums native code finds. Collective."""
        if self.members and not self.problem.has_common_steps:
            return self.array.reductions(needs, trees, None)
        rows, values = ValueProgram.of(self.program, self.problem, trees), dict[Node, ValueTree]()
        if rows.trees:
            with suppress(Unsupported):
                values = rows.loaded()
            if self.communicator.any(not values):
                values = {}
        reducer = ByNative(
            device_grid=self.device_grid,
            library=self.code.library,
            fields=self.program.fields,
            trees=trees,
            while_stepping=self.one_block and (self.alone or self.adaptive),
            records=self.records,
            value_program=rows,
            values=values,
            stencil_values=self._compiled(self.values.diagnosed, trees),
            records_stencils=self.recorded[OF_SUMS] is not None,
            members=self.members,
        )
        return self.array.reductions(needs, trees, reducer)

    def cellwise(self, needs: Needs, trees: Sequence[Node]) -> Cellwise:
        """Return the function that computes the values of ``trees``."""
        found = self.computed.get(tuple(trees))
        return found.evaluate if found else self.array.cellwise(needs, trees)

    def _cell_samples(self) -> Callable[..., CellSamples]:
        """Return what makes the recorders of single cells."""
        probes = self.probes if self.records and self.recorded[OF_CELLS] else None
        names = tuple(self.problem.probed)
        return partial(recorder_of_cells, self.program, self.code.library, self.communicator, probes, names)

    def _evaluators(self) -> dict[tuple[tuple[Node, ...], int], tuple[int, CompiledValues]]:
        """Return the (number, values) of the evaluators that record streams, by their trees and steps between records."""
        return {
            (values.trees, values.every): (number, self.computed[values.trees])
            for number, values in enumerate(self.recorded)
            if number >= FIRST_OF_STREAMS and values is not None and values.every and values.trees in self.computed
        }

    def _can_store(self) -> bool:
        """Return whether calls can store the states after some of their steps."""
        names = self.problem.changing
        return (
            self.records and self.alone and self.one_block and recordable(self.code.library, self.program.fields, names)
        )


def outside_passes(device_grid: DeviceGrid) -> DeviceGrid:
    """Return the device grid whose exchange is that of XLA's code, not inside the passes of native code."""
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
