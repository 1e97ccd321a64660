"""The loop of a run from event to event: steps, and the files written between them."""

from __future__ import annotations

import json
import math
import signal
import time
from dataclasses import InitVar, dataclass, field
from typing import Any

import jax
import numpy as np

from hpcstencil import __version__
from hpcstencil.backends.native.ffi_call import NATIVE
from hpcstencil.checkpoint.checkpoint import write_checkpoint
from hpcstencil.checkpoint.restart import Options, Source
from hpcstencil.checkpoint.state import State, split
from hpcstencil.config.provenance import sha256, to_toml
from hpcstencil.config.settings import Config
from hpcstencil.io.async_writer import Writer
from hpcstencil.io.output_file import OutputFile
from hpcstencil.io.snapshot_buffers import Copies
from hpcstencil.numerics.schedule import Clock, Leap, together
from hpcstencil.runtime import signals
from hpcstencil.runtime.progress import Progress, say
from hpcstencil.runtime.stopwatch import Stopwatch
from hpcstencil.runtime.walltime import CALL, Walltime
from hpcstencil.simulation.adaptive_step import Control
from hpcstencil.simulation.diagnostics import Diagnostics
from hpcstencil.simulation.kernel_choice import Choice, remember_checkpoint
from hpcstencil.simulation.simulation import Simulation
from hpcstencil.validation.errors import EnvironmentProblem, InputError, NumericsError, StoppedEarly

ROWS_SECONDS = 30.0  # greatest delay between taking a row of diagnostics and writing it
AT_WALLTIME = 1000  # greater than all signal numbers
FIRST_CELLS = 2**29  # cells of a device times steps in the first call of native code, which takes a few seconds at most
STEPS_PER_CALL = 1000  # at most, so that a value that is not finite is found within this many steps


