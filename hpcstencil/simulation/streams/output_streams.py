"""Further outputs: the streams of [output.streams], each a file with selected cells at its own times.

A file is an `OutputFile` like that of the run, on a `Subgrid`. A staggered field has the lower faces of the selected cells.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcstencil.backends.backend import RegionRecords
from hpcstencil.checkpoint.checkpoint import Part, holds, read_checkpoint
from hpcstencil.config.paths import stream_paths
from hpcstencil.config.streams import StreamConfig, expressions_key
from hpcstencil.io.file_layout import Description
from hpcstencil.io.file_read import inspect, open_for_reading
from hpcstencil.io.hdf5_validation import json_attribute, numbers
from hpcstencil.io.output_file import OutputFile, Snapshot
from hpcstencil.io.output_preparation import refuse_existing
from hpcstencil.io.snapshot_buffers import Copies
from hpcstencil.numerics.schedule import ROUND, Clock, Leap, Schedule
from hpcstencil.problem.problem import Problem
from hpcstencil.runtime.communicator import Communicator, from_rank_0
from hpcstencil.runtime.progress import say
from hpcstencil.runtime.walltime import has_passed
from hpcstencil.simulation.restart import Options, history_of_continuation
from hpcstencil.simulation.solid_cells import solid_block
from hpcstencil.simulation.state import State
from hpcstencil.simulation.streams.intervals import Multiples
from hpcstencil.simulation.streams.output import Output
from hpcstencil.simulation.streams.stream import Memory, Stream
from hpcstencil.simulation.streams.time_average import TimeAverage
from hpcstencil.symbolic.staggering import Layout, home, position_of
from hpcstencil.validation.errors import InputError

HELD = 8 * 2**20  # bytes of records, over the whole grid, that all streams together hold
MOST_HELD = 1000  # records of a stream
HELD_SECONDS = 30.0


class FurtherOutput(Stream):
    """The stream ``name`` of a run.

    Small records are held and written together: when there are HELD bytes of them, with the first one that comes
    HELD_SECONDS after the last writing, before a checkpoint and at the end. A thread writes them where this is possible. The
    first state is a record, unless the stream averages over time.
    """

    def __init__(self, name: str, path: Path, output: Output, schedule: Schedule) -> None:
        self.name, self.path, self.output, self.schedule = name, path, output, schedule
        self.simulation = output.simulation
        problem = self.simulation.problem
        self.config = problem.config.output.streams[name]
        self.cells = self.config.cells(problem.config.grid)
        self.own, self.ranges = self.cells.part(self.simulation.ranges)
        self.description = described(problem, name, output.attributes, self.simulation.dtype)
        run = problem.config.time
        self.every_steps = (
            self.config.steps_between(run.dt, run.end) if schedule.counts_from_0 else self.config.every_steps
        )
        self.multiples = None if self.every_steps else Multiples(self.config.every or 0.0)
        self.average: TimeAverage | None = None
        self.recorder: RegionRecords | None = None  # adds to the average within compiled calls, or makes the copies
        self.copies = dict[str, np.ndarray]()  # of the records of a call, which are the first axis
        self.weights = list[float]()  # the weights of the steps that the call adds up
        self.last_weight = 0.0  # the weight of the last step of the call
        self.weighted_until = 0.0  # when the last step ends that has a weight
        self.file: OutputFile | None = None
        self.values = len(self.description.fields) * self.cells.cells * problem.copies  # of a record
        room = HELD // len(problem.config.output.streams) // self.simulation.dtype.itemsize
        self.held, self.most_held = list[Snapshot](), max(1, min(MOST_HELD, room // self.values))
        self.written = 0.0  # when records were last written, by time.monotonic

    # ---- when --------------------------------------------------------------------------------------------------------

    def steps_to_event(self, clock: Clock) -> int | None:
        if self.config.average and self.recorder is None:
            return 1
        if self.multiples is not None:
            return self.multiples.steps_to_next(self.schedule, clock)
        assert self.every_steps is not None
        return (self.most_held if self.copies else 1) * self.every_steps - clock.step % self.every_steps

    def time_of_event(self, clock: Clock) -> float | None:
        return None if self.multiples is None else self.multiples.time_of_next(self.schedule)

    def is_due(self, clock: Clock) -> bool:
        return self._adds_last or self._is_record(clock) or bool(self._recorded())

    def acts_in(self, leap: Leap) -> bool:
        if self.average is not None:
            return True
        return self._is_record(leap.after) or bool(self.every_steps and leap.multiples(self.every_steps))

    @property
    def _adds_last(self) -> bool:
        """Whether an average needs the state after a call: compiled calls do not add that, or add nothing."""
        return self.average is not None and (self.recorder is None or not self.recorder.with_last)

    def _is_record(self, clock: Clock) -> bool:
        """Return whether a record is due, or an average ends, at ``clock``."""
        if self.multiples is not None:
            return self.multiples.are_reached(self.schedule, clock)
        assert self.every_steps is not None
        return clock.step % self.every_steps == 0

    def _recorded(self) -> range:
        """Return the steps whose states the last call has copied."""
        if not self.copies:
            return range(0)
        assert self.every_steps is not None and self.recorder is not None
        return self.leap.multiples(self.every_steps, self.recorder.with_last)

    # ---- what --------------------------------------------------------------------------------------------------------

    def begin(self, state: State) -> None:
        processes, clock, source = self.simulation.communicator, state.clock, self.output.source
        if self.multiples is not None:
            self.multiples.go_past(self.schedule, clock)
        continues = source.append and from_rank_0(processes, self.path.exists)
        solid = None
        if self.simulation.problem.mask is not None:
            solid = solid_block(self.simulation, dict(state.fields), self.own)
            self.description = replace(self.description, solid_axes=solid.ndim)
        self.file = self._opened(append=continues, cut=self.output.kept_without_loss(clock))
        if solid is not None:
            self.file.write_solid(solid, self.ranges)
        if self.file.last_step == clock.step:  # at the end of the earlier run, whose time may be rounded otherwise
            self.file.correct_last_time(clock.time)
        self.weighted_until = clock.time
        if self.config.average:
            self.average = self._average(continues)
            return
        self._prepare_copies()
        if self.file.last_step < 0:
            self._hold(clock.step, clock.time, self._values(state))
            self._write_held()

    def _average(self, continues: bool) -> TimeAverage:
        """Return averages that begin now, or, if the run ``continues`` from a checkpoint, continue those stored in it."""
        fields = list(self.description.fields)
        average, checkpoint = TimeAverage(fields, self._shape), self.output.source.checkpoint
        self.recorder = self._recorder_into(average.sums, every=1, summed=True)
        names, processes = {self._place(field): field for field in fields}, self.simulation.communicator
        if continues and checkpoint is not None and holds(checkpoint, list(names), processes):
            sums, scalars, _ = read_checkpoint(checkpoint, self.ranges, processes, list(names))
            for place, field in names.items():
                average.sums[field][...] = sums[place]
            average.duration = float(scalars[self._place("duration")])
        return average

    @property
    def _shape(self) -> tuple[int, ...]:
        """The shape of this process's part of a record."""
        return (*self.simulation.problem.layout.members, *(last - first for first, last in self.ranges))

    def _recorder_into(self, arrays: Mapping[str, np.ndarray], every: int, summed: bool) -> RegionRecords | None:
        """Return what records in these ``arrays`` within compiled calls; None if nothing does."""
        simulation = self.simulation
        trees = [*simulation.problem.derived.get(expressions_key(self.name), {}).values()]
        if simulation.steps.region_records is None or simulation.control is not None:
            return None
        return simulation.steps.region_records(self.own, arrays, trees, every, summed)

    def _prepare_copies(self) -> None:
        """Let compiled calls copy records if they can, and if there is room for several and their steps are known."""
        if self.every_steps is None or self.most_held == 1:
            return
        shape = (self.most_held, *self._shape)
        arrays = {name: np.zeros(shape, self.simulation.dtype) for name in self.description.fields}
        self.recorder = self._recorder_into(arrays, self.every_steps, summed=False)
        self.copies = {} if self.recorder is None else arrays

    def _place(self, name: str) -> str:
        """Return the name under which a checkpoint stores the array or number ``name`` of this stream."""
        return f"streams/{self.name}/{name}"

    def _opened(self, append: bool, cut: int | None) -> OutputFile:
        """Open the file: a new one, or one to continue, truncated after step ``cut``."""
        config, processes = self.simulation.problem.config.output, self.simulation.communicator
        place, method = (self.path, processes, self.description), config.method
        buffers = Copies({}) if config.may_be_behind(processes.size) else None  # blocks are copies already
        if append:
            return OutputFile.append(*place, step=cut, method=method, buffers=buffers)
        return OutputFile.create(*place, method=method, buffers=buffers)

    def _values(self, state: State) -> dict[str, np.ndarray]:
        """Return copies of this process's part of the fields or expressions that the stream writes, by name."""
        fields, problem = dict(state.fields), self.simulation.problem
        if self.config.expressions:
            found = self.simulation.derived[expressions_key(self.name)](fields, problem.parameters, state.clock.time)
            fields = dict(zip(problem.derived[expressions_key(self.name)], found, strict=True))
        return {name: self.simulation.cells(fields[name], self.own) for name in self.description.fields}

    def write(self, state: State) -> None:
        clock, steps = state.clock, self._recorded()
        self._store_copied(steps)
        if self.average is not None and self._adds_last:
            with self.output.stopwatch.during("output"):
                weight = self._next_step_size(clock.time) if self.recorder is None else self.last_weight
                self.average.add(self._values(state), weight)
        if self._is_record(clock) and clock.step not in steps:
            with self.output.stopwatch.during("output"):
                average, dtype = self.average, self.simulation.dtype
                values = self._values(state) if average is None else average.take(dtype)
            self._hold(clock.step, clock.time, values)
            self._write_if_late()
            if self.multiples is not None:
                self.multiples.go_past(self.schedule, clock)

    def _store_copied(self, steps: range) -> None:
        """Store the records that the last call has copied, those of these ``steps``."""
        for n, step in enumerate(steps):
            self._hold(step, self.leap.time_of(step), {name: array[n].copy() for name, array in self.copies.items()})
        if steps:
            self._write_if_late()

    def salvage(self) -> int | None:
        steps = self._recorded()
        if not steps:
            return None
        rows = [array[: len(steps)].reshape(len(steps), -1) for array in self.copies.values()]
        finite = self.simulation.communicator.total(np.isfinite(np.concatenate(rows, 1)).sum(axis=1))
        # of expressions such as 1/u some values may be infinite although the fields are finite
        lost = np.flatnonzero(finite == 0 if self.config.expressions else finite < self.values)
        kept = int(lost[0]) if len(lost) else len(steps)
        self._store_copied(steps[:kept])
        return steps[kept] if kept < len(steps) else None

    def before(self, state: State, leap: Leap) -> None:
        self.leap = leap
        steps = self._recorded() if self.average is None else leap.multiples(1)
        if self.recorder is None or not steps:
            return
        times = [leap.time_of(step) for step in steps]
        weights = [] if self.average is None else [self._next_step_size(time) for time in times]
        if weights:
            self.weights, self.last_weight = weights if self.recorder.with_last else weights[:-1], weights[-1]
        origin = state.clock.step - leap.steps.first
        self.recorder.expect(steps.step, steps[0] // steps.step, origin, times, weights)

    def _next_step_size(self, time: float) -> float:
        """Return the size of the next step, which ends at ``time``.

        A fixed step has its exact size, unless the rounding of ``time`` is larger than ROUND of a step.
        """
        dt, fixed = time - self.weighted_until, self.schedule.fixed_dt
        self.weighted_until = time
        return dt if fixed is None or abs(dt - fixed) > ROUND * fixed else fixed

    def _hold(self, step: int, now: float, blocks: Mapping[str, np.ndarray]) -> None:
        """Hold a record, unless the file already has it from an earlier, killed run. Write all if there is no more room."""
        assert self.file is not None
        if self.file.had(step, now):
            return
        if step <= self.file.last_step:  # the later records differ from this run's
            self.wait()
            with self.output.stopwatch.during("output"):
                self.file.close(complete=False)
                self.file = self._opened(append=True, cut=step - 1)
        self.held.append((step, now, blocks))
        if len(self.held) >= self.most_held:
            self._write_held()

    def _write_if_late(self) -> None:
        """Write the records that are held if nothing was written for HELD_SECONDS."""
        if self.held and has_passed(self.simulation.communicator, HELD_SECONDS, self.written):
            self._write_held()

    def _write_held(self) -> None:
        """Write the records that are held, in the background if possible."""
        self.wait()
        if self.file is not None and self.held:
            with self.output.stopwatch.during("output"):
                self.file.write_snapshots(self.held, self.ranges, behind=True)
            self.held, self.written = [], time.monotonic()

    # ---- until -------------------------------------------------------------------------------------------------------

    def memory(self) -> Memory:
        if self.average is None:
            return {}, {}
        arrays = {
            self._place(name): Part(sums, self.ranges, self.cells.shape) for name, sums in self.average.sums.items()
        }
        return arrays, {self._place("duration"): self.average.duration}

    def wait(self) -> None:
        """Wait until all records are written."""
        with self.output.stopwatch.during("waiting for the disk"):
            if self.file is not None:
                self.file.wait()

    def poll(self) -> None:
        if self.recorder is not None:
            self.recorder.expect_nothing()
        if self.average is not None:
            for dt in self.weights:
                self.average.duration += dt
            self.weights = []
        with self.output.stopwatch.during("waiting for the disk"):
            if self.file is not None:
                self.file.poll()

    def flush(self) -> None:
        self._write_held()
        self.wait()

    def close(self, complete: bool) -> None:
        self.wait()
        if self.file is None:
            return
        self.file.close(complete)
        if complete and self.average is not None and not self.file.series.times:
            say(f"warning: output.streams.{self.name}: no mean was due in this run, so {self.path} holds no records")


def further_outputs(output: Output, schedule: Schedule) -> list[FurtherOutput]:
    """Return the streams of [output.streams] for a run that writes ``output``."""
    paths = stream_paths(output.simulation.problem.config, output.path)
    return [FurtherOutput(name, path, output, schedule) for name, path in paths.items()]


def described(problem: Problem, name: str, attributes: Mapping[str, Any], dtype: np.dtype) -> Description:
    """Return the description of the file of a stream. ``attributes`` are those of the output."""
    output, ndim = problem.config.output, problem.config.grid.ndim
    stream = output.streams[name]
    trees = problem.derived.get(expressions_key(name), {})
    fields = stream.names(problem.shown)
    positions = {
        field: position_of(trees[field], problem.positions, ndim) or (0,) * ndim
        if trees
        else home(field, problem.positions, ndim)
        for field in fields
    }
    of_mean = "mean over time of " if stream.average else ""
    return Description(
        # lower faces alone, as on periodic axes
        Layout(stream.cells(problem.config.grid), positions, (True,) * ndim, problem.layout.ensemble),
        fields,
        dtype,
        attributes={**attributes, "fields": json.dumps(fields), "stream": json.dumps(content(name, stream, fields))},
        units=output.units,
        long_names={field: of_mean + output.long_name.get(field, field) for field in fields},
        compression=output.compression,
    )


def content(name: str, stream: StreamConfig, fields: tuple[str, ...]) -> dict[str, Any]:
    """Return what a stream's records contain, as stored in the attribute ``stream`` of its file."""
    return {
        "name": name,
        "of": {field: stream.expressions.get(field, field) for field in fields},
        "average": stream.average,
    }


def check_files(problem: Problem, options: Options, append: bool, communicator: Communicator) -> None:
    """Raise InputError, on all processes, if a stream's file exists and may be neither replaced nor continued. Collective.

    ``append`` says that the run continues in its output. A stream whose file is missing then begins there.
    """
    config = problem.config

    def look() -> list[Path]:
        """The files that are continued."""
        found = []
        for name, path in stream_paths(config, options.output).items():
            if not options.resume and not options.overwrite:
                refuse_existing(path, f"output.streams.{name}.path")
            if not path.exists() or options.overwrite:
                if append and not options.quiet:
                    say(f"output.streams.{name}: there is no {path} to continue; it begins here")
                continue
            _check_continued(problem, name, path, append)
            found.append(path)
        return found if append else []

    for path in from_rank_0(communicator, look):
        # refuses the file of another run
        history_of_continuation(config, problem.contents, path, options.overrides, communicator)


def _check_continued(problem: Problem, name: str, path: Path, append: bool) -> None:
    """Raise InputError if the file does not belong to this stream, or if this run cannot continue it.

    If the run begins anew, it may replace an incomplete file.
    """
    here, found = f"output.streams.{name}", inspect(path)
    stored = json_attribute(path, found.attributes, "stream", {})
    if found.kind != "output" or stored.get("name") != name or (found.complete and not append):
        raise InputError(
            f"{here}: {path} does not belong to this run; choose another path, or start again with --overwrite"
        )
    if not append:
        return
    wanted = described(problem, name, {}, np.dtype(problem.config.numerics.precision))
    stream = problem.config.output.streams[name]
    if stored != content(name, stream, tuple(wanted.fields)):
        what = "other fields, expressions or average"
    elif _places(path) != {
        axis: wanted.layout.grid.centres(i).tolist() for i, axis in enumerate(wanted.layout.grid.axes)
    }:
        what = "another region or stride"
    else:
        return
    raise InputError(
        f"{here}: {path} was begun with {what}; set what it was, or choose another path for the new stream"
    )


def _places(path: Path) -> dict[str, list[float]]:
    """Read the coordinates in a file, by axis."""
    with open_for_reading(path) as file:
        return {axis: numbers(path, file, axis, 1)[()].tolist() for axis in "xyz" if axis in file}
