"""An input as text, for the record in every file; and the differences between inputs that a continued run may have."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

from hpcstencil.config.boundary_conditions import boundary_tables
from hpcstencil.config.settings import Config
from hpcstencil.validation.toml_text import dumps, flatten

# A continued run may differ from its origin in these keys without an explicit --set.
FREE = (
    "time.end",
    "output.",
    "checkpoint.",
    "diagnostics.every_steps",
    "decomposition.",
    "numerics.kernel",
    "title",
    "verify.",
)


def to_tables(config: Config) -> dict[str, Any]:
    """The input as tables, with defaults filled in and absolute paths: enough to run it again."""
    grid, output = config.grid, config.output
    tables: dict[str, Any] = {
        "title": config.title,
        "grid": {"shape": grid.shape, "lower": grid.lower, "upper": grid.upper},
        "equation": {
            "name": config.equation.name,
            **config.equation.parameters,
            "seed": config.equation.seed,
            "rhs": config.equation.rhs,
        },
        "initial": {"file": config.initial.file and str(config.initial.file), **config.initial.expressions},
        "boundary": boundary_tables(config.boundary, grid.axes),
        "numerics": vars(config.numerics),
        "time": vars(config.time),
        "decomposition": vars(config.decomposition),
        "output": {**vars(output), "path": os.path.abspath(output.path)},
        "diagnostics": {"every_steps": config.diagnostics.every_steps, **config.diagnostics.expressions},
        "checkpoint": vars(config.checkpoint),
        "mask": _mask(config),
        "ensemble": {key: list(values) for key, values in config.ensemble.items()},
        "verify": {"exact": config.verify.exact, "conserved": config.verify.conserved or None},
    }
    return {name: _without_nothing(value) for name, value in tables.items() if value != {}}


def _mask(config: Config) -> dict[str, Any]:
    if config.mask is None:
        return {}
    value = config.mask.value
    return {"solid": config.mask.solid, "surface": "no_flux" if value is None else {"value": value}}


def _without_nothing(value: Any) -> Any:
    """A table without the keys whose value is None or empty."""
    if not isinstance(value, Mapping):
        return value
    kept = {key: _without_nothing(entry) for key, entry in value.items() if entry is not None}
    return {key: entry for key, entry in kept.items() if entry != {}}


def to_toml(config: Config) -> str:
    """The input as TOML text, with defaults filled in and absolute paths; `auto` is kept."""
    return dumps(to_tables(config))


def sha256(config: Config) -> str:
    """SHA-256 of the input's text."""
    return hashlib.sha256(to_toml(config).encode()).hexdigest()


def differences(old: Config, new: Config) -> dict[str, tuple[Any, Any]]:
    """(old, new) value of every dotted key that differs between two inputs, with None for an absent key."""
    before, after = dict(flatten(to_tables(old))), dict(flatten(to_tables(new)))
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return {key: (before.get(key), after.get(key)) for key in keys}


def allowed(key: str) -> bool:
    """Whether a continued run may differ from its origin in this key without an explicit --set."""
    return any(key == free or (free.endswith(".") and key.startswith(free)) for free in FREE) and key != "output.fields"
