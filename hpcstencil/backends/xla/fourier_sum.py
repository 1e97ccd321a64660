"""Stencils applied by fast Fourier transforms of a block with its ghost cells.

The cost does not depend on the number of weights. The result equals the direct sum up to round-off. The round-off depends
on the size of the block and on its largest value, so it differs between decompositions.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from hpcstencil.numerics.finite_differences import Stencil


def by_fft(array: jax.Array, stencil: Stencil, start: tuple[int, ...], shape: tuple[int, ...]) -> jax.Array:
    """Return Σ_j w_j array[start + i + o_j] for the cells i of ``shape``, in the dtype of ``array``.

    The arguments are those of `stencil_kernels`. The transform is at least as long as the range of cells that is read,
    so the cells affected by periodic wrap-around are all cut off from the result.
    """
    from scipy.fft import next_fast_len

    weights = stencil.dense(array.dtype)
    first = [s - a for s, a in zip(start, stencil.lower, strict=True)]
    last = [s + n + b for s, n, b in zip(start, shape, stencil.upper, strict=True)]
    window = lax.slice(array, first, last)
    sizes = [next_fast_len(n, real=True) for n in window.shape]
    axes = range(array.ndim)
    kernel = lax.optimization_barrier(jnp.asarray(weights))  # keeps XLA from transforming it, slowly, at compile time
    transformed = jnp.fft.rfftn(window, sizes, axes) * jnp.conj(jnp.fft.rfftn(kernel, sizes, axes))
    return jnp.fft.irfftn(transformed, sizes, axes)[tuple(slice(0, n) for n in shape)]
