"""A gradient that can be stopped and continued: it writes checkpoints, and may keep its stored states in files."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from hpcstencil.adjoint.plan import SweepPlan
from hpcstencil.checkpoint.paths import (
    checkpoint_path,
    checkpoint_pattern,
    list_checkpoints,
    remove_locks,
    remove_stale,
    step_of,
)
from hpcstencil.gradient import checkpoint_identity, checkpoints
from hpcstencil.gradient.checkpoints import GradientPosition
from hpcstencil.gradient.members import Members, Total
from hpcstencil.gradient.recording import stopped_while_recording
from hpcstencil.gradient.reverse_sweep import Result, ReverseSweep
from hpcstencil.gradient.stored_states import WHAT, OnDisk, beside, list_states, remove_states
from hpcstencil.gradient.sweep_hooks import SweepHooks, SweepPosition
from hpcstencil.runtime import signals
from hpcstencil.runtime.communicator import Communicator, from_rank_0
from hpcstencil.runtime.launcher import environment_rank
from hpcstencil.runtime.progress import Progress
from hpcstencil.runtime.stopwatch import Stopwatch
from hpcstencil.runtime.walltime import Walltime, has_passed
from hpcstencil.simulation.checkpoint_time import seconds_to_checkpoint
from hpcstencil.simulation.event_loop import StopRequests
from hpcstencil.simulation.stepping import Pace
from hpcstencil.validation.errors import RESUME, InputError, NumericsError, StoppedEarly


def refuse_existing(output: Path, what: str) -> None:
    """Raise InputError if the file ``output`` of a gradient or fit exists, or files of an interrupted one beside it.

    ``what`` is "gradient" or "fit".
    """
    exists = output if output.exists() else next(iter([*list_checkpoints(output), *list_states(output)]), None)
    if exists is not None:
        raise InputError(
            f"{exists}: exists already; use --resume to continue this {what}, --overwrite to begin again, or choose another "
            "--output"
        )


def newest_of(output: Path, communicator: Communicator, first: int | None) -> Path | None:
    """The newest valid checkpoint of the gradient that writes ``output``, or the latest stored state of one that was
    interrupted before its first checkpoint; None if there is neither. Collective.

    ``first`` is 0 for an ensemble. Raises InputError, on all processes, if it is that of something else, or if all checkpoints
    are damaged.
    """
    path = checkpoint_identity.newest(output, checkpoints.WHAT, communicator)

    def refuse_damaged() -> None:
        if path is None and (damaged := list_checkpoints(output)):
            raise InputError(
                f"{damaged[0]}: expected a checkpoint of a gradient, but it is damaged; begin again with --overwrite"
            )

    from_rank_0(communicator, refuse_damaged)
    return path or checkpoint_identity.newest(beside(output, first), WHAT, communicator)


def remove(output: Path, communicator: Communicator) -> None:
    """Remove the checkpoints and stored states of the gradient that writes ``output``. Collective."""
    remove_stale(output, communicator, after=-1)
    remove_locks(output, communicator)
    remove_states(output, communicator)


def stored_beside(output: Path, members: Members, digests: Mapping[str, str]) -> Members:
    """The sweeps with their states beside ``output``, if they store them on disk. ``digests`` are those of the input."""
    attributes, found = checkpoint_identity.attributes_of(WHAT, members, digests), []
    for number, sweep in enumerate(members.sweeps):
        path = beside(output, number if members.count else None)
        stored = None if sweep.stored is None else OnDisk(path, sweep.forward, attributes)
        found.append(replace(sweep, stored=stored))
    return replace(members, sweeps=tuple(found))


class ResumableGradient(SweepHooks):
    """The gradient that writes ``output``, with checkpoints by the table [checkpoint]: the hooks of its sweeps. Collective.

    It stops by the signal in ``request``, and at the walltime, counted from the time ``started`` of time.monotonic. Progress is
    shown unless ``quiet``. ``members`` are the sweeps, and ``position`` is that of the gradient.
    """

    def __init__(self, output: Path, members: Members, request: signals.Request, started: float, quiet: bool) -> None:
        simulation = members.forward
        problem, communicator = simulation.problem, simulation.communicator
        self.output, self.asked, self.communicator = output, members.config.checkpoint, communicator
        cells = math.prod(simulation.plan.topology.capacity())
        self.pace = Pace(simulation.steps.first_cells // cells, communicator, Stopwatch())
        self.writing = seconds_to_checkpoint(problem)  # the duration of a checkpoint
        self.calling = 0.0  # the duration of the last call
        walltime = Walltime(self.asked.walltime, communicator, started)
        self.stops = StopRequests(request, walltime, lambda: self.writing + self.calling, communicator)
        self.last, self.taken, self.saved = time.monotonic(), 0, -1
        self.quiet, self.digests = quiet, checkpoint_identity.digests_of(members)
        self.members = stored_beside(output, members, self.digests)
        self.continued: GradientPosition | None = None
        self.position = GradientPosition(0, SweepPosition(0))
        self.progress: Progress | None = None  # of `total`, in steps taken in either direction
        communicator.watch.checkpoints(checkpoint_pattern(output))

    def resume(self, newest: Path) -> None:
        """Take over the place, and recorded steps, of the interrupted gradient that wrote the file ``newest``. Collective.

        Raises InputError, on all processes, if that had another input.
        """
        if newest == checkpoint_path(self.output, step_of(newest)):
            self.continued, self.members = checkpoints.read(newest, self.members, self.digests)

    def planned(self) -> tuple[SweepPlan, ...]:
        """Plan the sweeps, for which steps that follow the solution are recorded. Collective.

        Raises StoppedEarly, on all processes, if the run must stop meanwhile.
        """
        sweeps = self.members.sweeps
        self.members, plans = self.members.planned(
            lambda number: sweeps[number].forward.initial_fields(), self._recording
        )
        return plans

    def _recording(self) -> None:
        self._took(1)
        if reason := self.stops.reason():
            raise stopped_while_recording(reason)

    def total(self, plans: Sequence[SweepPlan]) -> Total:
        """Return the objective and its gradient. Collective.

        Files of another gradient are removed, unless this one continues. Raises InputError, on all processes, if a stored state
        is damaged or not one of this gradient, EnvironmentProblem if the disk has no room, StoppedEarly if the run must stop,
        and NumericsError, after which there are no files to continue from, if something is not finite.
        """
        self.position = self.continued or GradientPosition(0, SweepPosition(self.members.sweeps[0].steps))
        self._adopt(self.position.number, plans)
        done = self.position.reversed(self.members)
        remove_stale(self.output, self.communicator, after=-1 if self.continued is None else done)
        remove_locks(self.output, self.communicator)
        if self.members.forward.problem.step_follows_solution and self.continued is None:
            self._save()  # the recorded steps

        def result(number: int, sweep: ReverseSweep) -> Result:
            if number > self.position.number:
                self.position = GradientPosition(number, SweepPosition(sweep.steps), self.position.results)
                self._save()
                self._adopt(number, plans)
            return sweep(sweep.forward.initial_fields(), plans[number].states, self)

        work, steps = sum(plan.taken + plan.steps for plan in plans), sum(plan.steps for plan in plans)
        begun = work * done / max(steps, 1) if self.continued else 0.0
        self.before = begun - self.taken
        try:
            with Progress(begun, work, environment_rank() == 0 and not self.quiet) as self.progress:
                return self.members.total(result, self.position.results)
        except NumericsError:  # a gradient that continues would fail again
            remove(self.output, self.communicator)
            raise

    def _adopt(self, number: int, plans: Sequence[SweepPlan]) -> None:
        """Take over the stored states of a member, which is to begin or to continue, from files."""
        stored, plan = self.members.sweeps[number].stored, plans[number]
        if stored is None:
            remove_states(self.output, self.communicator)
            return
        what = (WHAT, self.members.config, self.digests, checkpoints.FREE)
        before, most = self.position.sweep.step, max(plan.states - 1, 0)
        stored.adopt(before, most, lambda path: checkpoint_identity.refuse_other(path, *what))
        stored.refuse_full_disk(plan.bytes_on_disk)

    @property
    def start(self) -> SweepPosition:
        return self.position.sweep

    @property
    def most(self) -> int:
        return self.pace.steps

    @contextmanager
    def call(self, steps: int) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.calling = time.monotonic() - start
        self.pace.took(steps, self.calling)
        self._took(steps)

    def _took(self, steps: int) -> None:
        """Count some more ``steps`` in either direction, for the watchdog and the progress that is shown."""
        self.taken += steps
        self.communicator.watch.step(self.taken)
        if self.progress is not None:
            steps = sum(sweep.steps for sweep in self.members.sweeps)
            self.progress.show(
                self.before + self.taken, f"{self.position.reversed(self.members)} of {steps} steps reversed"
            )

    def check(self) -> None:
        if not (reason := self.stops.reason()):
            return
        stored, done = self.members.sweeps[self.position.number].stored, self.position.reversed(self.members)
        if stored is not None:
            stored.flush()
        if self.saved != done:
            self._save()
        steps = sum(sweep.steps for sweep in self.members.sweeps)
        raise StoppedEarly(f"stopped by {reason} after {done} of {steps} steps in reverse, with a checkpoint", RESUME)

    def moved(self, position: SweepPosition) -> None:
        before = self.position.reversed(self.members)
        self.position = replace(self.position, sweep=position)
        if not position.step:
            return  # the sweep of a member ends
        if self._is_due(before, self.position.reversed(self.members)):
            self._save()
        self.check()

    def _is_due(self, before: int, done: int) -> bool:
        """Whether a checkpoint is due after ``done`` steps in reverse, and ``before`` at the last look. Collective."""
        every, minutes = self.asked.every_steps, self.asked.every_minutes
        if every is not None and done // every > before // every:
            return True
        return minutes is not None and has_passed(self.communicator, 60 * minutes, self.last)

    def _save(self) -> None:
        """Write a checkpoint of the position that the gradient has reached."""
        start = time.monotonic()
        path = checkpoints.write(self.output, self.members, self.position, self.digests)
        self.saved, self.last = step_of(path), time.monotonic()
        self.writing = max(self.writing, self.last - start)
