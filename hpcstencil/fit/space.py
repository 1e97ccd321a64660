"""The vectors of a fit on all processes: reproducible scalar products, and the preconditioner.

Each process holds its blocks of the fields, and all numbers and time series. Products are added up exactly and rounded once
(`backends.xla.reductions`), so a fit has the same bits on every number of processes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from hpcstencil.backends.xla.reductions import CELLS_IN_NUMPY, PARTS, bits_per_part, exact_sum, integer_parts
from hpcstencil.fit.lbfgs import Vector
from hpcstencil.fit.smoothing import Smoother
from hpcstencil.runtime.communicator import Communicator
from hpcstencil.runtime.threads import by_threads
from hpcstencil.validation.errors import NumericsError

LARGEST = 1000  # exponent of 2 of the largest products


@dataclass(frozen=True)
class Vectors:
    """The space of the vectors of a fit; see `lbfgs.Space`. ``smoothing`` has an entry for each field or time series to be
    smoothed, and ``cells`` is the number of cells of the whole grid. ``series`` are the arrays that each process holds as a
    whole."""

    communicator: Communicator
    cells: int
    precision: float
    smoothing: Mapping[str, Smoother]
    series: Collection[str] = ()

    def dot(self, a: Vector, b: Vector) -> float:
        """See `lbfgs.Space`. Products are formed in float64.

        Raises NumericsError, on all processes, if they are too large for that.
        """
        fields = [key for key in a if np.ndim(a[key]) and key not in self.series]
        with np.errstate(over="ignore"):
            products = [np.ravel(np.float64(a[key]) * b[key]) for key in a if key not in fields]
        numbers = math.fsum(x for each in products for x in each.tolist())
        if not fields:
            return _representable(numbers)
        sizes = self.communicator.maximum(np.array([[_largest(each[key]) for key in fields] for each in (a, b)]))
        # A bound of the products, which may be far from the largest: the parts have bits to spare.
        exponents = [max(int(sum(np.frexp(pair)[1])), -1000) for pair in sizes.T]
        if max(exponents) > LARGEST:
            _representable(math.inf)
        bits = bits_per_part(self.cells)
        parts = [_parts(a[key], b[key], exponent, bits) for key, exponent in zip(fields, exponents, strict=True)]
        totals = self.communicator.total(np.array(parts, np.int64))
        sums = (exact_sum(total, exponent, bits) for total, exponent in zip(totals, exponents, strict=True))
        return _representable(math.fsum([numbers, *sums]))

    def largest(self, a: Vector) -> float:
        """See `lbfgs.Space`."""
        here = max(_largest(np.asarray(value)) for value in a.values())
        return float(self.communicator.maximum(np.array([here]))[0])

    def preconditioned(self, a: Vector) -> Vector:
        """See `lbfgs.Space`. Fields and time series with a smoothing length are smoothed."""
        return {key: self.smoothing[key](value) if key in self.smoothing else value for key, value in a.items()}


def _representable(product: float) -> float:
    """Return a scalar product. Raises NumericsError if it is not finite."""
    if not math.isfinite(product):
        raise NumericsError(
            "fit: expected scalar products of unknowns and derivatives that float64 can hold, but one is larger; the objective "
            "may have no minimum: give bounds, such as fit.upper, or another objective"
        )
    return product


def _largest(values: np.ndarray) -> float:
    """The largest magnitude of an array as a float."""
    return max(float(values.max()), -float(values.min()))


def _parts(a: np.ndarray, b: np.ndarray, exponent: int, bits: int) -> np.ndarray:
    """The integer parts of the sum of the products of two blocks; see `integer_parts`."""

    def of_part(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        (a, b), totals = (a.reshape(-1), b.reshape(-1)), np.zeros(PARTS, np.int64)
        for first in range(0, len(a), CELLS_IN_NUMPY):
            some = slice(first, first + CELLS_IN_NUMPY)
            totals += integer_parts(np.multiply(a[some], b[some], dtype=np.float64), exponent, bits)
        return totals

    return np.sum(by_threads(of_part, a, b), 0)
