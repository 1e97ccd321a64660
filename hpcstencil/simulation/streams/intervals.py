"""Multiples of a time interval, at which callbacks and streams act. No step is shortened for them.

They act after the first step that reaches a multiple, or with a fixed dt after the step nearest to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpcstencil.numerics.schedule import ROUND, Clock, Schedule


@dataclass
class Multiples:
    """The multiples of the interval ``every``. The next one is ``number`` times ``every``; call `go_past` to set it."""

    every: float
    number: int = 0

    def go_past(self, schedule: Schedule, clock: Clock) -> None:
        """Move on to the next multiple after ``clock``."""
        self.number = max(self.number + 1, math.floor(clock.time / self.every + ROUND) + 1)
        if schedule.fixed_dt is not None:
            until = clock.time + 0.5 * schedule.fixed_dt  # multiples up to here are nearest to this step
            self.number = max(self.number, math.floor(until / self.every) - 1)
            while self._step(schedule) <= clock.step:
                self.number += 1

    def _step(self, schedule: Schedule) -> int:
        """Return the step nearest to the next multiple, for a fixed step size."""
        return schedule.step_near(self.number * self.every)

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
