"""TOML as text: reading with sentences for errors, ``--set`` overrides, and writing what tomllib reads back."""

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
DEEPEST = 16  # tables and lists in one another
# tomllib takes time with the square of a dotted key's parts. A word is tried from its beginning alone and never given back in
# part: the search itself would take time with the square of a word's length.
LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){100}""")
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}

Path = tuple[str, ...]


# ---- reading ---------------------------------------------------------------------------------------------------------


def read_file(path: pathlib.Path) -> dict[str, Any]:
    """The tables of the input file at ``path``; raises InputError where there is none that may be one."""
    name = str(path) if str(path).isprintable() else repr(str(path))
    return parse(_text(path, name), name)


def bounded(path: pathlib.Path) -> bytes | None:
    """What a file holds, None where that is more than LONGEST: it may be a device without end. Raises OSError, also for a
    pipe that nobody writes, for which one would wait for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        os.set_blocking(descriptor, True)
        content = file.read(LONGEST + 1)
        if not content and stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            raise OSError(errno.EPIPE, "a pipe that nobody writes")
    return content if len(content) <= LONGEST else None


def _text(path: pathlib.Path, name: str) -> str:
    """The text of an input file; raises InputError where there is none that may be one."""
    try:
        content = bounded(path)
        if content is None:
            raise InputError(f"{name}: expected an input file of at most 1 MiB, but it is longer; check the path")
        return content.decode("utf-8-sig")  # some editors begin a file with a byte order mark
    except FileNotFoundError:
        raise InputError(f"{name}: expected an input file, but there is none; check the path") from None
    except UnicodeDecodeError:
        raise InputError(f"{name}: expected an input file, but it is not UTF-8 text; check path and encoding") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(f"{name}: expected a readable input file, but got: {reason}; check the path") from None


def parse(text: str, origin: str) -> dict[str, Any]:
    """The tables of TOML ``text``; ``origin`` (a file's name) opens the sentence of an InputError."""
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


def refuse_deep(value: Any, origin: str) -> None:
    """Raise InputError for tables and lists nested deeper than any input needs and than functions here may recurse."""
    level, depth = [value], 0
    while level:
        if depth > DEEPEST:
            raise InputError(f"{origin}: expected tables and lists at most {DEEPEST} deep, but got more; nest fewer")
        depth += 1
        inner = [v.values() if isinstance(v, Mapping) else v for v in level if isinstance(v, Mapping | list | tuple)]
        level = [entry for entries in inner for entry in entries]


def shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 3] + "..."


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


# ---- writing ---------------------------------------------------------------------------------------------------------


def dump_key(name: str) -> str:
    """One part of a key, quoted where it must be."""
    return name if BARE_KEY.fullmatch(name) else _string(name)


def dotted(path: Sequence[str]) -> str:
    """A dotted key, as ``--set`` takes it."""
    return ".".join(map(dump_key, path))


def _string(text: str) -> str:
    """The text in quotes on one line; what a terminal would not show (line separators, marks of direction) is escaped."""
    return '"' + "".join(c if c.isprintable() and c not in '"\\' else _escaped(c) for c in text) + '"'


def _escaped(character: str) -> str:
    number = ord(character)
    return ESCAPES.get(character) or (f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}")


def dump_value(value: Any) -> str:
    """A value as TOML: truth value, number, text, date, list or inline table."""
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


def dumps(tables: Mapping[str, Any]) -> str:
    """TOML text of ``tables``: plain keys first, then a ``[table]`` each, whose own tables become ``[table.name]``."""
    blocks = ["".join(f"{dump_key(key)} = {dump_value(value)}\n" for key, value in _plain(tables))]
    for name, content in _tables(tables):
        blocks.append(_block((name,), content))
        blocks.extend(_block((name, inner), entries, inline=True) for inner, entries in _tables(content))
    return "\n".join(block for block in blocks if block)


def _block(path: Path, content: Mapping[str, Any], inline: bool = False) -> str:
    entries = content.items() if inline else _plain(content)
    return f"[{dotted(path)}]\n" + "".join(f"{dump_key(key)} = {dump_value(value)}\n" for key, value in entries)


def _plain(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    return ((key, value) for key, value in content.items() if not isinstance(value, Mapping))


def _tables(content: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    return ((key, value) for key, value in content.items() if isinstance(value, Mapping))


def flatten(tables: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every value in nested tables."""
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from flatten(value, (*path, key))
        else:
            yield dotted((*path, key)), value
