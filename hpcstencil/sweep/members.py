"""Read a sweep file, and expand it into the settings and the input of each member. Nothing is written here.

The settings of a member map dotted keys to values, as in ``--set``.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcstencil.config.provenance import to_tables
from hpcstencil.config.reader import load
from hpcstencil.config.settings import TOP, Config
from hpcstencil.problem.build import build
from hpcstencil.problem.warnings import warnings_of
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import listing, nearest, shown, too_many, unknown, wrong
from hpcstencil.validation.overrides import alternatives, parse_override
from hpcstencil.validation.schema import COUNT, NUMBER, TEXT, Key, choice, integer, take
from hpcstencil.validation.toml_text import bounded, dotted, dump_value, flatten, parse

MOST_MEMBERS = 10_000  # the names of folders have four digits
DIGITS = 12  # significant digits of random values: readable, and independent of the last bits of exp() on a machine
KEYS = {
    "base": Key(TEXT, None, 'base = "input.toml"'),
    "mode": Key(choice("grid", "list", "random"), "grid", 'mode = "grid"'),
    "samples": Key(COUNT, None, "samples = 100"),
    "seed": Key(integer(0), None, "seed = 1"),
}
RANGE = {
    "min": Key(NUMBER, None, "min = 0.0"),
    "max": Key(NUMBER, None, "max = 1.0"),
    "log": Key(choice(True, False), False, "log = true"),
    "integer": Key(choice(True, False), False, "integer = true"),
}
LIST = "write for example [0.1, 0.2, 0.3]"

Settings = dict[str, Any]


@dataclass(frozen=True)
class Sweep:
    """The contents of the sweep file at ``path``.

    ``base`` is the path of the input to vary, and ``mode`` is "grid", "list" or "random". ``members`` holds the
    settings of each member, all with the keys ``parameters``.
    """

    path: Path
    base: Path
    mode: str
    parameters: tuple[str, ...]
    members: tuple[Settings, ...]
    texts: Mapping[str, str]  # of the sweep file and of its base, for the record


def read_sweep(path: Path) -> Sweep:
    """Read the sweep file at ``path`` and expand its members.

    Raises InputError if the file is wrong in any way, or if the base input cannot be read.
    """
    text = _text(path, "a sweep file")
    raw = parse(text, str(path))
    for name in raw:
        if name not in (*KEYS, "parameters"):
            raise unknown(name, "key", name, (*KEYS, "parameters"))
    if "base" not in raw:
        raise InputError(f"{path}: expected base, the input file to vary, but the key is missing; write "
                         f"{KEYS['base'].example}")  # fmt: skip
    values = {key: take(key, spec, raw[key]) if key in raw else spec.default for key, spec in KEYS.items()}
    base = path.parent / values["base"]
    base_text = _text(base, "the base of the sweep, an input file,")
    mode = values["mode"]
    for key in ("samples", "seed"):
        if values[key] is not None and mode != "random":
            raise InputError(f'{key}: only a sweep with mode = "random" has {key}, but mode is "{mode}"; remove it')
    given = raw.get("parameters")
    if not isinstance(given, Mapping) or not given:
        raise InputError(
            f"{path}: expected a table [parameters] with a dotted key of the input and its values on each line, such as "
            f'"equation.D" = [0.1, 0.2]'
        )
    leaves = list(_leaves(given, ()))
    _refuse_conflicts([key for key, _ in leaves])
    parameters = dict(leaves)
    listed = mode != "random"
    members = _listed(parameters, mode) if listed else _random(parameters, values["samples"], values["seed"] or 0)
    return Sweep(path, base, mode, tuple(parameters), tuple(members), {"sweep": text, "base": base_text})


def _text(path: Path, what: str) -> str:
    """Read a UTF-8 file of at most 1 MiB. Raises InputError, which calls the file ``what``, if that fails."""
    try:
        content = bounded(path)
        if content is None:
            raise InputError(f"{path}: expected {what} but it is longer than 1 MiB; check the path")
        return content.decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: expected {what} but there is none; check the path") from None
    except (OSError, ValueError) as error:
        why = "it is not UTF-8 text" if isinstance(error, ValueError) else error.strerror
        raise InputError(f"{path}: expected {what} but {why}; check the path") from None


# ---- keys ------------------------------------------------------------------------------------------------------------


def key_path(name: str) -> tuple[str, ...]:
    """Split a dotted key into its names. Text that is not a dotted key is returned as a single name."""
    try:
        path, value = parse_override(f"{name}=0")
    except InputError:
        return (name,)
    return path if value == 0 else (name,)


def _leaves(table: Mapping[str, object], above: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, values) for [parameters]. Keys may be quoted, dotted, or in tables."""
    for name, value in table.items():
        path = (*above, *key_path(name))
        if isinstance(value, Mapping) and value and not set(value) & set(RANGE):
            yield from _leaves(value, path)
        else:
            yield dotted(path), value


