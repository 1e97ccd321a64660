"""Parameters read from files. Each is a field that never changes (`expressions.parameter_field`). Kernels, exchange and
stepping treat it like the memories of absorbing layers, and checkpoints leave it out."""

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
    """The contents of the files on which the steps depend (parameters, time series and solid cells), by key of the
    input. Each file is read from end to end by the calling process.

    Raises InputError, whose message begins with the key, if a file is missing, does not fit or holds values that are
    not finite; EnvironmentProblem if reading fails.
    """
    found = {}
    for key, file in {**array_files(config), **series_files(config)}.items():
        try:
            found[key] = file.series() if key in series_files(config) else file.scanned(config.grid.shape)
        except InputError as error:
            raise InputError(f"{key}: {error}") from None
    return found


def array_blocks(config: Config, ranges: Sequence[Range]) -> dict[str, np.ndarray]:
    """The blocks of parameters and solid cells that the input reads from files, by key of the input, in the files'
    dtypes and without ghost cells. ``ranges`` are global and half-open, one per axis.

    Raises InputError, on this process alone, if a file does not fit; its message begins with the key. Raises
    EnvironmentProblem if reading fails.
    """
    found = {}
    for key, file in array_files(config).items():
        try:
            found[key] = file.read(ranges, config.grid.shape)
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
