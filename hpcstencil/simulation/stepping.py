"""Stepping: the state of a run, and the compiled calls that advance it from event to event."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from hpcstencil.distributed.halo import Fields
from hpcstencil.numerics.schedule import Clock, Leap, Schedule, StepRange, steps_to_reach, together
from hpcstencil.problem.problem import SHORT_CALL
from hpcstencil.problem.stability import cfl_step, cfl_steps
from hpcstencil.runtime.communicator import Communicator
from hpcstencil.runtime.signals import undisturbed
from hpcstencil.runtime.stopwatch import Stopwatch
from hpcstencil.runtime.walltime import CALL
from hpcstencil.simulation.adaptive_step import Control
from hpcstencil.simulation.finite_check import FiniteCheck
from hpcstencil.simulation.further_steps import FurtherSteps, IsQuiet
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.simulation.state import State

SLOWER = (
    16  # largest ratio of the time of a step that follows the solution, a sweep of its own, to that of a fixed step
)
STEPS_PER_CALL = 1000  # most steps of a call, so that a non-finite value is found within this many steps

Announce = Callable[[State, Leap], None]  # called with a state and the steps that the next compiled call takes from it


class Pace:
    """The number of ``steps`` of the next compiled call, chosen so that the call takes about CALL seconds.

    The first call takes ``first`` steps, limited to 1 to STEPS_PER_CALL.
    """

    def __init__(self, first: int, communicator: Communicator, stopwatch: Stopwatch) -> None:
        self.steps, self.communicator, self.stopwatch = min(max(1, first), STEPS_PER_CALL), communicator, stopwatch

    def took(self, steps: int, elapsed: float) -> None:
        """Choose the next number of steps, after a call of ``steps`` steps that took ``elapsed`` seconds. Collective.

        Rank 0's time decides, so all processes get the same number.
        """
        fitting = int(steps * CALL / max(elapsed, 1e-6))
        most = min(fitting, 16 * self.steps, STEPS_PER_CALL)
        with self.stopwatch.during("waiting for processes"):
            self.steps = self.communicator.broadcast(max(1, most))


class Stepping:
    """The ``state`` of a run, and the steps that change it. Methods are collective.

    If the members of an ensemble take their own steps, the state has a clock for each. Its ``clock`` is then their common
    progress.
    """

    def __init__(
        self,
        simulation: ComposedSimulation,
        schedule: Schedule,
        state: State,
        finite: FiniteCheck,
        stopwatch: Stopwatch,
    ) -> None:
        self.simulation, self.finite, self.stopwatch = simulation, finite, stopwatch
        self.schedule, self.state = schedule, state
        # While all calls are short, ``into`` takes the steps, and stores fields in two arrays in turn: next in ``room``.
        self.into, self.room = simulation.steps.into, Fields()
        cells = simulation.problem.copies * math.prod(simulation.plan.topology.capacity())
        cells *= SLOWER if simulation.problem.step_follows_solution else 1
        self.pace = Pace(simulation.steps.first_cells // cells, simulation.communicator, stopwatch)

    @property
    def clock(self) -> Clock:
        """The clock of the state: the step and time that the run has reached."""
        return self.state.clock

    def end_at(self, end: float) -> None:
        """Move the end of the run to the time ``end``.

        If the last step was shortened to land on the old end, the times of further steps are counted from there.
        """
        self.schedule, clock = replace(self.schedule, end=end).going_on(self.clock, anew=False)
        members = tuple(self.schedule.going_on(each, anew=False)[1] for each in self.state.members)
        self.state = replace(self.state, clock=clock, members=members)

    @property
    def finished(self) -> bool:
        """Whether the run has reached its end."""
        return self.schedule.finished(self.clock)

    def step_sizes(self) -> list[float]:
        """Return the size of the next step in units of time: a list with one entry, or one per member with its own steps.

        A size that depends on the solution is measured again when that is due. Not for adaptive steps. Raises InputError if
        no step is stable or nothing limits it, and the errors of `FiniteCheck.extremes`.
        """
        problem, state = self.simulation.problem, self.state
        if self.schedule.fixed_dt is not None:
            return [self.schedule.fixed_dt]
        if not problem.rates_follow_solution:
            return [cfl_step(each, {}) for each in problem.members or (problem,)]
        clocks = state.members or (state.clock,)
        # Measured at fixed intervals in steps, so that results do not depend on what ends compiled calls (e.g. signals).
        due = [not clock.measured_dt or self._steps_to_measurement(clock) == 0 for clock in clocks]
        if any(due):
            with self.stopwatch.during("step size"):
                steps = cfl_steps(problem, *self.finite.extremes(state))
            clocks = tuple(
                self.schedule.measured(clock, dt) if now else clock
                for clock, dt, now in zip(clocks, steps, due, strict=True)
            )
            self.state = replace(state, members=clocks) if state.members else replace(state, clock=clocks[0])
        return [clock.measured_dt for clock in clocks]

    def _steps_to_measurement(self, clock: Clock) -> int:
        """Return the steps until a solution-dependent step size is measured again."""
        return clock.measured_step + self.simulation.problem.config.time.dt_every - clock.step

    def _most(self, clock: Clock, dt: float, limit: int | None, until: float | None) -> int:
        """Return the largest number of steps of size ``dt`` for the next call; ``limit`` and ``until`` as in `advance`."""
        most = self.pace.steps if limit is None else min(self.pace.steps, limit)
        most = most if until is None else min(most, steps_to_reach(until, clock, dt))
        return min(most, self._steps_to_measurement(clock)) if self.simulation.problem.step_follows_solution else most

    def advance(
        self,
        announce: Announce,
        limit: int | None = None,
        until: float | None = None,
        is_quiet: IsQuiet | None = None,
    ) -> int:
        """Take steps for about CALL seconds, and return their number, summed over members that take their own.

        They end at the next event of the schedule at the latest, after at most ``limit`` steps, or with the first step at or
        past the time ``until``. If the end of the steps is known in advance, ``announce`` is called first, with the state and
        the steps. After steps for which ``is_quiet`` returns True, others for which it does so may follow without being
        announced (`FurtherSteps`). Raises InputError or NumericsError, on all processes, see `step_sizes` and `Control.step`.
        """
        if self.simulation.control is not None and self.state.members:
            return self._advance_controlled(
                self.simulation.control, lambda control: self._advance_controlled_members(control, limit, until)
            )
        if self.simulation.control is not None:
            return self._advance_controlled(
                self.simulation.control,
                lambda control: self._advance_controlled_alone(control, announce, limit, until, is_quiet),
            )
        sizes = self.step_sizes()
        if self.state.members:
            return self._advance_members(sizes, limit, until)
        leap = self.schedule.leap(self.clock, sizes[0], self._most(self.clock, sizes[0], limit, until))
        announce(self.state, leap)
        most = self.pace.steps if limit is None else min(self.pace.steps, limit)
        further = FurtherSteps(self.simulation, self.schedule, self.finite, leap, most, until, is_quiet)
        start = time.perf_counter()

        def take() -> None:
            with self.finite.recording(leap), further.in_call():
                fields = jax.block_until_ready(self._called(leap.steps))
            self.state = replace(self.state, clock=further.clock, fields=fields)

        with self.stopwatch.during("computing"):
            undisturbed(take) if further.goes_on else take()
        further.raise_error()
        self.finite.reached(self.state)
        self.pace.took(further.taken, time.perf_counter() - start)
        return further.taken

    def _called(self, steps: StepRange) -> Fields:
        """Return the fields after a call that takes ``steps``.

        While all calls are short, they use two arrays in turn, because in place each would first copy the fields. From the
        first longer call on, all calls step in place, where native code has as much memory of its own.
        """
        fields, problem = dict(self.state.fields), self.simulation.problem
        if steps.count > SHORT_CALL:
            self.into, self.room = None, Fields()
        if self.into is None:
            return self.simulation.advance(fields, steps)
        changing = problem.changing
        room = self.room or {name: jnp.empty_like(fields[name]) for name in changing}
        after = self.into(fields, room, problem.parameters, steps)
        self.room = {name: fields[name] for name in changing}
        return after

    def compile(self, limit: int | None = None) -> None:
        """Compile the calls that take steps, by taking none; the first call takes at most ``limit`` steps. Collective.

        The fields keep their values.
        """
        if not self.simulation.problem.calls_are_short and (limit is None or limit > SHORT_CALL):
            self.into = None
        if self.into is None:
            fields = self.simulation.compile(dict(self.state.fields))
        else:
            fields = jax.block_until_ready(self._called(StepRange(0.0, 0, 0.0, 0)))
        self.state = replace(self.state, fields=fields)

    def _advance_members(self, sizes: list[float], limit: int | None, until: float | None) -> int:
        """Advance members that take their own steps, see `advance`.

        A member that reaches an output, or ``until``, waits there for the others.
        """
        leaps = []
        due = self.schedule.next_output_time(self.clock.time)
        due = due if until is None else min(due, until)
        for clock, dt in zip(self.state.members, sizes, strict=True):
            waiting = Leap(StepRange(clock.time, 0, dt, 0), clock)
            most = self._most(clock, dt, limit, until)
            leaps.append(waiting if clock.time >= due else self.schedule.leap(clock, dt, most))
        steps = StepRange(*(np.array(values) for values in zip(*(leap.steps for leap in leaps), strict=True)))
        start = time.perf_counter()
        with self.stopwatch.during("computing"):
            fields = jax.block_until_ready(self.simulation.advance(dict(self.state.fields), steps))
        members = tuple(leap.after for leap in leaps)
        self.state = replace(self.state, clock=together(members), fields=fields, members=members)
        self.pace.took(int(steps.count.max()), time.perf_counter() - start)
        return int(steps.count.sum())

    def begin_control(self, control: Control) -> None:
        """Estimate the size of the first adaptive step, of each member, unless there is one already. Collective."""
        clocks = control.begun(dict(self.state.fields), self.state.members or (self.clock,))
        self.state = replace(self.state, members=clocks) if self.state.members else replace(self.state, clock=clocks[0])

    def _advance_controlled(self, control: Control, take: Callable[[Control], int]) -> int:
        """Take adaptive steps, see `advance`. ``take`` takes them, and returns the largest number of steps of any member."""
        control = replace(control, schedule=self.schedule)
        self.begin_control(control)
        start, first = time.perf_counter(), self.clock.step
        with self.stopwatch.during("computing"):
            most = take(control)
        self.pace.took(most, time.perf_counter() - start)
        return self.clock.step - first

    def _advance_controlled_alone(
        self,
        control: Control,
        announce: Announce,
        limit: int | None,
        until: float | None,
        is_quiet: IsQuiet | None,
    ) -> int:
        """Take adaptive steps of a single run, see `advance`."""
        first, wait = self.clock.step, self.schedule.steps_to_event(self.clock)
        last = first + min(self.pace.steps, wait or self.pace.steps, limit or self.pace.steps)

        def ended(clock: Clock) -> bool:
            reached = until is not None and clock.time >= until
            return clock.step >= last or reached or self.schedule.is_output(clock)

        def may_follow(clock: Clock, leap: Leap) -> bool:
            return quiet and not ended(clock) and is_quiet is not None and is_quiet(leap)

        def take() -> None:
            fields, clock, error = control.steps(dict(self.state.fields), self.clock, may_follow)
            self.state = replace(self.state, clock=clock, fields=fields)
            if error is not None:
                raise error

        while True:
            before, leap = self.clock, control.tried(self.clock, self.clock.measured_dt)
            announce(self.state, leap)
            quiet = is_quiet is not None and is_quiet(leap)
            take() if control.choosing is None else undisturbed(take)
            # Without progress the step has collapsed: the next call raises the error.
            if self.clock.step > before.step and ended(self.clock):
                return self.clock.step - first

    def _advance_controlled_members(self, control: Control, limit: int | None, until: float | None) -> int:
        """Take adaptive steps of each member, and return the largest number of steps of any; see `advance`.

        A member that reaches an output, or ``until``, waits there for the others. No member ends between two attempts of a
        step, so the clocks hold all that the next step depends on.
        """
        due = self.schedule.next_output_time(self.clock.time)
        due = due if until is None else min(due, until)
        most = min(self.pace.steps, limit or self.pace.steps)
        before, last = self.state.members, [clock.step + most for clock in self.state.members]
        if control.attempt_of_member:
            undisturbed(lambda: self._members_in_turn(control, due, last))
        else:
            self._members_together(control, due, last)
        return max(1, *(after.step - clock.step for after, clock in zip(self.state.members, before, strict=True)))

    def _members_together(self, control: Control, due: float, last: Sequence[int]) -> None:
        """Take steps up to the time ``due``, of each member at most to its step ``last``.

        Each attempt is made for all members that have steps left to take.
        """
        rejected = [False] * len(last)
        while True:
            active = [
                again or (clock.time < due and clock.step < end)
                for clock, end, again in zip(self.state.members, last, rejected, strict=True)
            ]
            if not any(active):
                return
            fields, clocks, rejected = control.attempted(dict(self.state.fields), self.state.members, rejected, active)
            self.state = replace(self.state, clock=together(clocks), fields=fields, members=clocks)

    def _members_in_turn(self, control: Control, due: float, last: Sequence[int]) -> None:
        """The same as `_members_together`, one member after the other, each in arrays of its own."""
        simulation, clocks = self.simulation, []
        before = simulation.get(dict(self.state.fields), list(self.state.fields))
        after = {name: np.empty_like(block) for name, block in before.items()}

        def has_steps_left(end: int, clock: Clock, _: Leap | None = None) -> bool:
            return clock.time < due and clock.step < end

        for n, (alone, clock, end) in enumerate(zip(control.of_members(), self.state.members, last, strict=True)):
            fields = simulation.put({name: np.ascontiguousarray(block[..., n]) for name, block in before.items()})
            while has_steps_left(end, clock):
                fields, clock, _ = alone.steps(fields, clock, partial(has_steps_left, end))
            for name, block in after.items():
                block[..., n] = simulation.block(fields[name])
            clocks.append(clock)
        self.state = replace(self.state, clock=together(clocks), fields=simulation.put(after), members=tuple(clocks))
