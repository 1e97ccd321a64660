"""Stencil kernels applied tile by tile, with `vmap` over overlapping tiles of a device's block."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from hpcstencil.numerics.finite_differences import Stencil
from hpcstencil.numerics.topology import positions

Number = Callable[[float], jax.Array]
Apply = Callable[[jax.Array, Stencil, tuple[int, ...], tuple[int, ...], Number], jax.Array]


def tiled(kernel: Apply, tiles: tuple[int, ...]) -> Apply:
    """Return a kernel that applies ``kernel`` to ``tiles`` tiles per axis; ``kernel`` itself if there is only one tile.

    All tiles have the same shape. If the cells along an axis do not divide evenly, the last tile overlaps its neighbour.
    """
    if max(tiles) == 1:
        return kernel

    def apply(
        array: jax.Array, stencil: Stencil, start: tuple[int, ...], shape: tuple[int, ...], number: Number
    ) -> jax.Array:
        counts = tuple(min(t, n) for t, n in zip(tiles, shape, strict=True))
        size = tuple(-(-n // t) for n, t in zip(shape, counts, strict=True))
        lower, upper = stencil.lower, stencil.upper
        places = [
            tuple(min(i * s, n - s) for i, s, n in zip(place, size, shape, strict=True)) for place in positions(counts)
        ]
        windows = []
        for place in places:
            first = [p + s - a for p, s, a in zip(place, start, lower, strict=True)]
            last = [f + a + n + b for f, a, n, b in zip(first, lower, size, upper, strict=True)]
            windows.append(lax.slice(array, first, last))
        results = jax.vmap(lambda window: kernel(window, stencil, lower, size, number))(jnp.stack(windows))
        return _assemble(results, counts, size, shape)

    return apply


def _assemble(results: jax.Array, counts: tuple[int, ...], size: tuple[int, ...], shape: tuple[int, ...]) -> jax.Array:
    """Join tiles of equal ``size``, in C order, into an array of ``shape``; where tiles overlap, the earlier one counts."""
    pieces = list(results)
    for axis in reversed(range(len(shape))):
        n, parts = shape[axis], counts[axis]
        rows = []
        for row in range(0, len(pieces), parts):
            line = []
            for i, piece in enumerate(pieces[row : row + parts]):
                start = min(i * size[axis], n - size[axis])
                line.append(lax.slice_in_dim(piece, i * size[axis] - start, size[axis], axis=axis))
            rows.append(jnp.concatenate(line, axis) if parts > 1 else line[0])
        pieces = rows
    return pieces[0]
