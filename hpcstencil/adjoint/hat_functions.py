"""The hat functions of a time series, which distribute its derivative on its samples.

A time series is s(t) = Σ_k s_k φ_k(t), where the hat function φ_k is 1 at the time of sample k, falls linearly to 0 at the
samples beside it, and is 0 elsewhere. So with g(t) the derivative of the objective with respect to the value of s at a time t,
  ∂J/∂s_k = Σ g(t) φ_k(t)   over the times t at which the stages of all steps evaluate s.
Each g(t) is a sum over the cells of the grid. A field gradient.s.j adds up g φ_k per cell, step after step in reverse, as for a
number. When no earlier step reaches φ_k, the sum of the field over the grid is ∂J/∂s_k, and the field takes another k.

A step reaches few hat functions, so few fields take turns: the hat functions that any step reaches are numbered in order, and
field j takes those whose numbers are j modulo the number of fields. The sum of these hat functions is a time series again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hpcstencil.adjoint.run_steps import RunSteps
from hpcstencil.numerics.integrators import Method
from hpcstencil.symbolic.differentiate import times
from hpcstencil.symbolic.expressions import Node, Series
from hpcstencil.symbolic.numpy_evaluate import ROUNDED

FEW_ULPS = 1e-15  # relative error of a time; a weight that is smaller than that of its place is rounding


@dataclass(frozen=True)
class HatFunctions:
    """The hat functions of one time series in a run.

    Attributes
    ----------
    prefix
        The beginning of the names of the fields, such as "gradient.s".
    series
        The time series as a node of trees.
    reached
        The samples whose hat functions any step reaches, in order: int64 of shape (reached,). All others have the derivative 0.
    last
        Per step, the number of the last hat function that it or an earlier step reaches, as an index of ``reached``: int64 of
        shape (steps,). -1 if there is none.
    count
        The number of fields that take turns.
    """

    prefix: str
    series: Series
    reached: np.ndarray
    last: np.ndarray
    count: int

    @classmethod
    def of(cls, prefix: str, series: Series, method: Method, run: RunSteps) -> HatFunctions:
        """The hat functions of a series for the steps of a run by a method."""
        low, high = _samples_of_steps(series, method, run)
        marks = np.zeros(len(series.values), bool)
        for samples in (low, high):
            marks[samples[samples >= 0]] = True
        reached, number = np.flatnonzero(marks), np.cumsum(marks) - 1
        first = np.where(low >= 0, number[low], len(reached)).min(0, initial=len(reached))
        last = np.where(high >= 0, number[high], -1).max(0, initial=-1)
        first, last = np.minimum.accumulate(first[::-1])[::-1], np.maximum.accumulate(last)
        return cls(prefix, series, reached, last, int(max(1, (last - first).max(initial=0) + 1)))

    @property
    def fields(self) -> list[str]:
        """The names of the fields that take turns."""
        return [f"{self.prefix}.{j}" for j in range(self.count)]

    def spread(self, derivative: Node) -> dict[str, Node]:
        """What each field adds up, by name, from the derivative with respect to the value of the series."""
        found = {}
        for j, name in enumerate(self.fields):
            ones = np.zeros(len(self.series.values))
            ones[self.reached[j :: self.count]] = 1.0
            found[name] = times(derivative, replace(self.series, values=tuple(ones.tolist())))
        return found

    def complete(self, step: int) -> range:
        """The numbers of the hat functions that the step after this one reaches, but neither it nor an earlier one.

        For ``step`` -1 these are the hat functions that the first step reaches.
        """
        before = self.last[step] if step >= 0 else -1
        return range(int(before) + 1, int(self.last[step + 1]) + 1) if step + 1 < len(self.last) else range(0)


def _samples_of_steps(series: Series, method: Method, run: RunSteps) -> tuple[np.ndarray, np.ndarray]:
    """The samples below and above each time at which steps evaluate a series: two int64 arrays of shape (stages, steps).

    Both are the same sample if the other has a weight that is nothing but rounding. They are -1 outside the samples.
    """
    nodes = sorted({method.nodes[j] for stage in method.stages for j, _ in stage.slopes})
    begun = np.concatenate([s.base_time + (s.first + np.arange(s.count)) * s.dt for s in run.ranges])
    sizes = np.concatenate([np.full(s.count, s.dt) for s in run.ranges])
    place = np.stack([begun + c * sizes for c in nodes]) * (1.0 / series.dt)  # rounded as compiled code does
    last = len(series.values) - 1
    inside = (place >= 0) & (place <= last * (1 + ROUNDED))
    place = np.minimum(place, last)
    below = np.clip(np.floor(place), 0, last - 1).astype(np.int64)
    weight, rounding = place - below, FEW_ULPS * np.maximum(place, 1.0)
    low = np.where(1.0 - weight > rounding, below, below + 1)
    high = np.where(weight > rounding, below + 1, below)
    return np.where(inside, low, -1), np.where(inside, high, -1)
