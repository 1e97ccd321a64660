"""Linear damping of a field in its own time derivative, ∂X/∂t = g - r X with g and r free of X.

r is found in the tree of ∂X/∂t, so it comes from an absorbing layer, a conductivity or a user's own expression alike. A method
with `Method.damping` takes the damping implicitly: a stage of length h that adds h F / (1 + h r / 2) with F = g - r X is the
Crank-Nicolson step X_new = ((1 - h r / 2) X + h g) / (1 + h r / 2). It is explicit in the other fields
(docs/design/damped_leapfrog.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hpcstencil.symbolic.differentiate import ONE, ZERO, over, plus, times
from hpcstencil.symbolic.expressions import Constant, Field, Node, Pointwise, StepSize


def depends(tree: Node, names: Collection[str]) -> bool:
    """Whether a tree contains one of the fields ``names``."""
    return not tree.field_names.isdisjoint(names)


def damping_rate(tree: Node, name: str, fields: Collection[str]) -> Node | None:
    """The rate r of the linear damping - r X in ``tree``, the time derivative of the field X called ``name``.

    The result is a tree of coordinates, time and parameters, the constant 0 if X does not occur. It is None if the tree is
    not linear in X, reads neighbours of X, or if r depends on one of ``fields``, those that change in time.
    """
    return None if (found := _rate(tree, name, fields, 1.0)) is None or depends(found, fields) else found


def _rate(tree: Node, name: str, fields: Collection[str], sign: float) -> Node | None:
    """-``sign`` times the coefficient of the field ``name`` in ``tree``; None if the tree is not linear in it."""
    if not depends(tree, [name]):
        return ZERO
    match tree:
        case Field():
            return Constant(-sign)
        case Pointwise("add" | "subtract", (a, b)):
            left = _rate(a, name, fields, sign)
            right = _rate(b, name, fields, sign if tree.function == "add" else -sign)
            return None if left is None or right is None else plus(left, right)
        case Pointwise("negative", (a,)):
            return _rate(a, name, fields, -sign)
        case Pointwise("multiply", (a, b)) if not (depends(a, [name]) and depends(b, [name])):
            factor, rest = (b, a) if depends(a, [name]) else (a, b)
            found = _rate(rest, name, fields, sign)
            return None if found is None else times(factor, found)
        case Pointwise("divide", (a, b)) if not depends(b, [name]):
            found = _rate(a, name, fields, sign)
            return None if found is None else over(found, b)
        case Pointwise("where", (condition, a, b)) if not depends(condition, [name]):
            left, right = (_rate(part, name, fields, sign) for part in (a, b))
            if left is None or right is None:
                return None
            return left if left == right else Pointwise("where", (condition, left, right))
    return None


def damping_rates(trees: Mapping[str, Node]) -> dict[str, Node]:
    """The `damping_rate` of each field that is damped, by field. ``trees`` are the time derivatives of all fields."""
    found = {name: damping_rate(tree, name, trees) for name, tree in trees.items()}
    return {name: rate for name, rate in found.items() if rate is not None and rate != ZERO}


def damped(tree: Node, rate: Node, weight: float) -> Node:
    """F / (1 + ``weight`` dt r): the slope that a stage uses instead of the time derivative F = ``tree``.

    ``rate`` is r, and ``weight`` half the length of the stage as a fraction of dt. The slope is a product, because XLA turns a
    quotient into one only where the divisor has fewer values, which depends on the decomposition.
    """
    return tree * (ONE / (ONE + Constant(weight) * StepSize() * rate))
