"""Parameters with one value per cell, from files or from Python.

Each becomes a field that is constant in time (`expressions.parameter_field`), so backends and halo exchange need no special
case. Checkpoints leave it out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from hpcstencil.config.paths import array_files, initial_files, objective_files, series_files
from hpcstencil.config.settings import Config
from hpcstencil.io.array_file import ArrayContents, ArrayFile, ArrayInMemory, ArrayOfMember, scanned, series_in
from hpcstencil.numerics.topology import Range
from hpcstencil.symbolic.expressions import PARAMETER_FIELD, Field, Node, Series, is_parameter_field, walk
from hpcstencil.validation.errors import InputError


class Blocks(Protocol):
    """An array in the shape of the global grid, of which each process reads its own block."""

    def read(self, ranges: Sequence[Range], shape: Sequence[int]) -> np.ndarray:
        """Read a block without ghost cells, as an array in the shape of the block and the dtype of the source.

        ``ranges`` holds the global index range (start, stop) of the block per axis, and ``shape`` is the shape of the grid.
        Raises InputError, on this process only, if the shape of the array does not match.
        """


def contents_of(config: Config, held: Mapping[str, ArrayInMemory] | None = None) -> dict[str, ArrayContents]:
    """Read all arrays of parameters, solid cells and initial values from end to end, and summarize each, by dotted key.

    ``held`` are arrays from Python, by key. Raises InputError, whose message begins with the key, if an array is
    missing, has the wrong shape, or holds values that are not finite.
    """
    arrays = {**array_files(config), **initial_files(config), **series_files(config), **(held or {})}
    return {key: content_of(config, key, array) for key, array in arrays.items()}


def content_of(config: Config, key: str, array: ArrayFile | ArrayInMemory) -> ArrayContents:
    """Read and summarize the array for one ``key`` of the input, as `contents_of` does for all."""
    data = key in objective_files(config)
    samples = data and config.probes  # may be of receivers; `misfit.observed` knows their number
    try:
        shape = config.grid.shape
        if samples:
            shape = array.shape()
        elif data:
            own = array.shape()[-len(shape) :]
            shape = own if _on_faces(own, shape) else shape
            if config.ensemble:
                return _of_members(array, config, shape)
        return series_in(array) if key in series_files(config) else scanned(array, shape)
    except InputError as error:
        raise InputError(f"{key}: {error}") from None


def _on_faces(own: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether an array of the shape ``own`` may hold values on the faces of a grid of this ``shape``; `read_on_grid` knows."""
    return len(own) == len(shape) and all(0 <= a - n <= 1 for a, n in zip(own, shape, strict=True))


def _of_members(array: ArrayFile | ArrayInMemory, config: Config, shape: Sequence[int]) -> ArrayContents:
    """Summarize data of this shape for the objectives of the members of an ensemble. Raises the errors of `scanned`."""
    count = len(next(iter(config.ensemble.values())))
    each = [scanned(ArrayOfMember(array, member, count), shape) for member in range(count)]
    digest = hashlib.sha256("".join(one.sha256 for one in each).encode()).hexdigest()
    return ArrayContents(digest, min(one.lowest for one in each), max(one.largest for one in each))


def array_blocks(config: Config, ranges: Sequence[Range], held: Mapping[str, Blocks] | None) -> dict[str, np.ndarray]:
    """Read one block of every array of parameters and solid cells, by dotted key, without ghost cells.

    ``ranges`` holds the global index range (start, stop) of the block per axis. ``held`` are arrays from Python, by
    key. Each block has the dtype of its source. Raises InputError, on this process only, if the shape of an array does
    not match; its message begins with the key. Raises EnvironmentProblem if a file cannot be read.
    """
    found = {}
    for key, array in array_files(config).items():
        try:
            found[key] = (held or {}).get(key, array).read(ranges, config.grid.shape)
        except InputError as error:
            raise InputError(f"{key}: {error}") from None
    return found


def key_of(name: str) -> str:
    """The dotted key of a parameter, "equation.NAME". ``name`` is the name of the parameter or of its field."""
    return f"equation.{name.removeprefix(PARAMETER_FIELD)}"


def refuse_files(tree: Node, key: str, remedy: str) -> None:
    """Raise InputError if the tree uses a parameter with one value per cell, from a file or an array. The message begins
    with ``key`` and ends with the ``remedy``."""
    for part in walk(tree):
        if is_parameter_field(part) and isinstance(part, Field):
            raise InputError(
                f"{key}: expected no parameter that is read from a file, but got {part.name.removeprefix(PARAMETER_FIELD)}; "
                f"{remedy}"
            )


def refuse_series(tree: Node, key: str, remedy: str) -> None:
    """Raise InputError if the tree uses a time-dependent parameter. The message begins with ``key`` and ends with the
    ``remedy``."""
    if Series in tree.kinds:
        raise InputError(f"{key}: expected no parameter that follows time, but got a time series; {remedy}")
