"""Means over time of arrays that change from step to step:

    mean = Σ_i dt_i v_i / Σ_i dt_i,

v_i being the values after a step of the size dt_i.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


class TimeAverage:
    """The means of arrays by name, all of one ``shape``. ``sums`` are the Σ dt v so far, float64, and ``duration`` the Σ dt."""

    def __init__(self, names: Sequence[str], shape: tuple[int, ...]) -> None:
        self.sums = {name: np.zeros(shape) for name in names}
        self.duration = 0.0

    def add(self, values: Mapping[str, np.ndarray], dt: float) -> None:
        """Add the values after a step of the size ``dt``."""
        for name, total in self.sums.items():
            total += np.multiply(values[name], dt, dtype=np.float64)
        self.duration += dt

    def take(self) -> dict[str, np.ndarray]:
        """The means of what was added, float64; the next ones begin here."""
        means = {name: total / self.duration for name, total in self.sums.items()}
        for total in self.sums.values():
            total[...] = 0.0
        self.duration = 0.0
        return means
