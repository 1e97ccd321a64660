"""The steps of a run that a reverse sweep reverses: their times and sizes, which derivatives take as constants."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hpcstencil.numerics.schedule import Clock, Schedule, StepRange
from hpcstencil.problem.problem import Problem
from hpcstencil.problem.stability import cfl_step


@dataclass(frozen=True)
class RunSteps:
    """The steps of a run from t = 0 to the time ``end``, in ``ranges`` of equal steps."""

    ranges: tuple[StepRange, ...]
    end: float

    @property
    def total(self) -> int:
        """The number of steps."""
        return self.starts[-1]

    @cached_property
    def starts(self) -> list[int]:
        """The number of steps before each range, and that of all steps."""
        return [0, *itertools.accumulate(int(steps.count) for steps in self.ranges)]

    def between(self, first: int, last: int) -> Iterator[StepRange]:
        """Yield the steps from number ``first`` to ``last``, in ranges of equal size."""
        for start, steps in zip(self.starts, self.ranges, strict=False):
            here, there = max(first, start), min(last, start + steps.count)
            if here < there:
                yield steps.part(here - start, there - here)

    @property
    def times(self) -> np.ndarray:
        """The times before the first step and after each step: float64 of shape (total + 1,)."""
        starts = [steps.base_time + (steps.first + np.arange(steps.count)) * steps.dt for steps in self.ranges]
        return np.concatenate([*starts, [self.end]])

    def time_of(self, step: int) -> float:
        """The time after a number of steps."""
        return self.end if step >= self.total else float(next(self.between(step, step + 1)).start)


def added_at(problem: Problem, run: RunSteps) -> range:
    """The numbers of steps after which the state adds to the objective."""
    every = problem.config.objective.every_steps
    return range(run.total, run.total + 1) if every is None else range(0, run.total + 1, every)


def steps_of(problem: Problem) -> RunSteps:
    """The steps of a run, from `time.dt` or `time.cfl`; none if their sizes follow the solution."""
    time = problem.config.time
    if problem.step_follows_solution:
        return RunSteps((), time.end)
    schedule = Schedule(time.end, time.dt) if time.dt is not None else problem.schedule()
    dt = time.dt or cfl_step(problem, {})
    clock, ranges = Clock(), []
    while not schedule.finished(clock):
        leap = schedule.leap(clock, dt, 10**9)
        ranges.append(leap.steps)
        clock = leap.after
    return RunSteps(tuple(ranges), time.end)
