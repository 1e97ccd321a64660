"""What the boundary conditions of an input make of a problem: values at faces, and layers that damp what comes near."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hpcstencil.boundary import GHOSTS, NO_FLUX, Face
from hpcstencil.conditions import PERIODIC, SIDES, Condition, Sides
from hpcstencil.errors import InputError
from hpcstencil.expressions import (
    Constant,
    Coordinate,
    Derivative,
    DivGrad,
    Field,
    Node,
    Pointwise,
    children,
    node,
    walk,
)
from hpcstencil.parser import Scope, parse
from hpcstencil.schema import at
from hpcstencil.settings import Config


def faces_of(
    config: Config, fields: tuple[str, ...], symbols: Mapping[str, Node], trees: Mapping[str, Node]
) -> dict[tuple[Node, int, int], Face]:
    """The conditions at the faces of axes that are not periodic, per (field or inner result, axis, side).

    Raises InputError for malformed expressions, and for inner results that no derivative is taken of.
    """
    boundary, axes = config.boundary, config.grid.axes
    scope = Scope(config.grid.ndim, symbols)
    faces: dict[tuple[Node, int, int], Face] = {}
    for name in fields:
        own = boundary.fields.get(name, (None,) * len(axes))
        for axis in range(len(axes)):
            key = at("boundary", name) if own[axis] is not None else "boundary"
            sides = tuple(boundary.condition(name, axis, side) for side in (0, 1))
            for side, face in _faces((sides[0], sides[1]), f"{key}.{axes[axis]}", scope):
                faces[Field(name), axis, side] = face
    derivatives = [part for tree in trees.values() for part in walk(tree) if isinstance(part, Derivative | DivGrad)]
    operands = {operand for part in derivatives for operand in children(part)}
    inner = Scope(config.grid.ndim, {**symbols, **{name: Field(name) for name in fields}}, operators=True)
    for text, given in boundary.operators.items():
        key = at("boundary", "operators", text)
        operand = parse(text, inner, key)
        if operand not in operands:
            raise InputError(
                f"{key}: no derivative is taken of this expression; write it as it stands inside laplacian(), dx() and the like"
            )
        for axis, own_sides in enumerate(given):
            for side, face in _faces(own_sides or (PERIODIC, PERIODIC), f"{key}.{axes[axis]}", scope):
                faces[operand, axis, side] = face
    return faces


def _faces(sides: Sides, key: str, scope: Scope) -> Iterator[tuple[int, Face]]:
    """(side, face) of both sides; none of a periodic axis. A layer ends at a face without flux."""
    for side, condition in enumerate(sides):
        if condition.kind in GHOSTS:
            where = f"{key}.{SIDES[side]}.{condition.kind}"
            if condition.kind == "robin" and condition.values[:2] == (0.0, 0.0):
                raise InputError(f"{where}: expected a or b other than 0, but got 0 for both; give one of them")
            values = [parse(v, scope, where) if isinstance(v, str) else node(v) for v in condition.values]
            yield side, Face(condition.kind, tuple(values))
        elif condition != PERIODIC:
            yield side, NO_FLUX


def damped(trees: Mapping[str, Node], config: Config) -> dict[str, Node]:
    """The time derivatives with -σ u in every sponge: σ rises to ``strength`` as the square of the depth in the layer.

    M. Israeli & S. Orszag, "Approximation of radiation boundary conditions", J. Comput. Phys. 41 (1981) 115-135, sect. 4.
    Raises InputError for a layer that is wider than the domain.
    """
    result = dict(trees)
    for name, axis, side, condition in _sponges(config, tuple(trees)):
        width, strength = (float(value) for value in condition.values)
        lower, upper = config.grid.lower[axis], config.grid.upper[axis]
        if width > upper - lower:
            key = f"boundary.{config.grid.axes[axis]}.{SIDES[side]}.sponge.width"
            raise InputError(
                f"{key}: expected at most the extent of the axis, {upper - lower:g}, but got {width:g}; make it smaller"
            )
        distance = Coordinate(axis) - lower if side == 0 else upper - Coordinate(axis)
        depth = Pointwise("maximum", (Constant(0.0), 1.0 - distance / width))
        result[name] = result[name] - strength * depth**2 * Field(name)
    return result


def damping(config: Config, fields: tuple[str, ...]) -> float:
    """The fastest rate, 1/time, at which sponges damp any field."""
    strongest: dict[tuple[str, int], float] = {}
    for name, axis, _, condition in _sponges(config, fields):
        strongest[name, axis] = max(strongest.get((name, axis), 0.0), float(condition.values[1]))
    rates = [sum(rate for (other, _), rate in strongest.items() if other == name) for name in fields]
    return max(rates, default=0.0)


def _sponges(config: Config, fields: tuple[str, ...]) -> Iterator[tuple[str, int, int, Condition]]:
    for name in fields:
        for axis in range(config.grid.ndim):
            for side in (0, 1):
                condition = config.boundary.condition(name, axis, side)
                if condition.kind == "sponge":
                    yield name, axis, side, condition
