"""The kinds of reductions over all cells of the grid, for diagnostics and objectives.

To add a kind, add an entry to REDUCTIONS. Backends compute four numbers of the values of an operand: their sum, which is the
same for every decomposition, their minimum, their maximum, and how many are not finite. A kind must follow from these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ReductionKind:
    """One kind of reduction.

    ``value(total, low, high, cells, volume)`` returns the result from the sum, the minimum and the maximum, all of them numbers
    or float64 arrays of shape (members,), the number of cells of the grid, and the volume of a cell.

    ``slope(cells, volume)`` returns the derivative of the result with respect to the value in a cell. If ``extreme`` is 1 for a
    maximum or -1 for a minimum, that is its derivative in the cells that have this value, which share it.

    ``is_mean`` says that the result is relative to the number of cells; with a mask, to that of fluid cells.
    """

    value: Callable[..., Any]
    slope: Callable[[int, float], float]
    extreme: int = 0
    is_mean: bool = False


REDUCTIONS = {
    "integral": ReductionKind(lambda total, low, high, cells, volume: total * volume, lambda cells, volume: volume),
    "mean": ReductionKind(
        lambda total, low, high, cells, volume: total / cells, lambda cells, volume: 1.0 / cells, is_mean=True
    ),
    "min": ReductionKind(lambda total, low, high, cells, volume: low, lambda cells, volume: 1.0, extreme=-1),
    "max": ReductionKind(lambda total, low, high, cells, volume: high, lambda cells, volume: 1.0, extreme=1),
}
