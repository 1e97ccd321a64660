"""Where the memory fields of absorbing layers are 0, so that passes need not compute them.

A memory field ψ of a layer along an axis follows ∂ψ/∂t = -(α + σ) ψ - σ ∂_x u, and begins at 0. It stays 0 where σ, a function
of one coordinate, is 0: everywhere but in the layers of its axis. `profile` proves this from the tree of ∂ψ/∂t.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hpcstencil.problem.problem import Problem
from hpcstencil.symbolic.expressions import OPERATORS, Constant, Coordinate, Field, Node, Pointwise, walk
from hpcstencil.symbolic.stencil_reach import axes_of


def vanishes(tree: Node, fields: Collection[str], zeros: Collection[Node] = ()) -> bool:
    """Return whether the tree is 0 wherever the ``fields`` and the trees ``zeros`` are, there and in neighbouring cells."""
    if tree in zeros:
        return True
    match tree:
        case Constant(value):
            return value == 0.0
        case Field(name):
            return name in fields
        case Pointwise("add" | "subtract" | "negative", arguments) | Pointwise("where", (_, *arguments)):
            return all(vanishes(argument, fields, zeros) for argument in arguments)
        case Pointwise("multiply", (a, b)):
            return vanishes(a, fields, zeros) or vanishes(b, fields, zeros)
        case Pointwise("divide", (a, _)):
            return vanishes(a, fields, zeros)
    return isinstance(tree, OPERATORS) and vanishes(tree.operand, fields, zeros)


def profile(name: str, rate: Node) -> tuple[int, Node] | None:
    """Return (axis, function of its coordinate) so that the field ``name`` stays 0 wherever the function is 0.

    ``rate`` is the time derivative of the field. The result is None if there is no such function.
    """
    candidates = {part for part in walk(rate) if isinstance(part, Pointwise) and is_profile(part)}
    found = [part for part in candidates if vanishes(rate, (name,), (part,))]
    if not found:
        return None
    best = min(found, key=lambda part: (len(list(walk(part))), repr(part)))
    return min(axes_of(best)), best


def is_profile(tree: Node) -> bool:
    """Return whether the tree is a function of one coordinate and nothing else."""
    return len(axes_of(tree)) == 1 and all(isinstance(part, Constant | Coordinate | Pointwise) for part in walk(tree))


@dataclass(frozen=True)
class Layers:
    """The fields of a problem that are 0 outside the absorbing layers of an axis.

    ``axis`` is the axis of each such field. ``profiles`` are, for each axis with layers, the functions that are 0 outside.
    """

    axis: Mapping[str, int]
    profiles: Mapping[int, tuple[Node, ...]]

    def axes(self, tree: Node) -> frozenset[int]:
        """Return the axes outside whose layers, all at once, the tree is 0; empty if it is not 0 there."""
        if not self.axis or not vanishes(tree, self.axis):
            return frozenset()
        return frozenset(self.axis[p.name] for p in walk(tree) if isinstance(p, Field) and p.name in self.axis)

    def subsets(self) -> list[frozenset[int]]:
        """Return all sets of axes with layers, from the empty set to the set of all."""
        result: list[frozenset[int]] = [frozenset()]
        for axis in self.profiles:
            result += [axes | {axis} for axes in result]
        return sorted(result, key=lambda axes: (len(axes), sorted(axes)))


NO_LAYERS = Layers({}, {})


@dataclass(frozen=True)
class Absent:
    """The ``fields`` and the ``arrays`` (by number) that are 0 in the cells for which statements are written."""

    fields: frozenset[str] = frozenset()
    arrays: frozenset[int] = frozenset()


NOTHING = Absent()


def layers_of(problem: Problem) -> Layers:
    """Return the memory fields of a problem that are 0 outside layers.

    There are none if the method remembers slopes from step to step, which are fields too, or estimates errors.
    """
    if problem.method.multistep or problem.errors():
        return NO_LAYERS
    axis: dict[str, int] = {}
    profiles: dict[int, tuple[Node, ...]] = {}
    for name in problem.begin_at_zero:
        rates = [trees[name] for trees in (problem.trees, problem.apart) if name in trees]
        found = profile(name, rates[0]) if len(rates) == 1 else None
        if found is not None:
            axis[name] = found[0]
            profiles[found[0]] = tuple(dict.fromkeys((*profiles.get(found[0], ()), found[1])))
    return Layers(axis, profiles)
