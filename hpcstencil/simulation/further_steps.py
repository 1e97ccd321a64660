"""Further steps of a compiled call, whose sizes follow the solution: each is chosen from the state that the call has reached.

A run then returns from compiled code to its event loop after many such steps, not after each.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from hpcstencil.numerics.schedule import Leap, Schedule, StepRange, steps_to_reach
from hpcstencil.problem.stability import cfl_steps
from hpcstencil.simulation.finite_check import FiniteCheck
from hpcstencil.simulation.simulation import ComposedSimulation

IsQuiet = Callable[[Leap], bool]  # whether nobody needs the states of these steps, in between or after them


class FurtherSteps:
    """The steps that a compiled call takes: those of ``leap``, and those chosen while it runs.

    ``clock`` is that of the state which the call has reached, and ``taken`` counts its steps, at most ``most``. The first state
    at or past the time ``until`` is the last one. No steps follow unless all are ``is_quiet``, nor if the backend cannot go on,
    or the sizes of steps do not follow the solution.
    """

    def __init__(
        self,
        simulation: ComposedSimulation,
        schedule: Schedule,
        finite: FiniteCheck,
        leap: Leap,
        most: int,
        until: float | None,
        is_quiet: IsQuiet | None,
    ) -> None:
        self.problem, self.schedule, self.finite = simulation.problem, schedule, finite
        self.clock, self.taken, self.most, self.until = leap.after, leap.steps.count, most, until
        self.is_quiet = is_quiet
        may = finite.recorder is not None and self.problem.calls_are_short and self.taken < most
        self.choosing = simulation.steps.choosing if may and is_quiet is not None and is_quiet(leap) else None
        self.error: BaseException | None = None

    @property
    def goes_on(self) -> bool:
        """Whether steps may follow in the call."""
        return self.choosing is not None

    def in_call(self) -> AbstractContextManager[None]:
        """Return a context for the compiled call that takes the first steps. Collective."""
        return nullcontext() if self.choosing is None else self.choosing(self._next_steps)

    def raise_error(self) -> None:
        """Raise the error that ended the call."""
        if self.error is not None:
            raise self.error

    def _next_steps(self) -> StepRange | None:
        """Return the steps that follow, see `backend.NextSteps`."""
        try:
            leap = self._next_leap()
        except BaseException as error:  # it cannot pass through compiled code
            self.error = error
            return None
        if leap is None:
            return None
        self.finite.expect(leap)
        self.clock, self.taken = leap.after, self.taken + leap.steps.count
        return leap.steps

    def _next_leap(self) -> Leap | None:
        """Return the steps that follow; None if there are none. Collective.

        A state that is not finite is the last one, and so is one without a stable step.
        """
        clock, left = self.clock, self.most - self.taken
        if left <= 0 or self.schedule.finished(clock) or (self.until is not None and clock.time >= self.until):
            return None
        low, high, broken = self.finite.taken()
        if broken.any():
            return None
        self.finite.last_finite = clock.step
        every = self.problem.config.time.dt_every
        if clock.step - clock.measured_step >= every:
            (dt,) = cfl_steps(self.problem, low, high)
            clock = self.schedule.measured(clock, dt)
        dt, left = clock.measured_dt, min(left, clock.measured_step + every - clock.step)
        if self.until is not None:
            left = min(left, steps_to_reach(self.until, clock, dt))
        leap = self.schedule.leap(clock, dt, left)
        return leap if self.is_quiet is not None and self.is_quiet(leap) else None
