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
HOPELESS = 1e100  # a squared error, in units of the tolerance, above this counts as infinite
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

    Attributes
    ----------
    attempt
        Takes one step and estimates its error.
    errors
        Reduces `Problem.errors`, which an attempt returns by field name.
    changes
        Reduces the time derivatives and the fields, to estimate the size of the first step.
    schedule
        Shortens steps that would pass an output time or the end.
    """

    problem: Problem
    attempt: Attempt
    errors: Reductions
    changes: Reductions
    schedule: Schedule

    @staticmethod
    def of(problem: Problem, steps: Steps) -> Control:
        """Return the controller for a problem with a tolerance, from the ``steps`` of its backend."""
        fields = tuple(map(Field, problem.trees))
        return Control(
            problem=problem,
            attempt=steps.attempt(),
            errors=steps.reductions({}, fields),
            changes=steps.reductions(problem.needs(problem.rates()), (*problem.trees.values(), *fields)),
            schedule=problem.schedule(),
        )

    def step(self, fields: Fields, clock: Clock) -> tuple[Fields, Clock]:
        """Take the next step that meets the tolerance, and return the fields and the clock after it. Collective.

        The input fields are not overwritten. Raises NumericsError, on all processes, if the step size collapses.
        """
        problem, end = self.problem, self.problem.config.time.end
        clock = self.begun(fields, clock)
        dt, rejected = clock.measured_dt, clock.rejected
        while True:
            if dt < COLLAPSED * end or clock.time + dt == clock.time:
                raise NumericsError(
                    f"the step collapsed to {dt:.3g} at step {clock.step}, t = {clock.time:g}, after {rejected} rejected "
                    f"ones: no step meets time.tolerance = {problem.config.time.tolerance:g}, as happens where a solution "
                    "blows up or jumps; allow a larger tolerance, or check the equation there"
                )
            leap = self.tried(clock, dt)
            after, errors = self.attempt(fields, problem.parameters, clock.time, leap.steps.dt)
            err = self.error(errors)
            wished = factor(problem.method, err, max(clock.last_error, LEAST_ERROR))
            if err <= 1.0:
                growth = min(wished, 1.0) if rejected > clock.rejected else wished
                # A step that was shortened to land on an output says little about the size of the next.
                proposed = max(dt, growth * leap.steps.dt) if leap.steps.dt < dt else growth * dt
                return after, replace(leap.after, measured_dt=proposed, last_error=err, rejected=rejected)
            rejected += 1
            dt = leap.steps.dt * min(wished, SAFETY)

    def tried(self, clock: Clock, dt: float) -> Leap:
        """Return the step to attempt at ``clock``: of size ``dt``, or shorter if it would pass the next output or the end."""
        return self.schedule.leap(replace(clock, base_step=clock.step, base_time=clock.time), dt, 1)

    def error(self, errors: Fields) -> float:
        """Return the estimated error in units of the tolerance, equal on all processes. Collective.

        ``errors`` are those by field that an attempt returned. The result is infinite if an error is not finite in some cell.
        """
        _, largest, broken = self.errors.extremes(errors, self.problem.parameters, 0.0)
        if broken.any() or largest.max() > HOPELESS:
            return math.inf
        sums = self.errors.sums(errors, self.problem.parameters, 0.0, largest)
        return math.sqrt(math.fsum(sums) / (self.errors.cells * len(sums)))

    def begun(self, fields: Fields, clock: Clock) -> Clock:
        """Return the clock with the size of the next step to attempt, estimated from the fields if it has none. Collective."""
        return clock if clock.measured_dt else replace(clock, measured_dt=self.first_step(fields, clock.time))

    def first_step(self, fields: Fields, time: float) -> float:
        """Estimate the size of the first step to attempt at ``time``, equally on all processes. Collective.

        The estimate is cautious, because the controller can lengthen a short step up to fivefold per step.
        """
        end = self.problem.config.time.end
        low, high, broken = self.changes.extremes(fields, self.problem.parameters, time)
        slopes, sizes = np.split(np.maximum(np.abs(low), np.abs(high)), 2)
        if broken.any() or not slopes.any():
            return 1e-6 * end
        change, size = (slopes / (1 + sizes)).max(), (sizes / (1 + sizes)).max()
        return float(min(end, FIRST_FRACTION * max(size, 1e-5) / change))
