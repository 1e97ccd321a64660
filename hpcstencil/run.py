"""One run from input to finished file: the loop from event to event, and what is kept when it ends early."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hpcstencil import __version__, signals
from hpcstencil.calibration import kernel_for
from hpcstencil.checkpoint import read_checkpoint, write_checkpoint
from hpcstencil.checkpoint_names import remove_stale
from hpcstencil.config import Config
from hpcstencil.continuation import Options, Source, source_of
from hpcstencil.decomposition import Plan
from hpcstencil.diagnostics import Diagnostics
from hpcstencil.errors import InputError, NumericsError, StoppedEarly
from hpcstencil.halo import Fields
from hpcstencil.hdf5 import OutputFile
from hpcstencil.parallel import Communicator, agree
from hpcstencil.problem import Problem
from hpcstencil.progress import Progress
from hpcstencil.provenance import sha256, to_toml
from hpcstencil.schedule import Clock, Schedule
from hpcstencil.simulation import Simulation, simulate
from hpcstencil.state import State, join, split
from hpcstencil.summary import Seconds, Summary

SECONDS_PER_CALL = 0.5  # a compiled call is kept about this long, so that signals and progress are served in time


@dataclass
class Run:
    """A run under way: the state, the clock, and the files it writes."""

    simulation: Simulation
    communicator: Communicator
    options: Options
    source: Source
    schedule: Schedule
    clock: Clock
    fields: Fields
    diagnostics: Diagnostics
    seconds: Seconds
    steps_per_call: int = 1
    began: float = field(default_factory=time.perf_counter)
    last_checkpoint: float = field(default_factory=time.monotonic)
    output: OutputFile | None = None

    @property
    def config(self) -> Config:
        return self.simulation.problem.config

    def attributes(self) -> dict[str, Any]:
        """Provenance that goes into every file."""
        decomposition = {**self.simulation.plan.describe(), "kernel": self.simulation.kernel}
        return {
            "title": self.config.title,
            "input": to_toml(self.config),
            "input_sha256": sha256(self.config),
            "hpcstencil_version": __version__,
            "decomposition": json.dumps(decomposition),
            "history": json.dumps(self.source.history),
        }

    def step_size(self) -> float:
        """The step to take now, where it is not fixed; a solution-dependent one is measured anew."""
        problem = self.simulation.problem
        if self.schedule.fixed_dt is not None:
            return self.schedule.fixed_dt
        if not problem.equation.solution_dependent:
            return problem.dt({})
        # Measured at fixed distances in steps, whatever else ends a compiled call: outputs, signals, its length in time.
        if not self.clock.measured_dt or self.steps_to_measurement() == 0:
            low, high = self.check_finite()
            largest = np.maximum(np.abs(low), np.abs(high)).tolist()
            dt = problem.dt(dict(zip(problem.fields, largest, strict=True)))
            self.clock = self.schedule.measured(self.clock, dt)
        return self.clock.measured_dt

    def steps_to_measurement(self) -> int:
        """Steps until a solution-dependent step has to be measured anew."""
        return self.clock.measured_step + self.config.time.dt_every - self.clock.step

    def check_finite(self) -> tuple[np.ndarray, np.ndarray]:
        """Least and greatest value of each field; raises NumericsError, on all processes, where one is not finite."""
        problem = self.simulation.problem
        low, high, broken = self.simulation.extremes.extremes(self.fields, problem.parameters, self.clock.time)
        for name, count in zip(problem.fields, broken.tolist(), strict=True):
            if count:
                where = f"not finite in {count} of {self.config.grid.cells} cells"
                if self.output is None:
                    precision = self.config.numerics.precision
                    raise InputError(
                        f"initial.{name}: the initial state is {where} (or beyond {precision}); correct the expression"
                    )
                raise NumericsError(
                    f"field '{name}' is {where} at step {self.clock.step}, t = {self.clock.time:g}: the run is unstable; try "
                    f"a smaller time.{'cfl' if self.config.time.dt is None else 'dt'} or a finer grid. The last good state "
                    f"is kept in {self.options.output}"
                )
        return low, high

    def advance(self, dt: float) -> int:
        """Take the next steps in one compiled call; returns how many."""
        most = self.steps_per_call
        if self.schedule.fixed_dt is None and self.simulation.problem.equation.solution_dependent:
            most = min(most, self.steps_to_measurement())
        leap = self.schedule.leap(self.clock, dt, most)
        start = time.perf_counter()
        parameters = self.simulation.problem.parameters
        self.fields = jax.block_until_ready(
            self.simulation.advance(self.fields, parameters, leap.base_time, leap.first, leap.dt, leap.steps)
        )
        self.seconds.spent("compute", start)
        self.clock = leap.after
        self.pace(leap.steps, time.perf_counter() - start)
        return leap.steps

    def pace(self, steps: int, elapsed: float) -> None:
        """Choose the length of the next compiled call from rank 0's timing of the last, the same on all processes."""
        fitting = int(steps * SECONDS_PER_CALL / max(elapsed, 1e-6))
        self.steps_per_call = self.communicator.broadcast(max(1, min(fitting, 4 * self.steps_per_call)))

    def write_due(self) -> None:
        """Diagnostics, snapshot and checkpoint, whichever is due at this step."""
        assert self.output is not None
        start = time.perf_counter()
        if self.schedule.is_diagnostic(self.clock):
            self.diagnostics.take(self.fields, self.clock.step, self.clock.time)
        self.seconds.spent("diagnostics", start)
        if self.schedule.is_output(self.clock):
            self.write_snapshot()
        if self.schedule.is_checkpoint(self.clock) or self.checkpoint_by_minutes():
            self.write_checkpoint()

    def write_snapshot(self) -> None:
        assert self.output is not None
        start = time.perf_counter()
        blocks = self.simulation.get(self.fields, self.output.fields)
        with self.output.change():
            self.output.write_diagnostics(*self.diagnostics.drain())
            self.output.write_snapshot(self.clock.step, self.clock.time, blocks, self.simulation.ranges)
        self.seconds.spent("output", start)

    def checkpoint_by_minutes(self) -> bool:
        """Whether the time between checkpoints has passed, as rank 0's clock says."""
        minutes = self.config.checkpoint.every_minutes
        if minutes is None:
            return False
        return self.communicator.broadcast(time.monotonic() - self.last_checkpoint >= 60 * minutes)

    def write_checkpoint(self) -> None:
        """Everything needed to go on from here, on any decomposition."""
        assert self.output is not None
        start = time.perf_counter()
        self.output.write_diagnostics(*self.diagnostics.drain())
        arrays, scalars = split(State(self.clock, self.fields), self.simulation.block)
        path = write_checkpoint(
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
        self.communicator.watch.checkpoint(path)
        self.last_checkpoint = time.monotonic()
        self.seconds.spent("checkpoint", start)

    def stop_requested(self, request: signals.Request) -> int:
        """The signal that asked any process to stop, 0 if none; the same answer everywhere."""
        return int(self.communicator.maximum(np.array([request.number]))[0])

    def loop(self, progress: Progress, request: signals.Request) -> None:
        """From event to event until the end.

        Raises NumericsError where the solution blows up, StoppedEarly after a signal.
        """
        while not self.schedule.finished(self.clock):
            number = self.stop_requested(request)
            if number:
                self.write_checkpoint()
                raise StoppedEarly(
                    f"stopped by {signal.Signals(number).name} at step {self.clock.step}, t = {self.clock.time:g}, "
                    f"with a checkpoint; run the same command with --resume to go on"
                )
            steps = self.advance(self.step_size())
            start = time.perf_counter()
            self.check_finite()
            self.seconds.spent("diagnostics", start)
            self.write_due()
            self.communicator.watch.step(self.clock.step)
            progress.advance(steps, self.clock.step, self.clock.time)


def run(
    config: Config, problem: Problem, plan: Plan, options: Options, communicator: Communicator, devices: Any
) -> Summary:
    """Run a checked problem to its end. All processes call it together.

    Raises InputError (nothing written), NumericsError, StoppedEarly or EnvironmentProblem, on all processes alike.
    """
    with signals.watched() as request:
        return _run(config, problem, plan, options, communicator, devices, request)


def _run(
    config: Config,
    problem: Problem,
    plan: Plan,
    options: Options,
    communicator: Communicator,
    devices: Any,
    request: signals.Request,
) -> Summary:
    began = time.perf_counter()
    source = source_of(config, options, communicator)
    if source.complete:
        finished = Clock(time=config.time.end)
        return Summary(options.output, 0, finished, 0.0, Seconds(), 0, 0, already_complete=True)
    seconds = Seconds()
    kernel = kernel_for(problem, devices, communicator)
    simulation = simulate(problem, plan, communicator, devices, kernel)
    clock, fields = _state(simulation, source.checkpoint)
    diagnostics = Diagnostics(problem.diagnostics, simulation.diagnosed, problem.parameters)
    this = Run(
        simulation, communicator, options, source, problem.schedule(), clock, fields, diagnostics, seconds, began=began
    )
    this.check_finite()
    dt = this.step_size()
    this.fields = simulation.compile(this.fields, dt)
    communicator.barrier()
    seconds.compile = time.perf_counter() - began
    this.output = _open_output(this)
    remove_stale(options.output, communicator, after=clock.step if source.append else -1)
    first = clock.step
    shown = communicator.rank == 0 and not options.quiet
    progress = Progress(clock.time, config.time.end, config.grid.cells, shown)
    try:
        if not source.append:
            this.diagnostics.take(this.fields, clock.step, clock.time)
            this.write_snapshot()
        this.loop(progress, request)
    except (NumericsError, StoppedEarly) as error:
        this.output.write_diagnostics(*diagnostics.drain())
        this.output.close(complete=False, failure=str(error) if isinstance(error, NumericsError) else "")
        raise
    finally:
        progress.close()
    this.output.close(complete=True)
    steps = this.clock.step - first
    itemsize = 2 * len(problem.fields) * simulation.dtype.itemsize
    return Summary(options.output, steps, this.clock, time.perf_counter() - began, seconds, config.grid.cells, itemsize)


def _state(simulation: Simulation, checkpoint: Path | None) -> tuple[Clock, Fields]:
    """The clock and the fields to begin with."""
    if checkpoint is None:
        return Clock(), agree(simulation.communicator, simulation.initial_fields)
    template = State(Clock(), dict.fromkeys(simulation.problem.fields, 0))
    communicator = simulation.communicator
    arrays, scalars, _ = read_checkpoint(checkpoint, simulation.ranges, communicator, simulation.problem.fields)
    blocks = {name: block.astype(simulation.dtype) for name, block in arrays.items()}
    state = join(template, simulation.put(blocks), scalars)
    return state.clock, dict(state.fields)


def _open_output(this: Run) -> OutputFile:
    """The output file, new or to be continued."""
    config, problem = this.config, this.simulation.problem
    fields = config.output.fields or problem.fields
    if this.source.append:
        return OutputFile.append(
            this.options.output,
            this.communicator,
            config.grid,
            fields=fields,
            step=this.clock.step,
            attributes=this.attributes(),
            method=config.output.method,
        )
    return OutputFile.create(
        this.options.output,
        this.communicator,
        config.grid,
        fields=fields,
        dtype=this.simulation.dtype,
        diagnostics=list(problem.diagnostics),
        attributes=this.attributes(),
        units=config.output.units,
        long_names=config.output.long_name,
        compression=config.output.compression,
        method=config.output.method,
    )
