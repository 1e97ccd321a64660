"""The stream of checkpoints: at given steps or minutes, when a run stops early, and to allow a later extension."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hpcstencil.checkpoint.checkpoint import Part, write_checkpoint
from hpcstencil.numerics.schedule import Clock, Leap, Schedule
from hpcstencil.runtime.progress import say
from hpcstencil.runtime.stopwatch import Stopwatch
from hpcstencil.runtime.walltime import has_passed
from hpcstencil.simulation.checkpoint_time import remember_checkpoint, seconds_to_checkpoint
from hpcstencil.simulation.file_blocks import checkpoint_block
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.simulation.state import State, split
from hpcstencil.simulation.streams.output import Output
from hpcstencil.simulation.streams.stream import Stream
from hpcstencil.validation.errors import EnvironmentProblem


class CheckpointWriter:
    """A writer of checkpoints for the run whose output is ``path``.

    ``seconds`` is the expected duration of writing one. ``newest_step`` is the step of the newest one that this run has
    written, or -1, and ``last`` the time (of time.monotonic) at which it was written.
    """

    def __init__(
        self, path: Path, simulation: ComposedSimulation, attributes: Mapping[str, Any], stopwatch: Stopwatch
    ) -> None:
        self.path, self.simulation, self.attributes, self.stopwatch = path, simulation, attributes, stopwatch
        self.seconds = seconds_to_checkpoint(simulation.problem)
        self.newest_step = -1
        self.last = time.monotonic()

    def write(self, state: State, streams: Sequence[Stream] = ()) -> None:
        """Write a checkpoint of the changing part of ``state``, from which any decomposition can continue. Collective.

        ``streams`` are flushed first, and their `Stream.memory` is stored too.
        """
        start = time.perf_counter()
        simulation, config = self.simulation, self.simulation.problem.config
        for stream in streams:
            stream.flush()
        with self.stopwatch.during("checkpoints"):
            changing = {name: state.fields[name] for name in simulation.problem.changing}
            partial_arrays: dict[str, Part] = {}
            arrays, scalars = split(replace(state, fields=changing), partial(checkpoint_block, simulation))
            for stream in streams:
                parts, numbers = stream.memory()
                partial_arrays |= parts
                scalars |= numbers
            write_checkpoint(
                self.path,
                simulation.communicator,
                config.grid,
                step=state.clock.step,
                time=state.clock.time,
                arrays=arrays,
                ranges=simulation.ranges,
                scalars=scalars,
                attributes=self.attributes,
                keep=config.checkpoint.keep,
                method=config.output.method,
                partial_arrays=partial_arrays,
            )
        self.seconds = max(self.seconds, time.perf_counter() - start)
        if simulation.communicator.rank == 0 and self.newest_step < 0:
            remember_checkpoint(simulation.problem, time.perf_counter() - start)
        self.last = time.monotonic()
        self.newest_step = state.clock.step


class Checkpoints(Stream):
    """The checkpoints of a run.

    All ``others`` are flushed before each, because a run that continues from a checkpoint does not repeat earlier steps. If
    the last step is shortened to land on the end, it would be longer in a run with a later end. In this case a checkpoint
    keeps the state before it (``kept_for_later_end``), and no later checkpoint replaces that one.
    """

    def __init__(self, writer: CheckpointWriter, output: Output, schedule: Schedule, others: Sequence[Stream]) -> None:
        self.writer, self.output, self.schedule, self.others = writer, output, schedule, others
        self.config = writer.simulation.problem.config.checkpoint
        self.kept_for_later_end = False

    def is_due(self, clock: Clock) -> bool:
        due = self.schedule.is_checkpoint(clock) or self._is_due_by_minutes()
        return due and not self.kept_for_later_end

    def acts_in(self, leap: Leap) -> bool:
        return self.schedule.is_checkpoint(leap.after) or self.schedule.finished(leap.after)

    def _is_due_by_minutes(self) -> bool:
        """Return whether `checkpoint.every_minutes` have passed since the last checkpoint. Collective."""
        minutes = self.config.every_minutes
        return minutes is not None and has_passed(self.writer.simulation.communicator, 60 * minutes, self.writer.last)

    def write(self, state: State) -> None:
        self.writer.write(state, self.others)

    def begin(self, state: State) -> None:
        """Write a checkpoint of the first state if it comes from a Python program (`Source.from_memory`).

        The input cannot reproduce such a state, and --resume needs it.
        """
        if self.output.source.from_memory:
            self.write(state)

    def before(self, state: State, leap: Leap) -> None:
        """Write a checkpoint before a last step that is shortened to land on the end."""
        if (
            not self.kept_for_later_end
            and self.schedule.finished(leap.after)
            and not self.schedule.is_on_course(leap.after)
        ):
            self._write_last(state)
            self.kept_for_later_end = True

    def stop(self, state: State) -> None:
        self.write(state)

    def finish(self, state: State) -> None:
        """Write a checkpoint from which the run can be extended, unless there is one or the output holds the state."""
        in_output = self.output.ended(state, self.schedule)
        if not in_output and not self.kept_for_later_end and self.writer.newest_step != state.clock.step:
            self._write_last(state)

    def _write_last(self, state: State) -> None:
        """Write the checkpoint from which the run can be extended.

        If the input requests no checkpoints, a failure is only a warning, and the run counts as complete.
        """
        try:
            self.write(state)
        except EnvironmentProblem as error:
            if self.config.every_steps or self.config.every_minutes or not error.shared:
                raise
            say(f"warning: {error}; the run goes on, but cannot be extended after its end")
