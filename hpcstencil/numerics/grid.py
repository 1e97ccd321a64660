"""A uniform, cell-centred grid: x_i = lower + (i + 1/2) dx, i = 0 .. n - 1."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

AXES = ("x", "y", "z")


@dataclass(frozen=True)
class Grid:
    """The global grid: ``shape`` cells between the corners ``lower`` and ``upper``, each with one entry per axis.
    Lengths are in the input's unit."""

    shape: tuple[int, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the axes ("x", "y", "z"), in the order in which arrays are indexed."""
        return AXES[: self.ndim]

    @property
    def spacing(self) -> tuple[float, ...]:
        """The width of a cell per axis, in the input's unit of length."""
        return tuple((b - a) / n for n, a, b in zip(self.shape, self.lower, self.upper, strict=True))

    @property
    def cells(self) -> int:
        """Number of cells in the whole grid."""
        return math.prod(self.shape)

    @property
    def cell_volume(self) -> float:
        """The volume of one cell (area in 2-D, length in 1-D), in the input's unit."""
        return math.prod(self.spacing)

    def faces(self, axis: int, count: int) -> np.ndarray:
        """Coordinates of the first ``count`` faces across one axis, starting at the lower boundary: float64 of shape
        (count,), in the input's unit of length."""
        return self.lower[axis] + np.arange(count) * self.spacing[axis]

    def centres(self, axis: int, start: int = 0, stop: int | None = None, periodic: bool = False) -> np.ndarray:
        """Coordinates of the cell centres ``start`` to ``stop - 1`` along one axis (default: all of them): float64 of
        shape (stop - start,), in the input's unit of length.

        Indices may lie outside the grid. On a ``periodic`` axis they wrap around, so that a ghost cell has exactly the
        coordinate of the cell it copies; on other axes the coordinates simply continue.
        """
        index = np.arange(start, self.shape[axis] if stop is None else stop)
        if periodic:
            index %= self.shape[axis]
        return self.lower[axis] + (index + 0.5) * self.spacing[axis]
