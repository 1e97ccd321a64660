"""Building blocks of messages: shortened values, lists, numbers of bytes, suggestions, and common errors."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from hpcstencil.validation.errors import InputError
from hpcstencil.validation.toml_text import dump_key, dump_value

LONGEST_SHOWN = 80  # characters of a value or a path in a message
LONGEST_PART = 40  # characters of one name of a key
LONGEST_LIST = 200  # characters of a list of names
LONGEST_COMPARED = 100  # characters of a name that is compared with others, at a cost of the product of the lengths


def shown(value: object) -> str:
    """A value as TOML text, cut to LONGEST_SHOWN characters. Raises TypeError for a value that TOML cannot represent."""
    text = dump_value(value)
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 3] + "..."


def at(*names: str) -> str:
    """The dotted key for these names: at("equation", "D") is "equation.D".

    Names are quoted where TOML requires it, and long names are shortened.
    """
    parts = map(dump_key, names)
    return ".".join(part if len(part) <= LONGEST_PART else part[: LONGEST_PART - 3] + "..." for part in parts)


def bytes_text(count: float) -> str:
    """Format a number of bytes with three significant digits and a unit."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def listing(items: Iterable[object], last: str = "and") -> str:
    """Join the items for a sentence: "a, b and c". ``last`` is the word before the last item.

    A long list is cut: "a, b and 7 more".
    """
    words, length = [str(item) for item in items], 0
    for i, word in enumerate(words):
        length += len(word) + 2
        if i and length > LONGEST_LIST:
            words[i:] = [f"{len(words) - i} more"]
            last = "and"
            break
    return f"{', '.join(words[:-1])} {last} {words[-1]}" if len(words) > 1 else "".join(words)


def nearest(name: str, candidates: Iterable[str], similarity: float = 0.6) -> str | None:
    """The candidate whose spelling is closest to ``name``, ignoring case.

    None if no candidate reaches the ``similarity``, a ratio of difflib from 0 to 1.
    """
    if len(name) > LONGEST_COMPARED:
        return None
    spelled = {candidate.lower(): candidate for candidate in candidates}
    found = difflib.get_close_matches(name.lower(), list(spelled), n=1, cutoff=similarity)
    return spelled[found[0]] if found else None


def wrong(key: str, expected: str, value: object, advice: str) -> InputError:
    """Make the error for an invalid ``value``: "KEY: expected EXPECTED, but got VALUE; ADVICE". The caller raises it."""
    return InputError(f"{key}: expected {expected}, but got {shown(value)}; {advice}")


def unknown(key: str, what: str, name: str, candidates: Sequence[str], elsewhere: str | None = None) -> InputError:
    """Make the error for an unknown ``name``, where ``what`` says what kind of name it is, such as "field".

    It suggests the key ``elsewhere`` if given, else the most similar candidate, else it lists all ``candidates``. The
    caller raises it.
    """
    near = elsewhere or nearest(name, candidates)
    right = f"use {listing(candidates, 'or')}" if candidates else "leave it out"
    return InputError(f"{key}: unknown {what} {shown(name)}; " + (f"did you mean {shown(near)}?" if near else right))


def too_many(keys: Sequence[str], advice: str) -> InputError:
    """Make the error for ``keys`` of which only one may be given. ``advice`` is the last clause of the sentence."""
    got = "both" if len(keys) == 2 else f"{len(keys)} of them"
    return InputError(f"{keys[0]}: expected only one of {listing(keys, 'or')}, but got {got}; {advice}")
