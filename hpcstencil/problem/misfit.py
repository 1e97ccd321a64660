"""The sums over receivers in an objective: misfits of what the receivers of tables of [probes] record.

An objective may contain sum(m(r, d, t, p)): r are the values at the receivers of a table at one step at which they record, d
the data for that step, t its time, and p numbers. The sum is over all these steps and all receivers. In the tree of the
objective a parameter stands for each sum, which is known at the end of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from hpcstencil.config.probes import probe_key
from hpcstencil.config.settings import Config
from hpcstencil.io.array_file import ArrayInMemory, ArrayOfMember
from hpcstencil.numerics.grid import AXES
from hpcstencil.numerics.topology import Range
from hpcstencil.symbolic.expressions import (
    SUM,
    Constant,
    Field,
    Node,
    Parameter,
    Pointwise,
    Reduction,
    Time,
    data_field,
    parameter_field,
    samples_field,
    substitute,
    walk,
)
from hpcstencil.symbolic.staggering import Layout, described, home
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import at, listing, shown

SAME = 1e-3  # times and places count as the same if they differ by less than this fraction of a step or cell


@dataclass(frozen=True)
class ReceiverSum:
    """A sum over the receivers of the ``tables`` of [probes], which have the same ones, and over their samples.

    ``term`` is what the samples of a receiver add, a tree of these (`samples_field`), of the data, of the time and of numbers.
    ``node`` stands for the sum in the objective.
    """

    node: Parameter
    tables: tuple[str, ...]
    term: Node


@dataclass(frozen=True)
class Misfit:
    """The ``sums`` over receivers in an objective.

    ``data`` are the tables of [probes] for whose receivers there are data, by the names of the data. ``recorded`` is what the
    receivers of each table record, as trees of fields, by table.
    """

    sums: tuple[ReceiverSum, ...]
    data: Mapping[str, str]
    recorded: Mapping[str, Node] = field(default_factory=dict)

    @cached_property
    def tables(self) -> tuple[str, ...]:
        """The tables of [probes] that the objective sums over."""
        return tuple(dict.fromkeys(table for each in self.sums for table in each.tables))

    @property
    def expressions(self) -> dict[str, Node]:
        """What the receivers record that is not a field, by table."""
        return {table: tree for table, tree in self.recorded.items() if not isinstance(tree, Field)}


def misfit_of(config: Config, tree: Node, key: str, text: str) -> tuple[Node, Misfit | None]:
    """The objective ``tree`` with a parameter in place of each sum over receivers, and these, None if there are none.

    ``key`` and ``text`` are those of the objective in the input. Raises InputError unless each sum is of samples of tables
    with the same receivers and steps, data, the time and numbers.
    """
    names: dict[Node, str] = {samples_field(name): name for name in config.probes}
    data: dict[Node, str] = {data_field(name): name for name in config.objective.data}
    found: dict[Node, Parameter] = {}

    def without_sum(part: Node) -> Node | None:
        if not isinstance(part, Reduction) or part.kind != SUM:
            return None
        return found.setdefault(part.operand, Parameter(f"sum over receivers {len(found)}"))

    rest = substitute(tree, without_sum)
    outside = [names[part] for part in walk(rest) if part in names]
    if outside:
        raise InputError(
            f"{key}: {shown(text)} has the samples of {probe_key(outside[0])} outside of sum(); write for example "
            f'"sum({outside[0]}**2)"'
        )
    if not found:
        return tree, None
    reductions = [part for part in walk(rest) if isinstance(part, Reduction)]
    if any(part in found.values() for each in reductions for part in walk(each.operand)):
        raise InputError(f"{key}: {shown(text)} contains sum() inside another reduction; separate them")
    if config.objective.every_steps is not None:
        raise InputError(
            f"{key}.every_steps: expected an expression alone, because receivers have steps of their own; write "
            f"{key} = {shown(text)}"
        )
    for operand in found:
        _check_operand(config, operand, {*names, *data}, key, text)
    found_data = {operand: _names_in(operand, data) for operand in found}
    tables, used = _tables_of_sums(
        config, {operand: _names_in(operand, names) for operand in found}, found_data, key, text
    )
    sums = tuple(ReceiverSum(node, tables[operand], operand) for operand, node in found.items())
    both = [data[part] for part in walk(rest) if part in data and data[part] in used]
    if both:
        raise InputError(
            f"{at('objective', 'data', both[0])}: used both inside and outside of sum(), where arrays have other shapes; give "
            "each its own"
        )
    return rest, Misfit(sums, used)


def _tables_of_sums(
    config: Config,
    samples: Mapping[Node, Sequence[str]],
    data: Mapping[Node, Sequence[str]],
    key: str,
    text: str,
) -> tuple[dict[Node, tuple[str, ...]], dict[str, str]]:
    """Return (the tables of [probes] of each sum, by its operand; a table for whose receivers there are data, by their name).

    ``samples`` are the tables whose samples are in an operand, and ``data`` the names of the data there. A sum of data alone
    belongs to the receivers of sums with samples in which they are used too, or to those of all sums. Raises InputError
    unless each sum, and each name of data, is of one set of receivers.
    """
    tables = tuple(dict.fromkeys(name for each in samples.values() for name in each))
    if not tables:
        raise InputError(
            f"{key}: expected samples of a table of [probes] inside sum(), but got {shown(text)}; change it"
        )
    used, found = dict[str, str](), dict[Node, tuple[str, ...]]()
    for operand in sorted(samples, key=lambda operand: not samples[operand]):  # those of data alone come last
        own = tuple(samples[operand])
        if not own:
            own = tuple(dict.fromkeys(used[name] for name in data[operand] if name in used)) or tables
        if len({_receivers(config, name) for name in own}) > 1:
            raise InputError(
                f"{key}: expected tables with the same receivers and every_steps inside one sum(), but got {listing(own)}; "
                "write a sum for each"
                if samples[operand]
                else f"{key}: {shown(text)} has a sum of data alone, which may belong to {listing(own)}; use the data with "
                "samples too"
            )
        for name in data[operand]:
            if _receivers(config, used.setdefault(name, own[0])) != _receivers(config, own[0]):
                raise InputError(
                    f"{at('objective', 'data', name)}: used with samples of {used[name]} and of {own[0]}; give each its own"
                )
        found[operand] = own
    return found, used


def _receivers(config: Config, table: str) -> tuple[Any, ...]:
    """What tables of [probes] with the same receivers and steps have in common."""
    probe = config.probes[table]
    return probe.every_steps, *map(tuple, probe.places(config.grid.ndim))


def _names_in(tree: Node, names: Mapping[Node, str]) -> list[str]:
    """The different names of the nodes of a tree, of those in ``names``, in order."""
    return list(dict.fromkeys(names[part] for part in walk(tree) if part in names))


def _check_operand(config: Config, operand: Node, known: set[Node], key: str, text: str) -> None:
    """Raise InputError unless the operand of a sum has nothing but ``known`` samples and data, the time and numbers."""

    def is_number(part: Node) -> bool:
        return isinstance(part, Constant | Time) or (isinstance(part, Parameter) and part.name not in config.probes)

    strange = [part for part in walk(operand) if not (isinstance(part, Pointwise) or is_number(part) or part in known)]
    if strange:
        advice = "change it"
        for name in config.probes:
            if Field(name) in strange or {Parameter(name), parameter_field(name)} & {*strange}:
                advice = f"rename probes.{name}, which is a {'field' if Field(name) in strange else 'parameter'} too"
        raise InputError(
            f"{key}: expected samples of a table of [probes], data, t and numbers inside sum(), but got {shown(text)}; {advice}"
        )


def observed(
    config: Config,
    misfit: Misfit,
    table: str,
    times: np.ndarray,
    dt: float,
    places: np.ndarray,
    held: Mapping[str, ArrayInMemory | ArrayOfMember],
) -> dict[str, np.ndarray]:
    """Read the data for the receivers of a ``table``: float64 arrays of shape (samples, receivers), by name.

    ``times`` are those of the samples, ``dt`` is the size of a step, and ``places`` are those of the receivers, of shape
    (receivers, axes). ``held`` are arrays from Python, by dotted key. Raises InputError if a file is missing, or an array has
    another shape or values that are not finite, or was recorded at other times or places; EnvironmentProblem if a file cannot
    be read.
    """
    found, shape = {}, (len(times), len(places))
    for name in (name for name, of in misfit.data.items() if of == table):
        key = at("objective", "data", name)
        array = held.get(key, config.objective.arrays[name])
        try:
            values, recorded = array.whole(), array.recorded(AXES[: config.grid.ndim])
        except InputError as error:
            raise InputError(f"{key}: {error}") from None
        if values.shape != shape:
            shapes = " or ".join(
                map(str, [shape, *([(array.members, *shape)] if isinstance(array, ArrayOfMember) else [])])
            )
            raise InputError(
                f"{key}: expected {shape[0]} samples of the {shape[1]} receivers of {probe_key(table)}, shape "
                f"{shapes}, but got {values.shape}; record them with the same time and every_steps, or change the array"
            )
        refuse_other_times(key, table, times, dt, recorded)
        refuse_other_places(key, config, table, places, recorded)
        found[name] = values.astype(np.float64)
        if not np.isfinite(found[name]).all():
            sample, receiver = np.argwhere(~np.isfinite(found[name]))[0]
            raise InputError(
                f"{key}: expected finite numbers, but got {values[sample, receiver]} in sample {sample} of receiver "
                f"{receiver}; correct it"
            )
    return found


def read_on_grid(
    config: Config,
    misfit: Misfit | None,
    layout: Layout,
    ranges: Sequence[Range],
    held: Mapping[str, ArrayInMemory | ArrayOfMember],
) -> dict[str, np.ndarray]:
    """Read the block ``ranges`` (global, half-open, per axis) of the objective's data that are not those of a misfit, by name.

    ``layout`` is that of the problem: data on faces have the shape of fields there, of which the values on upper boundaries are
    not used. ``held`` are arrays from Python, by dotted key. Raises InputError if a file is missing or not on the grid,
    EnvironmentProblem if it cannot be read.
    """
    found = {}
    for name, file in config.objective.arrays.items():
        if misfit is None or name not in misfit.data:
            key, field = at("objective", "data", name), data_field(name).name
            try:
                found[name] = held.get(key, file).read(ranges, layout.shape(field))
            except InputError as error:
                where = (
                    f", used {described(home(field, layout.positions, config.grid.ndim))}" if layout.positions else ""
                )
                raise InputError(f"{key}{where}: {error}") from None
    return found


def refuse_other_times(key: str, table: str, times: np.ndarray, dt: float, recorded: Mapping[str, np.ndarray]) -> None:
    """Raise InputError if the data ``key`` were ``recorded`` at other times than those of a table of [probes]."""
    own = recorded.get("time", times)
    apart = _apart(own, times, dt)
    if len(apart):
        number = apart[0]
        raise InputError(
            f"{key}: expected samples at the times of {probe_key(table)}, but sample {number} was recorded at t = "
            f"{own[number]:g}, not {times[number]:g}; record them with the same steps and every_steps"
        )


def refuse_other_places(
    key: str, config: Config, table: str, places: np.ndarray, recorded: Mapping[str, np.ndarray]
) -> None:
    """Raise InputError if the data ``key`` were ``recorded`` at other places than those of a table of [probes]."""
    for axis, (name, spacing) in enumerate(zip(AXES, config.grid.spacing, strict=False)):
        here = places[:, axis]
        own = recorded.get(name, here)
        apart = _apart(own, here, spacing)
        if len(apart):
            number = apart[0]
            raise InputError(
                f"{key}: expected the receivers of {probe_key(table)} in their order, but number {number} was recorded at "
                f"{name} = {own[number]:g}, not {here[number]:g}; record the data at the same places"
            )


def _apart(own: np.ndarray, expected: np.ndarray, unit: float) -> np.ndarray:
    """The indices at which two arrays differ by more than the fraction ``SAME`` of a ``unit``; none if their lengths differ."""
    return np.flatnonzero(np.abs(own - expected) > SAME * unit) if len(own) == len(expected) else np.zeros(0, np.int64)
