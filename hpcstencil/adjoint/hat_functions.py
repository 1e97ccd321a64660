"""The hat functions of a time series, which distribute its derivative on its samples.

A time series is s(t) = Σ_k s_k φ_k(t), where the hat function φ_k is 1 at the time of sample k, falls linearly to 0 at the
samples beside it, and is 0 elsewhere. So with g(t) the derivative of the objective with respect to the value of s at a time t,
  ∂J/∂s_k = Σ g(t) φ_k(t)   over the times t at which the stages of all steps evaluate s.
Each g(t) is a sum over the cells of the grid. For each stage value y_j of a step, a field gradient.s.j has the terms of g at
its time. Every reverse step computes this field anew, and a reproducible sum adds it up after the step. Where several steps are
reversed together, step k has fields of its own, gradient.s.j.k.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hpcstencil.numerics.schedule import StepRange
from hpcstencil.symbolic.expressions import Series
from hpcstencil.symbolic.numpy_evaluate import samples_beside


@dataclass(frozen=True)
class HatFunctions:
    """The hat functions of one time series.

    Attributes
    ----------
    prefix
        The beginning of the names of the fields, such as "gradient.s".
    series
        The time series as a node of trees.
    nodes
        The stage values y_j whose time derivatives depend on the series: the nodes c_j by number j.
    """

    prefix: str
    series: Series
    nodes: Mapping[int, float]

    def fields(self, k: int = 0) -> dict[str, int]:
        """The fields of step k of those that are reversed together, each with the number j of its stage value."""
        return {f"{self.prefix}.{j}" + (f".{k}" if k else ""): j for j in self.nodes}

    def times(self, steps: StepRange) -> np.ndarray:
        """The times at which these steps evaluate the series, the last step first: float64 of shape (steps, nodes)."""
        begun = steps.base_time + (steps.first + np.arange(steps.count)[::-1]) * steps.dt
        return begun[:, None] + np.array([*self.nodes.values()]) * steps.dt

    def add(self, samples: np.ndarray, times: np.ndarray, derivatives: np.ndarray) -> None:
        """Add to the derivatives with respect to the ``samples``, in order, those with respect to values at some times.

        The last two are arrays of the same shape.
        """
        inside, first, weight = samples_beside(len(samples), self.series.dt, times.ravel())
        inner = np.where(inside, derivatives.ravel(), 0.0)
        places, terms = np.stack([first, first + 1], 1), np.stack([(1.0 - weight) * inner, weight * inner], 1)
        np.add.at(samples, places.ravel(), terms.ravel())
