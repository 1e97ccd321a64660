"""The terms of an objective that are sums over receivers: misfits of what the receivers of a table of [probes] record.

An objective may be c·sum(m(r, d, t)) + rest. r are the values at the receivers at one step at which they record, d the data for
that step, t its time, and the sum is over all these steps and all receivers. The rest is taken at the end of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpcstencil.config.probes import probe_key
from hpcstencil.config.settings import Config
from hpcstencil.io.array_file import ArrayInMemory, ArrayOfMember
from hpcstencil.numerics.grid import AXES
from hpcstencil.numerics.topology import Range
from hpcstencil.symbolic.differentiate import ONE, ZERO, over, plus, times
from hpcstencil.symbolic.expressions import (
    SUM,
    Constant,
    Field,
    Node,
    Pointwise,
    Reduction,
    Time,
    data_field,
    samples_field,
    substitute,
    walk,
)
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import at, listing, shown

SAME = 1e-3  # times and places count as the same if they differ by less than this fraction of a step or cell


@dataclass(frozen=True)
class Misfit:
    """A sum over the receivers of the table ``table`` of [probes], and over their samples.

    ``term`` is what the sample of a receiver adds, a tree of the sample (`samples_field`), of the ``data`` by name, and of the
    time. ``recorded`` is what the receivers record, a tree of fields.
    """

    table: str
    term: Node
    data: tuple[str, ...]
    recorded: Node = ZERO

    @property
    def sample(self) -> Field:
        """The name of the samples in ``term``."""
        return samples_field(self.table)


def misfit_of(config: Config, tree: Node, key: str, text: str) -> tuple[Node, Misfit | None]:
    """The objective ``tree`` without its sums over receivers, and these, None if there are none.

    ``key`` and ``text`` are those of the objective in the input. Raises InputError unless the sums are added to the rest,
    multiplied by numbers at most, and unless each is of samples of the same table, data, the time and numbers.
    """
    names: dict[Node, str] = {samples_field(name): name for name in config.probes}
    data: dict[Node, str] = {data_field(name): name for name in config.objective.data}
    beside = substitute(tree, lambda part: ZERO if isinstance(part, Reduction) and part.kind == SUM else None)
    outside = [names[part] for part in walk(beside) if part in names]
    if outside:
        raise InputError(
            f"{key}: {shown(text)} has the samples of {probe_key(outside[0])} outside of sum(); write for example "
            f'"sum({outside[0]}**2)"'
        )
    if not _has_sum(tree):
        return tree, None
    rest: Node = ZERO
    term: Node = ZERO
    for factor, part in _terms(tree, ONE):
        if isinstance(part, Reduction) and part.kind == SUM:
            if any(not isinstance(each, Constant | Pointwise) for each in walk(factor)):
                raise InputError(
                    f"{key}: {shown(text)} multiplies sum() by more than numbers; move the factor into sum()"
                )
            term = plus(term, times(factor, part.operand))
        else:
            rest = plus(rest, times(factor, part))
    if _has_sum(rest):
        raise InputError(
            f"{key}: {shown(text)} uses sum() in a function or quotient; write a number times sum(...) + ..."
        )
    if config.objective.every_steps is not None:
        raise InputError(
            f"{key}.every_steps: expected an expression alone, because receivers have steps of their own; write "
            f"{key} = {shown(text)}"
        )
    parts = list(walk(term))
    tables = list(dict.fromkeys(names[part] for part in parts if part in names))
    strange = [
        part for part in parts if not isinstance(part, Constant | Pointwise | Time) and part not in {**names, **data}
    ]
    if strange or not tables:
        hidden = [part.name for part in strange if isinstance(part, Field) and part.name in config.probes]
        advice = f"rename probes.{hidden[0]}, which is a field too" if hidden else "change it"
        raise InputError(
            f"{key}: expected samples of a table of [probes], data, t and numbers inside sum(), but got {shown(text)}; {advice}"
        )
    if len(tables) > 1:
        raise InputError(
            f"{key}: not available yet with samples of several tables of [probes], but got {listing(tables)}; put all "
            "receivers into one table"
        )
    used = [data[part] for part in parts if part in data]
    both = [data[part] for part in walk(rest) if part in data and data[part] in used]
    if both:
        raise InputError(
            f"{at('objective', 'data', both[0])}: used both inside and outside of sum(), where arrays have other shapes; give "
            "each its own"
        )
    return rest, Misfit(tables[0], term, tuple(dict.fromkeys(used)))


def _terms(tree: Node, factor: Node) -> Iterator[tuple[Node, Node]]:
    """Yield the terms of a sum as (factor, rest). Factors are taken out of terms that contain sum() only."""
    match tree:
        case Pointwise("add", (a, b)):
            yield from _terms(a, factor)
            yield from _terms(b, factor)
        case Pointwise("subtract", (a, b)):
            yield from _terms(a, factor)
            yield from _terms(b, times(Constant(-1.0), factor))
        case Pointwise("negative", (a,)):
            yield from _terms(a, times(Constant(-1.0), factor))
        case Pointwise("multiply", (a, b)) if _has_sum(b) and not _has_sum(a):
            yield from _terms(b, times(factor, a))
        case Pointwise("multiply", (a, b)) if _has_sum(a) and not _has_sum(b):
            yield from _terms(a, times(factor, b))
        case Pointwise("divide", (a, b)) if _has_sum(a) and not _has_sum(b):
            yield from _terms(a, over(factor, b))
        case _:
            yield factor, tree


def _has_sum(tree: Node) -> bool:
    """Whether a tree contains a sum over receivers."""
    return any(isinstance(part, Reduction) and part.kind == SUM for part in walk(tree))


def observed(
    config: Config,
    misfit: Misfit,
    times: np.ndarray,
    places: np.ndarray,
    held: Mapping[str, ArrayInMemory | ArrayOfMember],
) -> dict[str, np.ndarray]:
    """Read the data of a misfit: float64 arrays of shape (samples, receivers), by name.

    ``times`` are those of the samples, and ``places`` those of the receivers, of shape (receivers, axes). ``held`` are arrays
    from Python, by dotted key. Raises InputError if a file is missing, or an array has another shape or values that are not
    finite, or was recorded at other times or places; EnvironmentProblem if a file cannot be read.
    """
    found, shape = {}, (len(times), len(places))
    for name in misfit.data:
        key = at("objective", "data", name)
        array = held.get(key, config.objective.arrays[name])
        try:
            values, recorded = array.whole(), array.recorded(AXES[: config.grid.ndim])
        except InputError as error:
            raise InputError(f"{key}: {error}") from None
        if values.shape != shape:
            raise InputError(
                f"{key}: expected {shape[0]} samples of the {shape[1]} receivers of {probe_key(misfit.table)}, shape "
                f"{shape}, but got {values.shape}; record them with the same time and every_steps, or change the array"
            )
        refuse_other_times(key, config, misfit.table, times, recorded)
        refuse_other_places(key, config, misfit.table, places, recorded)
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
    ranges: Sequence[Range],
    held: Mapping[str, ArrayInMemory | ArrayOfMember],
) -> dict[str, np.ndarray]:
    """Read the block ``ranges`` (global, half-open, per axis) of the objective's data that are not those of a misfit, by name.

    ``held`` are arrays from Python, by dotted key. Raises InputError if a file is missing or not on the grid,
    EnvironmentProblem if it cannot be read.
    """
    found = {}
    for name, file in config.objective.arrays.items():
        if misfit is None or name not in misfit.data:
            key = at("objective", "data", name)
            try:
                found[name] = held.get(key, file).read(ranges, config.grid.shape)
            except InputError as error:
                raise InputError(f"{key}: {error}") from None
    return found


def refuse_other_times(
    key: str, config: Config, table: str, times: np.ndarray, recorded: Mapping[str, np.ndarray]
) -> None:
    """Raise InputError if the data ``key`` were ``recorded`` at other times than those of a table of [probes]."""
    assert config.time.dt is not None
    own = recorded.get("time", times)
    apart = _apart(own, times, config.time.dt)
    if len(apart):
        number = apart[0]
        raise InputError(
            f"{key}: expected samples at the times of {probe_key(table)}, but sample {number} was recorded at t = "
            f"{own[number]:g}, not {times[number]:g}; record them with the same time.dt and every_steps"
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
