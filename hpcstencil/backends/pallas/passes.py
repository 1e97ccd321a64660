"""A problem's right-hand sides as passes over the grid, for kernels that read neighbours only from arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpcstencil.symbolic.expressions import OPERATORS, Field, Node, bottom_up, has_own_ghosts, rebuilt


@dataclass(frozen=True)
class Passes:
    """The work of the kernels, in order: ``inner`` results, which are operands of derivatives, level by level, then the
    ``trees`` themselves. Each is given by the name of the array that it fills. ``operands`` maps the arrays of inner
    results to the original trees."""

    inner: tuple[Mapping[str, Node], ...]
    trees: Mapping[str, Node]
    operands: Mapping[str, Node]


def passes(trees: Mapping[str, Node]) -> Passes:
    """The passes for ``trees``, without nested derivatives: an operand that is not a field becomes an array if it has
    its own ghost cells."""
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
