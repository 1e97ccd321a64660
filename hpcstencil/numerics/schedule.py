"""The schedule of a run: the sequence of time steps, and the steps at which output, diagnostics and checkpoints are due.

All processes do the same float64 arithmetic here, so they take the same steps, independent of the decomposition. Times
are in the time unit of the input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

ROUND = 1e-9  # a smaller fraction of a step is treated as rounding
FARTHEST = 2.0**53  # steps; no run takes as many


@dataclass(frozen=True)
class Clock:
    """The current step and time of a run.

    The time is computed from a base, t = base_time + (step - base_step) dt, so that rounding errors do not add up.
    ``measured_dt`` is a step size that depends on the solution, computed at ``measured_step``; it is 0 before the first
    such computation. With a tolerance it is the step size to try next, ``last_error`` is the error of the previous step
    divided by the tolerance, and ``rejected`` counts rejected steps.
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
    """The common clock of ensemble members with individual step sizes.

    Its time is the time of the slowest member, and its numbers of steps and of rejected steps are the sums over all. If all
    members have just reached the same output time, the base is the current step. Otherwise ``base_step`` is -1, so that
    `is_output` does not take the clock for one that has reached an output time.
    """
    time, step = min(clock.time for clock in clocks), sum(clock.step for clock in clocks)
    landed = all(clock.time == clock.base_time == time for clock in clocks)
    rejected = sum(clock.rejected for clock in clocks)
    return Clock(step, time, step if landed else -1, time, rejected=rejected)


class StepRange(NamedTuple):
    """``count`` equal steps: step i = 0 .. count - 1 goes from t = base_time + (first + i) dt to t + dt.

    Times and ``dt`` are float64; ``first`` and ``count`` are integers. Each is a number, possibly traced by JAX, or an
    array of shape (members,) if the members of an ensemble have individual step sizes.
    """

    base_time: Any
    first: Any
    dt: Any
    count: Any

    def part(self, done: Any, count: Any) -> StepRange:
        """The ``count`` steps that follow the first ``done`` steps of this range."""
        return self._replace(first=self.first + done, count=count)

    @property
    def start(self) -> Any:
        """The time at which the first step starts."""
        return self.base_time + self.first * self.dt


def steps_to_reach(time: float, clock: Clock, dt: float) -> int:
    """The least number of steps of size ``dt``, at least 1, after which a run at ``clock`` has reached or passed
    ``time``."""
    done = clock.step - clock.base_step
    steps = max(1, math.ceil((time - clock.base_time) / dt) - done)
    while steps > 1 and clock.base_time + (done + steps - 1) * dt >= time:
        steps -= 1
    return steps if clock.base_time + (done + steps) * dt >= time else steps + 1


