"""Text from outside made fit for a terminal: a title, a unit or a file's name may hold what a terminal would obey.

Escape sequences move the cursor, clear the screen or change the window's title; marks of direction make text read as it does
not stand; half a surrogate pair (a file name that is not UTF-8) cannot be printed at all. All of these become visible escapes.
"""

from __future__ import annotations

import click


def printable(text: object) -> str:
    """``text`` on one line, each character that is not visible (but blanks) as an escape such as \\x1b or \\u202e."""
    said = str(text)
    return said if said.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in said)


def printable_lines(text: object) -> str:
    """As `printable`, of a text of ours in several lines, in which text from outside stands."""
    return "\n".join(map(printable, str(text).split("\n")))


def echo(text: object) -> None:
    """Results, on standard output."""
    click.echo(printable_lines(text))


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
