"""The tables [output.streams.NAME]: additional outputs of a run, each with its own file, times, cells and quantities."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcstencil.config.limits import LONGEST_NAME, MOST_OUTPUTS, MOST_STEPS
from hpcstencil.numerics.grid import Grid, Subgrid, chosen_cells
from hpcstencil.numerics.schedule import Schedule
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import at, too_many, unknown, wrong
from hpcstencil.validation.schema import (
    ANY_TABLE,
    COUNT,
    EXPRESSION_TEXT,
    NUMBER,
    POSITIVE,
    TEXT,
    Key,
    Kind,
    Unfit,
    choice,
    either,
    key,
    keys_of,
    list_of,
    read,
    table,
    take,
)


def _range(value: object) -> tuple[float, float]:
    """Convert a list of two increasing numbers to (lower, upper). Raises Unfit for anything else."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise Unfit
    lower, upper = map(NUMBER.convert, value)
    if not lower < upper:
        raise Unfit
    return lower, upper


def expressions_key(name: str) -> str:
    """The dotted key of the expressions of the stream ``name``, for error messages."""
    return at("output", "streams", name, "expressions")


PLACE = Key(either(NUMBER, Kind("two increasing numbers", _range)), None, "z = 0.5", "a plane, or a range")


@dataclass(frozen=True)
class StreamConfig:
    """One table [output.streams.NAME].

    ``path`` is None for the default, a file beside the main output. The stream writes ``fields``, or ``expressions`` by
    name, or all fields if neither is given. ``region`` maps the letter of an axis to one coordinate, which selects a
    plane, or to (lower, upper). Exactly one of ``every`` and ``every_steps`` is given.
    """

    path: Path | None = key(TEXT, None, 'path = "plane.h5"', "the file, relative to the working directory")
    every: float | None = key(POSITIVE, None, "every = 0.1", "time between records")
    every_steps: int | None = key(COUNT, None, "every_steps = 10", "instead of `every`: steps between records")
    fields: tuple[str, ...] | None = key(
        list_of(TEXT, "a list of field names"), None, 'fields = ["u"]', "fields to write"
    )
    expressions: Mapping[str, str] = field(
        default_factory=dict,
        metadata={
            "key": Key(ANY_TABLE, {}, 'expressions = { slope = "dx(u)" }', "instead of `fields`: quantities to write")
        },
    )
    region: Mapping[str, float | tuple[float, float]] = field(
        default_factory=dict,
        metadata={"key": Key(ANY_TABLE, {}, "region = { x = [0.2, 0.4] }", "the part of the grid that is written")},
    )
    stride: int | tuple[int, ...] = key(
        either(COUNT, list_of(COUNT, "a list of positive integers, one per axis", 3)),
        1,
        "stride = 2",
        "write only cells whose global index is a multiple of it",
    )
    average: bool = key(
        choice(True, False), False, "average = true", "write the mean over the time since the last record"
    )

    @property
    def settings(self) -> dict[str, Any]:
        """The stream as a table of plain values, ready to be written as TOML."""
        known = {**vars(self), "path": None if self.path is None else str(self.path.absolute())}
        known["region"] = {axis: list(v) if isinstance(v, tuple) else v for axis, v in self.region.items()}
        return known

    def steps_between(self, dt: float | None, end: float) -> int | None:
        """The number of steps between two records up to the time ``end``; None if it varies, or is not known before the run.

        ``dt`` is the fixed step size, or None.
        """
        if self.every is None or dt is None:
            return self.every_steps
        steps, schedule = round(min(self.every / dt, MOST_STEPS)), Schedule(end, dt)
        if not steps or abs(self.every / dt / steps - 1) * end / dt >= 0.25:
            return None
        last = (schedule.total_steps or 0) // steps
        return steps if schedule.step_near(last * self.every) == last * steps else None

    def names(self, fields: tuple[str, ...]) -> tuple[str, ...]:
        """The names of what the stream writes; ``fields`` are those of the equation."""
        return tuple(self.expressions) or self.fields or fields

    def cells(self, grid: Grid) -> Subgrid:
        """The cells of the global ``grid`` that the stream writes, chosen by ``region`` and ``stride``."""
        return chosen_cells(grid, self.region, self.stride)


