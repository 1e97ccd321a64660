"""The stencil kernel `conv`: a dense convolution, `lax.conv_general_dilated`."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from hpcstencil.numerics.finite_differences import Stencil


def apply(
    array: jax.Array,
    stencil: Stencil,
    start: tuple[int, ...],
    shape: tuple[int, ...],
    number: Callable[[float], jax.Array],
) -> jax.Array:
    """Return Σ_j w_j array[start + i + o_j] for the cells i of ``shape``.

    The weights become a dense array over the stencil's bounding box. The arguments are those of `stencil_kernels`;
    ``number`` is not used.
    """
    weights = stencil.dense(array.dtype)
    first = [s - a for s, a in zip(start, stencil.lower, strict=True)]
    last = [f + n + w - 1 for f, n, w in zip(first, shape, weights.shape, strict=True)]
    window = lax.slice(array, first, last)
    result = lax.conv_general_dilated(
        window[None, None],
        jnp.asarray(weights)[None, None],
        (1,) * array.ndim,
        "VALID",
        precision=lax.Precision.HIGHEST,
    )
    return result[0, 0]
