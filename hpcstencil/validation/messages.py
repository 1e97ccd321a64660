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
    """A value written as TOML, shortened for a message."""
    text = dump_value(value)
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 3] + "..."


def at(*names: str) -> str:
    """A dotted key for a message: quoted where TOML requires it, with long names shortened."""
    parts = map(dump_key, names)
    return ".".join(part if len(part) <= LONGEST_PART else part[: LONGEST_PART - 3] + "..." for part in parts)


def listing(items: Iterable[object], last: str = "and") -> str:
    """'a, b and c'; only the first items of a long list."""
    words, length = [str(item) for item in items], 0
    for i, word in enumerate(words):
        length += len(word) + 2
        if i and length > LONGEST_LIST:
            words[i:] = [f"{len(words) - i} more"]
            last = "and"
            break
    return f"{', '.join(words[:-1])} {last} {words[-1]}" if len(words) > 1 else "".join(words)


def nearest(name: str, candidates: Iterable[str], similarity: float = 0.6) -> str | None:
    """The candidate most similar to ``name``; None if no candidate reaches ``similarity`` (difflib's ratio, 0 to 1)."""
    if len(name) > LONGEST_COMPARED:
        return None
    spelled = {candidate.lower(): candidate for candidate in candidates}
    found = difflib.get_close_matches(name.lower(), list(spelled), n=1, cutoff=similarity)
    return spelled[found[0]] if found else None


def wrong(key: str, expected: str, value: object, advice: str) -> InputError:
    """The error for an unexpected value of ``key``."""
    return InputError(f"{key}: expected {expected}, but got {shown(value)}; {advice}")


def unknown(key: str, what: str, name: str, candidates: Sequence[str], elsewhere: str | None = None) -> InputError:
    """The error for an unknown name, with the nearest correct one as a suggestion."""
    near = elsewhere or nearest(name, candidates)
    right = f"use {listing(candidates, 'or')}" if candidates else "leave it out"
    return InputError(f"{key}: unknown {what} {shown(name)}; " + (f"did you mean {shown(near)}?" if near else right))


def not_yet(key: str, what: str, available: Iterable[str]) -> InputError:
    """The error for a documented feature that is not implemented."""
    return InputError(f"{key}: {what} is not available yet; available: {listing(available)}")


def too_many(keys: Sequence[str], advice: str) -> InputError:
    """The error for keys that exclude each other."""
    return InputError(f"{keys[0]}: expected only one of {listing(keys, 'or')}, but got {len(keys)}; {advice}")
