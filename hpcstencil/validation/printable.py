"""Make text from files safe to print: a title, a unit or a file name may contain control sequences.

Terminal escape sequences can move the cursor, clear the screen or change the window title. Direction marks change the
order in which text is displayed. Lone surrogates, from file names that are not UTF-8, cannot be printed. All of these
are replaced by visible escapes.
"""

from __future__ import annotations

import click


def printable(text: object) -> str:
    """Convert to a single line of text: each unprintable character becomes an escape such as \\x1b or \\u202e."""
    said = str(text)
    return said if said.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in said)


def printable_lines(text: object) -> str:
    """Apply `printable` to every line of ``text``, keeping line breaks. Use it for messages that quote text from
    files."""
    return "\n".join(map(printable, str(text).split("\n")))


def echo(text: object) -> None:
    """Print ``text`` on standard output, made safe by `printable_lines`."""
    click.echo(printable_lines(text))


def _escape(character: str) -> str:
    """The visible escape of a character."""
    return character.encode("unicode_escape").decode("ascii")
