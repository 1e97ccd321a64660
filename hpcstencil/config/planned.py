"""Words of the input language and the command line that are reserved for later versions.

The error message for them says 'not available yet'.
"""

from __future__ import annotations

from collections.abc import Mapping

from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import shown

TABLES = ("pictures", "solver")
KEYS = {"grid": ("mapping",), "equation": ("solve", "implicit")}
VALUES = {
    ("equation", "name"): ("navier_stokes", "boussinesq"),
    ("numerics", "integrator"): ("imex_euler", "ars222", "ars343", "cnab2"),
}
COMMANDS = ("watch",)


def refuse_planned(raw: Mapping[str, object]) -> None:
    """Raise InputError if the tables ``raw``, as parsed from TOML, use a table, key or value that is only planned."""
    for name in TABLES:
        if isinstance(raw.get(name), Mapping):  # solver = "rk4" is a mistake for numerics.integrator
            raise InputError(f"{name}: not available yet; remove the table")
    for name, keys in KEYS.items():
        for key in keys:
            if key in _section(raw, name):
                raise InputError(f"{name}.{key}: not available yet; remove it")
    for (name, key), values in VALUES.items():
        if (value := _section(raw, name).get(key)) in values:
            raise InputError(f"{name}.{key}: {shown(value)} is not available yet; use another one")


def _section(raw: Mapping[str, object], name: str) -> Mapping[str, object]:
    """The table ``name`` of the input; empty if it is missing or no table, which its reader refuses."""
    section = raw.get(name)
    return section if isinstance(section, Mapping) else {}
