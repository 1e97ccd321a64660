"""Positions on a staggered grid: values live at cell centres, or on the lower faces of cells along some axes.

A position has one entry per axis: 0 for the cell centre, 1 for the lower face, x_i = lower + i dx. In two dimensions (1, 1) is
thus a corner. The lower face of a cell has the index of the cell. The C grid, with velocities on the faces that they cross, is
that of A. Arakawa & V. Lamb, "Computational design of the basic dynamical processes of the UCLA general circulation model",
Methods Comput. Phys. 17 (1977) 173-265. The grid for electrodynamics is that of K. Yee, IEEE Trans. Antennas Propag. 14 (1966)
302-307.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hpcstencil.numerics.grid import AXES, Grid, Subgrid
from hpcstencil.symbolic.expressions import (
    Convolution,
    Coordinate,
    Derivative,
    DivGrad,
    Field,
    Halfway,
    Node,
    Reduction,
    bottom_up,
    is_parameter_field,
    rebuilt,
)
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import listing

Position = tuple[int, ...]
Positions = Mapping[str, Position]  # positions of the fields that do not live at cell centres
FACE = "_face"  # suffix of the names of face dimensions


@dataclass(frozen=True)
class Layout:
    """The positions of fields on the grid, and the shapes of their global arrays in a file.

    Fields that are not in ``positions`` live at cell centres. Along a ``periodic`` axis there are as many faces as
    cells, the lower face of each; along other axes there is one more, on the upper boundary. ``ensemble`` maps dotted
    keys to one value per member. If it is not empty, the first axis of fields and diagnostics in a file is the member.
    """

    grid: Grid | Subgrid
    positions: Positions = field(default_factory=dict)
    periodic: tuple[bool, ...] = ()
    ensemble: Mapping[str, Sequence[float | str]] = field(default_factory=dict)

    @property
    def members(self) -> tuple[int, ...]:
        """The shape of the member axis: (number of members,), or () without an ensemble."""
        return tuple(len(values) for values in self.ensemble.values())[:1]

    def extra(self, name: str) -> tuple[int, ...]:
        """How many more values than cells the field ``name`` has along each axis: 1 if it lives on the faces of a
        non-periodic axis, else 0."""
        position = home(name, self.positions, self.grid.ndim)
        return tuple(int(half and not self.periodic[axis]) for axis, half in enumerate(position))

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the field ``name`` on the global grid, without the axes of time and members."""
        return tuple(n + more for n, more in zip(self.grid.shape, self.extra(name), strict=True))

    def dimensions(self, name: str) -> tuple[str, ...]:
        """The names of the dimensions of the field ``name`` in a file, one per axis: "x", or "x_face" if it lives on the
        faces of that axis."""
        position = home(name, self.positions, self.grid.ndim)
        return tuple(letter + FACE if half else letter for letter, half in zip(self.grid.axes, position, strict=True))


def home(name: str, positions: Positions, ndim: int) -> Position:
    """The position of the field ``name``: cell centres unless ``positions`` says otherwise."""
    return positions.get(name, (0,) * ndim)


def described(position: Position) -> str:
    """A position in words, such as "on x faces" or "at cell centres"."""
    faces = [AXES[axis] for axis, half in enumerate(position) if half]
    return f"on {' and '.join(faces)} faces" if faces else "at cell centres"


def flipped(position: Position, axis: int) -> Position:
    """The position half a cell away along ``axis``."""
    return tuple(1 - half if a == axis else half for a, half in enumerate(position))


def position_of(tree: Node, positions: Positions, ndim: int) -> Position | None:
    """The position of the values of a tree, which follows from its fields; None if it has no field and is thus valid at
    any position."""
    return positions_in(tree, positions, ndim)[id(tree)]


def positions_in(tree: Node, positions: Positions, ndim: int) -> dict[int, Position | None]:
    """The result of `position_of` for every node of a tree, by the id() of the node."""
    found: dict[int, Position | None] = {}
    for part in bottom_up(tree):
        below = [found[id(child)] for child in part.children]
        here = next((position for position in below if position is not None), None)
        if isinstance(part, Field):
            here = None if is_parameter_field(part) else home(part.name, positions, ndim)
        elif isinstance(part, Halfway) and here is not None:
            here = flipped(here, part.axis)
        found[id(part)] = here
    return found


