"""Sums over the grid of derivatives per cell, which have to be finite."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from hpcstencil.backends.backend import Reductions
from hpcstencil.distributed.halo import Fields
from hpcstencil.distributed.windows import Parameters
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.symbolic.expressions import Field
from hpcstencil.validation.errors import NumericsError

IN_OBJECTIVE = "see whether the objective has a square root, a power or a quotient at 0"
ADVICE = "see whether the equation has a square root, a power or a quotient at 0, and whether dt is stable"


def reductions_of(simulation: ComposedSimulation, names: Sequence[str]) -> Reductions:
    """The reductions of fields of a simulation. Collective."""
    return simulation.steps.reductions({}, [*map(Field, names)])


def largest_of(keys: Sequence[str], reductions: Reductions, fields: Fields, parameters: Parameters) -> np.ndarray:
    """The largest magnitudes of derivatives per cell with respect to ``keys``, in the order of the reductions. Collective.

    Raises NumericsError, on all processes, if one is not finite.
    """
    low, high, broken = reductions.extremes(fields, parameters, 0.0)
    refuse_broken(keys, broken)
    return np.maximum(np.abs(low), np.abs(high))


def sums_of(keys: Sequence[str], reductions: Reductions, fields: Fields, parameters: Parameters) -> np.ndarray:
    """The sums of derivatives per cell with respect to ``keys``, in the order of the reductions. Collective.

    Raises NumericsError, on all processes, if one is not finite.
    """
    return reductions.sums(fields, parameters, 0.0, largest_of(keys, reductions, fields, parameters))


def refuse_broken(
    keys: Iterable[str], broken: np.ndarray, derivatives: str = "gradient: expected finite derivatives with respect to"
) -> None:
    """Raise NumericsError if derivatives per cell are not finite in these numbers of cells.

    The message begins with ``derivatives`` and the key.
    """
    for key, count in zip(keys, broken, strict=True):
        if count:
            raise NumericsError(f"{derivatives} {key}, but {count} cells have none; {ADVICE}")
