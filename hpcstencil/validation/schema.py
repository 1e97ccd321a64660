"""The form of input tables as data: keys, kinds of values and defaults; and the errors for values that do not fit."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import at, listing, nearest, shown, wrong

REQUIRED: Any = object()


class Unfit(Exception):
    """A value is not of the expected kind. `Kind.convert` raises it, and `take` turns it into an InputError."""


@dataclass(frozen=True)
class Kind:
    """A kind of value. ``words`` describes it in messages ("a positive integer"). ``convert`` turns a value as TOML
    gives it into the program's own type, or raises Unfit. ``names`` are the accepted texts, for suggestions."""

    words: str
    convert: Callable[[object], Any]
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Key:
    """One key of a table: its kind, its default (REQUIRED if there is none), an example that a user can type, and its
    meaning, with which its row in docs/input.md begins."""

    kind: Kind
    default: Any
    example: str
    meaning: str = ""


@dataclass(frozen=True)
class Entries:
    """Keys whose names the user chooses: the kind of their values, an example in which {} stands for the name, and
    their meaning. If they are in a table of their own, ``table`` is an example of it; otherwise they stand beside the
    other keys of the table."""

    kind: Kind
    example: str
    meaning: str
    table: str = ""

    def key(self, name: str) -> Key:
        """The `Key` of the entry called ``name``."""
        return Key(self.kind, None, self.example.format(at(name)))


# ---- declaring -------------------------------------------------------------------------------------------------------


def key(kind: Kind, default: Any, example: str, meaning: str) -> Any:
    """A dataclass field that declares a key of its table, with the default of the key."""
    metadata = {"key": Key(kind, default, example, meaning)}
    return field(metadata=metadata) if default is REQUIRED else field(default=default, metadata=metadata)


def entries(kind: Kind, example: str, meaning: str, table: str = "") -> Any:
    """A dataclass field that holds a dict of values by names that the user chooses; empty by default."""
    return field(default_factory=dict, metadata={"entries": Entries(kind, example, meaning, table)})


def keys_of(settings: type) -> dict[str, Key]:
    """The keys that a dataclass declares, by name."""
    return {f.name: f.metadata["key"] for f in fields(settings) if "key" in f.metadata}


def names_of(settings: type) -> tuple[str, ...]:
    """The fixed names in the table of a dataclass: its keys, and its tables of entries."""
    beside = {name for name, spec in entries_of(settings).items() if not spec.table}
    return tuple(f.name for f in fields(settings) if f.name not in beside)


def entries_of(settings: type) -> dict[str, Entries]:
    """The fields of a dataclass that hold entries, by name."""
    return {f.name: f.metadata["entries"] for f in fields(settings) if "entries" in f.metadata}


# ---- kinds of value --------------------------------------------------------------------------------------------------


