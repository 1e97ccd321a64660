"""Callbacks of a simulation, implemented as streams: user functions called at multiples of a number of steps or a time.

Callbacks never change step sizes. A callback at a time runs after the first step that reaches the time, or with a fixed dt
after the step nearest to it.
"""

from __future__ import annotations

from collections.abc import Callable

from hpcstencil.numerics.schedule import Clock
from hpcstencil.python.process_state import THIS_PROCESS
from hpcstencil.simulation.state import State
from hpcstencil.simulation.stepping import Stepping
from hpcstencil.simulation.streams.intervals import Multiples
from hpcstencil.simulation.streams.stream import CallbackFailed, Stream
from hpcstencil.validation.errors import EnvironmentProblem


def called(function: Callable[[], None], name: str) -> None:
    """Call a user's function, named ``name``, on all processes together.

    Raises CallbackFailed if it raises an exception on all of them. See `ThisProcess.call` for exceptions on some only.
    """
    try:
        THIS_PROCESS.call(function, name)
    except EnvironmentProblem:  # the other processes may have none
        raise
    except BaseException as error:
        raise CallbackFailed(error) from error


class AtSteps(Stream):
    """Calls ``act`` after each step whose number is a multiple of ``every_steps``, but not before the first step."""

    def __init__(self, every_steps: int, act: Callable[[], None]) -> None:
        self.every_steps, self.act = every_steps, act

    def write(self, state: State) -> None:
        self.act()

    def begin(self, state: State) -> None:
        """Do nothing: the program has seen the first state already."""


class AtTimes(Stream):
    """Calls ``act`` at each multiple of the time ``every`` that lies after the current time of ``stepping``."""

    def __init__(self, every: float, act: Callable[[], None], stepping: Stepping) -> None:
        self.act, self.stepping, self.multiples = act, stepping, Multiples(every, to_end=True)
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
        """Do nothing: the program has seen the first state already."""
