"""Streams into the output file: rows of diagnostics, and snapshots."""

from __future__ import annotations

from hpcstencil.io.dataset_names import DIAGNOSTICS
from hpcstencil.numerics.schedule import Clock, Leap, Schedule
from hpcstencil.runtime.walltime import passed
from hpcstencil.simulation.state import State
from hpcstencil.simulation.streams.output import Output
from hpcstencil.simulation.streams.stream import Stream

ROWS_SECONDS = 30.0  # greatest delay between taking a row and writing it
ROWS_BYTES = 64 * 2**20  # most that is held


class DiagnosticRows(Stream):
    """Rows of diagnostics. They are held until the next snapshot."""

    def __init__(self, output: Output, schedule: Schedule) -> None:
        self.output, self.schedule = output, schedule

    def is_due(self, clock: Clock) -> bool:
        return self.schedule.is_diagnostic(clock) and clock.step > self.output.file.last_row(DIAGNOSTICS)

    def write(self, state: State) -> None:
        self.output.take_row(state)

    def begin(self, state: State) -> None:
        """A new file begins with a row, whether one is due or not."""
        if not self.output.source.append or self.is_due(state.clock):
            self.write(state)

    def flush(self) -> None:
        self.output.write_rows()


class Snapshots(Stream):
    """Snapshots of the fields."""

    def __init__(self, output: Output, schedule: Schedule) -> None:
        self.output, self.schedule = output, schedule

    def is_due(self, clock: Clock) -> bool:
        return self.schedule.is_output(clock)

    def write(self, state: State) -> None:
        self.output.write_snapshot(state, last=self.schedule.finished(state.clock))
        self.output.buffers.expect(False)  # another simulation may run the same program before the next step

    def begin(self, state: State) -> None:
        """A new file begins with a snapshot, whether one is due or not. A continued one may have it, and later ones."""
        if not self.output.source.append or self._is_beyond_the_file(state.clock):
            self.write(state)

    def before(self, state: State, leap: Leap) -> None:
        self.output.buffers.expect(self._is_beyond_the_file(leap.after))

    def _is_beyond_the_file(self, clock: Clock) -> bool:
        """Whether a snapshot is due that is later than those that the file held before this run wrote."""
        return self.is_due(clock) and clock.step > self.output.file.last_step

    def poll(self) -> None:
        self.output.poll()


class LateRows(Stream):
    """Writes rows that no snapshot has taken along for ROWS_SECONDS, or that have become ROWS_BYTES."""

    def __init__(self, output: Output) -> None:
        self.output = output

    def is_due(self, clock: Clock) -> bool:
        processes, held = self.output.simulation.communicator, self.output.held
        return held > ROWS_BYTES or (held > 0 and passed(processes, ROWS_SECONDS, self.output.rows_written))

    def write(self, state: State) -> None:
        self.output.write_rows()

    def begin(self, state: State) -> None:
        """Nothing can be late yet."""
