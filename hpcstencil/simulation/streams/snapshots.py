"""The streams that write to the output file: rows of diagnostics, and snapshots.

Rows at given steps are recorded while a compiled call takes many steps, if the backend can do that. Otherwise calls end at
these steps.
"""

from __future__ import annotations

import math

from hpcstencil.backends.backend import Reduced
from hpcstencil.io.dataset_names import DIAGNOSTICS
from hpcstencil.numerics.schedule import Clock, Leap, Schedule
from hpcstencil.runtime.walltime import has_passed
from hpcstencil.simulation.state import State
from hpcstencil.simulation.stepping import STEPS_PER_CALL
from hpcstencil.simulation.streams.output import Output
from hpcstencil.simulation.streams.stream import Stream
from hpcstencil.symbolic.expressions import Field

ROWS_SECONDS = 30.0  # longest delay between evaluating a row and writing it
ROWS_BYTES = 64 * 2**20  # most bytes of rows that are held


class DiagnosticRows(Stream):
    """Rows of diagnostics, which are held until the next snapshot."""

    def __init__(self, output: Output, schedule: Schedule) -> None:
        self.output, self.schedule = output, schedule
        self.every, diagnostics = schedule.diagnostic_steps, output.diagnostics
        self.recorder = None
        if self.every is not None and diagnostics.trees and output.simulation.control is None:
            self.records = math.ceil(STEPS_PER_CALL / self.every)
            self.recorder = diagnostics.reductions.recorder(self.records)

    def steps_to_event(self, clock: Clock) -> int | None:
        if self.every is None:
            return None
        return (self.records if self.recorder else 1) * self.every - clock.step % self.every

    def is_due(self, clock: Clock) -> bool:
        return self._is_row(clock) or bool(self.recorder and self._recorded())

    def acts_in(self, leap: Leap) -> bool:
        return self._is_row(leap.after) or bool(self.recorder and self.every and leap.multiples(self.every))

    def _is_row(self, clock: Clock) -> bool:
        """Return whether a row is due at ``clock``."""
        return self.schedule.is_diagnostic(clock) and clock.step > self.output.file.last_row(DIAGNOSTICS)

    def _recorded(self) -> range:
        """Return the steps whose states the last call has recorded."""
        assert self.every is not None and self.recorder is not None
        return self.leap.multiples(self.every, self.recorder.with_last)

    def before(self, state: State, leap: Leap) -> None:
        self.leap, reductions = leap, self.output.diagnostics.reductions
        if self.recorder is None:
            reductions.expect(self._is_row(leap.after))
        elif steps := self._recorded():
            origin, times = state.clock.step - leap.steps.first, [leap.time_of(step) for step in steps]
            self.recorder.expect(steps.step, steps[0] // steps.step, origin, times)

    def poll(self) -> None:
        """The call has ended: another simulation may run the same program before the next one."""
        if self.recorder is not None:
            self.recorder.expect_nothing()

    def write(self, state: State) -> None:
        steps = self._recorded() if self.recorder else range(0)
        if steps:
            self._take_recorded(steps)
        if self._is_row(state.clock) and state.clock.step not in steps:
            self.output.take_row(state)

    def _take_recorded(self, steps: range, until_lost: bool = False) -> int | None:
        """Take the rows of these ``steps`` of the last call.

        With ``until_lost``, stop before the first row at which the solution is not finite, and return its step.
        """
        assert self.recorder is not None
        diagnostics, last = self.output.diagnostics, self.output.file.last_row(DIAGNOSTICS)
        with self.output.stopwatch.during("diagnostics"):
            for step, reduced in zip(steps, self.recorder.taken(len(steps)), strict=True):
                if until_lost and self._is_lost(reduced):
                    return step
                if step > last:
                    time = self.leap.time_of(step)
                    diagnostics.add(diagnostics.values(reduced, time), step, time)
        return None

    def _is_lost(self, reduced: Reduced) -> bool:
        """Return whether the solution is not finite, by these reductions: a field is not, or all expressions of fields, of some
        member."""
        trees, broken = self.output.diagnostics.reductions.trees, reduced.broken > 0
        fields, reading = [isinstance(tree, Field) for tree in trees], [Field in tree.kinds for tree in trees]
        return bool(broken[fields].any() or (any(reading) and broken[reading].all(axis=0).any()))

    def salvage(self) -> int | None:
        steps = self._recorded() if self.recorder else range(0)
        return self._take_recorded(steps, until_lost=True) if steps else None

    def begin(self, state: State) -> None:
        """Take a row of the first state if the file is new, or if one is due."""
        if not self.output.source.append or self._is_row(state.clock):
            self.output.take_row(state)

    def flush(self) -> None:
        self.output.write_rows()


class Snapshots(Stream):
    """Snapshots of the fields, at the times or steps that `output.every` or `output.every_steps` requests."""

    def __init__(self, output: Output, schedule: Schedule) -> None:
        self.output, self.schedule = output, schedule

    def is_due(self, clock: Clock) -> bool:
        return self.schedule.is_output(clock)

    def write(self, state: State) -> None:
        self.output.write_snapshot(state, last=self.schedule.finished(state.clock))
        self.output.buffers.expect(False)  # another simulation may run the same program before the next step

    def begin(self, state: State) -> None:
        """Write a snapshot of the first state if the file is new, or if one is due that the file does not have yet."""
        if not self.output.source.append or self._is_beyond_the_file(state.clock):
            self.write(state)

    def before(self, state: State, leap: Leap) -> None:
        self.output.buffers.expect(self._is_beyond_the_file(leap.after))

    def _is_beyond_the_file(self, clock: Clock) -> bool:
        """Return whether a snapshot is due at ``clock`` that is later than all that the file held before this run."""
        return self.is_due(clock) and clock.step > self.output.file.last_step

    def poll(self) -> None:
        self.output.poll()


class LateRows(Stream):
    """Writes rows that have waited for a snapshot for ROWS_SECONDS, or have grown beyond ROWS_BYTES."""

    def __init__(self, output: Output) -> None:
        self.output = output

    def is_due(self, clock: Clock) -> bool:
        processes, held = self.output.simulation.communicator, self.output.held
        return held > ROWS_BYTES or (held > 0 and has_passed(processes, ROWS_SECONDS, self.output.rows_written))

    def acts_in(self, leap: Leap) -> bool:
        return False  # rows can wait until the call ends

    def write(self, state: State) -> None:
        self.output.write_rows()

    def begin(self, state: State) -> None:
        """Do nothing, because no row can be late yet."""
