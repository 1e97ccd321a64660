"""Time averages of arrays:

    mean = Σ_i dt_i v_i / Σ_i dt_i

where v_i are the values after a step of size dt_i.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


class TimeAverage:
    """Time averages of arrays by name, of every ``stride``-th element of arrays of the same ``shape``.

    ``whole`` are float64 arrays of this shape. ``sums``, views of those elements, are Σ dt v so far, and ``duration`` is Σ dt.
    """

    def __init__(self, names: Sequence[str], shape: Sequence[int], stride: Sequence[int]) -> None:
        self.whole = {name: np.zeros(shape) for name in names}
        chosen = tuple(slice(None, None, step) for step in stride)
        self.sums = {name: array[chosen] for name, array in self.whole.items()}
        self.duration = 0.0

    def add(self, values: Mapping[str, np.ndarray], dt: float) -> None:
        """Add the values after a step of size ``dt``."""
        for name, total in self.sums.items():
            total += np.multiply(values[name], dt, dtype=np.float64)
        self.duration += dt

    def take(self) -> dict[str, np.ndarray]:
        """Return the averages since the last call as float64 arrays, and start new ones."""
        means = {name: np.ascontiguousarray(total) / self.duration for name, total in self.sums.items()}
        for total in self.sums.values():
            total[...] = 0.0
        self.duration = 0.0
        return means
