"""Division of right-hand sides into passes over the grid, for kernels that read neighbours only from arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpcstencil.symbolic.expressions import OPERATORS, Field, Node, bottom_up, has_own_ghosts, rebuilt


@dataclass(frozen=True)
class Passes:
    """Passes over the grid, in order: first the ``inner`` results, level by level, then the ``trees``.

    Inner results are operands of derivatives. All trees are keyed by the name of the array that they fill. ``operands``
    maps the arrays of inner results to the original operands.
    """

    inner: tuple[Mapping[str, Node], ...]
    trees: Mapping[str, Node]
    operands: Mapping[str, Node]


def passes(trees: Mapping[str, Node]) -> Passes:
    """Return the passes that compute ``trees`` without nested derivatives.

    An operand that is not a field is computed into an array of its own if it has its own ghost cells.
    """
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
