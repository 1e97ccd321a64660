"""The estimated error of an attempted step: a mean over the grid that is the same for every decomposition and backend.

Every squared error, in units of the tolerance (`Problem.errors`), is rounded to a multiple of QUANTUM, half to even, and the
multiples are summed as integers. The order does not matter, and unlike with `Reductions.sums` the largest one need not be
known before, so one sweep over the cells suffices. A sum is held in three words of 64 bits, low QUANTUM + middle 2^32 QUANTUM
+ high 2^64 QUANTUM, each of which has room for 2^31 cells or more. A squared error that is not
below LIMIT, or not a number, counts as infinite.

The rounding changes the mean of the squares by at most 2^-45, which is that of an error of 2e-7 tolerances.
"""

from __future__ import annotations

import math

import numpy as np

QUANTUM = 2.0**-44
LIMIT = 2.0**50
WORDS = ("low", "middle", "high", "broken")  # of a sum, int64; broken: the number of cells that count as infinite


def error_norm(sums: np.ndarray, cells: int) -> np.ndarray:
    """Return the root mean square of the errors in units of the tolerance, infinite if that of any cell is.

    ``sums`` holds the WORDS of each field over the whole grid of ``cells`` cells: int64 of shape (fields, words), or (fields,
    words, members) in an ensemble. The result is float64 of shape () or (members,).
    """
    norms = np.empty(sums.shape[2:])
    for index in np.ndindex(norms.shape):
        low, middle, high, broken = (
            int(word) for word in sums[(slice(None), slice(None), *index)].sum(0, dtype=object)
        )
        total = low + (middle << 32) + (high << 64)
        norms[index] = math.inf if broken else math.sqrt(total * QUANTUM / (cells * len(sums)))
    return norms
