"""Where values live on a staggered grid: at cell centres, or on the lower faces of cells along some axes.

A position has an entry per axis: 0 for the centre of the cell, 1 for its lower face, x_i = lower + i dx, so (1, 1) is a
corner in two dimensions. The lower face of a cell has the cell's index (A. Arakawa & V. Lamb, "Computational design of the
basic dynamical processes of the UCLA general circulation model", Methods Comput. Phys. 17 (1977) 173-265, have the C grid:
velocities on the faces that they cross; K. Yee, IEEE Trans. Antennas Propag. 14 (1966) 302-307, that of electrodynamics).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hpcstencil.numerics.grid import AXES, Grid
from hpcstencil.symbolic.expressions import (
    Coordinate,
    Derivative,
    DivGrad,
    Field,
    Halfway,
    Node,
    Reduction,
    bottom_up,
    rebuilt,
)
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import listing

Position = tuple[int, ...]
Positions = Mapping[str, Position]  # of the fields that do not live at cell centres
FACE = "_face"  # ends the name of a dimension of faces


@dataclass(frozen=True)
class Layout:
    """Where the fields of a file live on the grid: at cell centres, or as ``positions`` say. Faces are the lower ones of all
    cells on a ``periodic`` axis, elsewhere one more for the upper boundary. The members of an ``ensemble``, whose values are
    listed by dotted key, are the first axis of fields and diagnostics."""

    grid: Grid
    positions: Positions = field(default_factory=dict)
    periodic: tuple[bool, ...] = ()
    ensemble: Mapping[str, Sequence[float | str]] = field(default_factory=dict)

    @property
    def members(self) -> tuple[int, ...]:
        """(how many members there are,), () where there is no ensemble."""
        return tuple(len(values) for values in self.ensemble.values())[:1]

    def extra(self, name: str) -> tuple[int, ...]:
        """Values that a field has more than there are cells, per axis."""
        position = home(name, self.positions, self.grid.ndim)
        return tuple(int(half and not self.periodic[axis]) for axis, half in enumerate(position))

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(n + more for n, more in zip(self.grid.shape, self.extra(name), strict=True))

    def dimensions(self, name: str) -> tuple[str, ...]:
        """Names of the dimension scales of a field."""
        position = home(name, self.positions, self.grid.ndim)
        return tuple(letter + FACE if half else letter for letter, half in zip(self.grid.axes, position, strict=True))


def home(name: str, positions: Positions, ndim: int) -> Position:
    """Where a field lives: at cell centres where ``positions`` do not say."""
    return positions.get(name, (0,) * ndim)


def described(position: Position) -> str:
    """A position in words."""
    faces = [AXES[axis] for axis, half in enumerate(position) if half]
    return f"on {' and '.join(faces)} faces" if faces else "at cell centres"


def flipped(position: Position, axis: int) -> Position:
    """The position half a cell away along an axis."""
    return tuple(1 - half if a == axis else half for a, half in enumerate(position))


def position_of(tree: Node, positions: Positions, ndim: int) -> Position | None:
    """Where the values of a tree live, as its fields say; None where it has none and may live anywhere."""
    return positions_in(tree, positions, ndim)[id(tree)]


def positions_in(tree: Node, positions: Positions, ndim: int) -> dict[int, Position | None]:
    """`position_of` every part of a tree, by its id."""
    found: dict[int, Position | None] = {}
    for part in bottom_up(tree):
        below = [found[id(child)] for child in part.children]
        here = next((position for position in below if position is not None), None)
        if isinstance(part, Field):
            here = home(part.name, positions, ndim)
        elif isinstance(part, Halfway) and here is not None:
            here = flipped(here, part.axis)
        found[id(part)] = here
    return found


def located(tree: Node, position: Position, positions: Positions, spacing: Sequence[float], key: str) -> Node:
    """The tree as it is to be evaluated at a position: coordinates are those of the place where they are used, and what
    leads half a cell away knows from where.

    The operand of what leads half a cell away is to be computed ``beyond`` walls too, of the fields' ghost cells, and so are
    inner results on faces: a face on the boundary belongs to a cell, and what holds there follows from the fields alone.

    Raises InputError, beginning with ``key``, where a field is used at a place where it does not live.
    """
    known: dict[tuple[int, Position, bool], Node] = {}

    def visit(part: Node, here: Position, beyond: bool) -> Node:
        place = id(part), here, beyond
        if place not in known:
            known[place] = moved(part, here, beyond)
        return known[place]

    def moved(part: Node, here: Position, beyond: bool) -> Node:
        match part:
            case Coordinate(axis):
                return part - spacing[axis] / 2 if here[axis] else part
            case Field(name):
                lives = home(name, positions, len(here))
                if lives != here:
                    raise InputError(f"{key}: {_astray(name, lives, here)}")
                return replace(part, beyond=beyond)
            case Halfway(operand, axis):
                onto = "faces" if here[axis] else "centres"
                return replace(part, operand=visit(operand, flipped(here, axis), True), onto=onto, beyond=beyond)
            case Derivative() | DivGrad():
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
    """What is given on a boundary across an axis for a field at this position: across it the place is the boundary's."""
    along = tuple(0 if a == axis else half for a, half in enumerate(position))
    return located(tree, along, {}, spacing, key)


def _astray(name: str, lives: Position, wanted: Position) -> str:
    return f"'{name}' lives {described(lives)}, but stands where values {described(wanted)} are meant; {_advice(lives, wanted)}"


def _advice(lives: Position, wanted: Position) -> str:
    differing = [AXES[axis] for axis, (a, b) in enumerate(zip(lives, wanted, strict=True)) if a != b]
    return f"bring it there with {listing(f'mean_{axis}()' for axis in differing)}"


def located_reductions(tree: Node, positions: Positions, spacing: Sequence[float], key: str) -> Node:
    """A diagnostic, each of its reductions taken where its operand lives."""
    ndim = len(spacing)

    def visit(part: Node) -> Node:
        if isinstance(part, Reduction):
            place = position_of(part.operand, positions, ndim) or (0,) * ndim
            return replace(part, operand=located(part.operand, place, positions, spacing, key))
        return rebuilt(part, visit)

    return visit(tree)


def is_staggered(trees: Sequence[Node], positions: Positions) -> bool:
    """Whether anything lives elsewhere than at cell centres."""
    return bool(positions) or any(isinstance(part, Halfway) for tree in trees for part in bottom_up(tree))
