"""The expressions of a problem at the positions of its fields: `staggering` applied to right-hand sides, initial
states, diagnostics.

The array of a field that lives on the faces across a boundary includes the value on the lower boundary. That value
starts as the given boundary value and changes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hpcstencil.config.settings import Config
from hpcstencil.symbolic.boundary_kinds import WALL, Face
from hpcstencil.symbolic.differentiate import derivative
from hpcstencil.symbolic.expressions import Constant, Coordinate, Field, Node, Pointwise, Time, at_time, on_plane
from hpcstencil.symbolic.staggering import Positions, home, is_staggered, located, located_reductions, position_of
from hpcstencil.validation.errors import InputError

Faces = Mapping[tuple[Node, int, int], Face]


@dataclass(frozen=True)
class Placed:
    """Moves expressions to the positions of the fields of an input. Trees without `Halfway` nodes stay unchanged where
    all fields live at cell centres.

    Raises InputError if the input asks for a feature that works only with cell centres.
    """

    config: Config
    positions: Positions

    def __post_init__(self) -> None:
        if self.positions and self.config.mask is not None:
            raise InputError("mask: not available yet for equations with fields on a staggered grid; remove it")

    def rates(self, trees: Mapping[str, Node], faces: Faces) -> dict[str, Node]:
        """The time derivatives by field, each evaluated where its field lives. On a lower boundary that carries values
        of the field it is the derivative of the given value."""
        return self.with_walls(self.at_home(trees, "equation"), faces, lambda value: derivative(value, Time()))

    def initial(self, trees: Mapping[str, Node], faces: Faces) -> dict[str, Node]:
        """The initial expressions by field, each evaluated where its field lives. A field on a boundary always has one,
        0 by default, unless initial values are read from a file; on the lower boundary it is the given value at t =
        0."""
        from_file = self.config.initial.file is not None
        walled = [part.name for (part, _, _), face in faces.items() if face.kind == WALL and isinstance(part, Field)]
        given = {**dict.fromkeys([] if from_file else walled, Constant(0.0)), **self.at_home(trees, "initial")}
        return self.with_walls(given, faces, lambda value: at_time(value, 0.0))

    def diagnostics(self, trees: Mapping[str, Node]) -> dict[str, Node]:
        """The diagnostics by name, with each reduction taken where its operand lives."""
        spacing = self.config.grid.spacing
        return {
            name: located_reductions(tree, self.positions, spacing, f"diagnostics.{name}")
            if is_staggered([tree], self.positions)
            else tree
            for name, tree in trees.items()
        }

    def derived(self, trees: Mapping[str, Node], key: str) -> dict[str, Node]:
        """Derived quantities by name, each where its fields live. ``key`` is the input table that they come from, for
        messages."""
        spacing, ndim = self.config.grid.spacing, self.config.grid.ndim
        return {
            name: located(
                tree,
                position_of(tree, self.positions, ndim) or (0,) * ndim,
                self.positions,
                spacing,
                f"{key}.{name}",
            )
            if is_staggered([tree], self.positions)
            else tree
            for name, tree in trees.items()
        }

    def at_home(self, trees: Mapping[str, Node], key: str) -> dict[str, Node]:
        """The trees by field, each evaluated where its field lives. ``key`` is the input table that they come from, for
        messages. Raises InputError if a field is used at another position than its own."""
        grid = self.config.grid
        return {
            name: located(tree, home(name, self.positions, grid.ndim), self.positions, grid.spacing, f"{key}.{name}")
            if is_staggered([tree], self.positions)
            else tree
            for name, tree in trees.items()
        }

    def with_walls(self, trees: Mapping[str, Node], faces: Faces, on_wall: Callable[[Node], Node]) -> dict[str, Node]:
        """The trees by field, with ``on_wall(given value)`` instead in the cells whose value lies on the lower boundary."""
        grid, result = self.config.grid, dict(trees)
        for (operand, axis, side), face in faces.items():
            if face.kind == WALL and side == 0 and isinstance(operand, Field) and operand.name in result:
                here = on_plane(face.values[0], axis, grid.lower[axis])
                beside = Coordinate(axis) < grid.lower[axis] + grid.spacing[axis]
                result[operand.name] = Pointwise("where", (beside, on_wall(here), result[operand.name]))
        return result
