"""A reverse sweep that stops on request and continues later, by checkpoints and by stored states in files."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hpcstencil.checkpoint.paths import checkpoint_path, list_checkpoints, remove_locks, remove_stale, step_of
from hpcstencil.gradient import checkpoints, origin, stored_states
from hpcstencil.gradient.course import Course, Reached
from hpcstencil.gradient.sweep import Sweep
from hpcstencil.runtime import signals
from hpcstencil.runtime.communicator import Communicator, from_rank_0
from hpcstencil.runtime.stopwatch import Stopwatch
from hpcstencil.runtime.walltime import Walltime, passed
from hpcstencil.simulation.checkpoint_time import seconds_to_checkpoint
from hpcstencil.simulation.event_loop import StopRequests
from hpcstencil.simulation.simulation import Simulation
from hpcstencil.simulation.stepping import Pace
from hpcstencil.validation.errors import InputError, StoppedEarly


def refuse_existing(output: Path) -> None:
    """Raise InputError if the file ``output`` of a gradient exists, or files of an interrupted one beside it."""
    beside = [*list_checkpoints(output), *list_checkpoints(stored_states.beside(output))]
    exists = output if output.exists() else next(iter(beside), None)
    if exists is not None:
        raise InputError(
            f"{exists}: exists already; say --resume to continue this gradient, --overwrite to begin again, or choose another "
            "--output"
        )


def newest_of(output: Path, communicator: Communicator) -> Path | None:
    """The newest valid checkpoint of the gradient that writes ``output``, or the latest stored state of one that was
    interrupted before its first checkpoint; None if there is neither. Collective.

    Raises InputError, on all processes, if it is that of something else, or if all checkpoints are damaged.
    """
    path = checkpoints.newest(output, communicator)

    def refuse_damaged() -> None:
        if path is None and (damaged := list_checkpoints(output)):
            raise InputError(
                f"{damaged[0]}: expected a checkpoint of a gradient, but it is damaged; begin again with --overwrite"
            )

    from_rank_0(communicator, refuse_damaged)
    return path or origin.newest(stored_states.beside(output), stored_states.WHAT, communicator)


def remove(output: Path, communicator: Communicator) -> None:
    """Remove the checkpoints and stored states of the gradient that writes ``output``. Collective."""
    for name in (output, stored_states.beside(output)):
        remove_stale(name, communicator, after=-1)
        remove_locks(name, communicator)


class Resumable(Course):
    """The course of the sweep that writes ``output``, with checkpoints by the table [checkpoint]. Collective.

    It stops by the signal in ``request``, and at the walltime, counted from the time ``started`` of time.monotonic.
    """

    def __init__(self, output: Path, simulation: Simulation, request: signals.Request, started: float) -> None:
        problem, communicator = simulation.problem, simulation.communicator
        self.output, self.asked, self.communicator = output, problem.config.checkpoint, communicator
        cells = problem.copies * math.prod(simulation.plan.topology.capacity())
        self.pace = Pace(simulation.steps.first_cells // cells, communicator, Stopwatch())
        self.writing, self.calling = (
            seconds_to_checkpoint(problem),
            0.0,
        )  # durations of a checkpoint, and of the last call
        walltime = Walltime(self.asked.walltime, communicator, started)
        self.stops = StopRequests(request, walltime, lambda: self.writing + self.calling, communicator)
        self.last, self.taken, self.saved = time.monotonic(), 0, -1
        self.digests = origin.digests_of(simulation)
        self.sweep: Sweep | None = None
        self.reached = None
        communicator.watch.output(output)

    def resumed(self, sweep: Sweep, newest: Path) -> Sweep:
        """Return the sweep with the steps of the interrupted one that wrote the file ``newest``, and take over its place.
        Collective.

        Raises InputError, on all processes, if that had another input.
        """
        if newest == checkpoint_path(self.output, step_of(newest)):
            self.reached, run = checkpoints.read(newest, sweep, self.digests)
            sweep = replace(sweep, run=run)
        return sweep

    def recording(self) -> None:
        """Raise StoppedEarly, on all processes, if the run must stop while its steps are recorded. Collective."""
        self._tell_watch(1)
        if reason := self.stops.reason():
            raise StoppedEarly(
                f"stopped by {reason} while the steps were recorded: nothing was written; run the same command again"
            )

    def begin(self, sweep: Sweep, states: int, size: int) -> None:
        """Begin a sweep with at most ``states`` stored states, of ``size`` bytes on disk. Collective.

        Files of another sweep are removed, unless this one continues. Raises InputError, on all processes, if a stored state is
        damaged or not one of this sweep, EnvironmentProblem if the disk has no room.
        """
        before = sweep.steps if self.reached is None else self.reached.step
        if sweep.stored is None:
            remove_stale(stored_states.beside(self.output), self.communicator, after=-1)
        else:
            config = sweep.forward.problem.config
            what = (stored_states.WHAT, config, self.digests, checkpoints.FREE)
            sweep.stored.adopt(before, max(states - 1, 0), lambda path: origin.refuse_other(path, *what))
            sweep.stored.refuse_full_disk(size)
        remove_stale(self.output, self.communicator, after=-1 if self.reached is None else sweep.steps - before)
        remove_locks(self.output, self.communicator)
        self.sweep = sweep
        self.reached = self.reached or Reached(sweep.steps)
        if sweep.forward.problem.step_follows_solution and before == sweep.steps:
            self._save()  # the recorded steps

    @property
    def most(self) -> int:
        return self.pace.steps

    @contextmanager
    def call(self, steps: int) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.calling = time.monotonic() - start
        self.pace.took(steps, self.calling)
        self._tell_watch(steps)

    def _tell_watch(self, steps: int) -> None:
        """Report that some more ``steps`` have been taken, in either direction."""
        self.taken += steps
        self.communicator.watch.step(self.taken)

    def check(self) -> None:
        assert self.sweep is not None and self.reached is not None
        if not (reason := self.stops.reason()):
            return
        done = self.sweep.steps - self.reached.step
        if self.sweep.stored is not None:
            self.sweep.stored.flush()
        if self.saved != done:
            self._save()
        raise StoppedEarly(
            f"stopped by {reason} after {done} of {self.sweep.steps} steps in reverse, with a checkpoint; run the same command "
            "with --resume to continue"
        )

    def moved(self, reached: Reached) -> None:
        assert self.sweep is not None
        before, self.reached = self.reached, reached
        if not reached.step:
            return  # all is done but the file of the gradient
        assert before is not None
        if self._is_due(self.sweep.steps - before.step, self.sweep.steps - reached.step):
            self._save()
        self.check()

    def _is_due(self, before: int, done: int) -> bool:
        """Whether a checkpoint is due after ``done`` steps in reverse, and ``before`` at the last look. Collective."""
        every, minutes = self.asked.every_steps, self.asked.every_minutes
        if every is not None and done // every > before // every:
            return True
        return minutes is not None and passed(self.communicator, 60 * minutes, self.last)

    def _save(self) -> None:
        """Write a checkpoint of the place that the sweep has reached."""
        assert self.sweep is not None and self.reached is not None
        start = time.monotonic()
        path = checkpoints.write(self.output, self.sweep, self.reached, self.digests)
        self.saved, self.last = step_of(path), time.monotonic()
        self.writing = max(self.writing, self.last - start)
