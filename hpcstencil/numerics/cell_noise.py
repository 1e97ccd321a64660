"""Uniform noise that depends only on the seed, the stream and the global index of the cell.

The value of a cell is a hash of its index, so noise is the same for every decomposition. The hash is the finalizer of
splitmix64 (Steele, Lea & Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, fig. 17).
"""

from __future__ import annotations

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def mixed(x: np.ndarray) -> np.ndarray:
    """Hash each element of ``x``, a uint64 array of any shape; the result has the same shape and dtype."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniform(seed: int, stream: int, index: np.ndarray) -> np.ndarray:
    """Uniform noise on [-1, 1): float64, in the shape of ``index``.

    ``index`` is an array of global cell indices in C order, of any shape. ``seed`` and ``stream`` are integers from 0
    to 2^32 - 1; different streams of one seed give different noise.
    """
    with np.errstate(over="ignore"):
        key = mixed(np.array([(seed << 32) | stream], np.uint64) * GOLDEN + GOLDEN)
        bits = mixed(mixed(index.astype(np.uint64) * GOLDEN + key) + key)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0
