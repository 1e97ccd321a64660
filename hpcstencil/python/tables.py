"""The dict of a Python program as the tables of an input, with its arrays apart.

In the tables an array stands as the text `IN_MEMORY`. So a Config holds texts and numbers only, and an array lives no longer
than the initial state needs it.
"""

from __future__ import annotations

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
    """``plain`` are tables with the types that TOML gives. ``arrays`` are parameters, solid cells and time series, by key of
    the input: the whole grid indexed [x, y, z], or samples. ``initial`` are arrays and functions by field."""

    plain: dict[str, Any]
    arrays: dict[str, ArrayInMemory] = field(default_factory=dict)
    initial: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, tables: Mapping[str, object]) -> Tables:
        """The tables of a dict, whose keys may be dotted as those of --set are. Raises InputError for values that neither
        TOML nor an array can represent."""
        self = cls({})
        for key, value in tables.items():
            self._put(self.plain, str(key), value, tuple(str(key).split(".")))
        return self

    def _put(self, table: dict[str, Any], key: str, value: Any, path: tuple[str, ...]) -> None:
        """Put a value into a table, or among the arrays."""
        place = _place(path)
        if place == "initial" and (is_function(value) or _is_array(value) or isinstance(value, list | tuple)):
            self.initial[path[-1]] = value
        elif place.startswith(("equation", "mask")) and (_is_array(value) or value is None):
            dims = AXES if path[-1] != "series" else getattr(value, "dims", ())
            self.arrays[place] = ArrayInMemory(as_array(value, dims, place))
            table[key] = IN_MEMORY
        else:
            table[key] = self._value(value, path)

    def _value(self, value: Any, path: tuple[str, ...]) -> Any:
        """A value with the types that TOML gives."""
        match value:
            case Mapping():
                table: dict[str, Any] = {}
                for key, entry in value.items():
                    self._put(table, str(key), entry, (*path, str(key)))
                return table
            case os.PathLike():
                return os.fspath(value)
            case list() | tuple():
                return [self._value(entry, path) for entry in value]
            case np.ndarray() | np.generic():
                return self._value(value.tolist(), path)
        key = ".".join(path)
        if hasattr(value, "__array__") or hasattr(value, "__dlpack__"):
            return as_array(value, getattr(value, "dims", ()), key).tolist()
        try:
            dump_value(value)
        except TypeError as error:
            raise InputError(
                f"{key}: expected a value that TOML has, but got {type(value).__name__}; change it"
            ) from error
        return value


def _place(path: tuple[str, ...]) -> str:
    """The key of the input, or "initial", to which an array at this ``path`` belongs; "" if arrays there are lists of
    numbers."""
    match path:
        case ("initial", _):
            return "initial"
        case ("mask", "solid"):
            return "mask.solid"
        case ("equation", name) | ("equation", name, "series") if name not in names_of(EquationConfig):
            return at("equation", name)
    return ""


def _is_array(value: Any) -> bool:
    """Whether a value is an array with axes, or a dataset of such."""
    return hasattr(value, "data_vars") or len(getattr(value, "shape", ())) > 0


def refuse_differing(
    communicator: Communicator, config: Config, arrays: Mapping[str, ArrayInMemory], there: Mapping[str, ArrayContents]
) -> None:
    """Raise InputError, on all processes, unless each has the arrays of rank 0, whose contents are ``there``."""

    def compared() -> None:
        for key, array in arrays.items() if communicator.rank else ():
            if key not in there or content_of(config, key, array).sha256 != there[key].sha256:
                raise InputError(
                    f"{key}: expected the array that rank 0 has, but got another; give every process the same whole array"
                )

    agree(communicator, compared)