def integer(minimum: int = 1) -> Kind:
    """Whole numbers from ``minimum`` to 2**63 - 1; booleans do not count as numbers."""

    def convert(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value < 2**63:
            raise Unfit
        return value

    return Kind("a positive integer" if minimum == 1 else f"an integer of at least {minimum}", convert)


def number(positive: bool = False) -> Kind:
    """Finite numbers, converted to float; greater than 0 if ``positive``. Booleans do not count as numbers."""

    def convert(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1.7976931348623157e308:
            raise Unfit
        result = float(value)
        if not math.isfinite(result) or (positive and result <= 0):
            raise Unfit
        return result

    return Kind("a positive, finite number" if positive else "a finite number", convert)


def choice(*options: object) -> Kind:
    """One of the ``options``, with the same type: 1 is not accepted for True."""

    def convert(value: object) -> Any:
        for option in options:
            if type(value) is type(option) and value == option:
                return value
        raise Unfit

    names = tuple(option for option in options if isinstance(option, str))
    return Kind(listing(map(shown, options), "or"), convert, names)


def _text(value: object) -> str:
    """The text unchanged. Raises Unfit for anything else, a blank text, or one with NUL characters."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise Unfit
    return value


def _expression(value: object) -> float | str:
    """A text unchanged, or a number as a float. Raises Unfit for anything else."""
    return _text(value) if isinstance(value, str) else NUMBER.convert(value)


NUMBER = number()
POSITIVE = number(positive=True)
COUNT = integer()
TEXT = Kind("a text that is not empty", _text)
# As TEXT, but a single number may replace the text; numbers become floats.
EXPRESSION = Kind("a number or an expression (a text in quotes)", _expression)


EXPRESSION_TEXT = Kind(EXPRESSION.words, lambda value: expression_text(EXPRESSION.convert(value)))  # kept as a text


def clock_time() -> Kind:
    """Durations as "HH:MM:SS" with up to five digits of hours, kept as texts. TOML's own times of day are converted to
    such texts."""

    def convert(value: object) -> str:
        text = value.isoformat("seconds") if isinstance(value, datetime.time) else value
        if not isinstance(text, str) or not re.fullmatch(r"\d{1,5}:[0-5]\d:[0-5]\d", text):
            raise Unfit
        return text

    return Kind('"HH:MM:SS"', convert)


def any_text() -> Kind:
    """A text, which may be empty, without NUL characters."""

    def convert(value: object) -> str:
        if not isinstance(value, str) or "\0" in value:
            raise Unfit
        return value

    return Kind("a text (in quotes, without NUL characters)", convert)


def list_of(kind: Kind, words: str, longest: int | None = None) -> Kind:
    """Lists of one to ``longest`` entries of one kind, converted to tuples. ``words`` describes the list in messages."""

    def convert(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or not value or (longest and len(value) > longest):
            raise Unfit
        return tuple(kind.convert(entry) for entry in value)

    return Kind(words, convert)


def nested_numbers() -> Kind:
    """Numbers in lists, or in lists of lists and so on, converted to floats in tuples. They need not be finite. Numpy
    arrays count as lists."""

    def convert(value: object) -> Any:
        value = value.tolist() if hasattr(value, "tolist") else value  # an array, from Python
        if not isinstance(value, list | tuple) or not value:
            raise Unfit
        return tuple(convert(entry) if isinstance(entry, list | tuple) else single(entry) for entry in value)

    def single(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Unfit
        return float(value) if abs(value) <= 1.7976931348623157e308 else math.copysign(math.inf, value)

    return Kind("nested lists of numbers, one level per axis", convert)


def either(first: Kind, second: Kind) -> Kind:
    """Values of one of two kinds; ``first`` is tried first."""

    def convert(value: object) -> Any:
        try:
            return first.convert(value)
        except Unfit:
            return second.convert(value)

    return Kind(f"{first.words} or {second.words}", convert, first.names + second.names)


# ---- reading ---------------------------------------------------------------------------------------------------------


def take(key: str, spec: Key, value: object) -> Any:
    """``value`` converted to the kind of the key ``spec``. Raises InputError, whose message begins with ``key``, if it
    does not fit."""
    try:
        return spec.kind.convert(value)
    except Unfit:
        near = nearest(value, spec.kind.names) if isinstance(value, str) else None
        advice = f"did you mean {shown(near)}?" if near else f"write for example {spec.example}"
        raise wrong(key, spec.kind.words, value, advice) from None


def table(key: str, value: object, example: str) -> Mapping[str, Any]:
    """``value`` if it is a table. Otherwise raises InputError, whose message names ``key`` and gives the ``example``."""
    if not isinstance(value, Mapping):
        raise wrong(key, "a table", value, f"write for example {example}")
    return value


def read(path: str | tuple[str, ...], raw: Mapping[str, object], keys: Mapping[str, Key]) -> dict[str, Any]:
    """The values of the table at ``path`` by key, converted, with defaults for missing keys. The caller must have
    refused unknown keys.

    Raises InputError for a missing required key or a value that does not fit.
    """
    values = {}
    path = (path,) if isinstance(path, str) else path
    for key, spec in keys.items():
        if key in raw:
            values[key] = take(at(*path, key), spec, raw[key])
        elif spec.default is REQUIRED:
            near = nearest(key, [given for given in raw if given not in keys])
            advice = f"is {shown(near)} meant for it?" if near else f"write for example {spec.example}"
            raise InputError(f"{at(*path, key)}: expected {spec.kind.words}, but the key is missing; {advice}")
        else:
            values[key] = spec.default
    return values


def expression_text(value: float | str) -> str:
    """An expression as text. A number is written with all its digits, so that it reads back unchanged."""
    return value if isinstance(value, str) else repr(value)
