"""The vectors of a fit on all processes: reproducible scalar products, and the preconditioner.

Each process holds its blocks of the fields, and all numbers. Products are added up exactly and rounded once
(`backends.xla.reductions`), so a fit has the same bits on every number of processes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hpcstencil.backends.xla.reductions import bits_per_part, exact_sum, integer_parts
from hpcstencil.fit.lbfgs import Vector
from hpcstencil.fit.smoothing import Smoothing
from hpcstencil.runtime.communicator import Communicator
from hpcstencil.runtime.threads import by_threads


@dataclass(frozen=True)
class Vectors:
    """The space of the vectors of a fit; see `lbfgs.Space`. ``smoothing`` has an entry for each field to be smoothed, and
    ``cells`` is the number of cells of the whole grid."""

    communicator: Communicator
    cells: int
    precision: float
    smoothing: Mapping[str, Smoothing]

    def dot(self, a: Vector, b: Vector) -> float:
        """See `lbfgs.Space`. Products are formed in float64."""
        fields = [key for key in a if np.ndim(a[key])]
        numbers = math.fsum(float(a[key]) * float(b[key]) for key in a if not np.ndim(a[key]))
        if not fields:
            return numbers
        products = [np.multiply(a[key], b[key], dtype=np.float64) for key in fields]
        largest = self.communicator.maximum(np.array([_largest(block) for block in products]))
        exponents = [int(np.clip(math.frexp(size)[1], -1000, 1000)) for size in largest]
        bits = bits_per_part(self.cells)
        parts = [
            np.sum(by_threads(lambda part, e=exponent: integer_parts(part, e, bits), block), 0)
            for block, exponent in zip(products, exponents, strict=True)
        ]
        totals = self.communicator.total(np.array(parts, np.int64))
        sums = (exact_sum(total, exponent, bits) for total, exponent in zip(totals, exponents, strict=True))
        return math.fsum([numbers, *sums])

    def largest(self, a: Vector) -> float:
        """See `lbfgs.Space`."""
        here = max(_largest(np.asarray(value)) for value in a.values())
        return float(self.communicator.maximum(np.array([here]))[0])

    def preconditioned(self, a: Vector) -> Vector:
        """See `lbfgs.Space`. Fields with a smoothing length are smoothed."""
        return {key: self.smoothing[key](value) if key in self.smoothing else value for key, value in a.items()}


def _largest(values: np.ndarray) -> float:
    """The largest magnitude of an array as a float."""
    return max(float(values.max()), -float(values.min()))
