"""The weights of a user-defined stencil, read from nested lists or a NumPy file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from hpcstencil.config.path_checks import check_is_file
from hpcstencil.io.array_file import mapped
from hpcstencil.numerics.finite_differences import Weights
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import wrong

WIDEST = 65  # weights per axis
EXAMPLES = {
    1: "write for example [1, -2, 1]",
    2: "write for example [[0, 1, 0], [1, -4, 1], [0, 1, 0]]",
    3: "write for example [[[1, 1, 1]]], a mean along z",
}


def weights_of(key: str, given: Weights | str, base: Path, ndim: int) -> Weights:
    """Check the weights of a stencil and return them as nested tuples of floats, one level per axis of the grid.

    ``given`` are nested lists, or the path of a .npy file relative to ``base``. Raises InputError, whose message begins
    with ``key``, unless the weights form an array of ``ndim`` axes with an odd length of at most `WIDEST` along each,
    are finite, and are not all 0.
    """
    array = _read(key, Path(os.path.abspath(base / given))) if isinstance(given, str) else _array(key, given)
    if array.ndim != ndim:
        raise InputError(
            f"{key}: expected one level of lists per axis of the grid, {ndim}, but got {array.ndim}; {EXAMPLES[ndim]}"
        )
    if any(n % 2 == 0 or n > WIDEST for n in array.shape):
        raise wrong(
            key,
            f"an odd count of at most {WIDEST} weights per axis",
            list(array.shape),
            "add or drop some, so that the middle one belongs to the cell itself",
        )
    if not np.isfinite(array).all():
        raise InputError(f"{key}: expected finite weights, but some are not; correct them")
    if not array.any():
        raise InputError(f"{key}: expected weights, but all are 0; remove it")
    return _tuples(array.astype(np.float64).tolist())


def _array(key: str, given: Weights) -> np.ndarray:
    """Convert nested lists to a float64 array. Raises InputError if their lengths differ."""
    try:
        return np.array(given, dtype=np.float64)
    except ValueError:
        raise InputError(f"{key}: expected lists of equal lengths, but they differ; {EXAMPLES[2]}") from None


def _read(key: str, path: Path) -> np.ndarray:
    """Map the array in a .npy file into memory, so that its shape can be checked before it is read."""
    check_is_file(key, path, "a NumPy file")
    try:
        return mapped(path)
    except InputError as error:
        raise InputError(f"{key}: {error}") from None


def _tuples(values: Any) -> Any:
    """Convert nested lists to nested tuples."""
    return tuple(map(_tuples, values)) if isinstance(values, list) else values
