"""The streams that write to the output file: rows of diagnostics, and snapshots."""

from __future__ import annotations

from hpcstencil.io.dataset_names import DIAGNOSTICS
from hpcstencil.numerics.schedule import Clock, Leap, Schedule
from hpcstencil.runtime.walltime import passed
from hpcstencil.simulation.state import State
from hpcstencil.simulation.streams.output import Output
from hpcstencil.simulation.streams.stream import Stream

ROWS_SECONDS = 30.0  # longest delay between evaluating a row and writing it
ROWS_BYTES = 64 * 2**20  # most bytes of rows that are held


class DiagnosticRows(Stream):
    """Rows of diagnostics, which are held until the next snapshot."""

    def __init__(self, output: Output, schedule: Schedule) -> None:
        self.output, self.schedule = output, schedule

    def is_due(self, clock: Clock) -> bool:
        return self.schedule.is_diagnostic(clock) and clock.step > self.output.file.last_row(DIAGNOSTICS)

    def before(self, state: State, leap: Leap) -> None:
        self.output.diagnostics.reductions.expect(self.is_due(leap.after))

    def write(self, state: State) -> None:
        self.output.take_row(state)

    def begin(self, state: State) -> None:
        """Take a row of the first state if the file is new, or if one is due."""
        if not self.output.source.append or self.is_due(state.clock):
            self.write(state)

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
        return held > ROWS_BYTES or (held > 0 and passed(processes, ROWS_SECONDS, self.output.rows_written))

    def write(self, state: State) -> None:
        self.output.write_rows()

    def begin(self, state: State) -> None:
        """Do nothing, because no row can be late yet."""
