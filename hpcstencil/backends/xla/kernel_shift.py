"""The stencil kernel `shift`: a weighted sum of shifted slices, which XLA fuses into one loop."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hpcstencil.numerics.finite_differences import Stencil, is_large


def apply(
    array: jax.Array,
    stencil: Stencil,
    start: tuple[int, ...],
    shape: tuple[int, ...],
    number: Callable[[float], jax.Array],
) -> jax.Array:
    """Return Σ_j w_j array[start + i + o_j] for the cells i of ``shape``.

    The arguments are those of `stencil_kernels`. A large stencil is summed by a compiled loop over its weights.
    """
    if is_large(stencil):
        return looped(array, stencil, start, shape)

    def shifted(offset: tuple[int, ...]) -> jax.Array:
        first = [s + o for s, o in zip(start, offset, strict=True)]
        return lax.slice(array, first, [f + n for f, n in zip(first, shape, strict=True)])

    return weighted(stencil, shifted, number)


def looped(array: jax.Array, stencil: Stencil, start: tuple[int, ...], shape: tuple[int, ...]) -> jax.Array:
    """Return the same sum as `apply`, by a compiled loop over the weights in their given order."""
    corners = jnp.asarray(np.array(stencil.offsets) + np.array(start), jnp.int32)
    values = jnp.asarray(np.array(stencil.weights)).astype(array.dtype)

    def add(j: jax.Array, total: jax.Array) -> jax.Array:
        return total + values[j] * lax.dynamic_slice(array, list(corners[j]), shape)

    return lax.fori_loop(0, len(stencil.weights), add, jnp.zeros(shape, array.dtype))


def weighted(
    stencil: Stencil, shifted: Callable[[tuple[int, ...]], jax.Array], number: Callable[[float], jax.Array]
) -> jax.Array:
    """Return Σ_j w_j shifted(o_j), in the shape of ``shifted(o_j)``.

    ``number`` turns a weight into a run-time value. Opposite offsets whose weights have equal magnitude share one
    multiplication.
    """
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
