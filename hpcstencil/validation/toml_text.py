"""Read TOML with helpful error messages, and write TOML that tomllib reads back."""

from __future__ import annotations

import datetime
import errno
import os
import pathlib
import re
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hpcstencil.validation.errors import InputError

LONGEST = 2**20  # bytes of an input file
DEEPEST = 16  # levels of nested tables and lists
# The time of tomllib grows with the square of the number of names in a dotted key, so very long keys are refused. The
# possessive quantifiers keep this search linear in the length of the text.
LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){100}""")
# Advice for mistakes in TOML, by a pattern in the parser's words or in the line.
ADVICE = {
    r"=\s*[-+]?\d+,\d": "write a decimal point instead of the comma",
    "[Oo]verwrite": "the name is given twice, so remove one",
    "[Dd]eclare": "the table is given twice, so join the two",
}
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}

Path = tuple[str, ...]


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_file(path: pathlib.Path) -> dict[str, Any]:
    """Parse the input file at ``path`` into nested tables.

    Raises InputError if it does not exist, cannot be read, is longer than 1 MiB, or is not TOML in UTF-8.
    """
    name = str(path) if str(path).isprintable() else repr(str(path))
    return parse(_text(path, name), name)


def bounded(path: pathlib.Path) -> bytes | None:
    """Read a file; None if it is longer than LONGEST bytes, as an endless device such as /dev/zero is.

    Raises OSError if the file cannot be read, and for a pipe without a writer, on which reading would block.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        os.set_blocking(descriptor, True)
        content = file.read(LONGEST + 1)
        if not content and stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            raise OSError(errno.EPIPE, "a pipe that nobody writes")
    return content if len(content) <= LONGEST else None


def _text(path: pathlib.Path, name: str) -> str:
    """Read the text of an input file, called ``name`` in messages. Raises InputError if it cannot be read, is too long,
    or is not UTF-8."""
    advice = "the attribute input of an output holds its input" if path.suffix == ".h5" else "check the path"
    try:
        content = bounded(path)
        if content is None:
            raise InputError(f"{name}: expected an input file of at most 1 MiB, but it is longer; {advice}")
        return content.decode("utf-8-sig")  # some editors write a byte order mark
    except FileNotFoundError:
        raise InputError(f"{name}: expected an input file, but there is none; check the path") from None
    except UnicodeDecodeError:
        advice = advice if path.suffix == ".h5" else "check path and encoding"
        raise InputError(f"{name}: expected an input file, but it is not UTF-8 text; {advice}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{name}: expected a readable input file, but got: {reason}; check the path") from None


def parse(text: str, origin: str) -> dict[str, Any]:
    """Parse TOML ``text`` into nested tables.

    Raises InputError, whose message begins with ``origin``, the name of the file, if it is not TOML or is nested too
    deeply.
    """
    if LONG_KEY.search(text):
        raise InputError(f"{origin}: expected keys of a few names, but got one of 100 or more; check its dots")
    try:
        tables = tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, or an integer of more digits than Python converts
        match = re.search(r"at line (\d+)", str(error))
        line = text.split("\n")[int(match[1]) - 1].strip() if match else ""
        where = f", in the line {shortened(repr(line), 80)}" if line else ""
        what = shortened(_lower(str(error)), 160)
        advice = next((words for sign, words in ADVICE.items() if re.search(sign, f"{what}\n{line}")), "correct it")
        raise InputError(f"{origin}: expected TOML, but got a syntax error: {what}{where}; {advice}") from error
    except RecursionError as error:
        raise InputError(f"{origin}: expected TOML, but got brackets nested too deeply to read; nest fewer") from error
    refuse_deep(tables, origin)
    return tables


