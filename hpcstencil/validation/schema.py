"""What an input table may hold, as data: keys, kinds of value, defaults; and the sentences for what does not fit."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import at, listing, nearest, shown, wrong

REQUIRED: Any = object()


class Unfit(Exception):
    """A value that is not of the expected kind; never leaves this module."""


@dataclass(frozen=True)
class Kind:
    """A kind of value: in ``words``, and ``convert``, which returns the value in the form we keep or raises Unfit.

    ``names`` are the texts it accepts, for suggestions.
    """

    words: str
    convert: Callable[[Any], Any]
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Key:
    """One key of a table: its kind, its default (REQUIRED for none), and an example that may be typed as it stands."""

    kind: Kind
    default: Any
    example: str


# ---- kinds of value --------------------------------------------------------------------------------------------------


def integer(minimum: int = 1) -> Kind:
    """Whole numbers from ``minimum`` to 2**63 - 1; a truth value is none."""

    def convert(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value < 2**63:
            raise Unfit
        return value

    return Kind("a positive integer" if minimum == 1 else f"an integer of at least {minimum}", convert)


def number(positive: bool = False) -> Kind:
    """Finite numbers, kept as floats."""

    def convert(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1.7976931348623157e308:
            raise Unfit
        result = float(value)
        if not math.isfinite(result) or (positive and result <= 0):
            raise Unfit
        return result

    return Kind("a positive, finite number" if positive else "a finite number", convert)


def choice(*options: Any) -> Kind:
    """One of ``options``."""

    def convert(value: Any) -> Any:
        for option in options:
            if type(value) is type(option) and value == option:
                return value
        raise Unfit

    names = tuple(option for option in options if isinstance(option, str))
    return Kind(listing(map(shown, options), "or"), convert, names)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise Unfit
    return value


def _expression(value: Any) -> float | str:
    return _text(value) if isinstance(value, str) else NUMBER.convert(value)


NUMBER = number()
POSITIVE = number(positive=True)
COUNT = integer()
TEXT = Kind("a text that is not empty", _text)
# As in TEXT, but a single number may stand for the text; numbers stay floats.
EXPRESSION = Kind("a number or an expression (a text in quotes)", _expression)


def clock_time() -> Kind:
    """Spans of time as "HH:MM:SS", any number of hours, kept as texts; TOML's own times of day are taken for such."""

    def convert(value: Any) -> str:
        text = value.isoformat("seconds") if isinstance(value, datetime.time) else value
        if not isinstance(text, str) or not re.fullmatch(r"\d{1,5}:[0-5]\d:[0-5]\d", text):
            raise Unfit
        return text

    return Kind('"HH:MM:SS"', convert)


def any_text() -> Kind:
    """A text, which may be empty."""

    def convert(value: Any) -> str:
        if not isinstance(value, str) or "\0" in value:
            raise Unfit
        return value

    return Kind("a text (in quotes, without NUL characters)", convert)


def list_of(kind: Kind, words: str, longest: int | None = None) -> Kind:
    """Lists of one to ``longest`` entries of one kind, kept as tuples."""

    def convert(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or not value or (longest and len(value) > longest):
            raise Unfit
        return tuple(kind.convert(entry) for entry in value)

    return Kind(words, convert)


def either(first: Kind, second: Kind) -> Kind:
    """Values of one of two kinds."""

    def convert(value: Any) -> Any:
        try:
            return first.convert(value)
        except Unfit:
            return second.convert(value)

    return Kind(f"{first.words} or {second.words}", convert, first.names + second.names)


def optional(kind: Kind) -> Key:
    """For entries of tables whose keys the user chooses: no default, no example."""
    return Key(kind, None, "")


# ---- reading ---------------------------------------------------------------------------------------------------------


def take(key: str, spec: Key, value: Any) -> Any:
    """``value`` in the form we keep; raises InputError where it is not what ``key`` expects."""
    try:
        return spec.kind.convert(value)
    except Unfit:
        near = nearest(value, spec.kind.names) if isinstance(value, str) else None
        advice = f"did you mean {shown(near)}?" if near else f"write for example {spec.example}"
        raise wrong(key, spec.kind.words, value, advice) from None


def table(key: str, value: Any, example: str) -> Mapping[str, Any]:
    """``value`` where it is a table."""
    if not isinstance(value, Mapping):
        raise wrong(key, "a table", value, f"write for example {example}")
    return value


def read(name: str, raw: Mapping[str, Any], keys: Mapping[str, Key]) -> dict[str, Any]:
    """The values of table ``name``, defaults filled in; unknown keys must have been refused before.

    Raises InputError for a missing required key or a value that does not fit.
    """
    values = {}
    for key, spec in keys.items():
        if key in raw:
            values[key] = take(at(name, key), spec, raw[key])
        elif spec.default is REQUIRED:
            near = nearest(key, [given for given in raw if given not in keys])
            advice = f"is {shown(near)} meant for it?" if near else f"write for example {spec.example}"
            raise InputError(f"{at(name, key)}: expected {spec.kind.words}, but the key is missing; {advice}")
        else:
            values[key] = spec.default
    return values


def expression_text(value: float | str) -> str:
    """An expression as text; a number is written so that it reads back as itself."""
    return value if isinstance(value, str) else repr(value)
