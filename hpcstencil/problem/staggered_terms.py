"""The trees of a problem, rewritten for the positions of its fields on a staggered grid (`staggering`).

The array of a field on the faces normal to an axis includes the value on the lower boundary. This value starts as the
given boundary value and follows its changes in time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcstencil.config.settings import Config
from hpcstencil.numerics.grid import AXES
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.boundary_kinds import WALL, Face
from hpcstencil.symbolic.differentiate import ZERO, derivative
from hpcstencil.symbolic.expressions import (
    Constant,
    Coordinate,
    Field,
    Node,
    Pointwise,
    Reduction,
    Time,
    at_time,
    on_plane,
    substitute,
    walk,
)
from hpcstencil.symbolic.staggering import (
    Position,
    Positions,
    described,
    home,
    is_staggered,
    located,
    located_reductions,
    position_of,
)
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import at

if TYPE_CHECKING:
    from hpcstencil.problem.problem import Problem

Faces = Mapping[tuple[Node, int, int], Face]
SAMPLED_TIMES = 1025  # at which a boundary value is searched for jumps
HALVINGS = 60  # of the time between two of them


@dataclass(frozen=True)
class Placed:
    """Rewrites trees so that each is evaluated at the position of its field.

    If all fields live at cell centres, trees without `Halfway` nodes are unchanged. ``positions`` maps the other fields
    to their positions. Raises InputError for fields on faces together with a mask, and, in all methods, the errors of
    `located`.
    """

    config: Config
    positions: Positions

    def __post_init__(self) -> None:
        if self.positions and self.config.mask is not None:
            raise InputError("mask: not available yet for equations with fields on a staggered grid; remove it")

    def rates(self, trees: Mapping[str, Node], faces: Faces) -> dict[str, Node]:
        """The time derivatives by field, each at the position of its field.

        For field values on a lower boundary it is the time derivative of the given boundary value.
        """
        return self.with_walls(self.at_home(trees, "equation"), faces, lambda value: derivative(value, Time()))

    def damping(self, trees: Mapping[str, Node], faces: Faces) -> dict[str, Node]:
        """The damping parts of `rates` by field, which are 0 on a lower boundary: `rates` has the whole change there."""
        return self.with_walls(self.at_home(trees, "equation"), faces, lambda value: Constant(0.0))

    def initial(self, trees: Mapping[str, Node], faces: Faces) -> dict[str, Node]:
        """The initial expressions by field, each at the position of its field.

        Field values on a lower boundary start as the given boundary value at t = 0. A field with such values gets the
        expression 0 if it has none, unless its initial values are read from a file.
        """
        initial = self.config.initial
        walled = {part.name for (part, _, _), face in faces.items() if face.kind == WALL and isinstance(part, Field)}
        zero = () if initial.file is not None else sorted(walled - {*initial.arrays})
        given = {**dict.fromkeys(zero, Constant(0.0)), **self.at_home(trees, "initial")}
        return self.with_walls(given, faces, lambda value: at_time(value, 0.0))

    def diagnostics(self, trees: Mapping[str, Node], table: str = "diagnostics") -> dict[str, Node]:
        """The diagnostics by name, with each reduction at the position of its operand. ``table`` is the table of the input
        that they come from, for messages."""
        spacing = self.config.grid.spacing
        return {
            name: located_reductions(tree, self.positions, spacing, f"{table}.{name}")
            if is_staggered([tree], self.positions)
            else tree
            for name, tree in trees.items()
        }

    def derived(self, trees: Mapping[str, Node], key: str) -> dict[str, Node]:
        """The expressions of a stream or probe by name, each at the position of its fields. ``key`` is the dotted key of
        their table, for messages."""
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
        """The trees by field, each at the position of its field. ``key`` is the table of the input that they come from,
        for messages."""
        grid = self.config.grid
        return {
            name: located(tree, home(name, self.positions, grid.ndim), self.positions, grid.spacing, f"{key}.{name}")
            if is_staggered([tree], self.positions)
            else tree
            for name, tree in trees.items()
        }

    def with_walls(self, trees: Mapping[str, Node], faces: Faces, on_wall: Callable[[Node], Node]) -> dict[str, Node]:
        """The trees by field, with ``on_wall(boundary value)`` in place of values that lie on a lower boundary."""
        grid, result = self.config.grid, dict(trees)
        for (operand, axis, side), face in faces.items():
            if face.kind == WALL and side == 0 and isinstance(operand, Field) and operand.name in result:
                here = on_plane(face.values[0], axis, grid.lower[axis])
                beside = Coordinate(axis) < grid.lower[axis] + grid.spacing[axis]
                result[operand.name] = Pointwise("where", (beside, on_wall(here), result[operand.name]))
        return result


def with_lower_walls(problem: Problem, name: str, tree: Node, on_wall: Callable[[Node], Node]) -> Node:
    """A tree for the field ``name``, with ``on_wall(boundary value)`` in place of its values on lower boundaries."""
    return Placed(problem.config, problem.positions).with_walls({name: tree}, problem.faces, on_wall)[name]


def refuse_jumps(config: Config, faces: Faces, parameters: Mapping[str, float]) -> None:
    """Raise InputError if a field value on a lower boundary jumps at some time, which its time derivative cannot follow.

    The values are sampled at times and places, so jumps that follow each other closely may be missed.
    """
    grid, known = config.grid, numpy_evaluate.by_node(parameters)
    for (operand, axis, side), face in faces.items():
        if face.kind != WALL or side or not isinstance(operand, Field):
            continue
        value = face.values[0]
        if Time not in value.kinds:
            continue
        ends = enumerate(zip(grid.lower, grid.upper, strict=True))
        places = [np.array(pair[:1]) if a == axis else np.linspace(*pair, 3) for a, pair in ends]
        for place in np.stack([each.ravel() for each in np.meshgrid(*places)], -1):
            jump = _first_jump(partial(_at_times, value, place, known), config.time.end)
            if jump is not None:
                raise InputError(
                    f"boundary: the value of {operand.name} on the lower wall across {AXES[axis]} jumps from {jump[1]:g} to "
                    f"{jump[2]:g} at t = {jump[0]:g}, which is not available yet for fields on faces; write a ramp, such as "
                    "tanh((t - 1)/0.01)"
                )


def _at_times(value: Node, place: np.ndarray, known: Mapping[Node, Any], times: np.ndarray) -> np.ndarray:
    """A boundary value at a place, at these times."""
    return np.broadcast_to(numpy_evaluate.evaluate(value, [*place], {**known, Time(): times}), times.shape)


def _first_jump(value: Callable[[np.ndarray], np.ndarray], end: float) -> tuple[float, float, float] | None:
    """(time, value before, value after) of the first jump of a function of times from 0 to ``end``; None without."""
    times = np.linspace(0.0, end, SAMPLED_TIMES)
    before, after = times[:-1], times[1:]
    below, above = value(before), value(after)
    change = np.abs(above - below)
    for _ in range(HALVINGS):
        middle = before + (after - before) / 2
        at_middle = value(middle)
        lower = np.abs(at_middle - below) >= np.abs(above - at_middle)  # the half that has most of the change
        after, above = np.where(lower, middle, after), np.where(lower, at_middle, above)
        before, below = np.where(lower, before, middle), np.where(lower, below, at_middle)
    jumps = np.abs(above - below) > 1e-3 * change
    jumps &= np.abs(above - below) > 1e-9 * np.abs(value(times)).max(initial=0.0)
    if not jumps.any():
        return None
    first = int(np.argmax(jumps))
    return float(after[first]), float(below[first]), float(above[first])


def positions_of_data(
    trees: Mapping[str, Node], data: Mapping[str, Field], positions: Positions, ndim: int
) -> dict[str, Position]:
    """The positions of the objective's ``data`` that live on faces, by the name of their field: data live where the fields live
    with which they are used.

    ``trees`` are the objectives by name, ``data`` the fields of data by name, and ``positions`` those of other fields. Raises
    InputError if data are used at several positions, or if an operator is applied to them, since it needs ghost cells.
    """
    if not positions:
        return {}
    uses = list[tuple[list[str], Position | None]]()  # the data in a reduction, and the position of its fields
    for key, tree in trees.items():
        for part in walk(tree):
            if isinstance(part, Reduction):
                inside = {*walk(part.operand)}
                used = [name for name, each in data.items() if each in inside]
                for name in used:
                    _refuse_operators(part.operand, name, data[name], at("objective", key))
                others = substitute(part.operand, lambda each: ZERO if each in data.values() else None)
                uses.append((used, position_of(others, positions, ndim)))
    found = dict[str, Position]()
    for _ in data:  # data that are used with other data alone live where these do
        for used, of_fields in uses:
            place = next((each for each in (of_fields, *map(found.get, used)) if each is not None), None)
            if place is None:
                continue
            for name in used:
                if found.setdefault(name, place) != place:
                    raise InputError(
                        f"{at('objective', 'data', name)}: used with values {described(found[name])} and with values "
                        f"{described(place)}; give each data of its own"
                    )
    return {data[name].name: place for name, place in found.items() if any(place)}


def _refuse_operators(tree: Node, name: str, data: Node, key: str) -> None:
    """Raise InputError, whose message begins with ``key``, if an operator is applied to the ``data`` of this name."""
    for part in walk(tree):
        if not isinstance(part, Pointwise) and part != data and data in walk(part):
            raise InputError(
                f"{key}: operators on data are not available yet for equations with fields on faces; write {name} outside of "
                "them, or make such data with NumPy"
            )
