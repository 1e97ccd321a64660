"""The reference kernel: stencils as a weighted sum of shifted slices, which XLA fuses into one loop."""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax import lax

from hpcstencil.numerics.finite_differences import Stencil


def apply(
    array: jax.Array,
    stencil: Stencil,
    start: tuple[int, ...],
    shape: tuple[int, ...],
    number: Callable[[float], jax.Array],
) -> jax.Array:
    """Σ_j w_j array[start + i + o_j] for the cells i of ``shape``. Arguments as in `stencil_kernels`."""

    def shifted(offset: tuple[int, ...]) -> jax.Array:
        first = [s + o for s, o in zip(start, offset, strict=True)]
        return lax.slice(array, first, [f + n for f, n in zip(first, shape, strict=True)])

    return weighted(stencil, shifted, number)


def weighted(
    stencil: Stencil, shifted: Callable[[tuple[int, ...]], jax.Array], number: Callable[[float], jax.Array]
) -> jax.Array:
    """Σ_j w_j shifted(o_j), in the shape of ``shifted``. Opposite offsets of equal or opposite weight share one
    multiplication."""
    left = dict(zip(stencil.offsets, stencil.weights, strict=True))
    result: jax.Array | None = None
    while left:
        offset, w = left.popitem()
        opposite = tuple(-o for o in offset)
        if left.get(opposite) == w:
            term = number(w) * (shifted(offset) + shifted(opposite))
        elif left.get(opposite) == -w:
            term = number(w) * (shifted(offset) - shifted(opposite))
        else:
            result = number(w) * shifted(offset) if result is None else result + number(w) * shifted(offset)
            continue
        del left[opposite]
        result = term if result is None else result + term
    assert result is not None
    return result
