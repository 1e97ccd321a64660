"""Analysis of trees without JAX: which fields are read in neighbouring cells, whether corner cells are read, and whether
kernels store strips."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from hpcstencil.backends.pallas.passes import passes
from hpcstencil.problem.problem import Problem
from hpcstencil.problem.staggered_terms import Faces
from hpcstencil.symbolic.expressions import OPERATORS, Convolution, Derivative, Node, walk
from hpcstencil.symbolic.stencil_reach import Discretization


class HasFaces(Protocol):
    """The boundary conditions ``faces`` and the ``discretization`` of a problem, as the problem and its rules have them."""

    @property
    def faces(self) -> Faces: ...

    @property
    def discretization(self) -> Discretization: ...


def read_beyond(trees: Iterable[Node], of: HasFaces) -> set[str]:
    """Return the names of the fields that ``trees`` read in other cells than their own, boundary values included."""
    values = [value for face in of.faces.values() for value in face.values]
    operands = [
        child for tree in trees for part in walk(tree) if isinstance(part, OPERATORS) for child in part.children
    ]
    return {name for tree in (*operands, *values) for name in tree.field_names}


def reads_corners(trees: Sequence[Node], of: HasFaces) -> bool:
    """Return whether one evaluation of ``trees`` reads cells that lie outside the block along two axes.

    Such are mixed derivatives and two-dimensional stencils, operators inside operators, and operands in arrays of their own,
    which are filled beyond the block.
    """
    values = [value for face in of.faces.values() for value in face.values]
    if any(not tree.kinds.isdisjoint(OPERATORS) for tree in values):
        return True
    for part in (part for tree in trees for part in walk(tree) if isinstance(part, OPERATORS)):
        if any(not child.kinds.isdisjoint(OPERATORS) for child in part.children):
            return True
        if isinstance(part, Derivative | Convolution) and sum(map(any, of.discretization.reach(part))) > 1:
            return True
    return bool(passes({str(n): tree for n, tree in enumerate(trees)}).inner)


def stores_strips(problem: Problem) -> bool:
    """Return whether every stage that changes fields which others read beyond their cells reads neighbours itself.

    Only the kernels of cells that read strips store strips. A stage of a partitioned method changes the fields of one group.
    """
    trees, groups = problem.trees, problem.groups
    reading = {groups.get(name) for name, tree in trees.items() if not tree.kinds.isdisjoint(OPERATORS)}
    return all(groups.get(name) in reading for name in read_beyond(trees.values(), problem) & trees.keys())
