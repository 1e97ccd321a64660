"""Separate the input of a Python program, a dict, into plain tables and arrays.

In the tables, the text `IN_MEMORY` takes the place of an array. A Config therefore holds only text and numbers, and arrays can
be freed once the initial state is built.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcstencil.config.settings import Config, EquationConfig
from hpcstencil.io.array_file import IN_MEMORY, ArrayContents, ArrayInMemory
from hpcstencil.numerics.grid import AXES
from hpcstencil.problem.parameter_files import content_of
from hpcstencil.python.assignment import as_array, is_function
from hpcstencil.runtime.communicator import Communicator, agree
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import at
from hpcstencil.validation.schema import names_of
from hpcstencil.validation.toml_text import dump_value


@dataclass
class Tables:
    """An input from Python.

    ``plain`` are nested tables with the types that TOML has. ``arrays`` maps dotted keys to the arrays of parameters and
    solid cells, global and indexed [x, y, z], and to samples of time series. ``initial`` maps fields to arrays and
    functions.
    """

    plain: dict[str, Any]
    arrays: dict[str, ArrayInMemory] = field(default_factory=dict)
    initial: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, tables: Mapping[str, object]) -> Tables:
        """Convert a dict, whose keys may be dotted as in --set. Raises InputError for values that are neither arrays nor
        representable in TOML."""
        self = cls({})
        try:
            for key, value in tables.items():
                self._put(self.plain, str(key), value, tuple(str(key).split(".")))
        except RecursionError:
            raise InputError("input: a table or a list contains itself; correct it") from None
        return self

    def _put(self, table: dict[str, Any], key: str, value: Any, path: tuple[str, ...]) -> None:
        """Store a ``value``: in ``table`` under ``key`` if it is plain, else in ``arrays`` or ``initial``.

        ``path`` are the names of its dotted key in the whole input.
        """
        place = _place(path)
        if place == "initial" and (is_function(value) or _is_array(value) or isinstance(value, list | tuple)):
            self.initial[path[-1]] = value
        elif place.startswith(("equation", "mask", "objective")) and (_is_array(value) or value is None):
            self.arrays[place] = ArrayInMemory(as_array(value, _dims(path, value), place))
            table[key] = IN_MEMORY
        else:
            table[key] = self._value(value, path)

    def _value(self, value: Any, path: tuple[str, ...]) -> Any:
        """Convert a value to the types that TOML has. Raises InputError if that is not possible."""
        match value:
            case Mapping():
                table: dict[str, Any] = {}
                for key, entry in value.items():
                    self._put(table, str(key), entry, (*path, str(key)))
                return table
            case np.ma.MaskedArray():
                return as_array(value, None, ".".join(path)).tolist()
            case os.PathLike():
                return os.fspath(value)
            case list() | tuple():
                return [self._value(entry, path) for entry in value]
            case np.ndarray() | np.generic():
                return self._value(value.tolist(), path)
        key = ".".join(path)
        if hasattr(value, "__array__") or hasattr(value, "__dlpack__"):
            named = set(getattr(value, "dims", ())) <= {*AXES}  # as the weights of a stencil may be
            return as_array(value, AXES if named else None, key).tolist()
        try:
            dump_value(value)
        except TypeError as error:
            raise InputError(
                f"{key}: expected a number, a text, an array, a list or a table, but got {type(value).__name__}; change it"
            ) from error
        return value


def _place(path: tuple[str, ...]) -> str:
    """Where an array at this ``path`` of the input belongs: a dotted key, or "initial" for initial values.

    It is "" if an array there is a plain list of numbers.
    """
    match path:
        case ("initial", _):
            return "initial"
        case ("mask", "solid"):
            return "mask.solid"
        case ("objective", "data", name):
            return at("objective", "data", name)
        case ("equation", name) | ("equation", name, "series") if name not in names_of(EquationConfig):
            return at("equation", name)
    return ""


def _dims(path: tuple[str, ...], value: Any) -> tuple[str, ...] | None:
    """The dimensions of an array of xarray at this ``path`` of the input; None if any will do."""
    if path[0] == "objective" and "receiver" in getattr(value, "dims", ()):
        return ("time", "receiver")  # as of `files.probes`
    return None if path[-1] == "series" else AXES


def _is_array(value: Any) -> bool:
    """Whether a value is an array with at least one axis, or an xarray.Dataset."""
    return hasattr(value, "data_vars") or len(getattr(value, "shape", ())) > 0


def refuse_differing(
    communicator: Communicator, config: Config, given: Tables, there: Mapping[str, ArrayContents]
) -> None:
    """Raise InputError, on all processes, unless every process has the same arrays and initial values as rank 0.

    ``given`` are the tables of this process, and ``there`` summarizes the arrays of rank 0 by dotted key. Of initial
    functions only their presence is compared.
    """
    if communicator.size == 1:
        return

    def own() -> dict[str, str]:
        arrays = {
            key: (there[key] if communicator.rank == 0 else content_of(config, key, array)).sha256
            for key, array in given.arrays.items()
        }
        return arrays | {key: _digest(value, key) for key, value in _initial(given).items()}

    def compared() -> None:
        for key in {**found, **first}:
            if found.get(key) != first.get(key):
                raise InputError(
                    f"{key}: expected the array that rank 0 has, but got another; give every process the same whole array"
                )

    found = agree(communicator, own)
    first = communicator.broadcast(found)
    agree(communicator, compared)


def _initial(given: Tables) -> dict[str, Any]:
    """The initial arrays and functions by dotted key."""
    return {at("initial", name): value for name, value in given.initial.items()}


def _digest(value: Any, key: str) -> str:
    """SHA-256 of the shape, dtype and values of an array; "" for a function."""
    if is_function(value):
        return ""
    array = as_array(value, None, key)
    shape = f"{array.shape}{array.dtype.str}".encode()
    return hashlib.sha256(shape + np.ascontiguousarray(array).tobytes()).hexdigest()
