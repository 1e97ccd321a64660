"""Boundary conditions as the input file gives them: per axis and side, with overrides per field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcstencil.errors import InputError
from hpcstencil.schema import EXPRESSION, Key, at, not_yet, shown, take, unknown, wrong

SIDES = ("lower", "upper")
LATER_KINDS = ("robin", "open", "sponge", "cpml")
EXAMPLE = '"periodic" or { dirichlet = 0.0 }'


@dataclass(frozen=True)
class Periodic:
    """The axis wraps around."""


@dataclass(frozen=True)
class Dirichlet:
    """The field's value at the face: a number or an expression of coordinates and t."""

    value: float | str


@dataclass(frozen=True)
class Neumann:
    """The outward normal derivative at the face: a number or an expression of coordinates and t."""

    value: float | str


Condition = Periodic | Dirichlet | Neumann
KINDS: dict[str, type[Dirichlet] | type[Neumann]] = {"dirichlet": Dirichlet, "neumann": Neumann}
Sides = tuple[Condition, Condition]


@dataclass(frozen=True)
class BoundaryConfig:
    """``axes`` holds the conditions (lower, upper) per axis, ``fields`` those of fields that differ, per axis or None."""

    axes: tuple[Sides, ...]
    fields: Mapping[str, tuple[Sides | None, ...]] = field(default_factory=dict)

    @property
    def periodic(self) -> tuple[bool, ...]:
        return tuple(isinstance(lower, Periodic) for lower, _ in self.axes)

    def condition(self, name: str, axis: int, side: int) -> Condition:
        """What holds for a field at one side (0 lower, 1 upper) of an axis."""
        own = self.fields.get(name, (None,) * len(self.axes))[axis]
        return (own or self.axes[axis])[side]

    def texts(self) -> Iterator[str]:
        """All values that are expressions."""
        for sides in [*self.axes, *(s for own in self.fields.values() for s in own if s is not None)]:
            for condition in sides:
                if not isinstance(condition, Periodic) and isinstance(condition.value, str):
                    yield condition.value


def read_boundary(raw: Mapping[str, Any], axes: tuple[str, ...]) -> BoundaryConfig:
    """The table [boundary]; raises InputError for kinds that do not exist or do not go together."""
    conditions: list[Sides] = [(Periodic(), Periodic())] * len(axes)
    fields = {}
    if "operators" in raw:
        raise not_yet("boundary.operators", "[boundary.operators]", ["zero normal derivative for inner results"])
    for name, value in raw.items():
        if name in axes:
            conditions[axes.index(name)] = _sides(at("boundary", name), value)
        elif isinstance(value, Mapping) and not set(value) & {*KINDS, *LATER_KINDS, *SIDES}:
            fields[name] = _field(name, value, axes)
        else:
            raise unknown(at("boundary", name), "axis", name, axes)
    result = BoundaryConfig(tuple(conditions), fields)
    for name, own in fields.items():
        for axis, sides in enumerate(own):
            if sides is not None and isinstance(sides[0], Periodic) != result.periodic[axis]:
                raise InputError(
                    f"{at('boundary', name, axes[axis])}: an axis is periodic for all fields or for none; make boundary."
                    f"{axes[axis]} and this agree"
                )
    return result


def _field(name: str, value: Mapping[str, Any], axes: tuple[str, ...]) -> tuple[Sides | None, ...]:
    """The conditions of one field, None on axes that it shares with the others."""
    for axis in value:
        if axis not in axes:
            raise unknown(at("boundary", name, axis), "axis", axis, axes)
    return tuple(_sides(at("boundary", name, axis), value[axis]) if axis in value else None for axis in axes)


def _sides(key: str, value: Any) -> Sides:
    """The conditions at both sides of an axis."""
    if isinstance(value, Mapping) and set(value) & set(SIDES):
        for side in value:
            if side not in SIDES:
                raise unknown(f"{key}.{at(side)}", "side", side, SIDES)
        missing = [side for side in SIDES if side not in value]
        if missing:
            raise InputError(
                f"{key}.{missing[0]}: expected a condition for both sides, but it is missing; write {EXAMPLE}"
            )
        lower, upper = (_condition(f"{key}.{side}", value[side]) for side in SIDES)
        if isinstance(lower, Periodic) or isinstance(upper, Periodic):
            raise InputError(
                f'{key}: an axis cannot be periodic at one side only; write {key.split(".")[-1]} = "periodic"'
            )
        return lower, upper
    both = _condition(key, value)
    return both, both


def _condition(key: str, value: Any) -> Condition:
    """One condition: "periodic" or a table with one kind."""
    if value == "periodic":
        return Periodic()
    if isinstance(value, str) and value in LATER_KINDS:
        raise not_yet(key, shown(value), ["periodic", *KINDS])
    if not isinstance(value, Mapping) or len(value) != 1:
        raise wrong(key, '"periodic" or a table with one kind of condition', value, f"write for example {EXAMPLE}")
    ((kind, given),) = value.items()
    if kind in LATER_KINDS:
        raise not_yet(f"{key}.{kind}", f"'{kind}'", ["periodic", *KINDS])
    if kind not in KINDS:
        raise unknown(f"{key}.{at(kind)}", "kind of boundary", kind, ("periodic", *KINDS))
    return KINDS[kind](take(f"{key}.{kind}", Key(EXPRESSION, None, "0.0"), given))


def boundary_tables(boundary: BoundaryConfig, axes: tuple[str, ...]) -> dict[str, Any]:
    """The conditions as they are written in an input file."""
    tables: dict[str, Any] = {axis: _written(sides) for axis, sides in zip(axes, boundary.axes, strict=True)}
    for name, own in boundary.fields.items():
        tables[name] = {axis: _written(sides) for axis, sides in zip(axes, own, strict=True) if sides is not None}
    return tables


def _written(sides: Sides) -> Any:
    if isinstance(sides[0], Periodic):
        return "periodic"
    lower, upper = ({type(c).__name__.lower(): c.value} for c in sides if not isinstance(c, Periodic))
    return {"lower": lower, "upper": upper}
