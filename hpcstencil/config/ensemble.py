"""The table [ensemble]: several simulations in one run, which differ in parameters of the equation or initial states.

The members share all compiled code. Parameters are passed to it at run time, one value per member, and the last axis
of every field array is the member axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hpcstencil.config.settings import Config
from hpcstencil.io.array_file import ArrayFile
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import wrong
from hpcstencil.validation.schema import COUNT, EXPRESSION, NUMBER, Key, expression_text, take
from hpcstencil.validation.toml_text import flatten

MOST_MEMBERS = 10_000
NOT_LISTED = ("equation.name", "equation.rhs", "initial.file")


def read_ensemble(section: Mapping[str, object]) -> dict[str, tuple[float | str, ...]]:
    """Read the table [ensemble] into a mapping from dotted keys, such as "equation.D", to one value per member.

    Raises InputError for keys in which members cannot differ, for invalid values, and for lists of different lengths.
    """
    given = {key: _values(key, listed) for key, listed in by_dotted_key("ensemble", section).items()}
    counts = {key: len(values) for key, values in given.items()}
    for key, count in counts.items():
        first, expected = next(iter(counts.items()))
        if count != expected:
            raise InputError(
                f"ensemble.{key}: expected {expected} values, as many as {first} has, but got {count}; give one per member"
            )
    return given


def by_dotted_key(table: str, section: Mapping[str, object]) -> dict[str, Any]:
    """The values of a ``table`` whose keys are dotted names, such as equation.D.

    In TOML, equation.D is a nested table and "equation.D" a single key; both give "equation.D". Raises InputError for a name
    given both ways.
    """
    found = dict[str, Any]()
    for key, value in flatten(section, join=".".join):
        if key in found:
            raise InputError(f"{table}.{key}: expected one entry, but got two, with and without quotes; remove one")
        found[key] = value
    return found


def _values(key: str, listed: object) -> tuple[float | str, ...]:
    """Check the list of values for one dotted key, such as "equation.D". Raises InputError for keys in which members
    cannot differ, and for invalid values."""
    table, _, name = key.partition(".")
    if table not in ("equation", "initial") or not name or "." in name or key in NOT_LISTED:
        raise InputError(
            f"ensemble.{key}: expected a number of the equation, equation.seed or an initial expression, such as "
            "equation.D, but got another key; members share all the rest"
        )
    if not isinstance(listed, list) or not 1 <= len(listed) <= MOST_MEMBERS:
        raise wrong(
            f"ensemble.{key}", f"a list with a value for each of 1 to {MOST_MEMBERS} members", listed, "write a list"
        )
    kind = COUNT if name == "seed" and table == "equation" else NUMBER if table == "equation" else EXPRESSION
    values = [take(f"ensemble.{key}", Key(kind, None, "[0.1, 0.2]"), value) for value in listed]
    for value in values:
        if isinstance(value, str) and ArrayFile.of(value) is not None:
            raise wrong(f"ensemble.{key}", "expressions", value, "run the members apart, or give expressions")
    return tuple(values if table == "equation" else map(expression_text, values))


def check_steps(config: Config) -> None:
    """Raise InputError if the settings of [time] do not suit an ensemble.

    With time.cfl or time.tolerance each member has an individual step size, so output, diagnostics and checkpoints cannot
    be scheduled by a number of steps.
    """
    if config.time.dt is not None:
        return
    counted = {
        "output.every_steps": config.output.every_steps,
        "diagnostics.every_steps": config.diagnostics.every_steps,
        "checkpoint.every_steps": config.checkpoint.every_steps,
    }
    for key, count in counted.items():
        if count is not None:
            advice = "checkpoint.every_minutes" if key.startswith("checkpoint") else "output.every, a time"
            raise InputError(
                f"{key}: expected none in an ensemble with time.{config.time.given}, whose members take steps of their own, "
                f"but got {count}; give {advice}, or a fixed time.dt"
            )


def members(config: Config) -> list[Config]:
    """Split an input with an [ensemble] into one input per member, in order, each without an ensemble."""
    count = len(next(iter(config.ensemble.values())))
    return [_member(config, index) for index in range(count)]


def _member(config: Config, index: int) -> Config:
    """The input of member number ``index``, with the values of this member."""
    equation, initial = config.equation, config.initial
    for key, values in config.ensemble.items():
        table, _, name = key.partition(".")
        value: Any = values[index]
        if table == "initial":
            initial = replace(initial, expressions={**initial.expressions, name: value})
        elif name == "seed":
            equation = replace(equation, seed=value)
        else:
            series = {other: given for other, given in equation.series.items() if other != name}
            equation = replace(equation, parameters={**equation.parameters, name: value}, series=series)
    return replace(config, equation=equation, initial=initial, ensemble={})
