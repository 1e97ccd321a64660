"""TOML as text: reading with error messages, and writing text that tomllib reads back."""

from __future__ import annotations

import datetime
import errno
import os
import pathlib
import re
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcstencil.validation.errors import InputError

LONGEST = 2**20  # bytes of an input file
DEEPEST = 16  # levels of nested tables and lists
# tomllib's time grows with the square of the number of parts of a dotted key. The possessive quantifiers keep the
# search linear: without them its own time would grow with the square of a word's length.
LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){100}""")
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}

Path = tuple[str, ...]


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_file(path: pathlib.Path) -> dict[str, Any]:
    """The tables of the input file at ``path``. Raises InputError if it does not exist, cannot be read, is longer than
    1 MiB, or is not TOML in UTF-8."""
    name = str(path) if str(path).isprintable() else repr(str(path))
    return parse(_text(path, name), name)


def bounded(path: pathlib.Path) -> bytes | None:
    """The content of a file; None if it is longer than LONGEST bytes, as an endless device is. Raises OSError if the
    file cannot be read, and for a pipe without a writer, on which reading would never return."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        os.set_blocking(descriptor, True)
        content = file.read(LONGEST + 1)
        if not content and stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            raise OSError(errno.EPIPE, "a pipe that nobody writes")
    return content if len(content) <= LONGEST else None


def _text(path: pathlib.Path, name: str) -> str:
    """The text of an input file. Raises InputError if it cannot be read, is too long, or is not UTF-8."""
    advice = "the attribute input of an output holds its input" if path.suffix == ".h5" else "check the path"
    try:
        content = bounded(path)
        if content is None:
            raise InputError(f"{name}: expected an input file of at most 1 MiB, but it is longer; {advice}")
        return content.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except FileNotFoundError:
        raise InputError(f"{name}: expected an input file, but there is none; check the path") from None
    except UnicodeDecodeError:
        advice = advice if path.suffix == ".h5" else "check path and encoding"
        raise InputError(f"{name}: expected an input file, but it is not UTF-8 text; {advice}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{name}: expected a readable input file, but got: {reason}; check the path") from None


def parse(text: str, origin: str) -> dict[str, Any]:
    """The tables of TOML ``text``. Raises InputError, whose message begins with ``origin``, the name of the file, if it
    is not TOML or is nested too deeply."""
    if LONG_KEY.search(text):
        raise InputError(f"{origin}: expected keys of a few names, but got one of 100 or more; check its dots")
    try:
        tables = tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, or an integer of more digits than Python converts
        match = re.search(r"at line (\d+)", str(error))
        line = text.split("\n")[int(match[1]) - 1].strip() if match else ""
        where = f", in the line {shortened(repr(line), 80)}" if line else ""
        what = shortened(_lower(str(error)), 160)
        raise InputError(f"{origin}: expected TOML, but got a syntax error: {what}{where}; correct it") from error
    except RecursionError as error:
        raise InputError(f"{origin}: expected TOML, but got brackets nested too deeply to read; nest fewer") from error
    refuse_deep(tables, origin)
    return tables


def refuse_deep(value: object, origin: str) -> None:
    """Raise InputError, whose message begins with ``origin``, if tables and lists are nested more than DEEPEST deep. No
    input needs that, and other functions recurse over them."""
    level, depth = [value], 0
    while level:
        if depth > DEEPEST:
            raise InputError(f"{origin}: expected tables and lists at most {DEEPEST} deep, but got more; nest fewer")
        depth += 1
        inner = [v.values() if isinstance(v, Mapping) else v for v in level if isinstance(v, Mapping | list | tuple)]
        level = [entry for entries in inner for entry in entries]


def shortened(text: str, longest: int) -> str:
    """``text``, cut to ``longest`` characters with "..." at the end if it is longer."""
    return text if len(text) <= longest else text[: longest - 3] + "..."


def _lower(sentence: str) -> str:
    """The sentence with a lower-case first letter."""
    return sentence[:1].lower() + sentence[1:]


# ---- writing ---------------------------------------------------------------------------------------------------------


def dump_key(name: str) -> str:
    """One part of a key, quoted where TOML requires it."""
    return name if BARE_KEY.fullmatch(name) else _string(name)


def dotted(path: Sequence[str]) -> str:
    """The parts of a key as one dotted key, as ``--set`` takes it; parts are quoted where TOML requires it."""
    return ".".join(map(dump_key, path))


def _string(text: str) -> str:
    """The text in quotes on one line. Characters that a terminal would not show (line separators, direction marks) are
    escaped."""
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else _escaped(c) for c in text) + '"'


def _escaped(character: str) -> str:
    """The TOML escape of a character."""
    number = ord(character)
    return ESCAPES.get(character) or (f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}")


def dump_value(value: object) -> str:
    """A boolean, number, text, date, time, list or table as TOML on one line; tables become inline tables. Raises
    TypeError for other types."""
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
    """The TOML text of ``tables``: plain keys first, then a ``[table]`` for each table. Tables inside a table become
    ``[table.name]``; deeper ones are written inline."""
    blocks = ["".join(f"{dump_key(key)} = {dump_value(value)}\n" for key, value in _plain(tables))]
    for name, content in _tables(tables):
        blocks.append(_block((name,), content))
        blocks.extend(_block((name, inner), entries, inline=True) for inner, entries in _tables(content))
    return "\n".join(block for block in blocks if block)


def _block(path: Path, content: Mapping[str, object], inline: bool = False) -> str:
    """The text of one ``[table]``; with ``inline`` its own tables are written inline."""
    entries = content.items() if inline else _plain(content)
    return f"[{dotted(path)}]\n" + "".join(f"{dump_key(key)} = {dump_value(value)}\n" for key, value in entries)


def _plain(content: Mapping[str, object]) -> Iterator[tuple[str, Any]]:
    """The entries that are not tables."""
    return ((key, value) for key, value in content.items() if not isinstance(value, Mapping))


def _tables(content: Mapping[str, object]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The entries that are tables."""
    return ((key, value) for key, value in content.items() if isinstance(value, Mapping))


def flatten(tables: Mapping[str, object], path: Path = ()) -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) for every value in nested tables; empty tables yield nothing."""
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from flatten(value, (*path, key))
        else:
            yield dotted((*path, key)), value
