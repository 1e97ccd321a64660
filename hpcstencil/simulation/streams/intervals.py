"""Multiples of a time interval, at which callbacks and streams act. No step is shortened for them.

They act after the first step that reaches a multiple, or with a fixed dt after the step nearest to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpcstencil.numerics.schedule import ROUND, Clock, Schedule


@dataclass
class Multiples:
    """The multiples of the interval ``every``. The next one is ``number`` times ``every``; call `go_past` to set it.

    With ``to_end``, multiples up to the end of the run may be nearest to a shortened last step. Otherwise that step counts as
    if it had its full length, so that a run with a later end has the same multiples.
    """

    every: float
    number: int = 0
    to_end: bool = False

    def go_past(self, schedule: Schedule, clock: Clock) -> None:
        """Move on to the next multiple after ``clock``."""
        self.number = max(self.number + 1, math.floor(clock.time / self.every + ROUND) + 1)
        if schedule.fixed_dt is not None:
            left = schedule.end - clock.time
            step = min(left, schedule.fixed_dt) if self.to_end and left > 0 else schedule.fixed_dt
            until = clock.time + 0.5 * step  # multiples up to here are nearest to this step
            self.number = max(self.number, math.floor(until / self.every) - 1)
            few = max(1, int(0.1 * step / self.every))
            while self._step(schedule) <= clock.step:
                self.number += few

    def _step(self, schedule: Schedule) -> int:
        """Return the step nearest to the next multiple, for a fixed step size."""
        time, last = self.number * self.every, schedule.total_steps
        if self.to_end and last is not None:
            middle = 0.5 * (schedule.time_of(last - 1) + schedule.end)
            if middle < time <= schedule.end + ROUND * self.every:
                return last
        return schedule.step_near(time)

    def steps_to_next(self, schedule: Schedule, clock: Clock) -> int | None:
        """Return the steps from ``clock`` to the next multiple; None unless the step size is fixed."""
        return None if schedule.fixed_dt is None else max(1, self._step(schedule) - clock.step)

    def time_of_next(self, schedule: Schedule) -> float | None:
        """Return the time of the next multiple, less a tolerance for rounding; None if the step size is fixed."""
        return (self.number - ROUND) * self.every if schedule.fixed_dt is None else None

    def are_reached(self, schedule: Schedule, clock: Clock) -> bool:
        """Return whether the next multiple is reached at ``clock``."""
        if schedule.fixed_dt is not None:
            return clock.step >= self._step(schedule)
        return clock.time >= (self.number - ROUND) * self.every
