"""Make foreign text safe for a terminal: a title, a unit or a file name may contain control sequences.

Escape sequences move the cursor, clear the screen or change the window's title. Direction marks change the order in
which text is displayed. Half a surrogate pair (a file name that is not UTF-8) cannot be printed at all. All of these
become visible escapes.
"""

from __future__ import annotations

import click


def printable(text: object) -> str:
    """``text`` on one line: each invisible character except a space becomes an escape such as \\x1b or \\u202e."""
    said = str(text)
    return said if said.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in said)


def printable_lines(text: object) -> str:
    """``text`` with its line breaks kept and every line made safe as by `printable`. For our own messages that quote
    foreign text."""
    return "\n".join(map(printable, str(text).split("\n")))


def echo(text: object) -> None:
    """Print a result on standard output."""
    click.echo(printable_lines(text))


def _escape(character: str) -> str:
    """The visible escape of a character."""
    return character.encode("unicode_escape").decode("ascii")
