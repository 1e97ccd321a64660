"""The table [boundary]: a condition per axis and side, with overrides for single fields and for results of operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcstencil.symbolic import boundary_kinds
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import at, listing, nearest, shown, unknown, wrong
from hpcstencil.validation.schema import EXPRESSION, POSITIVE, Key, table, take

SIDES = ("lower", "upper")
PLAIN = ("periodic", "open")  # kinds written as a single word
Values = tuple[float | str | None, ...]
WISHES = {
    **dict.fromkeys(("value", "value_expression", "fixed"), "dirichlet"),
    **dict.fromkeys(("derivative", "derivative_expression", "no_flux", "noflux", "zero_flux"), "neumann"),
    **dict.fromkeys(("mixed", "mixed_expression"), "robin"),
}  # kinds as other programs name them
EXAMPLE = '"periodic" or { dirichlet = 0.0 }'


@dataclass(frozen=True)
class Form:
    """The syntax of one kind of boundary condition in the input file.

    ``values`` are the names of the parameters of the condition, and ``optional`` those that may be left out. A
    condition whose only parameter is called "value" is written without that name: dirichlet = 0.0. With ``positive``,
    every parameter must be a plain number above 0; otherwise it may be an expression in the coordinates and t.
    ``example`` is quoted in error messages.
    """

    values: tuple[str, ...]
    example: str
    positive: bool = False
    optional: tuple[str, ...] = ()

    def read(self, key: str, given: object) -> Values:
        """Check the parameters ``given`` in the input and return them in the order of ``self.values``.

        Optional parameters that were left out are None. Raises InputError, whose message begins with ``key``, if a
        parameter is missing, unknown or invalid.
        """
        spec = Key(POSITIVE if self.positive else EXPRESSION, None, "1.0")
        if self.values == ("value",):
            return (take(key, spec, given),)
        example = f"{key.rpartition('.')[2]} = {self.example}"
        values = table(key, given, example)
        for name in values:
            if name not in self.values:
                raise unknown(f"{key}.{at(name)}", "key", name, self.values)
        for name in self.values:
            if name not in values and name not in self.optional:
                raise InputError(f"{key}.{name}: expected {spec.kind.words}, but the key is missing; write {example}")
        return tuple(take(f"{key}.{name}", spec, values[name]) if name in values else None for name in self.values)

    def written(self, values: Values) -> Any:
        """The parameters in the form that an input file has: a single value or a table. The inverse of `read`."""
        if self.values == ("value",):
            return values[0]
        return {name: value for name, value in zip(self.values, values, strict=True) if value is not None}


GHOST_KINDS = tuple(name for name, kind in boundary_kinds.KINDS.items() if kind.values)  # kinds that define ghost cells
KINDS = {
    **{name: Form(boundary_kinds.KINDS[name].values, boundary_kinds.KINDS[name].example) for name in GHOST_KINDS},
    "sponge": Form(("width", "strength"), "{ width = 0.5, strength = 10.0 }", positive=True),
    "cpml": Form(("width", "speed"), "{ width = 0.5 }", positive=True, optional=("speed",)),
}


@dataclass(frozen=True)
class Condition:
    """The boundary condition on one side of an axis.

    ``kind`` is one of PLAIN or a key of KINDS. ``values`` are its parameters in the order of its `Form`: numbers,
    expressions as text, or None for an optional one that was left out. They are empty for the kinds in PLAIN.
    """

    kind: str
    values: Values = ()


PERIODIC = Condition("periodic")
Sides = tuple[Condition, Condition]


@dataclass(frozen=True)
class BoundaryConfig:
    """The table [boundary].

    ``axes`` holds the pair of conditions (lower, upper) of each axis. ``fields`` maps the name of a field to overrides:
    one pair per axis, or None where the field uses the condition of the axis. ``operators`` holds overrides in the same
    form for the results of operators, such as the inner laplacian of laplacian(laplacian(u)), by the text of the
    expression.
    """

    axes: tuple[Sides, ...]
    fields: Mapping[str, tuple[Sides | None, ...]] = field(default_factory=dict)
    operators: Mapping[str, tuple[Sides | None, ...]] = field(default_factory=dict)

    @property
    def periodic(self) -> tuple[bool, ...]:
        """Whether each axis is periodic."""
        return tuple(lower == PERIODIC for lower, _ in self.axes)

    def condition(self, name: str, axis: int, side: int) -> Condition:
        """The condition of the field ``name`` on one side (0 lower, 1 upper) of an axis: the override if the input has
        one, else the condition of the axis."""
        own = self.fields.get(name, (None,) * len(self.axes))[axis]
        return (own or self.axes[axis])[side]

    def texts(self) -> Iterator[str]:
        """Yield every parameter of a condition that is an expression, as text."""
        special = [*self.fields.values(), *self.operators.values()]
        for sides in [*self.axes, *(s for own in special for s in own if s is not None)]:
            for condition in sides:
                yield from (value for value in condition.values if isinstance(value, str))


def read_boundary(raw: Mapping[str, object], axes: tuple[str, ...]) -> BoundaryConfig:
    """Read the table [boundary].

    ``raw`` is the table as parsed from TOML, and ``axes`` are the letters of the axes of the grid, such as ("x", "y").
    An axis without an entry is periodic. Raises InputError for unknown kinds, axes and sides, and for combinations that
    are not possible, such as an axis that is periodic for one field only.
    """
    conditions: list[Sides] = [(PERIODIC, PERIODIC)] * len(axes)
    fields = {}
    given = table(
        "boundary.operators", raw.get("operators", {}), 'operators = { "laplacian(u)" = { dirichlet = 0.0 } }'
    )
    for name, value in raw.items():
        if name in axes:
            conditions[axes.index(name)] = _sides(at("boundary", name), value)
        elif name == "operators":
            continue
        elif isinstance(value, Mapping) and name.isidentifier() and not set(value) & {*KINDS, *SIDES}:
            fields[name] = _field(at("boundary", name), value, axes)
        else:
            side = {"-": ".lower", "+": ".upper"}.get(name[1:])
            raise unknown(at("boundary", name), "axis", name, axes, side and name[0] + side)
    periodic = BoundaryConfig(tuple(conditions)).periodic
    operators = {text: _operator(at("boundary", "operators", text), v, axes, periodic) for text, v in given.items()}
    special = {at("boundary", name): own for name, own in fields.items()}
    special |= {at("boundary", "operators", text): own for text, own in operators.items()}
    for key, own in special.items():
        for axis, sides in enumerate(own):
            if sides is not None and (sides[0] == PERIODIC) != periodic[axis]:
                raise InputError(
                    f"{key}.{axes[axis]}: an axis is periodic for all fields or for none; make boundary.{axes[axis]} and this "
                    "agree"
                )
    return BoundaryConfig(tuple(conditions), fields, operators)


def _field(key: str, value: Mapping[str, object], axes: tuple[str, ...]) -> tuple[Sides | None, ...]:
    """The overrides of one field: a pair (lower, upper) per axis, or None for an axis without one."""
    for axis in value:
        if axis not in axes:
            raise unknown(f"{key}.{at(axis)}", "axis", axis, axes)
    return tuple(_sides(f"{key}.{axis}", value[axis]) if axis in value else None for axis in axes)


def _operator(key: str, value: object, axes: tuple[str, ...], periodic: tuple[bool, ...]) -> tuple[Sides | None, ...]:
    """The overrides of the result of an operator: a pair (lower, upper) per axis, or None for an axis without one.

    The input gives them per axis, or as one condition for all non-periodic sides. Only kinds that define ghost cells
    are allowed; others raise InputError.
    """
    if isinstance(value, Mapping) and set(value) & set(axes):
        own = _field(key, value, axes)
    else:
        both = _condition(key, value)
        own = tuple(None if wraps else (both, both) for wraps in periodic)
    for sides in own:
        for condition in sides or ():
            if condition.kind not in GHOST_KINDS:
                raise InputError(
                    f"{key}: expected {listing(GHOST_KINDS, 'or')} for the result of an operator, but got {condition.kind}; "
                    "use that for the field"
                )
    return own


def _sides(key: str, value: Any) -> Sides:
    """The conditions (lower, upper) of an axis, from one condition for both sides or from a table with each."""
    names = set(value) if isinstance(value, Mapping) else set()
    if "type" in names:
        raise wrong(key, "the kind of condition as its key", value, f"write for example {_example(value['type'])}")
    if names & {*SIDES} or (len(names) > 1 and not names & {*PLAIN, *KINDS}):
        for side in value:
            if side not in SIDES:
                raise unknown(f"{key}.{at(side)}", "side", side, SIDES)
        missing = [side for side in SIDES if side not in value]
        if missing:
            raise InputError(
                f"{key}.{missing[0]}: expected a condition for both sides, but it is missing; write {EXAMPLE}"
            )
        lower, upper = (_condition(f"{key}.{side}", value[side]) for side in SIDES)
        if PERIODIC in (lower, upper):
            raise InputError(
                f'{key}: an axis cannot be periodic at one side only; write {key.split(".")[-1]} = "periodic"'
            )
        return lower, upper
    both = _condition(key, value)
    return both, both


def _condition(key: str, value: object) -> Condition:
    """One condition, from a word in PLAIN or a table whose only key is in KINDS."""
    if value in PLAIN:
        return Condition(value)
    if not isinstance(value, Mapping) or len(value) != 1:
        raise wrong(
            key,
            '"periodic", "open" or a table with one kind of condition',
            value,
            f"write for example {_example(value)}",
        )
    ((kind, given),) = value.items()
    if kind in PLAIN:
        raise wrong(key, f"{shown(kind)} as a word alone", value, f"write {key.split('.')[-1]} = {shown(kind)}")
    if kind not in KINDS:
        raise unknown(f"{key}.{at(kind)}", "kind of boundary", kind, (*PLAIN, *KINDS), WISHES.get(kind))
    return Condition(kind, KINDS[kind].read(f"{key}.{kind}", given))


def _example(value: object) -> str:
    """An example for an error message: of the kind that the user probably meant, else EXAMPLE."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "{ lower = { dirichlet = 0.0 }, upper = { neumann = 0.0 } }"
    meant = WISHES.get(value) or nearest(value, (*PLAIN, *KINDS)) if isinstance(value, str) else None
    if meant is None:
        return EXAMPLE
    return f"{{ {meant} = {KINDS[meant].example} }}" if meant in KINDS else shown(meant)


def boundary_tables(boundary: BoundaryConfig, axes: tuple[str, ...]) -> dict[str, Any]:
    """The table [boundary] as nested dictionaries, ready to be written as TOML. The inverse of `read_boundary`."""

    def own_tables(special: Mapping[str, tuple[Sides | None, ...]]) -> dict[str, Any]:
        return {
            name: {axis: _written(sides) for axis, sides in zip(axes, own, strict=True) if sides is not None}
            for name, own in special.items()
        }

    tables: dict[str, Any] = {axis: _written(sides) for axis, sides in zip(axes, boundary.axes, strict=True)}
    tables |= own_tables(boundary.fields)
    return {**tables, "operators": own_tables(boundary.operators)} if boundary.operators else tables


def _written(sides: Sides) -> Any:
    """The conditions of one axis as the input writes them. The inverse of `_sides`."""
    if sides[0] == PERIODIC:
        return "periodic"
    lower, upper = (c.kind if c.kind in PLAIN else {c.kind: KINDS[c.kind].written(c.values)} for c in sides)
    return {"lower": lower, "upper": upper}
