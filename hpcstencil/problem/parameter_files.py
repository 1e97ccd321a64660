"""Parameters given as arrays, in files or by a Python program. Each is a field that never changes
(`expressions.parameter_field`), so kernels, exchange and stepping treat it as they treat the memories of absorbing layers,
and checkpoints leave it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from hpcstencil.config.paths import array_files, series_files
from hpcstencil.config.settings import Config
from hpcstencil.io.array_file import ArrayContents, ArrayFile, ArrayInMemory, scanned, series_in
from hpcstencil.numerics.topology import Range
from hpcstencil.symbolic.expressions import PARAMETER_FIELD, Field, Node, Series, is_parameter_field, walk
from hpcstencil.validation.errors import InputError


class Blocks(Protocol):
    """An array of the grid's shape, of which each process reads its own block."""

    def read(self, ranges: Sequence[Range], shape: Sequence[int]) -> np.ndarray:
        """The block ``ranges`` (global, half-open, per axis) of an array of the grid's ``shape``, without ghost cells. Raises
        InputError, on this process alone, if the array does not fit."""


def contents_of(config: Config, held: Mapping[str, ArrayInMemory] | None = None) -> dict[str, ArrayContents]:
    """What the arrays hold on which the steps depend, parameters and solid cells, by key of the input. It reads them from end
    to end. ``held`` are those of a Python program. Raises InputError, whose message begins with the key, if one does not
    fit."""
    arrays = {**array_files(config), **series_files(config), **(held or {})}
    return {key: content_of(config, key, array) for key, array in arrays.items()}


def content_of(config: Config, key: str, array: ArrayFile | ArrayInMemory) -> ArrayContents:
    """What the array for the ``key`` of an input holds, see `contents_of`."""
    try:
        return series_in(array) if key in series_files(config) else scanned(array, config.grid.shape)
    except InputError as error:
        raise InputError(f"{key}: {error}") from None


def array_blocks(
    config: Config, ranges: Sequence[Range], held: Mapping[str, Blocks] | None = None
) -> dict[str, np.ndarray]:
    """The blocks ``ranges`` of parameters and solid cells (global, half-open, per axis), without ghost cells, in the arrays'
    dtypes, by key of the input. ``held`` are the arrays of a Python program.

    Raises InputError, on this process alone, if a file does not fit; its message begins with the key. Raises
    EnvironmentProblem if reading fails.
    """
    found = {}
    for key, array in array_files(config).items():
        try:
            found[key] = (held or {}).get(key, array).read(ranges, config.grid.shape)
        except InputError as error:
            raise InputError(f"{key}: {error}") from None
    return found


def key_of(name: str) -> str:
    """The key in the input of a parameter, "equation.NAME". ``name`` is that of the parameter or of the field that
    holds it."""
    return f"equation.{name.removeprefix(PARAMETER_FIELD)}"


def refuse_files(tree: Node, key: str, remedy: str) -> None:
    """Raise InputError if the tree uses a parameter that is read from a file. The message begins with ``key`` and ends
    with the ``remedy``."""
    for part in walk(tree):
        if is_parameter_field(part) and isinstance(part, Field):
            raise InputError(
                f"{key}: expected no parameter that is read from a file, but got {part.name.removeprefix(PARAMETER_FIELD)}; "
                f"{remedy}"
            )


def refuse_series(tree: Node, key: str, remedy: str) -> None:
    """Raise InputError if the tree uses a parameter that follows time. The message begins with ``key`` and ends with
    the ``remedy``."""
    if any(isinstance(part, Series) for part in walk(tree)):
        raise InputError(f"{key}: expected no parameter that follows time, but got a time series; {remedy}")