def streams_of(given: Mapping[str, Mapping[str, object]], grid: Grid, end: float) -> dict[str, StreamConfig]:
    """Read the tables of [output.streams] for this grid and final time ``end``.

    Raises InputError for unknown keys and invalid values, and for a stream that selects no cell.
    """
    return {name: _stream(name, entries, grid, end) for name, entries in given.items()}


def _stream(name: str, given: Mapping[str, object], grid: Grid, end: float) -> StreamConfig:
    """Read one table [output.streams.NAME]. Raises InputError for wrong keys and values, for keys that exclude each
    other, and for a stream that selects no cell."""
    path = ("output", "streams", name)
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name) or len(name) > LONGEST_NAME:
        expected = f"a name of letters, digits, '_' and '-', at most {LONGEST_NAME} of them"
        raise wrong(at(*path), expected, name, "rename it")
    keys = keys_of(StreamConfig)
    for entry in given:
        if entry not in keys:
            raise unknown(at(*path, entry), "key", entry, tuple(keys))
    values = read(path, given, keys)
    if (values["every"] is None) == (values["every_steps"] is None):
        if values["every"] is None:
            raise InputError(
                f"{at(*path)}: expected every or every_steps, but got neither; write for example every = 0.1"
            )
        raise too_many((at(*path, "every"), at(*path, "every_steps")), "remove one")
    if values["every"] is not None and end / values["every"] > MOST_OUTPUTS:
        raise wrong(at(*path, "every"), "at most 2**31 records up to time.end", values["every"], "write less often")
    if values["fields"] is not None and values["expressions"]:
        raise InputError(f"{at(*path)}: expected either fields or expressions, but got both; make two streams")
    fields = values["fields"] or ()
    if len(set(fields)) < len(fields):
        raise wrong(at(*path, "fields"), "each field once", list(fields), "remove the repetition")
    values["path"] = None if values["path"] is None else Path(values["path"])
    values["expressions"] = {
        entry: take(at(*path, "expressions", entry), Key(EXPRESSION_TEXT, None, f'{at(entry)} = "dx(u)"'), text)
        for entry, text in values["expressions"].items()
    }
    values["region"] = _region(path, values["region"], grid)
    stride = values["stride"]
    if isinstance(stride, tuple) and len(stride) != grid.ndim:
        raise wrong(at(*path, "stride"), f"{grid.ndim} counts, one per axis", list(stride), "make them agree")
    stream = StreamConfig(**values)
    for axis, count in zip(grid.axes, stream.cells(grid).shape, strict=True):
        if not count:
            raise InputError(
                f"{at(*path, 'region')}: expected at least one cell along {axis}, but there is no centre of a cell"
                f"{'' if stride == 1 else ' whose index fits the stride'} from {_words(stream.region.get(axis))}; widen it"
            )
    return stream


def _words(place: Any) -> str:
    """A region along one axis, in words."""
    return "the lower to the upper end" if place is None else f"{place[0]:g} to {place[1]:g}"


def _region(path: tuple[str, ...], given: Mapping[str, object], grid: Grid) -> dict[str, Any]:
    """The region of a stream: a coordinate or (lower, upper) by axis letter. Raises InputError for unknown axes and for
    coordinates outside the grid."""
    region = {}
    for axis, value in table(at(*path, "region"), given, "region = { z = 0.5 }").items():
        here = at(*path, "region", axis)
        if axis not in grid.axes:
            raise unknown(here, "axis", axis, grid.axes)
        place = take(here, replace(PLACE, example=f"{axis} = 0.5"), value)
        lower, upper = grid.lower[grid.axes.index(axis)], grid.upper[grid.axes.index(axis)]
        for end in place if isinstance(place, tuple) else (place,):
            if not lower <= end <= upper:
                raise wrong(here, f"positions in the grid, {lower:g} to {upper:g} along {axis}", end, "move it")
        region[axis] = place
    return region
