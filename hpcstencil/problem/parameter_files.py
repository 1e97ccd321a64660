"""Parameters read from files. Each is a field that never changes (`expressions.parameter_field`), so kernels, exchange and
stepping treat it as they treat the memories of absorbing layers, and checkpoints leave it out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcstencil.config.paths import array_files, series_files
from hpcstencil.config.settings import Config
from hpcstencil.io.array_file import ArrayContents
from hpcstencil.numerics.topology import Range
from hpcstencil.symbolic.expressions import PARAMETER_FIELD, Field, Node, Series, is_parameter_field, walk
from hpcstencil.validation.errors import InputError


def contents_of(config: Config) -> dict[str, ArrayContents]:
    """What the files hold on which the steps depend, parameters and solid cells, by key of the input. It reads them from end
    to end. Raises InputError, whose message begins with the key, if one does not fit."""
    found = {}
    for key, file in {**array_files(config), **series_files(config)}.items():
        try:
            found[key] = file.series() if key in series_files(config) else file.scanned(config.grid.shape)
        except InputError as error:
            raise InputError(f"{key}: {error}") from None
    return found


def array_blocks(config: Config, ranges: Sequence[Range]) -> dict[str, np.ndarray]:
    """The blocks ``ranges`` of parameters and solid cells (global, half-open, per axis), without ghost cells, in the files'
    dtypes, by key of the input.

    Raises InputError, on this process alone, if one does not fit. Its message begins with the key.
    """
    found = {}
    for key, file in array_files(config).items():
        try:
            found[key] = file.read(ranges, config.grid.shape)
        except InputError as error:
            raise InputError(f"{key}: {error}") from None
    return found


def key_of(name: str) -> str:
    """The key of the parameter that the field ``name`` holds."""
    return f"equation.{name.removeprefix(PARAMETER_FIELD)}"


def refuse_files(tree: Node, key: str, remedy: str) -> None:
    """Raise InputError, whose message begins with ``key``, if the tree uses a parameter that is read from a file."""
    for part in walk(tree):
        if is_parameter_field(part) and isinstance(part, Field):
            raise InputError(
                f"{key}: expected no parameter that is read from a file, but got {part.name.removeprefix(PARAMETER_FIELD)}; "
                f"{remedy}"
            )


def refuse_series(tree: Node, key: str, remedy: str) -> None:
    """Raise InputError, whose message begins with ``key``, if the tree uses a parameter that follows time."""
    if any(isinstance(part, Series) for part in walk(tree)):
        raise InputError(f"{key}: expected no parameter that follows time, but got a time series; {remedy}")
