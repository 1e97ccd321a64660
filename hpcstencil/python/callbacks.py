"""Callbacks of a simulation, as streams: the user's functions are called at multiples of a step count or of a time.

Callbacks never change the step sizes. A callback runs after the first step that reaches its time, or with a fixed dt
after the step nearest to it.
"""

from __future__ import annotations

from collections.abc import Callable

from hpcstencil.numerics.schedule import Clock
from hpcstencil.simulation.state import State
from hpcstencil.simulation.stepping import Stepping
from hpcstencil.simulation.streams.multiples import Multiples
from hpcstencil.simulation.streams.stream import Stream


class AtSteps(Stream):
    """Calls ``act`` after each step whose number is a multiple of ``every_steps``, but not at the first state."""

    def __init__(self, every_steps: int, act: Callable[[], None]) -> None:
        self.every_steps, self.act = every_steps, act

    def write(self, state: State) -> None:
        self.act()

    def begin(self, state: State) -> None:
        """The state is one that the program has seen."""


class AtTimes(Stream):
    """Calls ``act`` at the multiples of the time ``every`` after the clock of ``stepping``."""

    def __init__(self, every: float, act: Callable[[], None], stepping: Stepping) -> None:
        self.act, self.stepping, self.multiples = act, stepping, Multiples(every)
        self.multiples.go_past(stepping.schedule, stepping.clock)

    def steps_to_event(self, clock: Clock) -> int | None:
        return self.multiples.steps_to_next(self.stepping.schedule, clock)

    def time_of_event(self, clock: Clock) -> float | None:
        return self.multiples.time_of_next(self.stepping.schedule)

    def is_due(self, clock: Clock) -> bool:
        return self.multiples.are_reached(self.stepping.schedule, clock)

    def write(self, state: State) -> None:
        self.multiples.go_past(self.stepping.schedule, state.clock)
        self.act()

    def begin(self, state: State) -> None:
        """The state is one that the program has seen."""
