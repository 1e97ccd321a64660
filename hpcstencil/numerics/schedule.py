"""The sequence of time steps, and the steps after which output, diagnostics and checkpoints are due.

Every process does the same float64 arithmetic here, so all take the same steps whatever the decomposition.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

ROUND = 1e-9  # a smaller fraction of a step is treated as rounding


@dataclass(frozen=True)
class Clock:
    """The current step and time of a run. Times are counted from a base: t = base_time + (step - base_step) dt.

    ``measured_dt`` is a step size that depends on the solution, measured at ``measured_step``; it is 0 before the first
    measurement. With a tolerance it is the step size to try next, ``last_error`` is the error of the previous step in
    units of the tolerance, and ``rejected`` counts rejected steps.
    """

    step: int = 0
    time: float = 0.0
    base_step: int = 0
    base_time: float = 0.0
    measured_step: int = 0
    measured_dt: float = 0.0
    last_error: float = 1.0
    rejected: int = 0


def together(clocks: Sequence[Clock]) -> Clock:
    """The common clock of runs that advance side by side: the time of the run that is furthest behind, and the sum of
    their steps. Its base is the present step if all runs have just landed at the same time. Otherwise ``base_step`` is
    -1, so that the clock does not look like one that has landed at an output."""
    time, step = min(clock.time for clock in clocks), sum(clock.step for clock in clocks)
    landed = all(clock.time == clock.base_time == time for clock in clocks)
    return Clock(step, time, step if landed else -1, time)


class StepRange(NamedTuple):
    """``count`` equal steps: step i = 0 .. count - 1 goes from t = base_time + (first + i) dt to t + dt.

    Times and ``dt`` are float64 in the input's unit; ``first`` and ``count`` are integers. Each is a number (perhaps
    traced), or an array of shape (members,) if the members of an ensemble take their own steps.
    """

    base_time: Any
    first: Any
    dt: Any
    count: Any

    def part(self, done: Any, count: Any) -> StepRange:
        """The range of the ``count`` steps that follow the first ``done`` of these."""
        return self._replace(first=self.first + done, count=count)

    @property
    def start(self) -> Any:
        """The time at which the first step starts."""
        return self.base_time + self.first * self.dt


def steps_to_reach(time: float, clock: Clock, dt: float) -> int:
    """The number of steps of size ``dt`` after which a run at ``clock`` is first at or past ``time``; at least 1."""
    done = clock.step - clock.base_step
    steps = max(1, math.ceil((time - clock.base_time) / dt) - done)
    while steps > 1 and clock.base_time + (done + steps - 1) * dt >= time:
        steps -= 1
    return steps if clock.base_time + (done + steps) * dt >= time else steps + 1


@dataclass(frozen=True)
class Leap:
    """Equal ``steps`` that follow each other without an event in between, and the clock ``after`` them."""

    steps: StepRange
    after: Clock


@dataclass(frozen=True)
class Schedule:
    """The schedule of a run that ends at the time ``end``.

    Output is due at the start, at the end, and every ``output_time`` of time or every ``output_steps`` steps. A row of
    diagnostics is due every ``diagnostic_steps`` steps (with the output if None), and a checkpoint every
    ``checkpoint_steps`` steps (never if None).

    With a ``fixed_dt`` the steps are counted from an origin: t = origin_time + (step - origin_step) dt. Otherwise the
    caller passes each step size to `leap`, which shortens steps so that they end exactly at output times.
    """

    end: float
    fixed_dt: float | None
    output_time: float | None = None
    output_steps: int | None = None
    diagnostic_steps: int | None = None
    checkpoint_steps: int | None = None
    origin_step: int = 0
    origin_time: float = 0.0

    def going_on(self, clock: Clock, anew: bool) -> tuple[Schedule, Clock]:
        """(schedule, clock) of a run that continues at ``clock``. Steps are counted anew from here if the earlier ones
        had another size: for fixed steps if the times do not match, otherwise if ``anew`` is true."""
        here = replace(clock, base_step=clock.step, base_time=clock.time)
        if self.fixed_dt is None:
            return self, (replace(here, measured_dt=0.0) if anew else clock)
        same = replace(self, origin_step=clock.base_step, origin_time=clock.base_time)
        if abs(same.time_of(clock.step) - clock.time) <= ROUND * self.fixed_dt:
            return same, replace(clock, time=same.time_of(clock.step))
        return replace(self, origin_step=clock.step, origin_time=clock.time), here

    @property
    def total_steps(self) -> int | None:
        """Number of steps of the whole run; None if the step size is controlled during the run."""
        if self.fixed_dt is None:
            return None
        return max(1, self.origin_step + math.ceil((self.end - self.origin_time) / self.fixed_dt - ROUND))

    def steps_of(self, dt: float) -> int:
        """The number of steps in the whole run if each interval between outputs is divided into steps of at most
        ``dt``."""
        every = min(self.output_time or self.end, self.end)
        intervals = math.floor(self.end / every + ROUND)
        rest = max(0.0, self.end - intervals * every)
        return intervals * max(1, math.ceil(every / dt - ROUND)) + (math.ceil(rest / dt) if rest > ROUND * every else 0)

    def snapshots(self, steps: int | None) -> int | None:
        """The number of snapshots of a run of ``steps`` steps (None: not known), the initial and the final one
        included. None if the result depends on an unknown number of steps."""
        if self.output_steps is None and self.output_time is None:
            return 2
        if self.output_time is not None:
            known = math.ceil(self.end / self.output_time - ROUND) + 1
            return known if steps is None else min(known, steps + 1)
        assert self.output_steps is not None
        return None if steps is None else 1 + math.ceil(steps / self.output_steps)

    def finished(self, clock: Clock) -> bool:
        """Whether the run has reached its end."""
        return clock.step >= self.total_steps if self.total_steps is not None else clock.time >= self.end

    def is_on_course(self, end: Clock) -> bool:
        """Whether a run with a later end also passes through the clock ``end``. It does unless a step was shortened
        only to land there."""
        if self.fixed_dt is not None:
            return not self._last_differs()
        return self.output_time is not None and end.time == round(end.time / self.output_time) * self.output_time

    def time_of(self, step: int) -> float:
        """The time after ``step`` steps of fixed size; exactly ``end`` after the last one."""
        assert self.fixed_dt is not None and self.total_steps is not None
        return self.end if step >= self.total_steps else self._counted(step)

    def _counted(self, step: float) -> float:
        """Time after ``step`` steps of fixed size, ignoring the end of the run."""
        assert self.fixed_dt is not None
        return self.origin_time + (step - self.origin_step) * self.fixed_dt

    def next_output_time(self, time: float) -> float:
        """The first time after ``time`` at which output is due, or the end of the run."""
        if self.output_time is None:
            return self.end
        number = math.floor(time / self.output_time + ROUND) + 1
        if number * self.output_time <= time:  # the quotient of large numbers may be rounded down
            number += 1
        due = number * self.output_time
        return due if due < self.end - ROUND * self.output_time else self.end

    def output_step(self, number: int) -> int:
        """The step nearest to the output time ``number`` (0, 1, ...). The step size must be fixed."""
        assert self.output_time is not None
        return self.step_near(number * self.output_time)

    def step_near(self, time: float) -> int:
        """The step nearest to ``time``. The step size must be fixed."""
        assert self.fixed_dt is not None
        return self.origin_step + round((time - self.origin_time) / self.fixed_dt)

    def is_output(self, clock: Clock) -> bool:
        """Whether a snapshot is due at ``clock``."""
        if clock.step == 0 or self.finished(clock):
            return True
        if self.output_steps is not None:
            return clock.step % self.output_steps == 0
        if self.output_time is None:
            return False
        if self.fixed_dt is not None:
            number = round(self._counted(clock.step) / self.output_time)
            return any(self.output_step(m) == clock.step for m in (number - 1, number, number + 1))
        # A step was shortened to end here, and the base of the clock was set here.
        landed = clock.base_step == clock.step and clock.base_time == clock.time
        return landed and clock.time == self.next_output_time(clock.time - 0.5 * self.output_time)

    def is_diagnostic(self, clock: Clock) -> bool:
        """Whether a row of diagnostics is due at ``clock``."""
        if self.diagnostic_steps is None:
            return self.is_output(clock)
        return clock.step % self.diagnostic_steps == 0 or self.finished(clock)

    def is_checkpoint(self, clock: Clock) -> bool:
        """Whether a checkpoint is due at ``clock``."""
        return self.checkpoint_steps is not None and clock.step > 0 and clock.step % self.checkpoint_steps == 0

    def steps_to_event(self, clock: Clock) -> int | None:
        """The number of steps until the next event that is due at a known step; None if there is none. Output by time
        counts only if the step size is fixed."""
        counts = [n for n in (self.output_steps, self.diagnostic_steps, self.checkpoint_steps) if n is not None]
        waits = [n - clock.step % n for n in counts]
        if self.fixed_dt is not None and self.output_time is not None:
            waits.append(self._steps_to_output(clock.step))
        return min(waits, default=None)

    def _steps_to_output(self, step: int) -> int:
        """With a fixed step size: number of steps until the next output that is due by time."""
        assert self.output_time is not None and self.fixed_dt is not None
        if self.output_time <= self.fixed_dt:
            return 1
        number = math.floor(self._counted(step + 0.5) / self.output_time) - 1
        while self.output_step(number) <= step:
            number += 1
        return self.output_step(number) - step

    def leap(self, clock: Clock, dt: float, most: int) -> Leap:
        """The next equal steps: up to the next event, and at most ``most``. ``dt`` is the step size if the schedule has
        no fixed one. A step that would pass the next output time or the end is shortened, and is then a leap of its
        own."""
        wait = self.steps_to_event(clock)
        most = max(1, most if wait is None else min(most, wait))
        if self.fixed_dt is not None:
            return self._fixed(clock, most)
        target = self.next_output_time(clock.time)
        done = clock.step - clock.base_step
        needed = max(1, math.ceil((target - clock.base_time) / dt - ROUND))
        if done < needed - 1:
            n = min(most, needed - 1 - done)
            time = clock.base_time + (done + n) * dt
            return Leap(StepRange(clock.base_time, done, dt, n), replace(clock, step=clock.step + n, time=time))
        last = target - clock.time
        after = replace(clock, step=clock.step + 1, time=target, base_step=clock.step + 1, base_time=target)
        return Leap(StepRange(clock.time, 0, last, 1), after)

    def _fixed(self, clock: Clock, most: int) -> Leap:
        assert self.fixed_dt is not None and self.total_steps is not None
        start = self._counted(self.total_steps - 1)
        equal = self.total_steps - self._last_differs()
        if clock.step < equal:
            n = min(most, equal - clock.step)
            after = replace(clock, step=clock.step + n, time=self.time_of(clock.step + n))
            return Leap(StepRange(self.origin_time, clock.step - self.origin_step, self.fixed_dt, n), after)
        return Leap(StepRange(start, 0, self.end - start, 1), replace(clock, step=self.total_steps, time=self.end))

    def _last_differs(self) -> bool:
        """Whether the last fixed step is shorter than the others."""
        assert self.fixed_dt is not None and self.total_steps is not None
        start = self._counted(self.total_steps - 1)
        return abs(self.end - start - self.fixed_dt) > ROUND * self.fixed_dt

    def measured(self, clock: Clock, dt: float) -> Clock:
        """The clock with its base moved to the present step, and ``dt`` as the step size measured now."""
        return replace(clock, base_step=clock.step, base_time=clock.time, measured_step=clock.step, measured_dt=dt)
