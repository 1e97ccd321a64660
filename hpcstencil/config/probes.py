"""[probes.NAME]: receivers, points at which a field is recorded while the run goes on."""

from __future__ import annotations

import csv
import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcstencil.numerics.grid import AXES, Grid
from hpcstencil.runtime.filesystem import file_errors
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import at, too_many, unknown, wrong
from hpcstencil.validation.printable import printable
from hpcstencil.validation.schema import (
    COUNT,
    EXPRESSION_TEXT,
    NUMBER,
    TEXT,
    Key,
    Kind,
    Unfit,
    key,
    keys_of,
    read,
    table,
)

MOST_RECEIVERS = 1_000_000  # of one table
BEYOND = "beyond the columns"  # the key of a line's further entries


def _coordinates(value: object) -> tuple[float, ...]:
    """One number or a list of numbers, as a tuple of floats."""
    value = value.tolist() if hasattr(value, "tolist") else value  # an array, from Python
    listed = value if isinstance(value, list | tuple) else [value]
    if not 1 <= len(listed) <= MOST_RECEIVERS:
        raise Unfit
    return tuple(NUMBER.convert(entry) for entry in listed)


COORDINATES = Kind(f"a number or a list of numbers, one per receiver and at most {MOST_RECEIVERS}", _coordinates)


@dataclass(frozen=True)
class ProbeConfig:
    """The receivers of one table: the ``field`` or ``expression`` that they record, one of them None, and their
    coordinates along each axis of the grid, all of the same length. A ``file`` is read at once, so that an input holds
    the coordinates; its absolute path is kept, None if there was none."""

    field: str | None = key(TEXT, None, 'field = "u"', "the field that is recorded")
    expression: str | None = key(EXPRESSION_TEXT, None, 'expression = "u**2"', "instead of `field`: a derived quantity")
    x: tuple[float, ...] = key(COORDINATES, (), "x = [0.1, 0.2]", "places of the receivers along x")
    y: tuple[float, ...] = key(COORDINATES, (), "y = [0.5, 0.5]", "along y")
    z: tuple[float, ...] = key(COORDINATES, (), "z = [0.5, 0.5]", "along z")
    every_steps: int = key(COUNT, 1, "every_steps = 1", "steps between two samples")
    file: Path | None = dataclasses.field(default=None, compare=False)

    def places(self, ndim: int) -> tuple[tuple[float, ...], ...]:
        """The coordinates along each axis of the grid, in the input's unit of length."""
        return tuple(getattr(self, axis) for axis in AXES[:ndim])


def probe_key(name: str) -> str:
    """The dotted key of a table of [probes]."""
    return at("probes", name)


FILE = Key(TEXT, None, 'file = "stations.csv"')


def read_probes(section: Mapping[str, object], base: Path, grid: Grid) -> dict[str, ProbeConfig]:
    """The tables of [probes] by name. Paths of files are relative to ``base``. Raises InputError for wrong keys and
    values, and for receivers outside the grid."""
    return {
        name: _probe(name, table(at("probes", name), given, "[probes.receivers]"), base, grid)
        for name, given in section.items()
    }


def _probe(name: str, given: Mapping[str, object], base: Path, grid: Grid) -> ProbeConfig:
    if not name.isidentifier() or not name.isascii():
        raise wrong(at("probes", name), "a name of letters, digits and '_'", name, "rename it")
    keys = keys_of(ProbeConfig)
    for entry in given:
        if entry not in (*keys, "file"):
            raise unknown(at("probes", name, entry), "key", entry, (*keys, "file"))
    file = read(("probes", name), given, {"file": FILE})["file"]
    if file is not None:
        both = [axis for axis in AXES if axis in given]
        if both:
            raise InputError(
                f"{at('probes', name, both[0])}: the file has the places of the receivers; remove one of them"
            )
        path = Path(os.path.abspath(base / file))
        given = {**given, **_from_file(at("probes", name, "file"), path, grid.axes)}
    probe = ProbeConfig(**read(("probes", name), given, keys), file=None if file is None else path)
    if (probe.field is None) == (probe.expression is None):
        both = [at("probes", name, entry) for entry in ("field", "expression")]
        if probe.field is not None:
            raise too_many(both, "remove one")
        raise InputError(f"{both[0]}: expected a field or an expression to record, but both are missing; write one")
    _check(name, probe, grid)
    return probe