@dataclass
class Run:
    """A run under way: its state and its files. ``members`` are the clocks of ensemble members that take their own
    steps; ``clock`` is then their common progress."""

    simulation: Simulation
    options: Options
    source: Source
    walltime: Walltime
    checkpoint_seconds: float  # expected time of a checkpoint
    state: InitVar[State]
    choice: Choice
    stopwatch: Stopwatch = field(default_factory=Stopwatch)
    steps_per_call: int = 1
    last_checkpoint: float = field(default_factory=time.monotonic)
    last_rows: float = field(default_factory=time.monotonic)
    copies: Copies = field(default_factory=lambda: Copies({}))  # for the output
    output: Writer | None = None
    checkpoint_step: int = -1  # of the newest checkpoint that this process has written
    kept_for_later_end: bool = False

    def __post_init__(self, state: State) -> None:
        self.clock, self.fields, self.members = state.clock, dict(state.fields), state.members
        problem = self.simulation.problem
        self.communicator = self.simulation.communicator
        self.schedule, self.clock = problem.schedule().going_on(self.clock, self.source.anew)
        self.members = tuple(self.schedule.going_on(clock, self.source.anew)[1] for clock in self.members)
        self.diagnostics = Diagnostics(problem.diagnostics, self.simulation.diagnosed, problem.parameters)
        if self.simulation.kernel == NATIVE:
            cells = problem.copies * math.prod(self.simulation.plan.topology.capacity())
            self.steps_per_call = min(max(1, FIRST_CELLS // cells), STEPS_PER_CALL)

    @property
    def config(self) -> Config:
        """The input."""
        return self.simulation.problem.config

    def attributes(self) -> dict[str, Any]:
        """Provenance for every file."""
        decomposition = {
            **self.simulation.plan.describe(),
            "kernel": self.simulation.kernel,
            "exchange": self.simulation.exchange,
        }
        return {
            "title": self.config.title,
            "input": to_toml(self.config),
            "input_sha256": sha256(self.config),
            "hpcstencil_version": __version__,
            "decomposition": json.dumps(decomposition),
            "history": json.dumps(self.source.history),
            "equation_source": self.simulation.problem.source,
            "fields": json.dumps(self.simulation.problem.shown),  # in the equation's order; HDF5 lists them by name
        }

    def step_sizes(self) -> list[float]:
        """The step to take now, one per member that takes its own steps, if no tolerance governs it. A step that
        depends on the solution is measured again."""
        problem = self.simulation.problem
        if self.schedule.fixed_dt is not None:
            return [self.schedule.fixed_dt]
        if not problem.rates_follow_solution:
            return [each.dt({}) for each in problem.members or (problem,)]
        clocks = self.members or (self.clock,)
        # Measured at fixed distances in steps, whatever else ends a compiled call: outputs, signals, its length in time.
        due = [not clock.measured_dt or self.steps_to_measurement(clock) == 0 for clock in clocks]
        if any(due):
            with self.stopwatch.during("step size"):
                low, high = self.check_finite()
            largest = np.maximum(np.abs(low), np.abs(high)).reshape(len(problem.measured), len(clocks))
            steps = [
                own.dt(dict(zip(problem.measured, each, strict=True)))
                for own, each in zip(problem.members or (problem,), largest.T.tolist(), strict=True)
            ]
            clocks = tuple(
                self.schedule.measured(clock, dt) if now else clock
                for clock, dt, now in zip(clocks, steps, due, strict=True)
            )
            if self.members:
                self.members = clocks
            else:
                (self.clock,) = clocks
        return [clock.measured_dt for clock in clocks]

    def steps_to_measurement(self, clock: Clock) -> int:
        """Steps until a solution-dependent step is measured again."""
        return clock.measured_step + self.config.time.dt_every - clock.step

    def check_steps(self) -> None:
        """Run `check_finite` after steps, unless native code reports that all values are finite."""
        stayed = self.simulation.stayed_finite
        if stayed is None or self.communicator.total(np.array([int(not stayed())]))[0]:
            self.check_finite()

    def check_finite(self) -> tuple[np.ndarray, np.ndarray]:
        """Least and greatest value of every measured quantity. Raises NumericsError, on all processes, if one is not
        finite."""
        problem = self.simulation.problem
        low, high, broken = self.simulation.extremes.extremes(self.fields, problem.parameters, self.clock.time)
        for name, counts in zip(problem.measured, broken, strict=True):
            if count := int(counts.sum()):
                where = f"not finite in {count} of {problem.cells} cells"
                if name in self.fields:
                    where += f", the first at {self.simulation.first_not_finite(self.fields[name])}"
                if self.output is None:
                    precision = self.config.numerics.precision
                    raise InputError(
                        f"initial.{name}: the initial state is {where} (or beyond {precision}); correct the expression"
                    )
                what = f"field '{name}'" if name in self.fields else f"'{name}'"
                raise NumericsError(
                    f"{what} is {where} at step {self.clock.step}, t = {self.clock.time:g}: the run is unstable; try a "
                    f"smaller time.{self.config.time.given}. {self.options.output} keeps the snapshots before"
                )
        return low, high

    def advance(self) -> int:
        """Take the next steps, for about CALL seconds, up to the next event; returns their number."""
        if self.simulation.control is not None:
            return self.advance_controlled(self.simulation.control)
        sizes = self.step_sizes()
        if self.members:
            return self.advance_members(sizes)
        most = self.steps_per_call
        if self.simulation.problem.step_follows_solution:
            most = min(most, self.steps_to_measurement(self.clock))
        leap = self.schedule.leap(self.clock, sizes[0], most)
        self.keep_for_later_end(leap.after)
        self.copies.expect(self.schedule.is_output(leap.after) and leap.after.step > self.file.last_step)
        start = time.perf_counter()
        parameters = self.simulation.problem.parameters
        with self.stopwatch.during("computing"):
            self.fields = jax.block_until_ready(
                self.simulation.advance(self.fields, parameters, leap.base_time, leap.first, leap.dt, leap.steps)
            )
        self.clock = leap.after
        self.pace(leap.steps, time.perf_counter() - start)
        return leap.steps

    def advance_members(self, sizes: list[float]) -> int:
        """Like `advance`, with each member's own steps. A member that reaches an output waits there for the others."""
        problem, leaps = self.simulation.problem, []
        due = self.schedule.next_output_time(self.clock.time)
        for clock, dt in zip(self.members, sizes, strict=True):
            most = self.steps_per_call
            if problem.step_follows_solution:
                most = min(most, self.steps_to_measurement(clock))
            waiting = Leap(0, dt, clock.time, 0, clock)
            leaps.append(waiting if clock.time >= due else self.schedule.leap(clock, dt, most))
        times, firsts, steps, counts = (
            np.array([getattr(leap, name) for leap in leaps]) for name in ("base_time", "first", "dt", "steps")
        )
        start = time.perf_counter()
        with self.stopwatch.during("computing"):
            self.fields = jax.block_until_ready(
                self.simulation.advance(self.fields, problem.parameters, times, firsts, steps, counts)
            )
        self.members = tuple(leap.after for leap in leaps)
        self.clock = together(self.members)
        self.pace(int(counts.max()), time.perf_counter() - start)
        return int(counts.sum())

    def advance_controlled(self, control: Control) -> int:
        """Like `advance`, with steps that each meet a tolerance."""
        start, first = time.perf_counter(), self.clock.step
        wait = self.schedule.steps_to_event(self.clock)
        last = first + min(self.steps_per_call, wait or self.steps_per_call)
        with self.stopwatch.during("computing"):
            while self.clock.step < last:
                self.keep_for_later_end(control.tried(self.clock, self.clock.measured_dt).after)
                self.fields, self.clock = control.step(self.fields, self.clock)
                if self.schedule.is_output(self.clock):
                    break
        steps = self.clock.step - first
        self.pace(steps, time.perf_counter() - start)
        return steps

    def pace(self, steps: int, elapsed: float) -> None:
        """Choose the length of the next compiled call from rank 0's timing of the last one, the same on all processes."""
        fitting = int(steps * CALL / max(elapsed, 1e-6))
        most = min(fitting, 16 * self.steps_per_call, STEPS_PER_CALL)
        with self.stopwatch.during("waiting for processes"):
            self.steps_per_call = self.communicator.broadcast(max(1, most))

    @property
    def writer(self) -> Writer:
        """The writer of the open output file."""
        assert self.output is not None
        return self.output

    @property
    def file(self) -> OutputFile:
        """The open output file."""
        return self.writer.file

    def open_output(self, after: int | None = None) -> None:
        """Open the output file: a new one, or the one to continue, which is then cut after step ``after``."""
        config, problem = self.config, self.simulation.problem
        fields = config.output.fields or problem.shown
        place, method = (self.options.output, self.communicator, problem.layout), config.output.method
        solid = None if problem.mask is None else self.simulation.solid(self.fields)
        if self.source.append:
            cut = self.last_kept() if after is None else after
            file = OutputFile.append(*place, fields=fields, step=cut, attributes=self.attributes(), method=method)
        else:
            file = OutputFile.create(
                *place,
                fields=fields,
                dtype=self.simulation.dtype,
                diagnostics=list(problem.diagnostics),
                attributes=self.attributes(),
                units=config.output.units,
                long_names=config.output.long_name,
                compression=config.output.compression,
                method=method,
                solid_axes=0 if solid is None else solid.ndim,
            )
        if solid is not None:
            file.write_solid(solid, self.simulation.ranges)
        behind = config.output.is_written_behind(self.communicator.size)
        self.output = Writer(file, behind, self.communicator, self.copies)

    def last_kept(self) -> int | None:
        """The step up to which a continued run keeps the contents of its output; None if it keeps all."""
        if self.source.ended and not self.source.other_times:
            return self.clock.step - 1  # the last snapshot was written only for the end, and is written again if it is due
        return None if self.source.repeated == self.simulation.kernel else self.clock.step

    def write_due(self) -> None:
        """Write the diagnostics, the snapshot and the checkpoint that are due at this step."""
        if self.schedule.is_diagnostic(self.clock) and self.clock.step > self.file.last_row:
            self.take_diagnostics()
        if self.schedule.is_output(self.clock):
            self.write_snapshot()
        if (self.schedule.is_checkpoint(self.clock) or self.checkpoint_by_minutes()) and not self.kept_for_later_end:
            self.write_checkpoint()
        if len(self.diagnostics.steps) > 0 and self.passed(ROWS_SECONDS, self.last_rows):
            self.write_rows()

    def write_rows(self) -> None:
        """Write the rows of diagnostics since the last call."""
        self.wait_for_disk()
        with self.stopwatch.during("output"):
            self.writer.write_rows(self.diagnostics.drain())
        self.last_rows = time.monotonic()

    def write_snapshot(self) -> None:
        """Write the snapshot of this state, unless a killed run has left it in the file."""
        if self.file.had(self.clock.step, self.clock.time):
            return
        self.wait_for_disk()
        with self.stopwatch.during("output"):
            if self.clock.step <= self.file.last_step:  # the later snapshots differ from this run's
                self.writer.close(complete=False)
                self.open_output(after=self.clock.step - 1)
            step, now, last = self.clock.step, self.clock.time, self.schedule.finished(self.clock)
            blocks = self.simulation.written(self.fields, self.file.fields, now)
            self.writer.write_snapshot(step, now, blocks, self.simulation.ranges, self.diagnostics.drain(), last)
        self.last_rows = time.monotonic()

    def wait_for_disk(self) -> None:
        """Wait until all asynchronous output is written."""
        with self.stopwatch.during("waiting for the disk"):
            self.writer.wait()

    def take_diagnostics(self) -> None:
        """Take a row of diagnostics of this state."""
        with self.stopwatch.during("diagnostics"):
            self.diagnostics.take(self.fields, self.clock.step, self.clock.time)

    def checkpoint_by_minutes(self) -> bool:
        """Whether the time between two checkpoints has passed."""
        minutes = self.config.checkpoint.every_minutes
        return minutes is not None and self.passed(60 * minutes, self.last_checkpoint)

    def passed(self, seconds: float, since: float) -> bool:
        """Whether ``seconds`` have passed since the time ``since`` by rank 0's clock; the same answer everywhere."""
        return self.communicator.broadcast(time.monotonic() - since >= seconds)

    def write_checkpoint(self) -> None:
        """Write a checkpoint: the whole state, from which a run on any decomposition can continue."""
        start = time.perf_counter()
        if self.output is not None:
            self.write_rows()
        with self.stopwatch.during("checkpoints"):
            arrays, scalars = split(State(self.clock, self.fields, self.members), self.simulation.stored)
            write_checkpoint(
                self.options.output,
                self.communicator,
                self.config.grid,
                step=self.clock.step,
                time=self.clock.time,
                arrays=arrays,
                ranges=self.simulation.ranges,
                scalars=scalars,
                attributes=self.attributes(),
                keep=self.config.checkpoint.keep,
                method=self.config.output.method,
            )
        self.checkpoint_seconds = max(self.checkpoint_seconds, time.perf_counter() - start)
        if self.communicator.rank == 0 and self.checkpoint_step < 0:
            remember_checkpoint(self.simulation.problem, time.perf_counter() - start)
        self.last_checkpoint = time.monotonic()
        self.checkpoint_step = self.clock.step

    def keep_for_later_end(self, after: Clock) -> None:
        """Keep the state before a step to ``after`` that is shortened to land on the end. A run with a later end
        continues from it with a whole step."""
        if not self.kept_for_later_end and self.schedule.finished(after) and not self.schedule.is_on_course(after):
            self.write_last_checkpoint()
            self.kept_for_later_end = True

    def write_last_checkpoint(self) -> None:
        """Write the checkpoint from which the run can be extended. If the input asks for no checkpoints, the run is
        complete even if this fails."""
        try:
            self.write_checkpoint()
        except EnvironmentProblem as error:
            asked = self.config.checkpoint.every_steps or self.config.checkpoint.every_minutes
            if asked or not error.shared:
                raise
            say(f"warning: {error}; the run goes on, but cannot be extended after its end")

    def write_first(self) -> None:
        """Write the initial state, unless the file has it."""
        new, step = not self.source.append, self.clock.step
        if new or (self.schedule.is_diagnostic(self.clock) and step > self.file.last_row):
            self.take_diagnostics()
        if new or (self.schedule.is_output(self.clock) and step > self.file.last_step):
            self.write_snapshot()

    def complete(self) -> None:
        """Close the output of a run that has reached its end, so that it can be extended. If the last snapshot holds
        the whole state, the file stores the clock; otherwise a checkpoint is written."""
        assert self.output is not None
        problem, ended = self.simulation.problem, {}
        whole = not problem.members and set(problem.fields) <= set(self.file.fields)
        if whole and self.schedule.is_on_course(self.clock):
            _, scalars = split(State(self.clock, {}), self.simulation.stored)
            ended["clock"] = json.dumps(scalars)
        elif not self.kept_for_later_end and self.checkpoint_step != self.clock.step:
            self.write_last_checkpoint()
        self.wait_for_disk()
        with self.stopwatch.during("output"):
            self.writer.close(complete=True, **ended)

    def stop_requested(self, request: signals.Request) -> str:
        """The reason for any process to stop, in words; "" while there is none. The same answer everywhere."""
        number = request.number
        if self.communicator.rank == 0 and number == 0 and self.walltime.is_near(self.checkpoint_seconds):
            number = AT_WALLTIME
        with self.stopwatch.during("waiting for processes"):
            number = int(self.communicator.maximum(np.array([number]))[0])
        if number == 0:
            return ""
        return "the walltime" if number == AT_WALLTIME else signal.Signals(number).name

    def loop(self, progress: Progress, request: signals.Request) -> None:
        """Go from event to event until the end.

        Raises NumericsError if the solution blows up, StoppedEarly after a signal or at the walltime.
        """
        assert self.output is not None
        while not self.schedule.finished(self.clock):
            reason = self.stop_requested(request)
            if reason:
                self.write_checkpoint()
                raise StoppedEarly(
                    f"stopped by {reason} at step {self.clock.step}, t = {self.clock.time:g}, with a checkpoint; run the "
                    f"same command with --resume to go on"
                )
            steps = self.advance()
            self.communicator.watch.step(self.clock.step)
            with self.stopwatch.during("waiting for the disk"):
                self.writer.look()
            with self.stopwatch.during("checks"):
                self.check_steps()
            self.write_due()
            progress.advance(steps, self.clock.step, self.clock.time)
