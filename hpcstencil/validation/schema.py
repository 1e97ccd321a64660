"""The schema of input tables: declarations of keys with types, defaults and examples, and conversion of values."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any

from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import at, listing, nearest, shown, wrong

REQUIRED: Any = object()


class Unfit(Exception):
    """A value is not of the expected kind. `Kind.convert` raises it, and `take` converts it to an InputError."""


@dataclass(frozen=True)
class Kind:
    """A type of value with its range.

    ``words`` describes it in messages, such as "a positive integer". ``convert`` checks a value as parsed from TOML and
    converts it to the type that the program uses, or raises Unfit. ``names`` lists the accepted strings of a `choice`,
    and ``meant`` maps names of other programs, in small letters, to them, both for suggestions.
    """

    words: str
    convert: Callable[[object], Any]
    names: tuple[str, ...] = ()
    meant: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Key:
    """One key of a table: its kind, default, an example line of input, and its meaning.

    ``default`` is REQUIRED for a key without a default. The row of the key in docs/input.md begins with ``meaning``.
    """

    kind: Kind
    default: Any
    example: str
    meaning: str = ""


@dataclass(frozen=True)
class Entries:
    """Entries of a table whose names the user chooses, such as parameters or units of fields.

    ``kind`` is the kind of their values. In ``example``, {} stands for the name. If the entries are in a sub-table,
    ``table`` is an example of it; if it is "", they stand beside the declared keys.
    """

    kind: Kind
    example: str
    meaning: str
    table: str = ""

    def key(self, name: str) -> Key:
        """The `Key` for the entry called ``name``, for use with `take`."""
        return Key(self.kind, None, self.example.format(at(name)))


# ---- declarations ----------------------------------------------------------------------------------------------------


def key(kind: Kind, default: Any, example: str, meaning: str) -> Any:
    """Declare a key of a table as a dataclass field. The field and the key have the same default."""
    metadata = {"key": Key(kind, default, example, meaning)}
    return field(metadata=metadata) if default is REQUIRED else field(default=default, metadata=metadata)


def derived(kind: Kind, example: str, meaning: str) -> Any:
    """Declare a key whose default the reader derives from other values, so the dataclass field has no default."""
    return field(kw_only=True, metadata={"key": Key(kind, None, example, meaning)})


def entries(kind: Kind, example: str, meaning: str, table: str = "") -> Any:
    """Declare `Entries` of a table as a dataclass field that holds a dict; empty by default."""
    return field(default_factory=dict, metadata={"entries": Entries(kind, example, meaning, table)})


def keys_of(settings: type) -> dict[str, Key]:
    """The keys that a dataclass declares, by name."""
    return {f.name: f.metadata["key"] for f in fields(settings) if "key" in f.metadata}


def names_of(settings: type) -> tuple[str, ...]:
    """The declared names in the table of a dataclass: its keys and its sub-tables."""
    beside = {name for name, spec in entries_of(settings).items() if not spec.table}
    return tuple(f.name for f in fields(settings) if f.name not in beside)


def entries_of(settings: type) -> dict[str, Entries]:
    """The `Entries` that a dataclass declares, by field name."""
    return {f.name: f.metadata["entries"] for f in fields(settings) if "entries" in f.metadata}


# ---- kinds of value --------------------------------------------------------------------------------------------------


def integer(minimum: int = 1) -> Kind:
    """Integers from ``minimum`` to 2**63 - 1. Booleans are refused."""

    def convert(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value < 2**63:
            raise Unfit
        return value

    return Kind("a positive integer" if minimum == 1 else f"an integer of at least {minimum}", convert)


def number(positive: bool = False) -> Kind:
    """Finite numbers, converted to float; greater than 0 if ``positive``. Booleans are refused."""

    def convert(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1.7976931348623157e308:
            raise Unfit
        result = float(value)
        if not math.isfinite(result) or (positive and result <= 0):
            raise Unfit
        return result

    return Kind("a positive, finite number" if positive else "a finite number", convert)


def choice(*options: object, meant: Mapping[str, str] | None = None) -> Kind:
    """One of the ``options``. The type must match too, so 1 is not accepted for True. ``meant`` is as in `Kind`."""

    def convert(value: object) -> Any:
        for option in options:
            if type(value) is type(option) and value == option:
                return value
        raise Unfit

    names = tuple(option for option in options if isinstance(option, str))
    return Kind(listing(map(shown, options), "or"), convert, names, meant or {})


def _text(value: object) -> str:
    """Return a string unchanged. Raises Unfit for other types, blank strings and NUL characters."""
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise Unfit
    return value


def _expression(value: object) -> float | str:
    """Return a string unchanged, or a number as a float. Raises Unfit for anything else."""
    return _text(value) if isinstance(value, str) else NUMBER.convert(value)


NUMBER = number()
POSITIVE = number(positive=True)
COUNT = integer()
TEXT = Kind("a text that is not empty", _text)
# Text, or a number, which becomes a float.
EXPRESSION = Kind("a number or an expression (a text in quotes)", _expression)


EXPRESSION_TEXT = Kind(EXPRESSION.words, lambda value: expression_text(EXPRESSION.convert(value)))  # always text


def clock_time() -> Kind:
    """Durations "HH:MM:SS" with up to five digits of hours, kept as strings. A time of day in TOML is converted to such
    a string."""

    def convert(value: object) -> str:
        text = value.isoformat("seconds") if isinstance(value, datetime.time) else value
        if not isinstance(text, str) or not re.fullmatch(r"\d{1,5}:[0-5]\d:[0-5]\d", text):
            raise Unfit
        return text

    return Kind('"HH:MM:SS"', convert)


def any_text() -> Kind:
    """Strings without NUL characters, which may be empty."""

    def convert(value: object) -> str:
        if not isinstance(value, str) or "\0" in value:
            raise Unfit
        return value

    return Kind("a text (in quotes, without NUL characters)", convert)


def list_of(kind: Kind, words: str, longest: int | None = None) -> Kind:
    """Lists of 1 to ``longest`` entries of one kind, converted to tuples. ``words`` describes the list in messages."""

    def convert(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or not value or (longest and len(value) > longest):
            raise Unfit
        return tuple(kind.convert(entry) for entry in value)

    return Kind(words, convert)


def _table_of_any_keys(value: object) -> object:
    """Return a table unchanged. Raises Unfit for anything else."""
    if not isinstance(value, Mapping):
        raise Unfit
    return value


ANY_TABLE = Kind("a table", _table_of_any_keys)


def nested_numbers() -> Kind:
    """Nested lists of numbers, or NumPy arrays, converted to nested tuples of floats. Numbers may be infinite or NaN."""

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
    """Convert ``value`` to the kind of the key ``spec``.

    Raises InputError, whose message begins with the dotted ``key``, if the value is not of that kind.
    """
    try:
        return spec.kind.convert(value)
    except Unfit:
        text = value if isinstance(value, str) else ""
        near = spec.kind.meant.get(text.lower()) or nearest(text, spec.kind.names)
        advice = (
            f"did you mean {shown(near)}?" if near else _unquoted(spec, text) or f"write for example {spec.example}"
        )
        raise wrong(key, spec.kind.words, value, advice) from None


def _unquoted(spec: Key, text: str) -> str:
    """The advice to remove the quotes around a number; "" if that does not help."""
    for number in (int, float):
        with suppress(Unfit, ValueError):
            spec.kind.convert(number(text))
            return "remove the quotes"
    return ""


def table(key: str, value: object, example: str) -> Mapping[str, Any]:
    """Return ``value`` if it is a table; otherwise raise InputError, with the dotted ``key`` and the ``example``."""
    if not isinstance(value, Mapping):
        raise wrong(key, "a table", value, f"write for example {example}")
    return value


def read(path: str | tuple[str, ...], raw: Mapping[str, object], keys: Mapping[str, Key]) -> dict[str, Any]:
    """Convert the values of the table ``raw``, with defaults for missing keys. The result has every key of ``keys``.

    ``path`` is the name of the table, for messages. Unknown keys are ignored, so callers refuse them first. Raises
    InputError for a missing required key and for a value that is not of the declared kind.
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
    """An expression as text. A number is written with all digits, so that parsing gives the same number."""
    return value if isinstance(value, str) else repr(value)
