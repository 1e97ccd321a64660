"""Messages for invalid input: values shortened for display, lists, suggestions, and the errors themselves."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from hpcstencil.validation.errors import InputError
from hpcstencil.validation.toml_text import dump_key, dump_value

LONGEST_SHOWN = 80  # characters of a value or a path in a message
LONGEST_PART = 40  # characters of one name of a key
LONGEST_LIST = 200  # characters of a list of names
LONGEST_COMPARED = 100  # characters of a name that is compared with others: the cost is the product of their lengths


def shown(value: object) -> str:
    """A value written as TOML, cut to LONGEST_SHOWN characters for a message. Raises TypeError for a value that TOML
    cannot represent."""
    text = dump_value(value)
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 3] + "..."


def at(*names: str) -> str:
    """The dotted key of these names for a message: quoted where TOML requires it, with long names shortened."""
    parts = map(dump_key, names)
    return ".".join(part if len(part) <= LONGEST_PART else part[: LONGEST_PART - 3] + "..." for part in parts)


def listing(items: Iterable[object], last: str = "and") -> str:
    """The items as part of a sentence: "a, b and c". ``last`` is the word before the last one. Of a long list only the
    first items are named, and the number of the others."""
    words, length = [str(item) for item in items], 0
    for i, word in enumerate(words):
        length += len(word) + 2
        if i and length > LONGEST_LIST:
            words[i:] = [f"{len(words) - i} more"]
            last = "and"
            break
    return f"{', '.join(words[:-1])} {last} {words[-1]}" if len(words) > 1 else "".join(words)


def nearest(name: str, candidates: Iterable[str], similarity: float = 0.6) -> str | None:
    """The candidate that is spelled most like ``name``, ignoring case; None if none reaches the ``similarity``
    (difflib's ratio, 0 to 1)."""
    if len(name) > LONGEST_COMPARED:
        return None
    spelled = {candidate.lower(): candidate for candidate in candidates}
    found = difflib.get_close_matches(name.lower(), list(spelled), n=1, cutoff=similarity)
    return spelled[found[0]] if found else None


def wrong(key: str, expected: str, value: object, advice: str) -> InputError:
    """The error for a value of ``key`` that is not as ``expected``. ``expected`` completes "expected ..."; ``advice``
    is the last clause of the sentence."""
    return InputError(f"{key}: expected {expected}, but got {shown(value)}; {advice}")


def unknown(key: str, what: str, name: str, candidates: Sequence[str], elsewhere: str | None = None) -> InputError:
    """The error for an unknown name. ``what`` says what kind of name it is. The sentence suggests the key
    ``elsewhere``, else the most similar candidate, else lists the ``candidates``."""
    near = elsewhere or nearest(name, candidates)
    right = f"use {listing(candidates, 'or')}" if candidates else "leave it out"
    return InputError(f"{key}: unknown {what} {shown(name)}; " + (f"did you mean {shown(near)}?" if near else right))


def not_yet(key: str, what: str, available: Iterable[str]) -> InputError:
    """The error for a documented feature that is not implemented yet. ``available`` lists what can be used instead."""
    return InputError(f"{key}: {what} is not available yet; available: {listing(available)}")


def too_many(keys: Sequence[str], advice: str) -> InputError:
    """The error for given ``keys`` that exclude each other; ``advice`` is the last clause of the sentence."""
    return InputError(f"{keys[0]}: expected only one of {listing(keys, 'or')}, but got {len(keys)}; {advice}")
