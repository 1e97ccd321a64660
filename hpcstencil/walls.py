"""What the boundary conditions of an input say of the faces of the domain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hpcstencil.boundary import GHOSTS, Face
from hpcstencil.conditions import PERIODIC, SIDES, Sides
from hpcstencil.errors import InputError
from hpcstencil.expressions import (
    Constant,
    Derivative,
    DivGrad,
    Field,
    Node,
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
    inner = Scope(
        config.grid.ndim,
        {**symbols, **{name: Field(name) for name in fields}},
        operators=True,
        spacing=config.grid.spacing,
    )
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
    """(side, face) of both sides; none of a periodic axis. An absorbing layer ends at a face that is held at 0."""
    for side, condition in enumerate(sides):
        if condition.kind in GHOSTS:
            where = f"{key}.{SIDES[side]}.{condition.kind}"
            if condition.kind == "robin" and condition.values[:2] == (0.0, 0.0):
                raise InputError(f"{where}: expected a or b other than 0, but got 0 for both; give one of them")
            values = [
                parse(v, scope, where) if isinstance(v, str) else node(v) for v in condition.values if v is not None
            ]
            yield side, Face(condition.kind, tuple(values))
        elif condition != PERIODIC:
            yield side, Face("dirichlet", (Constant(0.0),))
