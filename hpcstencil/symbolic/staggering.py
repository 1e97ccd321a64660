"""Where values live on a staggered grid: at cell centres, or on the lower faces of cells along some axes.

A position has an entry per axis: 0 for the centre of the cell, 1 for its lower face, x_i = lower + i dx, so (1, 1) is a
corner in two dimensions. The lower face of a cell has the cell's index (A. Arakawa & V. Lamb, "Computational design of the
basic dynamical processes of the UCLA general circulation model", Methods Comput. Phys. 17 (1977) 173-265, have the C grid:
velocities on the faces that they cross; K. Yee, IEEE Trans. Antennas Propag. 14 (1966) 302-307, that of electrodynamics).
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
    """The positions of fields on the grid, and their shapes in a file.

    A field lives at cell centres unless ``positions`` says otherwise. On a ``periodic`` axis the faces are the lower
    faces of all cells; on other axes there is one more, the upper boundary. With an ``ensemble``, which maps dotted
    keys to the values of all members, fields and diagnostics have the members as their first axis.
    """

    grid: Grid | Subgrid
    positions: Positions = field(default_factory=dict)
    periodic: tuple[bool, ...] = ()
    ensemble: Mapping[str, Sequence[float | str]] = field(default_factory=dict)

    @property
    def members(self) -> tuple[int, ...]:
        """(number of members,), or () without an ensemble."""
        return tuple(len(values) for values in self.ensemble.values())[:1]

    def extra(self, name: str) -> tuple[int, ...]:
        """The number of values that the field ``name`` has per axis beyond the number of cells: 1 on a non-periodic
        axis on whose faces it lives, else 0."""
        position = home(name, self.positions, self.grid.ndim)
        return tuple(int(half and not self.periodic[axis]) for axis, half in enumerate(position))

    def shape(self, name: str) -> tuple[int, ...]:
        """The global shape of the field ``name`` in the file, without members and times."""
        return tuple(n + more for n, more in zip(self.grid.shape, self.extra(name), strict=True))

    def dimensions(self, name: str) -> tuple[str, ...]:
        """The names of the dimension scales of the field ``name``, one per axis: "x", or "x_face" if it lives on those
        faces."""
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
    """The position of a tree's values, as given by its fields; None if it has no field and so may live anywhere."""
    return positions_in(tree, positions, ndim)[id(tree)]


def positions_in(tree: Node, positions: Positions, ndim: int) -> dict[int, Position | None]:
    """The result of `position_of` for every part of a tree, by the id() of the part."""
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
    """The tree in the form in which it is evaluated at ``position``. Coordinates become those of the place where they
    are used, a parameter from a file becomes its mean there, and each `Halfway` gets its target.

    The operand of a `Halfway` is also evaluated ``beyond`` walls, from the fields' ghost cells. So are inner results on
    faces: a face on the boundary belongs to a cell, and its value follows from the fields alone. ``spacing`` is the
    cell width per axis.

    Raises InputError, whose message begins with ``key``, if a field is used at another position than its own.
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
    """The tree of a value given on a boundary across ``axis``, for a field at ``position``, in the form in which it is
    evaluated there. Its coordinate along ``axis`` is that of the boundary. Raises the same errors as `located`."""
    along = tuple(0 if a == axis else half for a, half in enumerate(position))
    return located(tree, along, {}, spacing, key)


def _astray(name: str, lives: Position, wanted: Position) -> str:
    wrong = f"'{name}' lives {described(lives)}, but is used where values {described(wanted)} are needed"
    return f"{wrong}; {_advice(lives, wanted)}"


def _advice(lives: Position, wanted: Position) -> str:
    differing = [AXES[axis] for axis, (a, b) in enumerate(zip(lives, wanted, strict=True)) if a != b]
    return f"bring it there with {listing(f'mean_{axis}()' for axis in differing)}"


def located_reductions(tree: Node, positions: Positions, spacing: Sequence[float], key: str) -> Node:
    """The tree of a diagnostic in which each reduction is evaluated where its operand lives. Raises the same errors as
    `located`."""
    ndim = len(spacing)

    def visit(part: Node) -> Node:
        if isinstance(part, Reduction):
            place = position_of(part.operand, positions, ndim) or (0,) * ndim
            return replace(part, operand=located(part.operand, place, positions, spacing, key))
        return rebuilt(part, visit)

    return visit(tree)


def is_staggered(trees: Sequence[Node], positions: Positions) -> bool:
    """Whether any value of the trees lives elsewhere than at cell centres."""
    return bool(positions) or any(isinstance(part, Halfway) for tree in trees for part in bottom_up(tree))
