"""Where the memory fields of absorbing layers are 0, so that passes need not compute them.

`symbolic.zero_regions.profile` proves it from the trees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpcstencil.problem.problem import Problem
from hpcstencil.symbolic.expressions import Node
from hpcstencil.symbolic.zero_regions import profile, vanishes


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
        return frozenset(self.axis[name] for name in tree.field_names if name in self.axis)

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


NONE_ABSENT = Absent()


def layers_of(problem: Problem) -> Layers:
    """Return the memory fields of a problem that are 0 outside layers.

    There are none if the method remembers slopes from step to step, which are fields too, or estimates errors.
    """
    if problem.method.multistep or problem.errors():
        return NO_LAYERS
    axis: dict[str, int] = {}
    profiles: dict[int, tuple[Node, ...]] = {}
    for name in problem.begin_at_zero:
        rates = [trees[name] for trees in (problem.trees, problem.multistep_damping) if name in trees]
        found = profile(name, rates[0]) if len(rates) == 1 else None
        if found is not None:
            axis[name] = found[0]
            profiles[found[0]] = tuple(dict.fromkeys((*profiles.get(found[0], ()), found[1])))
    return Layers(axis, profiles)
