"""The input as TOML text, which every output file records, and the keys that a continued run may change."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcstencil.config.boundary_conditions import boundary_tables
from hpcstencil.config.settings import Config, EquationConfig, GradientConfig, MaskConfig, ObjectiveConfig, OutputConfig
from hpcstencil.config.time_series import TimeSeries
from hpcstencil.validation.schema import entries_of, keys_of
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
    "objective.",
    "gradient.",
    "fit.",
)


def to_tables(config: Config) -> dict[str, Any]:
    """The input as nested dictionaries of plain values, with defaults filled in and absolute paths.

    `reader.from_mapping` reads them back, so that a recorded input can be run again.
    """
    tables: dict[str, Any] = {
        "title": config.title,
        "grid": vars(config.grid),
        "equation": _equation(config.equation),
        "initial": _table(config.initial),
        "boundary": boundary_tables(config.boundary, config.grid.axes),
        "numerics": _table(config.numerics),
        "time": _table(config.time),
        "decomposition": _table(config.decomposition),
        "output": _output(config.output),
        "diagnostics": _table(config.diagnostics),
        "checkpoint": _table(config.checkpoint),
        "mask": _mask(config.mask) if config.mask else {},
        "ensemble": {key: list(values) for key, values in config.ensemble.items()},
        "probes": {name: _table(probe) for name, probe in config.probes.items()},
        "objective": _objective(config.objective),
        "gradient": _table(config.gradient) if config.gradient != GradientConfig() else {},
        "fit": _table(config.fit) if config.fit else {},
        "verify": _table(config.verify),
    }
    return dict(_without_nothing(tables))


def _table(settings: object) -> dict[str, Any]:
    """The table that a settings dataclass describes. Entries that the input writes directly in the table, beside its
    keys, are merged into it."""
    declared = entries_of(type(settings))
    table: dict[str, Any] = {}
    for name, value in vars(settings).items():
        if name in declared and not declared[name].table:
            table |= value
        elif name in declared or name in keys_of(type(settings)):
            table[name] = str(value) if isinstance(value, Path) else value
    return table


def _equation(equation: EquationConfig) -> dict[str, Any]:
    """The table [equation], with time series and stencils as the input writes them."""
    table = {
        name: dict(vars(value)) if isinstance(value, TimeSeries) else value for name, value in _table(equation).items()
    }
    stencils = {
        name: stencil.weights if stencil.method == "direct" else _table(stencil)
        for name, stencil in equation.stencils.items()
    }
    return table | {"stencils": stencils}


def _output(output: OutputConfig) -> dict[str, Any]:
    """The table [output], with an absolute path and its streams."""
    streams = {name: stream.settings for name, stream in output.streams.items()}
    return {**_table(output), "path": os.path.abspath(output.path), "streams": streams}


def _mask(mask: MaskConfig) -> dict[str, Any]:
    """The table [mask], with the condition at the surface as the input writes it."""
    return {**_table(mask), "surface": "no_flux" if mask.surface is None else {"value": mask.surface}}


def _objective(objective: ObjectiveConfig) -> dict[str, Any]:
    """The table [objective], empty without an objective."""
    every = objective.every_steps
    terms = {
        name: text if every is None else {"sum": text, "every_steps": every}
        for name, text in objective.expressions.items()
    }
    return {**terms, **({"data": dict(objective.data)} if objective.data else {})}


def _without_nothing(value: object) -> Any:
    """A nested table without the keys whose value is None, an empty tuple or an empty table."""
    if not isinstance(value, Mapping):
        return value
    kept = {key: _without_nothing(entry) for key, entry in value.items() if entry is not None and entry != ()}
    return {key: entry for key, entry in kept.items() if entry != {}}


def to_toml(config: Config) -> str:
    """The input as TOML text, with defaults filled in and absolute paths. Values of "auto" are kept."""
    return dumps(to_tables(config))


def sha256(config: Config) -> str:
    """The SHA-256 hash of `to_toml`, in hexadecimal. Defaults that are written out do not change it."""
    return hashlib.sha256(to_toml(config).encode()).hexdigest()


def differences(old: Config, new: Config) -> dict[str, tuple[Any, Any]]:
    """Compare two inputs: a mapping from each dotted key in which they differ to (old value, new value). A missing key
    has the value None."""
    before, after = dict(flatten(to_tables(old))), dict(flatten(to_tables(new)))
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    return {key: (before.get(key), after.get(key)) for key in keys}


def allowed(key: str) -> bool:
    """Whether a continued run may change this dotted key in its input without an explicit --set."""
    return any(key == free or (free.endswith(".") and key.startswith(free)) for free in FREE) and key != "output.fields"