def _refuse_conflicts(keys: Sequence[str]) -> None:
    """Raise InputError for two keys that are equal, contain or exclude each other, so that their order would matter, and
    for output.path."""
    for key in keys:
        if key_path(key) == ("output", "path"):
            raise InputError("parameters.output.path: each member's output lies in the member's own folder; remove it")
    for one, other in itertools.combinations(keys, 2):
        a, b = key_path(one), key_path(other)
        shared = min(len(a), len(b))
        if a[:shared] == b[:shared] or b in alternatives(a):
            raise too_many((one, other), "one would displace the other")


# ---- members ---------------------------------------------------------------------------------------------------------


def _listed(parameters: Mapping[str, Any], mode: str) -> list[Settings]:
    """The settings of the members for the modes "grid" and "list".

    A grid has all combinations of values, and the last key varies fastest. Member i of a list has the i-th value of
    every key. Raises InputError for values that are not lists, and for a list whose keys differ in length.
    """
    for key, values in parameters.items():
        if not isinstance(values, list) or not values:
            advice = 'a range needs mode = "random"' if isinstance(values, Mapping) else LIST
            near = nearest(key_path(key)[-1], RANGE)
            advice = f"did you mean {near}?" if near and key_path(key)[-1] not in RANGE else advice
            raise wrong(f"parameters.{key}", "a list of values", values, advice)
    lengths = {key: len(values) for key, values in parameters.items()}
    if mode == "list" and len(set(lengths.values())) > 1:
        found = listing(f"{key} has {length}" for key, length in lengths.items())
        raise InputError(f'parameters: expected lists of one length (mode = "list"), but {found}; make them agree')
    count = math.prod(lengths.values()) if mode == "grid" else next(iter(lengths.values()))
    _refuse_too_many(count)
    rows = itertools.product(*parameters.values()) if mode == "grid" else zip(*parameters.values(), strict=True)
    return [dict(zip(parameters, row, strict=True)) for row in rows]


def _refuse_too_many(count: int) -> None:
    """Raise InputError for more than MOST_MEMBERS members."""
    if count > MOST_MEMBERS:
        raise InputError(f"parameters: expected at most {MOST_MEMBERS} members, but got {count}; take fewer values")


def _random(parameters: Mapping[str, object], samples: int | None, seed: int) -> list[Settings]:
    """The settings of the members for the mode "random".

    A value depends only on the seed, the key and the number of the member, so adding samples or parameters does not
    change the others. Raises InputError for invalid ranges.
    """
    if samples is None:
        raise InputError('samples: expected the number of members (mode = "random"), but the key is missing; write '
                         f"for example {KEYS['samples'].example}")  # fmt: skip
    _refuse_too_many(samples)
    columns = [_drawn(key, values, _uniform(seed, key, samples)) for key, values in parameters.items()]
    return [dict(zip(parameters, row, strict=True)) for row in zip(*columns, strict=True)]


