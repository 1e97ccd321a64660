"""Means over time of arrays that change from step to step:

    mean = Σ_i (t_i - t_(i-1)) v_i / (t_n - t_0),

v_i being the values after step i, and t_0 the time at which the last mean ended.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


class TimeAverage:
    """The means of arrays by name, from the time ``since`` on. Sums are float64, in the arrays' shape."""

    def __init__(self, names: list[str], shape: tuple[int, ...], since: float) -> None:
        self.sums = {name: np.zeros(shape) for name in names}
        self.since = self.now = since

    def go_on(self, sums: Mapping[str, np.ndarray], since: float, now: float) -> None:
        """Continue with the sums from the time ``since`` to ``now``."""
        self.sums, self.since, self.now = dict(sums), since, now

    def add(self, values: Mapping[str, np.ndarray], time: float) -> None:
        """Add the values after a step that ends at ``time``."""
        for name, total in self.sums.items():
            total += np.multiply(values[name], time - self.now, dtype=np.float64)
        self.now = time

    def take(self) -> dict[str, np.ndarray]:
        """The means up to now, float64; the next ones begin here."""
        means = {name: total / (self.now - self.since) for name, total in self.sums.items()}
        for total in self.sums.values():
            total[...] = 0.0
        self.since = self.now
        return means