def _check(name: str, probe: ProbeConfig, grid: Grid) -> None:
    """Raise InputError for coordinates along axes that the grid does not have, of different lengths, or outside the grid."""
    counts = {axis: len(getattr(probe, axis)) for axis in AXES}
    for axis, count in counts.items():
        if (axis in grid.axes) != (count > 0):
            what = (
                "no such axis in this grid; remove it" if count else f"expected a place along {axis} for every receiver"
            )
            raise InputError(f"{at('probes', name, axis)}: {what}")
        if count and count != counts["x"]:
            raise InputError(
                f"{at('probes', name, axis)}: expected as many numbers as x has, {counts['x']}, but got {count}; the lists are "
                "read side by side"
            )
    for axis, places, lower, upper in zip(grid.axes, probe.places(grid.ndim), grid.lower, grid.upper, strict=True):
        for number, place in enumerate(places):
            if not lower <= place <= upper:
                raise InputError(
                    f"{at('probes', name, axis)}: expected places in the grid, {lower:g} to {upper:g}, but got {place:g} for "
                    f"receiver {number}; move it"
                )


def _from_file(key: str, path: Path, axes: Sequence[str]) -> dict[str, list[float]]:
    """The coordinates in a file of comma-separated values, whose first line names its columns. Raises InputError."""
    if not os.path.isfile(path):  # False also for a name that the system refuses
        raise InputError(
            f"{key}: expected a file with the columns {', '.join(axes)}, but there is no {path}; check the path"
        )
    try:
        with file_errors(path, "read"), path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file, restkey=BEYOND, skipinitialspace=True)
            names = [(column or "").strip() for column in rows.fieldnames or ()]
            rows.fieldnames = names
            missing = [axis for axis in axes if axis not in names]
            if missing:
                raise InputError(
                    f"{key}: expected a first line with the columns {', '.join(axes)}, but {path} has no {missing[0]}; add it"
                )
            twice = [axis for axis in axes if names.count(axis) > 1]
            if twice:
                raise InputError(f"{key}: expected one column {twice[0]}, but {path} has several; rename the others")
            found = _columns(key, path, axes, rows)
    except (UnicodeDecodeError, csv.Error):
        raise InputError(f"{key}: expected comma-separated text in UTF-8, but {path} is none; convert it") from None
    if not found[axes[0]]:
        raise InputError(f"{key}: expected a line per receiver, but {path} has none; add some")
    return found


def _columns(key: str, path: Path, axes: Sequence[str], rows: csv.DictReader[str]) -> dict[str, list[float]]:
    """The coordinates in the ``rows`` of a file, by axis. Raises InputError."""
    found: dict[str, list[float]] = {axis: [] for axis in axes}
    for row in rows:
        here = f"line {rows.line_num} of {path}"
        if any(entry.strip() for entry in row.get(BEYOND, ())):
            raise InputError(
                f"{key}: expected an entry per column, but {here} has more; write numbers as 0.5, separated by commas"
            )
        for axis in axes:
            found[axis].append(_number(row[axis]))
            if not math.isfinite(found[axis][-1]):
                got = "nothing" if row[axis] is None else printable(f"'{row[axis][:40]}'")
                raise InputError(f"{key}: expected a number for {axis} in {here}, but got {got}; correct it")
        if len(found[axes[0]]) > MOST_RECEIVERS:
            raise InputError(
                f"{key}: expected at most {MOST_RECEIVERS} receivers, but {path} has more; split the table"
            )
    return found


def _number(text: str | None) -> float:
    """The number in a text; NaN if there is none."""
    try:
        return float(text or "")
    except ValueError:
        return math.nan
