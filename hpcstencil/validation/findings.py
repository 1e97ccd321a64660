"""What a check of an input finds, and the word for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """The result of a check: its name, a description in ``words``, and whether it passed (``met``)."""

    name: str
    words: str
    met: bool


def verdict(met: bool) -> str:
    """The word for a check that passed or failed: "ok" or "NOT MET"."""
    return "ok" if met else "NOT MET"
