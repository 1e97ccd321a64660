"""Adaptive steps: an embedded pair estimates the local error, and a PI controller chooses the step.

err = sqrt(mean((e / (tol + tol max(|u(t)|, |u(t + dt)|)))²)) over all cells and fields. A step is accepted if err <= 1,
and the next one is dt * 0.9 err^(-0.7/k) err_before^(0.4/k), with k one more than the order of the estimate (Hairer,
Nørsett & Wanner, "Solving Ordinary Differential Equations I", 2nd ed. (1993), eq. (II.4.11); Hairer & Wanner, II, 2nd
ed. (1996), eq. (IV.2.43)). The mean is summed as integers (`reductions`), so the sequence of steps is the same for
every decomposition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from hpcstencil.backends.backend import Attempt, Reductions, Steps
from hpcstencil.distributed.halo import Fields
from hpcstencil.numerics.integrators import Method
from hpcstencil.numerics.schedule import Clock, Leap, Schedule
from hpcstencil.problem.problem import Problem
from hpcstencil.symbolic.expressions import Field
from hpcstencil.validation.errors import NumericsError

SAFETY, LEAST_FACTOR, MOST_FACTOR = 0.9, 0.2, 5.0
LEAST_ERROR = 1e-4  # lower bound of the previous error in the controller: one lucky step is not trusted
HOPELESS = 1e100  # bound of the squared error in units of the tolerance: beyond it the step is far too long anyway
FIRST_FRACTION = 0.01  # first step, as a fraction of the time in which the solution changes by its own size
COLLAPSED = 1e-15  # of the end time: a shorter step makes no progress


def factor(method: Method, error: float, before: float) -> float:
    """The factor by which the step may grow, or must shrink, after a step with this ``error`` that follows one with the
    error ``before``."""
    if not math.isfinite(error):
        return LEAST_FACTOR
    k = method.error_order + 1
    wished = SAFETY * max(error, LEAST_ERROR**2) ** (-0.7 / k) * before ** (0.4 / k)
    return min(MOST_FACTOR, max(LEAST_FACTOR, wished))


@dataclass(frozen=True)
class Control:
    """The control of adaptive steps. ``changes`` reduces the time derivatives and the fields. ``errors`` reduces
    `Problem.errors` of each field, which an ``attempt`` returns under the field's name."""

    problem: Problem
    attempt: Attempt
    errors: Reductions
    changes: Reductions
    schedule: Schedule

    @staticmethod
    def of(problem: Problem, steps: Steps) -> Control:
        """The control for a problem with a tolerance, which attempts the ``steps`` of its backend."""
        fields = tuple(map(Field, problem.trees))
        return Control(
            problem=problem,
            attempt=steps.attempt(),
            errors=steps.reductions({}, fields),
            changes=steps.reductions(problem.needs(problem.rates()), (*problem.trees.values(), *fields)),
            schedule=problem.schedule(),
        )

    def step(self, fields: Fields, clock: Clock) -> tuple[Fields, Clock]:
        """Take the next step that meets the tolerance; returns the fields and the clock after it. The given fields are
        kept.

        Raises NumericsError, on all processes, if the step collapses.
        """
        problem, end = self.problem, self.problem.config.time.end
        clock = self.begun(fields, clock)
        dt, rejected = clock.measured_dt, clock.rejected
        while True:
            if dt < COLLAPSED * end or clock.time + dt == clock.time:
                raise NumericsError(
                    f"the step collapsed to {dt:.3g} at step {clock.step}, t = {clock.time:g}, after {rejected} rejected "
                    f"ones: no step meets time.tolerance = {problem.config.time.tolerance:g}, as where a solution blows up or "
                    "jumps; allow a larger tolerance, or look at the equation there"
                )
            leap = self.tried(clock, dt)
            after, errors = self.attempt(fields, problem.parameters, clock.time, leap.steps.dt)
            err = self.error(errors)
            wished = factor(problem.method, err, max(clock.last_error, LEAST_ERROR))
            if err <= 1.0:
                growth = min(wished, 1.0) if rejected > clock.rejected else wished
                # A step cut short to land on an output says little about the next.
                proposed = max(dt, growth * leap.steps.dt) if leap.steps.dt < dt else growth * dt
                return after, replace(leap.after, measured_dt=proposed, last_error=err, rejected=rejected)
            rejected += 1
            dt = leap.steps.dt * min(wished, SAFETY)

    def tried(self, clock: Clock, dt: float) -> Leap:
        """The step to attempt, given the wish for ``dt``: shorter if that would pass the next output or the end."""
        return self.schedule.leap(replace(clock, base_step=clock.step, base_time=clock.time), dt, 1)

    def error(self, errors: Fields) -> float:
        """The estimated error in units of the tolerance, from the result of an attempt; not finite if any cell's is
        not."""
        _, largest, broken = self.errors.extremes(errors, self.problem.parameters, 0.0)
        if broken.any() or largest.max() > HOPELESS:
            return math.inf
        sums = self.errors.sums(errors, self.problem.parameters, 0.0, largest)
        return math.sqrt(math.fsum(sums) / (self.errors.cells * len(sums)))

    def begun(self, fields: Fields, clock: Clock) -> Clock:
        """The clock with the next step to attempt; a clock that has none gets the first one."""
        return clock if clock.measured_dt else replace(clock, measured_dt=self.first_step(fields, clock.time))

    def first_step(self, fields: Fields, time: float) -> float:
        """A first step. If it is too short, the controller lengthens it fivefold per step."""
        end = self.problem.config.time.end
        low, high, broken = self.changes.extremes(fields, self.problem.parameters, time)
        slopes, sizes = np.split(np.maximum(np.abs(low), np.abs(high)), 2)
        if broken.any() or not slopes.any():
            return 1e-6 * end
        change, size = (slopes / (1 + sizes)).max(), (sizes / (1 + sizes)).max()
        return float(min(end, FIRST_FRACTION * max(size, 1e-5) / change))