def _uniform(seed: int, key: str, samples: int) -> list[float]:
    """Uniform random numbers on [0, 1), made from the raw bits of the generator.

    NumPy keeps these bits stable across versions, but not its distributions.
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(zlib.crc32(key.encode()),))
    bits = np.random.PCG64(sequence).random_raw(samples)
    return ((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53).tolist()


def _drawn(key: str, values: object, uniform: Sequence[float]) -> list[Any]:
    """Draw one value from a list or a range for each of the ``uniform`` numbers on [0, 1). Raises InputError for an
    invalid range."""
    where = f"parameters.{key}"
    if isinstance(values, list) and values:
        return [values[int(u * len(values))] for u in uniform]
    if not isinstance(values, Mapping) or not values:
        raise wrong(where, "a range or a list of values", values, "write for example { min = 0.1, max = 0.5 }")
    for name in values:
        if name not in RANGE:
            raise unknown(f"{where}.{name}", "key", name, tuple(RANGE))
    for name in ("min", "max"):
        if name not in values:
            raise InputError(f"{where}.{name}: expected both ends of the range, but {name} is missing; add it")
    spec = {n: take(f"{where}.{n}", k, values[n]) if n in values else k.default for n, k in RANGE.items()}
    low, high = spec["min"], spec["max"]
    if not low < high:
        raise wrong(where, f"max to be more than min = {low:g}", values["max"], "swap them")
    if spec["integer"]:
        return _integers(where, low, high, spec["log"], uniform)
    if spec["log"] and low <= 0:
        raise wrong(f"{where}.min", "a positive number, as log = true", low, "raise it or leave log out")
    spread = (low * (high / low) ** u if spec["log"] else low + (high - low) * u for u in uniform)
    return [min(max(float(f"{value:.{DIGITS}g}"), low), high) for value in spread]


def _integers(where: str, low: float, high: float, log: bool, uniform: Sequence[float]) -> list[int]:
    """Draw integers from ``low`` to ``high``, inclusive, for ``uniform`` numbers on [0, 1)."""
    if log:
        raise too_many((f"{where}.log", f"{where}.integer"), "remove one")
    if low != int(low) or high != int(high):
        raise wrong(where, "whole numbers for min and max, as integer = true", [low, high], "round them")
    return [int(low) + int(u * (int(high) - int(low) + 1)) for u in uniform]


# ---- inputs of members -----------------------------------------------------------------------------------------------


def overrides(settings: Mapping[str, object]) -> tuple[str, ...]:
    """Settings as arguments "KEY=VALUE" of ``--set``."""
    return tuple(f"{key}={dump_value(value)}" for key, value in settings.items())


def described(settings: Mapping[str, object]) -> str:
    """Settings as part of a message: "equation.D = 0.1, ...". Keys with the value None, which another key excludes, are
    left out."""
    return ", ".join(f"{key} = {shown(value)}" for key, value in settings.items() if value is not None)


def member_inputs(sweep: Sweep) -> tuple[list[Config], dict[str, list[int]]]:
    """Read and check the input of every member. Returns (inputs in order, warnings).

    The warnings map each message to the numbers of the members that it concerns. Raises InputError, which names the
    member and its settings, for the first invalid member.
    """
    _refuse_bare_names(sweep)
    configs: list[Config] = []
    warnings: dict[str, list[int]] = {}
    for index, settings in enumerate(sweep.members):
        try:
            config = load(sweep.base, overrides(settings))
            found = warnings_of(build(config))
        except InputError as error:
            raise InputError(f"member {index} ({described(settings)}): {error}") from error
        configs.append(config)
        for text in found:
            warnings.setdefault(text, []).append(index)
    if _text(sweep.base, "the base of the sweep, an input file,") != sweep.texts["base"]:
        raise InputError(f"{sweep.base}: expected it to stay unchanged during planning, but it was edited; plan again")
    return configs, warnings


def _refuse_bare_names(sweep: Sweep) -> None:
    """Raise InputError for a parameter that lacks its table, such as F for equation.F, and suggest the full key."""
    bare = [key for key in sweep.parameters if len(key_path(key)) == 1 and key not in TOP]
    if not bare:
        return
    known = {key_path(key)[-1]: key for key, _ in flatten(to_tables(load(sweep.base)))}
    for name in bare:
        near = nearest(name, known)
        if near:
            raise unknown(f"parameters.{name}", "table or key", name, TOP, known[near])
