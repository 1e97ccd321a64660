"""The multiples of a time, at which callbacks and streams act. No step is shortened for them.

Something acts after the first step that reaches its time, or with a fixed dt after the step nearest to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpcstencil.numerics.schedule import ROUND, Clock, Schedule


@dataclass
class Multiples:
    """The multiples of the time ``every``. The next one is ``number`` times ``every``; `go_past` chooses the first."""

    every: float
    number: int = 0

    def go_past(self, schedule: Schedule, clock: Clock) -> None:
        """Choose the next multiple after ``clock``."""
        self.number = max(self.number + 1, math.floor(clock.time / self.every + ROUND) + 1)
        if schedule.fixed_dt is not None:
            until = clock.time + 0.5 * schedule.fixed_dt  # multiples up to here are nearest to this step
            self.number = max(self.number, math.floor(until / self.every) - 1)
            while self._step(schedule) <= clock.step:
                self.number += 1

    def _step(self, schedule: Schedule) -> int:
        """With a fixed step size: the step nearest to the next multiple."""
        return schedule.step_near(self.number * self.every)

    def steps_to_next(self, schedule: Schedule, clock: Clock) -> int | None:
        """Steps from ``clock`` to the next multiple; None if steps differ in size."""
        return None if schedule.fixed_dt is None else max(1, self._step(schedule) - clock.step)

    def time_of_next(self, schedule: Schedule) -> float | None:
        """The time of the next multiple if steps differ in size, else None."""
        return (self.number - ROUND) * self.every if schedule.fixed_dt is None else None

    def are_reached(self, schedule: Schedule, clock: Clock) -> bool:
        """Whether the next multiple is reached at ``clock``."""
        if schedule.fixed_dt is not None:
            return clock.step >= self._step(schedule)
        return clock.time >= (self.number - ROUND) * self.every
