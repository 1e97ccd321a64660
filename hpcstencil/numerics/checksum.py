"""Checksums of distributed arrays, independent of the decomposition.

The checksum is

    s = sum over cells (i, j, k) of  b[i, j, k] w0[i] w1[j] w2[k]  mod 2^64,

where b is the binary representation of a value, read as an integer, and w are odd pseudo-random weights (multilinear
hashing: Carter & Wegman, "Universal classes of hash functions", J. Comput. Syst. Sci. 18, 1979, 143-154). Each process
sums over its own block. Odd weights have an inverse modulo 2^64, so a change of a single value always changes s. Any
other change remains undetected with a probability near 2^-64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcstencil.numerics.cell_noise import GOLDEN, mixed

PIECE = 2**20  # number of values summed at a time


def checksum(block: np.ndarray, start: Sequence[int]) -> int:
    """The contribution of one block to the checksum of a global array, as an integer in the range of int64.

    The sum of the contributions of all blocks, modulo 2^64, is the checksum. ``block`` is a C-contiguous local array of
    any shape and dtype, without ghost cells. ``start`` is the global index of its first cell along the last
    ``len(start)`` axes; along earlier axes, such as members, the block starts at 0. An empty block contributes 0.
    """
    if block.size == 0:
        return 0
    first = [0] * (block.ndim - len(start)) + list(start)
    bits = block.view(f"u{block.itemsize}")
    rows, length = bits.reshape(-1, bits.shape[-1]), bits.shape[-1]
    sums = np.zeros(len(rows), np.uint64)
    for j in range(0, length, PIECE):
        last = _weights(bits.ndim - 1, first[-1] + j, min(PIECE, length - j))
        at_once = max(1, PIECE // len(last))
        for i in range(0, len(rows), at_once):
            sums[i : i + at_once] += np.einsum("ij,j->i", rows[i : i + at_once, j : j + PIECE], last)
    total = sums.reshape(bits.shape[:-1])
    for axis in reversed(range(bits.ndim - 1)):
        total = np.einsum("...j,j->...", total, _weights(axis, first[axis], bits.shape[axis]))
    return int(np.uint64(total).astype(np.int64))


def _weights(axis: int, start: int, count: int) -> np.ndarray:
    """The odd weights of the global indices from ``start`` to ``start + count - 1`` along an axis: uint64, shape
    (count,)."""
    index = np.arange(start, start + count, dtype=np.uint64)
    return mixed(index * GOLDEN + np.uint64(axis)) | np.uint64(1)
