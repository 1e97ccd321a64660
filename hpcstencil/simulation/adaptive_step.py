"""Adaptive steps: an embedded pair estimates the local error, and a PI controller chooses the step.

err = sqrt(mean((e / (tol + tol max(|u(t)|, |u(t + dt)|)))²)) over all cells and fields. A step is accepted if err <= 1,
and the next one is dt * 0.9 err^(-0.7/k) err_before^(0.4/k), with k one more than the order of the estimate (Hairer,
Nørsett & Wanner, "Solving Ordinary Differential Equations I", 2nd ed. (1993), eq. (II.4.11); Hairer & Wanner, II, 2nd
ed. (1996), eq. (IV.2.43)). The mean is a sum of integers (`error_norm`), so the sequence of steps is the same for
every decomposition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np

from hpcstencil.backends.backend import Attempt, NextAttempt, Reductions, Steps
from hpcstencil.distributed.halo import Fields
from hpcstencil.numerics.integrators import Method
from hpcstencil.numerics.schedule import Clock, Leap, Schedule, StepRange
from hpcstencil.problem.problem import Problem
from hpcstencil.symbolic.expressions import Field
from hpcstencil.validation.errors import NumericsError

# (clock of a state, step to attempt from there) -> whether it may follow without a return from the compiled call
MayFollow = Callable[[Clock, Leap], bool]

SAFETY, LEAST_FACTOR, MOST_FACTOR = 0.9, 0.2, 5.0
LEAST_ERROR = 1e-4  # lower bound of the previous error in the controller: one lucky step is not trusted
FIRST_FRACTION = 0.01  # first step, as a fraction of the time in which the solution changes by its own magnitude
COLLAPSED = 1e-15  # smallest step, as a fraction of the end time; a shorter one makes no progress


def factor(method: Method, error: float, before: float) -> float:
    """Return the factor for the next step size, between LEAST_FACTOR and MOST_FACTOR.

    ``error`` is the estimated error of the last step, and ``before`` that of the step before it, in units of the tolerance.
    """
    if not math.isfinite(error):
        return LEAST_FACTOR
    k = method.error_order + 1
    wished = SAFETY * max(error, LEAST_ERROR**2) ** (-0.7 / k) * before ** (0.4 / k)
    return min(MOST_FACTOR, max(LEAST_FACTOR, wished))


@dataclass(frozen=True)
class Control:
    """The controller of adaptive steps.

    The members of an ensemble have a clock each, and take their own steps: each takes those that it would take alone.

    Attributes
    ----------
    attempt
        Takes one step and estimates its error.
    attempt_of_member
        The same for one member of an ensemble; None if all members are attempted together (`Steps.attempt_of_member`).
    changes
        Reduces the time derivatives and the fields, to estimate the size of the first step.
    schedule
        Shortens steps that would pass an output time or the end.
    choosing
        Lets a call of ``attempt``, or of ``attempt_of_member`` if there is one, go on with further attempts. None if it
        cannot (`Steps.choosing_attempts`).
    room
        Fields that are not needed any more. The next attempt may store its results there.
    """

    problem: Problem
    attempt: Attempt
    changes: Reductions
    schedule: Schedule
    attempt_of_member: Attempt | None = None
    choosing: Callable[[NextAttempt], AbstractContextManager[None]] | None = None
    room: Fields = field(default_factory=dict, compare=False)

    @staticmethod
    def of(problem: Problem, steps: Steps) -> Control:
        """Return the controller for a problem with a tolerance, from the ``steps`` of its backend."""
        fields = tuple(map(Field, problem.trees))
        return Control(
            problem=problem,
            attempt=steps.attempt(),
            changes=steps.reductions(problem.needs(problem.right_hand_sides()), (*problem.trees.values(), *fields)),
            schedule=problem.schedule(),
            attempt_of_member=steps.attempt_of_member() if problem.members and steps.attempt_of_member else None,
            choosing=steps.choosing_attempts,
        )

    def of_members(self) -> list[Control]:
        """Return a controller for each member of an ensemble, which steps it as if it ran alone.

        Each member must have a step size (`begun`). All controllers share one room.
        """
        assert self.attempt_of_member is not None
        return [replace(self, problem=member, attempt=self.attempt_of_member) for member in self.problem.members]

    def step(self, fields: Fields, clock: Clock) -> tuple[Fields, Clock]:
        """Take the next step that meets the tolerance, and return the fields and the clock after it. Collective.

        Not for ensembles. The input fields must not be used again: the next step may overwrite them. Raises NumericsError,
        on all processes, if the step size collapses.
        """
        clocks, rejected = self.begun(fields, (clock,)), [False]
        while True:
            fields, clocks, rejected = self.attempted(fields, clocks, rejected, [True])
            if not rejected[0]:
                return fields, clocks[0]

    def steps(self, fields: Fields, clock: Clock, may_follow: MayFollow) -> tuple[Fields, Clock, BaseException | None]:
        """Take the next step that meets the tolerance, and those that ``may_follow``. Collective.

        Return the fields and the clock after them, and what ``may_follow`` has raised there. No step follows if the backend
        cannot go on within a call. Fields and errors are as in `step`, but if a step collapses after others were attempted,
        the state before it is returned.
        """
        if self.choosing is None:
            return (*self.step(fields, clock), None)
        (clock,) = self.begun(fields, (clock,))
        self.check_progress(clock)
        attempts = Attempts(self, clock, self.tried(clock, clock.measured_dt), may_follow)
        with self.choosing(attempts.next):
            after, _ = self.attempt(fields, self.problem.parameters, attempts.leap.steps, dict(self.room))
        self.room.clear()
        self.room.update(fields)
        return after, attempts.clock, attempts.error

    def attempted(
        self, fields: Fields, clocks: Sequence[Clock], rejected: Sequence[bool], active: Sequence[bool]
    ) -> tuple[Fields, tuple[Clock, ...], list[bool]]:
        """Attempt one step of each ``active`` member, and return the fields, the clocks and who was rejected. Collective.

        ``rejected`` says which members were rejected by the last attempt. A rejected member keeps its fields, and has a shorter
        step to try next. A single run counts as one member. Fields and errors are as in `step`.
        """
        for clock, on in zip(clocks, active, strict=True):
            if on:
                self.check_progress(clock)
        leaps = [
            self.tried(clock, clock.measured_dt) if on else Leap(StepRange(clock.time, 0, 0.0, 0), clock)
            for clock, on in zip(clocks, active, strict=True)
        ]
        these = leaps[0].steps
        if self.problem.members:
            these = StepRange(*(np.array(values) for values in zip(*(leap.steps for leap in leaps), strict=True)))
        after, errors = self.attempt(fields, self.problem.parameters, these, dict(self.room))
        self.room.clear()
        decided = [
            self.decided(clock, leap, float(error), before) if on else (clock, before)
            for clock, leap, error, before, on in zip(clocks, leaps, np.ravel(errors), rejected, active, strict=True)
        ]
        accepted = np.array([on and not no for (_, no), on in zip(decided, active, strict=True)])
        if accepted.all():
            fields, unused = after, fields
        elif accepted.any():
            fields, unused = chosen(accepted, after, fields), after
        else:
            unused = after
        self.room.update(unused)
        return fields, tuple(clock for clock, _ in decided), [no for _, no in decided]

    def has_collapsed(self, clock: Clock) -> bool:
        """Return whether the next step to attempt is too short to change the time."""
        dt = clock.measured_dt
        return dt < COLLAPSED * self.problem.config.time.end or clock.time + dt == clock.time

    def check_progress(self, clock: Clock) -> None:
        """Raise NumericsError if the next step to attempt is too short to change the time."""
        if not self.has_collapsed(clock):
            return
        dt, tolerance = clock.measured_dt, self.problem.config.time.tolerance
        raise NumericsError(
            f"the step collapsed to {dt:.3g} at step {clock.step}, t = {clock.time:g}, after {clock.rejected} rejected "
            f"ones: no step meets time.tolerance = {tolerance:g}, as happens where a solution "
            "blows up or jumps; allow a larger tolerance, or check the equation there"
        )

    def decided(self, clock: Clock, leap: Leap, error: float, rejected: bool) -> tuple[Clock, bool]:
        """Return (clock after an attempt, whether it was rejected), from its estimated ``error``.

        ``rejected`` says whether the attempt before it, at the same time, was rejected too.
        """
        dt, wished = clock.measured_dt, factor(self.problem.method, error, max(clock.last_error, LEAST_ERROR))
        if not error <= 1.0:
            return replace(clock, measured_dt=leap.steps.dt * min(wished, SAFETY), rejected=clock.rejected + 1), True
        growth = min(wished, 1.0) if rejected else wished
        # A step that was shortened to land on an output says little about the size of the next.
        proposed = max(dt, growth * leap.steps.dt) if leap.steps.dt < dt else growth * dt
        next_dt = min(proposed, self.problem.config.time.longest_step)
        return replace(leap.after, measured_dt=next_dt, last_error=error), False

    def tried(self, clock: Clock, dt: float) -> Leap:
        """Return the step to attempt at ``clock``: of size ``dt``, or shorter if it would pass the next output or the end."""
        return self.schedule.leap(replace(clock, base_step=clock.step, base_time=clock.time), dt, 1)

    def begun(self, fields: Fields, clocks: Sequence[Clock]) -> tuple[Clock, ...]:
        """Return the clocks, each with the size of the next step to attempt. Collective.

        A clock without one gets an estimate from the fields.
        """
        if all(clock.measured_dt for clock in clocks):
            return tuple(clocks)
        sizes = self.first_steps(fields, [clock.time for clock in clocks])
        return tuple(
            clock if clock.measured_dt else replace(clock, measured_dt=dt)
            for clock, dt in zip(clocks, sizes, strict=True)
        )

    def first_steps(self, fields: Fields, times: Sequence[float]) -> list[float]:
        """Estimate the size of the first step to attempt, of each member at its time, equally on all processes. Collective.

        The estimate is cautious, because the controller can lengthen a short step up to fivefold per step.
        """
        longest = self.problem.config.time.longest_step
        time = np.array(times) if self.problem.members else times[0]
        low, high, broken = self.changes.extremes(fields, self.problem.parameters, time)
        shape = 2, len(low) // 2, len(times)
        slopes, sizes = np.maximum(np.abs(low), np.abs(high)).reshape(shape)
        steps = []
        for slope, size, wrong in zip(slopes.T, sizes.T, broken.reshape(len(low), len(times)).T, strict=True):
            if wrong.any() or not slope.any():
                steps.append(1e-6 * longest)
                continue
            change, value = (slope / (1 + size)).max(), (size / (1 + size)).max()
            steps.append(float(min(longest, FIRST_FRACTION * max(value, 1e-5) / change)))
        return steps


class Attempts:
    """The steps that one call attempts: that of ``leap`` at ``clock``, and those chosen while it runs.

    ``clock`` is that of the last accepted state. ``error`` is what was raised in between; it cannot pass through compiled code.
    """

    def __init__(self, control: Control, clock: Clock, leap: Leap, may_follow: MayFollow) -> None:
        self.control, self.clock, self.leap, self.may_follow = control, clock, leap, may_follow
        self.rejected = False
        self.error: BaseException | None = None

    def next(self, error: float) -> tuple[bool, StepRange | None]:
        """Return (whether the last attempt is accepted, the next one), see `backend.NextAttempt`."""
        control = self.control
        try:
            self.clock, self.rejected = control.decided(self.clock, self.leap, error, self.rejected)
            if control.has_collapsed(self.clock):
                return not self.rejected, None  # the next call raises the error
            self.leap = control.tried(self.clock, self.clock.measured_dt)
            follows = self.rejected or self.may_follow(self.clock, self.leap)
        except BaseException as raised:
            self.error = raised
            follows = False
        return not self.rejected, self.leap.steps if follows else None


@jax.jit
def chosen(active: np.ndarray, new: Fields, old: Fields) -> Fields:
    """Return the new fields of the ``active`` members, of shape (members,), and the old fields of the others."""
    return {name: jnp.where(active, new[name], old[name]) for name in old}
