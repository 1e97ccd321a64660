"""The tables [probes.NAME]: receivers, which are points where a field or expression is recorded during a run."""

from __future__ import annotations

import csv
import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hpcstencil.config.path_checks import check_is_file
from hpcstencil.numerics.grid import AXES, Grid
from hpcstencil.runtime.filesystem import file_errors
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import at, shown, too_many, unknown, wrong
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
    """Convert a number, a list or a one-dimensional array to a tuple of floats. Raises Unfit for anything else, and for
    no or more than MOST_RECEIVERS numbers."""
    value = value.tolist() if hasattr(value, "tolist") else value  # an array, from Python
    listed = value if isinstance(value, list | tuple) else [value]
    if not 1 <= len(listed) <= MOST_RECEIVERS:
        raise Unfit
    return tuple(NUMBER.convert(entry) for entry in listed)


COORDINATES = Kind(f"a number or a list of numbers, one per receiver and at most {MOST_RECEIVERS}", _coordinates)


@dataclass(frozen=True)
class ProbeConfig:
    """The receivers of one table [probes.NAME].

    Each receiver records either ``field`` or ``expression``; the other is None. ``x``, ``y`` and ``z`` are coordinates
    in the length unit of the input, one per receiver, and empty for axes that the grid lacks. A single number in the
    input holds for all receivers. The reader replaces the key ``file`` by the coordinates in that file, and keeps its
    absolute path; None if there was none.
    """

    field: str | None = key(TEXT, None, 'field = "u"', "the field that is recorded")
    expression: str | None = key(EXPRESSION_TEXT, None, 'expression = "u**2"', "instead of `field`: a derived quantity")
    x: tuple[float, ...] = key(COORDINATES, (), "x = [0.1, 0.2]", "coordinates of the receivers along x")
    y: tuple[float, ...] = key(COORDINATES, (), "y = [0.5, 0.5]", "coordinates along y")
    z: tuple[float, ...] = key(COORDINATES, (), "z = [0.5, 0.5]", "coordinates along z")
    every_steps: int = key(COUNT, 1, "every_steps = 1", "steps between two samples")
    file: Path | None = dataclasses.field(default=None, compare=False)

    def places(self, ndim: int) -> tuple[tuple[float, ...], ...]:
        """The coordinates of all receivers, as one tuple per axis of the grid, in the length unit of the input."""
        return tuple(getattr(self, axis) for axis in AXES[:ndim])


def probe_key(name: str) -> str:
    """The dotted key of the table ``name`` of [probes], for error messages."""
    return at("probes", name)


FILE = Key(TEXT, None, 'file = "stations.csv"')


def read_probes(section: Mapping[str, object], base: Path, grid: Grid) -> dict[str, ProbeConfig]:
    """Read the tables of [probes], by name.

    A relative path of a file of coordinates starts at ``base``. Raises InputError for wrong keys and values, for a file
    that cannot be read, and for receivers outside the grid.
    """
    return {
        name: _probe(name, table(at("probes", name), given, "[probes.receivers]"), base, grid)
        for name, given in section.items()
    }


def _probe(name: str, given: Mapping[str, object], base: Path, grid: Grid) -> ProbeConfig:
    """Read one table [probes.NAME]. Raises InputError for wrong keys and values, for a file that cannot be read, and
    unless exactly one of field and expression is given."""
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
                f"{at('probes', name, both[0])}: the file gives the coordinates of the receivers already; remove one of them"
            )
        path = Path(os.path.abspath(base / file))
        given = {**given, **_from_file(at("probes", name, "file"), path, grid.axes)}
    probe = ProbeConfig(**read(("probes", name), given, keys), file=None if file is None else path)
    if (probe.field is None) == (probe.expression is None):
        both = [at("probes", name, entry) for entry in ("field", "expression")]
        if probe.field is not None:
            raise too_many(both, "remove one")
        raise InputError(f"{both[0]}: expected a field or an expression to record, but both are missing; write one")
    probe = _repeated(probe)
    _check(name, probe, grid)
    return probe


def _repeated(probe: ProbeConfig) -> ProbeConfig:
    """The table with a single coordinate along an axis repeated for every receiver."""
    along = {axis: getattr(probe, axis) for axis in AXES}
    count = max(map(len, along.values()))
    return replace(probe, **{axis: places * count for axis, places in along.items() if len(places) == 1})


def _check(name: str, probe: ProbeConfig, grid: Grid) -> None:
    """Raise InputError if a coordinate lies outside the grid, if the lists of coordinates differ in length, or if they
    are not given along exactly the axes of the grid."""
    counts = {axis: len(getattr(probe, axis)) for axis in AXES}
    for axis, count in counts.items():
        if (axis in grid.axes) != (count > 0):
            what = (
                "no such axis in this grid; remove it"
                if count
                else f"expected a coordinate along {axis} for every receiver"
            )
            raise InputError(f"{at('probes', name, axis)}: {what}")
        if count and count != counts["x"]:
            raise InputError(
                f"{at('probes', name, axis)}: expected one number for all receivers, or one for each of the "
                f"{counts['x']} in x, but got {count}; change the list"
            )
    for axis, places, lower, upper in zip(grid.axes, probe.places(grid.ndim), grid.lower, grid.upper, strict=True):
        for number, place in enumerate(places):
            if not lower <= place <= upper:
                raise InputError(
                    f"{at('probes', name, axis)}: expected positions in the grid, {lower:g} to {upper:g}, but got {place:g} "
                    f"for receiver {number}; move it"
                )


def _from_file(key: str, path: Path, axes: Sequence[str]) -> dict[str, list[float]]:
    """Read the coordinates of receivers from a CSV file: one list per axis, from the column of that name.

    The first line holds the names of the columns. Raises InputError, whose message begins with ``key``, if the file, a
    column or a number is missing or invalid.
    """
    check_is_file(key, path, f"a file with the columns {', '.join(axes)}")
    try:
        with file_errors(path, "read"), path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file, restkey=BEYOND, skipinitialspace=True)
            names = [(column or "").strip("# \t") for column in rows.fieldnames or ()]  # numpy.savetxt writes "# x,y"
            rows.fieldnames = names
            missing = [axis for axis in axes if axis not in names]
            if missing:
                raise InputError(
                    f"{key}: expected a first line with the columns {', '.join(axes)}, separated by commas, but {path} begins "
                    f"with {shown(','.join(names))}; correct it"
                )
            twice = [axis for axis in axes if names.count(axis) > 1]
            if twice:
                raise InputError(f"{key}: expected one column {twice[0]}, but {path} has several; rename the others")
            found = _columns(key, path, axes, rows)
    except UnicodeDecodeError:
        raise InputError(f"{key}: expected comma-separated text in UTF-8, but {path} is not; convert it") from None
    except csv.Error as error:
        raise InputError(f"{key}: expected comma-separated numbers, but got a {error} in {path}; correct it") from None
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
    """Parse a number; NaN if the text is missing or not a number."""
    try:
        return float(text or "")
    except ValueError:
        return math.nan
