"""Time averages of arrays:

    mean = Σ_i dt_i v_i / Σ_i dt_i

where v_i are the values after a step of size dt_i.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


class TimeAverage:
    """Time averages of arrays by name, all of the same ``shape``.

    ``sums`` are the float64 arrays Σ dt v so far, and ``duration`` is Σ dt.
    """

    def __init__(self, names: Sequence[str], shape: tuple[int, ...]) -> None:
        self.sums = {name: np.zeros(shape) for name in names}
        self.duration = 0.0

    def add(self, values: Mapping[str, np.ndarray], dt: float) -> None:
        """Add the values after a step of size ``dt``."""
        for name, total in self.sums.items():
            total += np.multiply(values[name], dt, dtype=np.float64)
        self.duration += dt

    def take(self, dtype: np.dtype) -> dict[str, np.ndarray]:
        """Return the averages since the last call, rounded to ``dtype``, and start new ones."""
        means = {name: (total / self.duration).astype(dtype) for name, total in self.sums.items()}
        for total in self.sums.values():
            total[...] = 0.0
        self.duration = 0.0
        return means
