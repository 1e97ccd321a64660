"""The output of a run: its open file, and rows of time series that wait for the next snapshot."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from hpcstencil import __version__
from hpcstencil.config.provenance import sha256, to_toml
from hpcstencil.io.file_layout import Description
from hpcstencil.io.output_file import OutputFile
from hpcstencil.io.snapshot_buffers import Copies
from hpcstencil.io.time_series import RowsOf
from hpcstencil.numerics.schedule import Clock, Schedule
from hpcstencil.runtime.stopwatch import Stopwatch
from hpcstencil.simulation.diagnostics import Diagnostics
from hpcstencil.simulation.file_blocks import output_blocks
from hpcstencil.simulation.restart import Source
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.simulation.solid_cells import solid_block
from hpcstencil.simulation.state import State, scalars_of


def provenance(simulation: ComposedSimulation, source: Source) -> dict[str, Any]:
    """Return the attributes of every file of a run: its input, its decomposition, and its history of continuations."""
    config = simulation.problem.config
    decomposition = {
        **simulation.plan.describe(),
        "kernel": simulation.kernel,
        "exchange": simulation.exchange,
    }
    return {
        "title": config.title,
        "input": to_toml(config),
        "input_sha256": sha256(config),
        "hpcstencil_version": __version__,
        "decomposition": json.dumps(decomposition),
        "history": json.dumps(source.history),
        "equation_source": simulation.problem.source,
        "arrays_sha256": json.dumps({key: found.sha256 for key, found in simulation.problem.contents.items()}),
        "fields": json.dumps(simulation.problem.shown),  # in the equation's order; HDF5 lists them by name
    }


class RowSource(Protocol):
    """A source of rows for the output file, which holds them until they are written. Methods are collective."""

    @property
    def held(self) -> int:
        """The size in bytes of the rows that are held, equal on all processes."""

    def drain(self) -> RowsOf:
        """Return the rows that are held, and drop them here.

        Steps and times are equal on all processes; only rank 0 needs to have the values.
        """


class Output:
    """The output of a run at ``path``: a new file, or one to continue.

    Rows are held by their ``sources`` and written together with the next snapshot. ``attributes`` are those of `provenance`,
    and ``buffers`` the snapshot buffers.
    """

    def __init__(
        self,
        path: Path,
        simulation: ComposedSimulation,
        source: Source,
        attributes: Mapping[str, Any],
        buffers: Copies,
        stopwatch: Stopwatch,
        state: State,
    ) -> None:
        problem = simulation.problem
        self.path, self.simulation, self.source, self.attributes = path, simulation, source, attributes
        self.buffers, self.stopwatch = buffers, stopwatch
        self.diagnostics = Diagnostics(problem.diagnostics, simulation.diagnosed, problem.parameters)
        self.sources: list[RowSource] = [self.diagnostics]
        self.rows_written = time.monotonic()  # when rows were last written
        kept = self._kept(state.clock)
        self.file = self._opened(state, kept)

    def kept_without_loss(self, clock: Clock) -> int | None:
        """Return the step up to which a continued run keeps the contents of a file of the run; None if it keeps all."""
        return None if self.source.repeated == self.simulation.kernel else clock.step

    def _kept(self, clock: Clock) -> int | None:
        """Return the step up to which a continued run keeps the contents of its output; None if it keeps all."""
        if self.source.ended and not self.source.other_times:
            return clock.step - 1  # the last snapshot was written only for the end, and is written again if it is due
        return self.kept_without_loss(clock)

    def _opened(self, state: State, cut: int | None) -> OutputFile:
        """Open the file: a new one, or the one to continue, truncated after step ``cut``."""
        simulation, problem = self.simulation, self.simulation.problem
        config, processes = problem.config.output, simulation.communicator
        solid = None if problem.mask is None else solid_block(simulation, dict(state.fields))
        description = Description(
            problem.layout,
            config.fields or problem.shown,
            simulation.dtype,
            diagnostics=list(problem.diagnostics),
            attributes=self.attributes,
            units=config.units,
            long_names=config.long_name,
            compression=config.compression,
            solid_axes=0 if solid is None else solid.ndim,
            receivers={name: receivers.places for name, receivers in problem.receivers.items()},
            probed={name: probe.field or probe.expression or "" for name, probe in problem.config.probes.items()},
        )
        place, method = (self.path, processes, description), config.method
        buffers = self.buffers if config.is_written_behind(processes.size) else None
        if not self.source.append:
            file = OutputFile.create(*place, method=method, buffers=buffers)
        else:
            file = OutputFile.append(*place, step=cut, method=method, buffers=buffers)
        if solid is not None:
            file.write_solid(solid, simulation.ranges)
        return file

    def wait(self) -> None:
        """Wait until all asynchronous output is written."""
        with self.stopwatch.during("waiting for the disk"):
            self.file.wait()

    def poll(self) -> None:
        """Raise the error of asynchronous output if it has failed by now. Does not wait."""
        with self.stopwatch.during("waiting for the disk"):
            self.file.poll()

    def take_row(self, state: State) -> None:
        """Evaluate the diagnostics of this state, and hold them as a row."""
        with self.stopwatch.during("diagnostics"):
            self.diagnostics.take(dict(state.fields), state.clock.step, state.clock.time)

    def write_rows(self) -> None:
        """Write the rows that are held, without a snapshot."""
        self.wait()
        rows = self._rows()
        with self.stopwatch.during("output"):
            self.file.write_rows(rows)
        self.rows_written = time.monotonic()

    def _rows(self) -> RowsOf:
        """Return the rows that are held by all sources, and drop them there."""
        return {group: rows for source in self.sources for group, rows in source.drain().items()}

    @property
    def held(self) -> int:
        """The size in bytes of the rows that are held, equal on all processes."""
        return sum(source.held for source in self.sources)

    def write_snapshot(self, state: State, last: bool) -> None:
        """Write the snapshot of this state and the rows that are held.

        Nothing is written if the file already has this snapshot from an earlier, killed run. The ``last`` snapshot is written
        synchronously, because nothing is computed after it.
        """
        step, now = state.clock.step, state.clock.time
        if self.file.had(step, now):
            return
        self.wait()
        held = self._rows()
        with self.stopwatch.during("output"):
            if step <= self.file.last_step:  # the later snapshots differ from this run's
                self.file.close(complete=False)
                self.file = self._opened(state, step - 1)
            blocks = output_blocks(self.simulation, dict(state.fields), self.file.fields, now)
            self.file.write_snapshot(step, now, blocks, self.simulation.ranges, held, behind=not last)
        self.rows_written = time.monotonic()

    def ended(self, state: State, schedule: Schedule) -> dict[str, str]:
        """Return the attributes for the end of a complete run: the ``clock``, from which a run with a later end continues.

        The result is empty unless the last snapshot holds the whole ``state`` and a run with a later end would pass through
        it.
        """
        problem = self.simulation.problem
        whole = not problem.members and set(problem.changing) <= set(self.file.fields)
        whole = whole and not any(stream.average for stream in problem.config.output.streams.values())
        return {"clock": json.dumps(scalars_of(state))} if whole and schedule.is_on_course(state.clock) else {}

    def close(self, complete: bool, **attributes: str) -> None:
        """Close the file, with ``attributes`` that describe the end of the run; ``complete`` says whether it is complete."""
        self.wait()
        with self.stopwatch.during("output"):
            self.file.close(complete, **attributes)