@dataclass(frozen=True)
class Leap:
    """Consecutive equal ``steps`` without an event in between, and the clock ``after`` them. One call of the compiled
    program takes them."""

    steps: StepRange
    after: Clock

    def multiples(self, every: int, with_last: bool = True) -> range:
        """The numbers of steps of the run that these steps reach, and that ``every`` divides; not that of the last state
        unless ``with_last``."""
        before = self.after.step - self.steps.count
        return range((before // every + 1) * every, self.after.step + with_last, every)

    def time_of(self, step: int) -> float:
        """The time after a number of steps of the run, which these steps reach."""
        if step == self.after.step:
            return self.after.time
        return float(self.steps.part(step - self.after.step + self.steps.count, 0).start)


@dataclass(frozen=True)
class Schedule:
    """The schedule of a run that ends at the time ``end``.

    Output is due at the start, at the end, and at every multiple of the time ``output_time`` or every ``output_steps``
    steps. Diagnostics are due every ``diagnostic_steps`` steps, or with the output if that is None; checkpoints every
    ``checkpoint_steps`` steps, or never if that is None.

    With a ``fixed_dt``, times are counted from an origin, t = origin_time + (step - origin_step) dt, and output is
    written at the steps nearest to the output times. Otherwise the caller passes each step size to `leap`, which
    shortens steps so that they end exactly at output times.
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
        """The (schedule, clock) of a run that continues at ``clock``, for example from a checkpoint.

        If the earlier steps had another size, steps are counted from here. For fixed steps this is found by comparing
        times; otherwise the caller sets ``anew``.
        """
        here = replace(clock, base_step=clock.step, base_time=clock.time)
        if self.fixed_dt is None:
            return self, (replace(here, measured_dt=0.0) if anew else clock)
        same = replace(self, origin_step=clock.base_step, origin_time=clock.base_time)
        if abs(same.time_of(clock.step) - clock.time) <= ROUND * self.fixed_dt:
            return same, replace(clock, time=same.time_of(clock.step))
        return replace(self, origin_step=clock.step, origin_time=clock.time), here

    @property
    def total_steps(self) -> int | None:
        """The step number at the end of the run; None if the step size is not fixed."""
        if self.fixed_dt is None:
            return None
        return max(1, self.origin_step + math.ceil((self.end - self.origin_time) / self.fixed_dt - ROUND))

    def steps_of(self, dt: float) -> int:
        """The number of steps of the whole run if each interval between outputs is divided into equal steps of at most
        ``dt``."""
        every = min(self.output_time or self.end, self.end)
        intervals = math.floor(self.end / every + ROUND)
        rest = max(0.0, self.end - intervals * every)
        return intervals * max(1, math.ceil(every / dt - ROUND)) + (math.ceil(rest / dt) if rest > ROUND * every else 0)

    def snapshots(self, steps: int | None) -> int | None:
        """The number of snapshots of a run of ``steps`` steps, including the initial and the final one.

        ``steps`` is None if it is not known in advance; the result is None if it depends on that number.
        """
        if self.output_steps is None and self.output_time is None:
            return 2
        if self.output_time is not None:
            if self.total_steps is not None:
                return self.records(self.output_time, self.total_steps - 1) + 2
            known = math.ceil(self.end / self.output_time - ROUND) + 1
            return known if steps is None else min(known, steps + 1)
        assert self.output_steps is not None
        return None if steps is None else 1 + math.ceil(steps / self.output_steps)

    def records(self, every: float, last: int) -> int:
        """The number of steps from 1 to ``last`` that are nearest to a multiple of the time ``every``. The step size must be
        fixed."""
        assert self.fixed_dt is not None
        if every <= self.fixed_dt:
            return last
        number = math.floor(self._counted(last + 0.5) / every) + 1
        while number and self.step_near(number * every) > last:
            number -= 1
        return number

    def finished(self, clock: Clock) -> bool:
        """Whether the run has reached its end."""
        return clock.step >= self.total_steps if self.total_steps is not None else clock.time >= self.end

    def is_on_course(self, end: Clock) -> bool:
        """Whether a run with a later end would also pass through the clock ``end`` of a finished run.

        It would, unless the last step was shortened only to end there.
        """
        if self.fixed_dt is not None:
            return not self._last_differs()
        return self.output_time is not None and end.time == round(end.time / self.output_time) * self.output_time

    @property
    def counts_from_0(self) -> bool:
        """Whether step 0 is the state at t = 0 also for times of fixed steps: the step size has not changed."""
        return self.origin_step == 0 and self.origin_time == 0.0

    def time_of(self, step: int) -> float:
        """The time after ``step`` steps of fixed size; exactly ``end`` after the last step."""
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
        """Return the step nearest to the time ``number * output_time``, for 0, 1, ...; the step size must be fixed.

        The result is not limited to the last step of the run.
        """
        assert self.output_time is not None
        return self.step_near(number * self.output_time)

    def step_near(self, time: float) -> int:
        """The step nearest to ``time``. The step size must be fixed.

        A last step that is shortened does not come near a time after the end.
        """
        assert self.fixed_dt is not None
        step = self.origin_step + round(min((time - self.origin_time) / self.fixed_dt, FARTHEST))
        return step + (step == self.total_steps and time > (1 + ROUND) * self.end and self._last_differs())

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
        """The number of steps until the next event whose step is known; None if there is none.

        Events are outputs and checkpoints. Output by time counts only if the step size is fixed.
        """
        counts = [n for n in (self.output_steps, self.checkpoint_steps) if n is not None]
        waits = [n - clock.step % n for n in counts]
        if self.fixed_dt is not None and self.output_time is not None:
            waits.append(self._steps_to_output(clock.step))
        return min(waits, default=None)

    def _steps_to_output(self, step: int) -> int:
        """The number of steps until the next output by time. The step size must be fixed."""
        assert self.output_time is not None and self.fixed_dt is not None
        if self.output_time <= self.fixed_dt:
            return 1
        number = math.floor(self._counted(step + 0.5) / self.output_time) - 1
        while self.output_step(number) <= step:
            number += 1
        return self.output_step(number) - step

    def leap(self, clock: Clock, dt: float, most: int) -> Leap:
        """The steps from ``clock`` to the next event, at most ``most`` of them, all of equal size.

        ``dt`` is the step size if the schedule has no fixed one. A step that would pass the end, or an output time if
        the step size is not fixed, is shortened and returned as a leap of one step.
        """
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
        """`leap` for a fixed step size: up to ``most`` equal steps, or the last step if its size differs."""
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
        """The clock with its base moved to the current step, and ``dt`` as the step size computed there."""
        return replace(clock, base_step=clock.step, base_time=clock.time, measured_step=clock.step, measured_dt=dt)
