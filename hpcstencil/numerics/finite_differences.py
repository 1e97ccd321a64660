"""Finite-difference stencils, sum_j w_j u(i + o_j), for derivatives of any order and accuracy.

The weights are computed in exact rational arithmetic by the algorithm of B. Fornberg, "Generation of finite difference
formulas on arbitrarily spaced grids", Math. Comp. 51 (1988) 699-706, eq. (3.6)-(3.8).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

HALF = Fraction(1, 2)
UNROLLED = 64  # stencils with more weights are summed in loops
Weights = Sequence[Any]  # nested sequences of numbers, one level per axis


@dataclass(frozen=True)
class Stencil:
    """A stencil: the weighted sum of values in neighbouring cells.

    ``offsets`` are in cells, one entry per axis each; ``weights`` has one number per offset. The weights include the
    factor 1 / dx^m of an m-th derivative. With ``by_fft``, the sum is computed by Fourier transforms.
    """

    offsets: tuple[tuple[int, ...], ...]
    weights: tuple[float, ...]
    by_fft: bool = False

    @property
    def lower(self) -> tuple[int, ...]:
        """The number of cells that the stencil reaches below offset 0, per axis; at least 0."""
        return tuple(max(0, -min(o)) for o in zip(*self.offsets, strict=True))

    @property
    def upper(self) -> tuple[int, ...]:
        """The number of cells that the stencil reaches above offset 0, per axis; at least 0."""
        return tuple(max(0, *o) for o in zip(*self.offsets, strict=True))

    def dense(self, dtype: np.dtype) -> np.ndarray:
        """The weights as an array over the bounding box of the stencil and offset 0, of shape lower + 1 + upper."""
        lower = self.lower
        weights = np.zeros([a + b + 1 for a, b in zip(lower, self.upper, strict=True)], dtype)
        for offset, w in zip(self.offsets, self.weights, strict=True):
            weights[tuple(o + a for o, a in zip(offset, lower, strict=True))] = w
        return weights

    def collapsed(self, axes: Collection[int]) -> Stencil:
        """The stencil with its weights summed along ``axes``. For values that are constant along them the result is the
        same."""
        sums: dict[tuple[int, ...], float] = {}
        for offset, w in zip(self.offsets, self.weights, strict=True):
            place = tuple(0 if axis in axes else o for axis, o in enumerate(offset))
            sums[place] = sums.get(place, 0.0) + w
        return Stencil(tuple(sums), tuple(sums.values()), self.by_fft)


def is_large(stencil: Stencil) -> bool:
    """Whether a stencil has too many weights for an unrolled sum, with one term of code per weight."""
    return len(stencil.weights) > UNROLLED


def centred(values: Weights, ndim: int, by_fft: bool = False) -> Stencil:
    """The stencil with the weights ``values``, the middle one of which is at offset 0. Weights of 0 are left out.

    ``values`` are sequences nested ``ndim`` deep, with an odd number of entries along each axis.
    """
    places: dict[tuple[int, ...], Any] = {(): values}
    for _ in range(ndim):
        places = {
            (*place, n - len(inner) // 2): entry for place, inner in places.items() for n, entry in enumerate(inner)
        }
    kept = {place: w for place, w in places.items() if w}
    return Stencil(tuple(kept), tuple(kept.values()), by_fft)


@cache
def weights(derivative: int, points: tuple[Fraction, ...]) -> tuple[Fraction, ...]:
    """Fornberg's weights of the ``derivative``-th derivative at 0, from values at ``points``: one fraction per point.

    They are exact for polynomials up to degree ``len(points) - 1``. Points are in units of the spacing; the caller
    divides the weights by spacing^derivative.
    """
    count = len(points)
    table = [[Fraction(0)] * count for _ in range(derivative + 1)]
    table[0][0] = Fraction(1)
    product = Fraction(1)
    for n in range(1, count):
        previous, product_n = product, Fraction(1)
        old = [row[:] for row in table]
        for j in range(n):
            gap = points[n] - points[j]
            product_n *= gap
            for m in range(derivative + 1):
                table[m][j] = (points[n] * old[m][j] - (m * old[m - 1][j] if m else 0)) / gap
        for m in range(derivative + 1):
            below = m * old[m - 1][n - 1] if m else 0
            table[m][n] = previous / product_n * (below - points[n - 1] * old[m][n - 1])
        product = product_n
    return tuple(table[derivative])


def _line(derivative: int, offsets: Sequence[int], at: Fraction, axis: int, spacing: Sequence[float]) -> Stencil:
    """The stencil along ``axis`` for a derivative at the offset ``at``, in cells."""
    values = weights(derivative, tuple(Fraction(o) - at for o in offsets))
    kept = [(o, float(w) / spacing[axis] ** derivative) for o, w in zip(offsets, values, strict=True) if w]
    return Stencil(
        tuple(tuple(o if a == axis else 0 for a in range(len(spacing))) for o, _ in kept), tuple(w for _, w in kept)
    )


def central(derivative: int, order: int, axis: int, spacing: Sequence[float]) -> Stencil:
    """The central difference for the ``derivative``-th derivative along ``axis``, with error O(dx^order).

    ``order`` is even. ``spacing`` is the cell width per axis.
    """
    radius = (derivative + 1) // 2 - 1 + order // 2
    return _line(derivative, range(-radius, radius + 1), Fraction(0), axis, spacing)


def biased(order: int, side: int, axis: int, spacing: Sequence[float]) -> Stencil:
    """The upwind-biased stencil of a first derivative along ``axis``, with error O(dx^(order - 1)).

    It has one more point on ``side`` (-1 lower, +1 upper) than on the other. ``order`` is even. ``spacing`` is the cell
    width per axis.
    """
    first = -(order // 2) if side < 0 else 1 - order // 2
    return _line(1, range(first, first + order), Fraction(0), axis, spacing)


def staggered(derivative: int, order: int, side: int, axis: int, spacing: Sequence[float]) -> Stencil:
    """The stencil that evaluates a first derivative (``derivative`` = 1) or an interpolation (0) half a cell away.

    The target is on the lower (``side`` = -1) or upper (+1) side along ``axis``. The error is O(dx^order); ``order`` is
    even. ``spacing`` is the cell width per axis.
    """
    first = 1 - order // 2 if side > 0 else -(order // 2)
    return _line(derivative, range(first, first + order), side * HALF, axis, spacing)


def shifted(offset: int, axis: int, ndim: int) -> Stencil:
    """The stencil that copies the value ``offset`` cells away along ``axis``, on a grid with ``ndim`` axes."""
    return Stencil((tuple(offset if a == axis else 0 for a in range(ndim)),), (1.0,))


def product(*stencils: Stencil) -> Stencil:
    """The tensor product of stencils along different axes, which gives a mixed derivative."""
    offsets, values = stencils[0].offsets, stencils[0].weights
    for other in stencils[1:]:
        pairs = [
            (tuple(a + b for a, b in zip(p, q, strict=True)), v * w)
            for p, v in zip(offsets, values, strict=True)
            for q, w in zip(other.offsets, other.weights, strict=True)
        ]
        offsets, values = tuple(p for p, _ in pairs), tuple(v for _, v in pairs)
    return Stencil(offsets, values)
