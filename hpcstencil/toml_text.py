"""TOML as text: reading with sentences for errors, ``--set`` overrides, and writing what tomllib reads back."""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcstencil.errors import InputError

# Keys of one table that stand for the same choice: setting one displaces the others.
EXCLUSIVE = (
    ("time", ("dt", "cfl", "tolerance")),
    ("output", ("every", "every_steps")),
    ("checkpoint", ("every_steps", "every_minutes")),
)
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}

Path = tuple[str, ...]


# ---- reading ---------------------------------------------------------------------------------------------------------


def parse(text: str, origin: str) -> dict[str, Any]:
    """The tables of TOML ``text``; ``origin`` (a file's name) opens the sentence of an InputError."""
    try:
        return tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, or an integer of more digits than Python converts
        match = re.search(r"at line (\d+)", str(error))
        line = text.splitlines()[int(match[1]) - 1].strip() if match else ""
        where = f", in the line {line[:80]!r}" if line else ""
        raise InputError(f"{origin}: expected TOML, but got a syntax error: {_lower(str(error))}{where}") from error
    except RecursionError as error:
        raise InputError(f"{origin}: expected TOML, but got brackets nested too deeply to read") from error


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


# ---- overrides -------------------------------------------------------------------------------------------------------


def parse_override(text: str) -> tuple[Path, Any]:
    """The key (as a path of names) and the value of one ``--set KEY=VALUE``; a value that is not TOML is a string."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"--set: expected UTF-8 text, but got {text!r}; check the terminal's encoding") from None
    for sign in re.finditer("=", text):
        path = _key_path(text[: sign.start()])
        if path:
            return path, _override_value(text[sign.end() :].strip())
    raise InputError(f"--set: expected KEY=VALUE with a dotted key, but got {text!r}; write for example time.end=2.0")


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
                raise InputError(
                    f"--set {text}: expected {dotted(path[: depth + 1])} to be a table, but the input has "
                    f"{dump_value(node)}; set {dotted(path[: depth + 1])} as a whole"
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
    return '"' + "".join(ESCAPES.get(c, f"\\u{ord(c):04x}" if c < " " or c == "\x7f" else c) for c in text) + '"'


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
