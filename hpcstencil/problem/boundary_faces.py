"""The boundary condition on each face of the domain, from the table [boundary] and the equation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hpcstencil.config.boundary_conditions import PERIODIC, SIDES, Sides
from hpcstencil.config.settings import Config
from hpcstencil.equations import SupportsOpenBoundary, ValuesLiveOnWalls
from hpcstencil.equations.user import Names, expressions_of
from hpcstencil.problem.model import Model
from hpcstencil.problem.parameter_files import refuse_files, refuse_series
from hpcstencil.symbolic.boundary_kinds import KINDS, NO_FLUX, WALL, Face
from hpcstencil.symbolic.expressions import (
    OPERATORS,
    Constant,
    Field,
    Node,
    is_parameter_field,
    node,
    walk,
)
from hpcstencil.symbolic.parser import Scope, parse
from hpcstencil.symbolic.staggering import Position, Positions, located, located_on_boundary
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import at


def faces_of(
    config: Config, model: Model, trees: Mapping[str, Node], positions: Positions
) -> dict[tuple[Node, int, int], Face]:
    """The conditions on the faces of non-periodic axes, by (operand, axis, side); side 0 is the lower one.

    An operand is a field, or the result of an operator that has a condition in [boundary.operators]. ``trees`` are the
    time derivatives and ``positions`` the positions of fields, both including the memory fields of absorbing layers.

    Raises InputError for malformed expressions, for entries of [boundary.operators] of which ``trees`` takes no
    derivative, for conditions that a field on faces cannot have, and for an open end if the equation has no
    `radiation`.
    """
    fields, symbols = model.fields, model.symbols
    leaving = _leaving(config, model)
    boundary, axes = config.boundary, config.grid.axes
    scope = Scope(config.grid.ndim, symbols)
    faces: dict[tuple[Node, int, int], Face] = {}
    for name in fields:
        own = boundary.fields.get(name, (None,) * len(axes))
        for axis in range(len(axes)):
            key = at("boundary", name) if own[axis] is not None else "boundary"
            sides = tuple(boundary.condition(name, axis, side) for side in (0, 1))
            for side, face in _faces((sides[0], sides[1]), f"{key}.{axes[axis]}", scope):
                if sides[side].kind == "open":
                    face = leaving.get(name, NO_FLUX)
                if _lies_beside(name, axis, model) and own[axis] is None and face.kind == "dirichlet":
                    face = NO_FLUX
                if name in model.positions:
                    face = _on_staggered(face, model.positions[name], axis, config, name)
                faces[Field(name), axis, side] = face
    if positions and boundary.operators:
        raise InputError(
            "boundary.operators: fits equations at cell centres, but this one has fields that live on faces; remove it"
        )
    derivatives = [part for tree in trees.values() for part in walk(tree) if isinstance(part, OPERATORS)]
    operands = {operand for part in derivatives for operand in part.children}
    inner = Scope(
        config.grid.ndim,
        {**symbols, **{name: Field(name) for name in fields}},
        operators=True,
        space=model.space,
    )
    for text, given in boundary.operators.items():
        key = at("boundary", "operators", text)
        operand = located(parse(text, inner, key), (0,) * config.grid.ndim, {}, config.grid.spacing, key)
        if isinstance(operand, Field) and not is_parameter_field(operand):
            raise InputError(
                f"{key}: expected the result of an operator or expression, but got a field; write its "
                f"conditions in [boundary.{operand.name}]"
            )
        if operand not in operands:
            raise InputError(
                f"{key}: no derivative is taken of this expression; write it exactly as inside laplacian(), dx() and the like"
            )
        for axis, own_sides in enumerate(given):
            for side, face in _faces(own_sides or (PERIODIC, PERIODIC), f"{key}.{axes[axis]}", scope):
                faces[operand, axis, side] = face
    for (_, axis, side), face in faces.items():
        _refuse_singular(face, f"boundary.{axes[axis]}.{SIDES[side]}", config.grid.spacing[axis], config.numerics.order)
    return faces


def _refuse_singular(face: Face, key: str, dx: float, order: int) -> None:
    """Raise InputError if the formula of a ghost cell divides by 0. Only conditions with numbers are examined."""
    numbers = [value.value for value in face.values if isinstance(value, Constant)]
    if len(numbers) < len(face.values) or face.kind not in KINDS:
        return
    for row in range(order // 2):
        try:
            KINDS[face.kind].ghost(float, 1.0, (2 * row + 1) * dx, *numbers)
        except ZeroDivisionError:
            raise InputError(
                f"{key}.{face.kind}: with dx = {dx:g} the value of ghost cell {row + 1} is a quotient by 0, since "
                "(dx/2 + distance) a + b = 0; change a or b, or the grid"
            ) from None


def _lies_beside(name: str, axis: int, model: Model) -> bool:
    """Whether a value given for all fields does not apply to the field ``name`` of a `ValuesLiveOnWalls` equation, because the
    field does not live on the boundaries of ``axis``."""
    if not isinstance(model.equation, ValuesLiveOnWalls) or not model.equation.values_live_on_walls:
        return False
    return name not in model.positions or not model.positions[name][axis]


def _on_staggered(face: Face, position: Position, axis: int, config: Config, name: str) -> Face:
    """The condition of a field at ``position`` on a staggered grid.

    A field with values on the boundary gets the kind `wall`, and must have a prescribed value. Raises InputError
    otherwise, and for values that are not expressions.
    """
    if position[axis] and face.kind != "dirichlet":
        letter = config.grid.axes[axis]
        raise InputError(
            f"boundary.{letter}: expected a value for '{name}', which lives on the faces across {letter}, but got "
            f"{face.kind}; write boundary.{name} = {{ {letter} = {{ dirichlet = 0.0 }} }}"
        )
    spacing, key = config.grid.spacing, f"boundary.{name}"
    for value in face.values:
        refuse_files(value, key, "a field on faces takes expressions there")
        refuse_series(value, key, "a field on faces takes expressions there")
    values = tuple(located_on_boundary(value, position, axis, spacing, key) for value in face.values)
    return Face(WALL if position[axis] else face.kind, values)


def _leaving(config: Config, model: Model) -> dict[str, Face]:
    """The condition at an open end for each field in the `radiation` of the equation; empty if no end is open."""
    kinds = {config.boundary.condition(name, axis, side).kind
             for name in model.fields for axis in range(config.grid.ndim) for side in (0, 1)}  # fmt: skip
    if "open" not in kinds:
        return {}
    if not isinstance(model.equation, SupportsOpenBoundary):
        raise InputError(
            'boundary: "open" requires an equation with a method radiation, such as wave and acoustic; use '
            "{ neumann = 0.0 }, a sponge or cpml here"
        )
    f, p = Names(**model.unknowns), Names(**model.symbols)
    leaving = expressions_of(model.equation, config.equation.in_file, "radiation", model.fields, f, p)
    return {name: Face("neumann", (slope,)) for name, slope in leaving.items()}


def _faces(sides: Sides, key: str, scope: Scope) -> Iterator[tuple[int, Face]]:
    """Yield (side, face) for both sides; nothing for a periodic axis.

    For an absorbing layer and an open end the face has the value 0, which the caller replaces for an open end.
    """
    for side, condition in enumerate(sides):
        if condition.kind in KINDS:
            where = f"{key}.{SIDES[side]}.{condition.kind}"
            numbers = not any(isinstance(value, str) for value in condition.values)
            if numbers and (why := KINDS[condition.kind].refuse(*condition.values)):
                raise InputError(f"{where}: {why}")
            values = [
                parse(v, scope, where) if isinstance(v, str) else node(v) for v in condition.values if v is not None
            ]
            yield side, Face(condition.kind, tuple(values))
        elif condition != PERIODIC:
            yield side, Face("dirichlet", (Constant(0.0),))
