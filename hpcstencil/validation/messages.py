"""Sentences for input that does not fit: values shown, lists, suggestions, and the errors that say them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from hpcstencil.validation.errors import InputError
from hpcstencil.validation.toml_text import dump_key, dump_value

LONGEST_SHOWN = 80  # characters of a value or a path in a sentence
LONGEST_PART = 40  # characters of one name of a key
LONGEST_LIST = 200  # characters of a list of names
LONGEST_COMPARED = 100  # characters of a name that is compared with others: comparing costs their product


def shown(value: Any) -> str:
    """A value as it is written in TOML, shortened for a sentence."""
    text = dump_value(value)
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 3] + "..."


def at(*names: str) -> str:
    """A dotted key for a sentence: quoted where it must be, long names shortened."""
    parts = map(dump_key, names)
    return ".".join(part if len(part) <= LONGEST_PART else part[: LONGEST_PART - 3] + "..." for part in parts)


def listing(items: Iterable[object], last: str = "and") -> str:
    """'a, b and c'; of a long list the first ones."""
    words, length = [str(item) for item in items], 0
    for i, word in enumerate(words):
        length += len(word) + 2
        if i and length > LONGEST_LIST:
            words[i:] = [f"{len(words) - i} more"]
            last = "and"
            break
    return f"{', '.join(words[:-1])} {last} {words[-1]}" if len(words) > 1 else "".join(words)


def nearest(name: str, candidates: Iterable[str], similarity: float = 0.6) -> str | None:
    """The candidate most like ``name``, or None where none has this similarity (difflib's ratio)."""
    if len(name) > LONGEST_COMPARED:
        return None
    spelled = {candidate.lower(): candidate for candidate in candidates}
    found = difflib.get_close_matches(name.lower(), list(spelled), n=1, cutoff=similarity)
    return spelled[found[0]] if found else None


def wrong(key: str, expected: str, value: Any, advice: str) -> InputError:
    """The error for a value that is not what was expected."""
    return InputError(f"{key}: expected {expected}, but got {shown(value)}; {advice}")


def unknown(key: str, what: str, name: str, candidates: Sequence[str], elsewhere: str | None = None) -> InputError:
    """The error for a name that nothing here has, suggesting the nearest right one."""
    near = elsewhere or nearest(name, candidates)
    right = f"use {listing(candidates, 'or')}" if candidates else "leave it out"
    return InputError(f"{key}: unknown {what} {shown(name)}; " + (f"did you mean {shown(near)}?" if near else right))


def not_yet(key: str, what: str, available: Iterable[str]) -> InputError:
    """The error for a part of the contract that is not built yet."""
    return InputError(f"{key}: {what} is not available yet; available: {listing(available)}")


def too_many(keys: Sequence[str], advice: str) -> InputError:
    """The error for keys that exclude each other."""
    return InputError(f"{keys[0]}: expected only one of {listing(keys, 'or')}, but got {len(keys)}; {advice}")