def refuse_deep(value: object, origin: str) -> None:
    """Raise InputError, whose message begins with ``origin``, if tables and lists are nested more than DEEPEST deep.

    No valid input needs that, and other functions process tables recursively.
    """
    level, depth = [value], 0
    while level:
        if depth > DEEPEST:
            raise InputError(f"{origin}: expected tables and lists at most {DEEPEST} deep, but got more; nest fewer")
        depth += 1
        inner = [v.values() if isinstance(v, Mapping) else v for v in level if isinstance(v, Mapping | list | tuple)]
        level = [entry for entries in inner for entry in entries]


def shortened(text: str, longest: int) -> str:
    """Cut ``text`` to ``longest`` characters, the last three of which are then "..."."""
    return text if len(text) <= longest else text[: longest - 3] + "..."


def _lower(sentence: str) -> str:
    """Convert the first letter of a sentence to lower case."""
    return sentence[:1].lower() + sentence[1:]


# ---- writing ---------------------------------------------------------------------------------------------------------


def dump_key(name: str) -> str:
    """One name of a key, quoted if TOML requires it."""
    return name if BARE_KEY.fullmatch(name) else _string(name)


def dotted(path: Sequence[str]) -> str:
    """Join names to a dotted key, as in ``--set``; names are quoted if TOML requires it."""
    return ".".join(map(dump_key, path))


def _string(text: str) -> str:
    """A TOML string in double quotes on one line. Unprintable characters, such as line separators and direction marks,
    are escaped."""
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else _escaped(c) for c in text) + '"'


def _escaped(character: str) -> str:
    """The TOML escape of a character."""
    number = ord(character)
    return ESCAPES.get(character) or (f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}")


def dump_value(value: object) -> str:
    """Write a value as TOML on one line; tables become inline tables. Raises TypeError for types that TOML lacks."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _string(value)
        case int() | float():
            return repr(value)
        case datetime.date() | datetime.time():
            return value.isoformat()
        case list() | tuple():
            return f"[{', '.join(map(dump_value, value))}]"
        case Mapping():
            entries = [f"{dump_key(key)} = {dump_value(entry)}" for key, entry in value.items()]
            return f"{{ {', '.join(entries)} }}" if entries else "{}"
    raise TypeError(f"no TOML for {type(value).__name__}")


def dumps(tables: Mapping[str, object]) -> str:
    """Write nested ``tables`` as TOML text: plain keys first, then a ``[table]`` for each table.

    Tables in a table become ``[table.name]``; deeper ones are written inline.
    """
    blocks = ["".join(f"{dump_key(key)} = {dump_value(value)}\n" for key, value in _plain(tables))]
    for name, content in _tables(tables):
        blocks.append(_block((name,), content))
        blocks.extend(_block((name, inner), entries, inline=True) for inner, entries in _tables(content))
    return "\n".join(block for block in blocks if block)


def _block(path: Path, content: Mapping[str, object], inline: bool = False) -> str:
    """The text of one ``[table]``. With ``inline``, its sub-tables are written inline; otherwise they are left out."""
    entries = content.items() if inline else _plain(content)
    return f"[{dotted(path)}]\n" + "".join(f"{dump_key(key)} = {dump_value(value)}\n" for key, value in entries)


def _plain(content: Mapping[str, object]) -> Iterator[tuple[str, Any]]:
    """Iterate over the (key, value) pairs of ``content`` whose values are not tables."""
    return ((key, value) for key, value in content.items() if not isinstance(value, Mapping))


def _tables(content: Mapping[str, object]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Iterate over the (key, table) pairs of ``content`` whose values are tables. Nested tables are not entered."""
    return ((key, value) for key, value in content.items() if isinstance(value, Mapping))


def flatten(
    tables: Mapping[str, object], path: Path = (), join: Callable[[Path], str] = dotted
) -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) for every value in nested tables; empty tables yield nothing.

    ``join`` makes the key from the names below ``path``. By default, names are quoted if TOML requires it.
    """
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from flatten(value, (*path, key), join)
        else:
            yield join((*path, key)), value
