"""The option `--set KEY=VALUE`, which replaces single values of the input."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from hpcstencil.validation.errors import InputError
from hpcstencil.validation.toml_text import DEEPEST, LONG_KEY, Path, dotted, dump_value, refuse_deep, shortened

ANY = ""  # wildcard for a name of the user's choice
# (table, keys of which only one may be given): setting one removes the others.
EXCLUSIVE = (
    (("time",), ("dt", "cfl", "tolerance")),
    (("output",), ("every", "every_steps")),
    (("output", "streams", ANY), ("every", "every_steps")),
    (("checkpoint",), ("every_steps", "every_minutes")),
)
LONGEST_KEY = 1000  # characters of the key of a --set


def parse_override(text: str) -> tuple[Path, Any]:
    """Parse one ``KEY=VALUE`` into (names of the dotted key, value).

    The value is parsed as TOML; if that fails, it is the text itself. Raises InputError if ``text`` does not have this
    form, is not UTF-8, or is nested too deeply.
    """
    given = shortened(repr(text), 80)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"--set: expected UTF-8 text, but got {given}; check the terminal's encoding") from None
    for sign in re.finditer("=", text[:LONGEST_KEY]):
        path = _key_path(text[: sign.start()])
        if path:
            value = _override_value(text[sign.end() :].strip())
            refuse_deep([*path, value], f"--set {given}")
            if len(path) >= DEEPEST:
                raise InputError(f"--set: expected a key of a few names, but got {len(path)} of them; check its dots")
            return path, value
    raise InputError(f"--set: expected KEY=VALUE with a dotted key, but got {given}; write for example time.end=2.0")


def _key_path(text: str) -> Path | None:
    """The names of a dotted TOML key, or None if ``text`` is not a key."""
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
    """The value of a ``--set``: parsed as TOML if possible, else the text itself."""
    if LONG_KEY.search(text):
        return text
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return table["value"] if len(table) == 1 else text


def override(raw: Mapping[str, object], overrides: Sequence[str]) -> dict[str, Any]:
    """A copy of the tables ``raw`` with the ``overrides``, each "KEY=VALUE", applied in turn.

    A value that is a table replaces the whole table. Setting a key of EXCLUSIVE removes its alternatives. Raises
    InputError if an override is malformed, or sets a key inside a value that is not a table.
    """
    result = _copy(raw)
    for text in overrides:
        path, value = parse_override(text)
        path = _as_spelled(result, path)
        node = result
        for depth, name in enumerate(path[:-1]):
            node = node.setdefault(name, {})
            if not isinstance(node, dict):
                key = shortened(dotted(path[: depth + 1]), 80)
                raise InputError(
                    f"--set {shortened(repr(text)[1:-1], 80)}: expected {key} to be a table, but the input has "
                    f"{shortened(dump_value(node), 80)}; set {key} as a whole"
                )
        for displaced in alternatives(path):
            node.pop(displaced[-1], None)
        node[path[-1]] = value
    return result


def _as_spelled(tables: Mapping[str, Any], path: Path) -> Path:
    """The key ``path`` as the input spells it: the names in tables such as [fit.lower] may be quoted, as in "equation.D", or
    not."""
    node: Any = tables
    for depth, name in enumerate(path):
        if not isinstance(node, Mapping):
            break
        for rest in ((".".join(path[depth:]),), (*name.split("."), *path[depth + 1 :])):
            if _holds(node, rest):
                return (*path[:depth], *rest)
        node = node.get(name)
    return path


def _holds(table: Any, path: Path) -> bool:
    """Whether nested tables have a value at this path."""
    for name in path:
        if not isinstance(table, Mapping) or name not in table:
            return False
        table = table[name]
    return True


def alternatives(path: Path) -> list[Path]:
    """The keys, as tuples of names, that setting the key ``path`` removes, because only one of them may be given."""
    return [
        (*path[:-1], other)
        for table, keys in EXCLUSIVE
        if len(path) == len(table) + 1 and all(name in (ANY, part) for name, part in zip(table, path, strict=False))
        if path[-1] in keys
        for other in keys
        if other != path[-1]
    ]


def is_set(key: str, overrides: Sequence[str]) -> bool:
    """Whether an override changes the dotted ``key``: itself, a table around it, an entry in it, or an alternative."""
    wanted = _key_path(key) or (key,)
    for text in overrides:
        path, _ = parse_override(text)
        for named in [path, *alternatives(path)]:
            shared = min(len(named), len(wanted))
            if named[:shared] == wanted[:shared]:
                return True
    return False


def _copy(raw: Mapping[str, object]) -> dict[str, Any]:
    """A deep copy of nested tables; values that are not tables are shared."""
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in raw.items()}
