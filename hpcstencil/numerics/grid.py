"""Uniform, cell-centred grids, x_i = lower + (i + 1/2) dx with i = 0 .. n - 1, and selections of their cells."""

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

    All lengths are in the length unit of the input.
    """

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
        """The cell width dx per axis, in the length unit of the input."""
        return tuple((b - a) / n for n, a, b in zip(self.shape, self.lower, self.upper, strict=True))

    @property
    def cells(self) -> int:
        """Number of cells in the whole grid."""
        return math.prod(self.shape)

    @property
    def cell_volume(self) -> float:
        """The volume of one cell: an area in 2-D, a length in 1-D."""
        return math.prod(self.spacing)

    def faces(self, axis: int, count: int) -> np.ndarray:
        """Coordinates of the first ``count`` faces normal to one axis, starting with the lower boundary: float64 of
        shape (count,)."""
        return self.lower[axis] + np.arange(count) * self.spacing[axis]

    def centres(self, axis: int, start: int = 0, stop: int | None = None, periodic: bool = False) -> np.ndarray:
        """Coordinates of the cell centres ``start`` to ``stop - 1`` along one axis, by default of all cells: float64 of
        shape (stop - start,).

        Indices are global and may lie outside the grid. On a ``periodic`` axis they wrap around, so that a ghost cell
        has exactly the coordinate of the cell that it copies. On other axes the coordinates continue past the boundary.
        """
        index = np.arange(start, self.shape[axis] if stop is None else stop)
        if periodic:
            index %= self.shape[axis]
        return self.centres_of(axis, index)

    def centres_of(self, axis: int, index: np.ndarray) -> np.ndarray:
        """Coordinates of the centres of the cells with the global ``index`` along one axis: float64 in its shape."""
        return self.lower[axis] + (index + 0.5) * self.spacing[axis]


ROUND = 1e-9  # a smaller fraction of a cell is treated as rounding


@dataclass(frozen=True)
class Subgrid:
    """A selection of cells of the grid ``whole``: along each axis, ``shape`` cells with index ``first + i stride``, i =
    0, 1, ...

    A stream writes only such cells. All tuples have one entry per axis.
    """

    whole: Grid
    first: tuple[int, ...]
    stride: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        """Number of axes, including those along which a single cell is selected."""
        return self.whole.ndim

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes, in the order in which arrays are indexed."""
        return self.whole.axes

    @property
    def cells(self) -> int:
        """Number of selected cells."""
        return math.prod(self.shape)

    @property
    def spacing(self) -> tuple[float, ...]:
        """The distance between selected cells per axis, in the length unit of the input."""
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
        """The selected cells along one axis as a slice of global indices."""
        first, step = self.first[axis], self.stride[axis]
        return slice(first, first + step * self.shape[axis], step)

    def centres(self, axis: int) -> np.ndarray:
        """Coordinates of the selected cell centres along one axis, bitwise as in the whole grid: float64 of shape
        (shape[axis],)."""
        return self.whole.centres(axis)[self._chosen(axis)]

    def faces(self, axis: int, count: int) -> np.ndarray:
        """Coordinates of the lower faces of the first ``count`` selected cells along one axis: float64."""
        return self.whole.faces(axis, self.whole.shape[axis])[self._chosen(axis)][:count]

    def part(self, block: Sequence[Range]) -> tuple[tuple[slice, ...], tuple[Range, ...]]:
        """Find the selected cells in a ``block``, given by its global index range per axis of the whole grid.

        Returns (slices of the block's array without ghost cells, index ranges in the array of the selection), both with
        one entry per axis and possibly empty.
        """
        slices, ranges = [], []
        for (start, stop), first, step, count in zip(block, self.first, self.stride, self.shape, strict=True):
            low, high = (min(max(-(-(place - first) // step), 0), count) for place in (start, stop))
            own = first + low * step - start
            slices.append(slice(own, own + (high - low) * step, step) if high > low else slice(0, 0))
            ranges.append((low, high))
        return tuple(slices), tuple(ranges)


def chosen_cells(grid: Grid, region: Mapping[str, float | tuple[float, float]], stride: int | Sequence[int]) -> Subgrid:
    """Select the cells of a region whose global index is a multiple of ``stride``, which may differ per axis.

    ``region`` maps the letter of an axis to (lower, upper), which selects cell centres in that closed interval, or to
    one coordinate, which selects the nearest plane of cells (the lower of two) and ignores the stride. Other axes are
    selected from end to end. The result may have no cell along an axis.
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
