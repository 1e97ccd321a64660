"""Callbacks of a simulation, as streams: the user's functions are called at multiples of a step count or of a time.

Callbacks never change the step sizes. A callback runs after the first step that reaches its time, or with a fixed dt
after the step nearest to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from hpcstencil.numerics.schedule import ROUND, Clock
from hpcstencil.simulation.state import State
from hpcstencil.simulation.stepping import Stepping
from hpcstencil.simulation.streams.stream import Stream


class AtSteps(Stream):
    """Calls ``act`` after each step whose number is a multiple of ``every_steps``, but not at the first state."""

    def __init__(self, every_steps: int, act: Callable[[], None]) -> None:
        self.every_steps, self.act = every_steps, act

    def write(self, state: State) -> None:
        self.act()

    def begin(self, state: State) -> None:
        """The state is one that the program has seen."""


@dataclass
class AtTimes(Stream):
    """Calls ``act`` at the multiples of the time ``every`` after the clock of ``stepping``. The next one is ``number``
    times ``every``."""

    every: float
    act: Callable[[], None]
    stepping: Stepping
    number: int = 0

    def __post_init__(self) -> None:
        self._pass(self.stepping.clock)

    def _pass(self, clock: Clock) -> None:
        """Choose the next multiple after ``clock``."""
        self.number = max(self.number + 1, math.floor(clock.time / self.every + ROUND) + 1)
        if self.stepping.schedule.fixed_dt is not None:
            while self._step() <= clock.step:
                self.number += 1

    def _step(self) -> int:
        """With a fixed step size: the step nearest to the next multiple."""
        return self.stepping.schedule.step_near(self.number * self.every)

    def steps_to_event(self, clock: Clock) -> int | None:
        return None if self.stepping.schedule.fixed_dt is None else max(1, self._step() - clock.step)

    def time_of_event(self, clock: Clock) -> float | None:
        return (self.number - ROUND) * self.every if self.stepping.schedule.fixed_dt is None else None

    def is_due(self, clock: Clock) -> bool:
        if self.stepping.schedule.fixed_dt is not None:
            return clock.step >= self._step()
        return clock.time >= (self.number - ROUND) * self.every

    def write(self, state: State) -> None:
        self._pass(state.clock)
        self.act()

    def begin(self, state: State) -> None:
        """The state is one that the program has seen."""