def located(tree: Node, position: Position, positions: Positions, spacing: Sequence[float], key: str) -> Node:
    """Rewrite a tree so that backends can evaluate it at ``position``.

    Coordinates on faces are shifted by half a cell, parameters with one value per cell are averaged onto faces, and
    each `Halfway` gets its target. Operands of a `Halfway` are marked ``beyond``, because they are also evaluated
    outside walls, from the ghost cells of the fields. So are results of operators on faces, since a face on the
    boundary needs no separate boundary condition. ``positions`` are the positions of fields, and ``spacing`` is the cell
    width per axis.

    Raises InputError, whose message begins with ``key``, if a field is used at a position where it does not live.
    """
    known: dict[tuple[Node, Position, bool], Node] = {}

    def visit(part: Node, here: Position, beyond: bool) -> Node:
        place = part, here, beyond
        if place not in known:
            known[place] = moved(part, here, beyond)
        return known[place]

    def moved(part: Node, here: Position, beyond: bool) -> Node:
        match part:
            case Coordinate(axis):
                return part - spacing[axis] / 2 if here[axis] else part
            case Field() if is_parameter_field(part) and any(here):
                return visit(Halfway(part, here.index(1), "mean"), here, beyond)
            case Field(name):
                lives = home(name, positions, len(here))
                if lives != here:
                    raise InputError(f"{key}: {_astray(name, lives, here)}")
                return replace(part, beyond=beyond)
            case Halfway(operand, axis):
                onto = "faces" if here[axis] else "centres"
                return replace(part, operand=visit(operand, flipped(here, axis), True), onto=onto, beyond=beyond)
            case Derivative() | DivGrad() | Convolution():
                on_faces = any(here)
                made = rebuilt(part, lambda o: visit(o, here, beyond or (on_faces and not isinstance(o, Field))))
                return replace(made, beyond=beyond)
        return rebuilt(part, lambda child: visit(child, here, beyond))

    found = position_of(tree, positions, len(position))
    if found is not None and found != position:
        raise InputError(
            f"{key}: expected values {described(position)}, but got values {described(found)}; {_advice(found, position)}"
        )
    return visit(tree, position, False)


def located_on_boundary(tree: Node, position: Position, axis: int, spacing: Sequence[float], key: str) -> Node:
    """Rewrite the tree of a boundary value as `located` does, for a field at ``position`` and a boundary normal to
    ``axis``.

    The coordinate along ``axis`` is not shifted, because the caller sets it to the boundary. Raises the same
    errors as `located`.
    """
    along = tuple(0 if a == axis else half for a, half in enumerate(position))
    return located(tree, along, {}, spacing, key)


def _astray(name: str, lives: Position, wanted: Position) -> str:
    """The message for the field ``name``, which lives at one position but is used at another."""
    wrong = f"'{name}' lives {described(lives)}, but is used where values {described(wanted)} are needed"
    return f"{wrong}; {_advice(lives, wanted)}"


def _advice(lives: Position, wanted: Position) -> str:
    """How to interpolate from the position ``lives`` to ``wanted``, in words."""
    differing = [AXES[axis] for axis, (a, b) in enumerate(zip(lives, wanted, strict=True)) if a != b]
    return f"bring it there with {listing(f'mean_{axis}()' for axis in differing)}"


def located_reductions(tree: Node, positions: Positions, spacing: Sequence[float], key: str) -> Node:
    """Rewrite the tree of a diagnostic so that each reduction is evaluated at the position of its operand.

    Raises the same errors as `located`.
    """
    ndim = len(spacing)

    def visit(part: Node) -> Node:
        if isinstance(part, Reduction):
            place = position_of(part.operand, positions, ndim) or (0,) * ndim
            return replace(part, operand=located(part.operand, place, positions, spacing, key))
        return rebuilt(part, visit)

    return visit(tree)


def is_staggered(trees: Sequence[Node], positions: Positions) -> bool:
    """Whether any field, or any value in the trees, lives on faces instead of at cell centres."""
    return bool(positions) or any(Halfway in tree.kinds for tree in trees)
