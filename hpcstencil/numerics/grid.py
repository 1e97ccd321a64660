"""A uniform, cell-centred grid: x_i = lower + (i + 1/2) dx, i = 0 .. n - 1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpcstencil.numerics.topology import Range

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


ROUND = 1e-9  # a smaller fraction of a cell is treated as rounding


@dataclass(frozen=True)
class Subgrid:
    """Chosen cells of the grid ``whole``: along each axis the ``shape`` cells ``first + i stride``, i = 0, 1 ..."""

    whole: Grid
    first: tuple[int, ...]
    stride: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        """Number of axes, those with a single cell included."""
        return self.whole.ndim

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes, in the order in which arrays are indexed."""
        return self.whole.axes

    @property
    def cells(self) -> int:
        """Number of chosen cells."""
        return math.prod(self.shape)

    @property
    def spacing(self) -> tuple[float, ...]:
        """The distance of chosen cells per axis, in the input's unit of length."""
        return tuple(dx * step for dx, step in zip(self.whole.spacing, self.stride, strict=True))

    @property
    def lower(self) -> tuple[float, ...]:
        """The lower corner of the whole grid."""
        return self.whole.lower

    @property
    def upper(self) -> tuple[float, ...]:
        """The upper corner of the whole grid."""
        return self.whole.upper

    def _chosen(self, axis: int) -> slice:
        first, step = self.first[axis], self.stride[axis]
        return slice(first, first + step * self.shape[axis], step)

    def centres(self, axis: int) -> np.ndarray:
        """Coordinates of the chosen cell centres along one axis, the same numbers as in the whole grid; float64."""
        return self.whole.centres(axis)[self._chosen(axis)]

    def faces(self, axis: int, count: int) -> np.ndarray:
        """Coordinates of the lower faces of the chosen cells across one axis, of which there are ``count``; float64."""
        return self.whole.faces(axis, self.whole.shape[axis])[self._chosen(axis)][:count]

    def part(self, block: Sequence[Range]) -> tuple[tuple[slice, ...], tuple[Range, ...]]:
        """The chosen cells in a ``block`` (global index range per axis of the whole grid): their slices of the block, and
        their index ranges in this subgrid. Either may be empty."""
        slices, ranges = [], []
        for (start, stop), first, step, count in zip(block, self.first, self.stride, self.shape, strict=True):
            low, high = (min(max(-(-(place - first) // step), 0), count) for place in (start, stop))
            own = first + low * step - start
            slices.append(slice(own, own + (high - low) * step, step) if high > low else slice(0, 0))
            ranges.append((low, high))
        return tuple(slices), tuple(ranges)


def chosen_cells(
    grid: Grid, region: Mapping[str, float | tuple[float, float]], stride: int | Sequence[int] = 1
) -> Subgrid:
    """The cells of the grid in a region, of which a ``stride`` leaves those whose global index is a multiple of it.

    ``region`` maps axes to (lower, upper), between which the centres of cells lie, ends included, or to one coordinate:
    the plane of cells that is nearest to it, the lower of two, whatever the stride. Axes may have no cells.
    """
    first, steps, shape = [], [], []
    given = (stride,) * grid.ndim if isinstance(stride, int) else tuple(stride)
    for axis, (name, n, a, dx) in enumerate(zip(grid.axes, grid.shape, grid.lower, grid.spacing, strict=True)):
        place = region.get(name, (grid.lower[axis], grid.upper[axis]))
        if isinstance(place, tuple):
            low = max(0, math.ceil((place[0] - a) / dx - 0.5 - ROUND))
            high = min(n - 1, math.floor((place[1] - a) / dx - 0.5 + ROUND))
            step = given[axis]
            low += -low % step
        else:
            low = high = min(max(math.ceil((place - a) / dx - 1.0 - ROUND), 0), n - 1)
            step = 1
        first.append(low)
        steps.append(step)
        shape.append(max(0, (high - low) // step + 1))
    return Subgrid(grid, tuple(first), tuple(steps), tuple(shape))
