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

# Keys of one table that stand for the same choice: setting one displaces the others.
EXCLUSIVE = (
    ("time", ("dt", "cfl", "tolerance")),
    ("output", ("every", "every_steps")),
    ("checkpoint", ("every_steps", "every_minutes")),
)
LONGEST = 2**20  # bytes of an input file
DEEPEST = 16  # tables and lists in one another
LONGEST_KEY = 1000  # characters of the key of a --set
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
        where = f", in the line {_cut(repr(line), 80)}" if line else ""
        what = _cut(_lower(str(error)), 160)
        raise InputError(f"{origin}: expected TOML, but got a syntax error: {what}{where}; correct it") from error
    except RecursionError as error:
        raise InputError(f"{origin}: expected TOML, but got brackets nested too deeply to read; nest fewer") from error
    _refuse_deep(tables, origin)
    return tables


def _refuse_deep(value: Any, origin: str) -> None:
    """Raise InputError for tables and lists nested deeper than any input needs and than functions here may recurse."""
    level, depth = [value], 0
    while level:
        if depth > DEEPEST:
            raise InputError(f"{origin}: expected tables and lists at most {DEEPEST} deep, but got more; nest fewer")
        depth += 1
        inner = [v.values() if isinstance(v, Mapping) else v for v in level if isinstance(v, Mapping | list | tuple)]
        level = [entry for entries in inner for entry in entries]


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 3] + "..."


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


# ---- overrides -------------------------------------------------------------------------------------------------------


def parse_override(text: str) -> tuple[Path, Any]:
    """The key (as a path of names) and the value of one ``--set KEY=VALUE``; a value that is not TOML is a string."""
    given = _cut(repr(text), 80)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"--set: expected UTF-8 text, but got {given}; check the terminal's encoding") from None
    for sign in re.finditer("=", text[:LONGEST_KEY]):
        path = _key_path(text[: sign.start()])
        if path:
            value = _override_value(text[sign.end() :].strip())
            _refuse_deep([*path, value], f"--set {given}")
            if len(path) >= DEEPEST:
                raise InputError(f"--set: expected a key of a few names, but got {len(path)} of them; check its dots")
            return path, value
    raise InputError(f"--set: expected KEY=VALUE with a dotted key, but got {given}; write for example time.end=2.0")


def _key_path(text: str) -> Path | None:
    """The names of a dotted TOML key, or None where ``text`` is not one."""
    try:
        node: Any = tomllib.loads(f"{text} = 0") if "\n" not in text else {}
    except (ValueError, RecursionError):
        return None
    path: Path = ()
    while isinstance(node, dict) and len(node) == 1:
        ((name, node),) = node.items()
        path += (name,)
    return path if node == 0 else None


def _override_value(text: str) -> Any:
    if LONG_KEY.search(text):
        return text
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return table["value"] if len(table) == 1 else text


def override(raw: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A copy of the tables ``raw`` with every ``--set`` applied in turn.

    A table replaces a table; a key of EXCLUSIVE displaces its alternatives.
    """
    result = _copy(raw)
    for text in overrides:
        path, value = parse_override(text)
        node = result
        for depth, name in enumerate(path[:-1]):
            node = node.setdefault(name, {})
            if not isinstance(node, dict):
                key = _cut(dotted(path[: depth + 1]), 80)
                raise InputError(
                    f"--set {_cut(repr(text)[1:-1], 80)}: expected {key} to be a table, but the input has "
                    f"{_cut(dump_value(node), 80)}; set {key} as a whole"
                )
        for displaced in alternatives(path):
            node.pop(displaced[-1], None)
        node[path[-1]] = value
    return result


def alternatives(path: Path) -> list[Path]:
    """The other keys that ``path`` displaces when it is set."""
    return [
        (table, other)
        for table, keys in EXCLUSIVE
        if path[:-1] == (table,) and path[-1] in keys
        for other in keys
        if other != path[-1]
    ]


def is_set(key: str, overrides: Sequence[str]) -> bool:
    """Whether a ``--set`` names ``key``, a table that holds it, a part of it, or an alternative that displaces it."""
    wanted = _key_path(key) or (key,)
    for text in overrides:
        path, _ = parse_override(text)
        for named in [path, *alternatives(path)]:
            shared = min(len(named), len(wanted))
            if named[:shared] == wanted[:shared]:
                return True
    return False


def _copy(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in raw.items()}


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
