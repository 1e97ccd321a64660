"""A problem's right-hand sides as passes over the grid, for kernels that look at neighbours in arrays only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpcstencil.problem.problem import Problem
from hpcstencil.symbolic.expressions import OPERATORS, Field, Node, bottom_up, has_own_ghosts, rebuilt

PALLAS = "pallas"


@dataclass(frozen=True)
class Passes:
    """What each kernel in turn evaluates, by the name of the array that it fills: ``inner`` results, which derivatives are
    taken of, then the ``trees`` wanted. ``operands`` tells what the arrays of inner results hold."""

    inner: tuple[Mapping[str, Node], ...]
    trees: Mapping[str, Node]
    operands: Mapping[str, Node]


def passes(trees: Mapping[str, Node]) -> Passes:
    """The trees without nested derivatives: what an operator is applied to, other than a field, is an array if it has ghost
    cells of its own."""
    made: dict[Node, Node] = {}
    arrays: dict[Node, Field] = {}
    depth: dict[Node, int] = {}  # of a tree: passes before the one that evaluates it
    inner: dict[int, dict[str, Node]] = {}

    def array(operand: Node) -> Node:
        if not has_own_ghosts(operand) or isinstance(operand, Field):
            return made[operand]
        if operand not in arrays:
            arrays[operand] = Field(f"inner.{len(arrays)}")
            inner.setdefault(depth[operand], {})[arrays[operand].name] = made[operand]
        return arrays[operand]

    for tree in trees.values():
        for part in bottom_up(tree):
            if part in made:
                continue
            below = part.children
            nested = isinstance(part, OPERATORS)
            made[part] = rebuilt(part, array if nested else made.__getitem__)
            depth[part] = max((depth[child] + (nested and child in arrays) for child in below), default=0)
    return Passes(
        tuple(inner[level] for level in sorted(inner)),
        {name: made[tree] for name, tree in trees.items()},
        {field.name: operand for operand, field in arrays.items()},
    )


def lack(problem: Problem, thin: bool) -> str:
    """Why kernels for GPUs cannot take the steps of this problem; "" where they can. ``thin`` blocks have no room for a whole
    step between two exchanges."""
    if problem.members:
        return "ensembles are computed by the other kernels"
    if problem.config.time.tolerance is not None:
        return "steps that follow a tolerance are taken by the other kernels"
    if thin:
        return "blocks are too thin for a whole step between two exchanges"
    return ""
