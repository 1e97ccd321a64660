"""Where fields stay 0, and where their adjoints do not matter: the memories of absorbing layers.

A memory field ψ of a layer along an axis follows ∂ψ/∂t = -(α + σ) ψ - σ ∂_x u, and begins at 0. It stays 0 where σ, a function
of one coordinate, is 0: everywhere but in the layers of its axis. `profile` proves this from the tree of ∂ψ/∂t.
"""

from __future__ import annotations

from collections.abc import Collection

from hpcstencil.symbolic.expressions import OPERATORS, Constant, Coordinate, Field, Node, Pointwise, walk


def vanishes(tree: Node, fields: Collection[str], zeros: Collection[Node] = (), operand: bool = False) -> bool:
    """Return whether the tree is 0 wherever the ``fields`` and the trees ``zeros`` are, there and in neighbouring cells.

    An ``operand`` that is 0 times a field does not count: it stands for the derivatives of boundary values, which are in its
    ghost cells (`adjoint.differentiate`).
    """
    if tree in zeros:
        return True
    match tree:
        case Constant(value):
            return value == 0.0
        case Field(name):
            return name in fields
        case Pointwise("add" | "subtract" | "negative", arguments) | Pointwise("where", (_, *arguments)):
            return all(vanishes(argument, fields, zeros, operand) for argument in arguments)
        case Pointwise("multiply", factors) if operand and Constant(0.0) in factors:
            return False
        case Pointwise("multiply", factors):
            return any(vanishes(factor, fields, zeros, operand) for factor in factors)
        case Pointwise("divide", (a, _)):
            return vanishes(a, fields, zeros, operand)
    return isinstance(tree, OPERATORS) and vanishes(tree.operand, fields, zeros, True)


def profile(name: str, rate: Node) -> tuple[int, Node] | None:
    """Return (axis, function of its coordinate) so that the field ``name`` stays 0 wherever the function is 0.

    ``rate`` is the time derivative of the field. The result is None if there is no such function.
    """
    candidates = {part for part in walk(rate) if isinstance(part, Pointwise) and is_profile(part)}
    found = [part for part in candidates if vanishes(rate, (name,), (part,))]
    if not found:
        return None
    best = min(found, key=lambda part: (len(list(walk(part))), repr(part)))
    return min(best.axes), best


def is_profile(tree: Node) -> bool:
    """Return whether the tree is a function of one coordinate and nothing else."""
    return len(tree.axes) == 1 and all(isinstance(part, Constant | Coordinate | Pointwise) for part in walk(tree))


def where_adjoint_matters(name: str, rate: Node) -> Node | None:
    """Return a function of one coordinate that is 1 where the adjoint of a memory field has an effect, and 0 elsewhere.

    ``rate`` is the time derivative of the field. Where its `profile` is 0, it depends on nothing but the field in the same
    cell, so the adjoint there adds to itself alone. The result is None if that is not so.
    """
    found, own = profile(name, rate), Field(name)
    if found is None or any(isinstance(part, OPERATORS) and own in walk(part) for part in walk(rate)):
        return None
    return Pointwise("not_equal", (found[1], Constant(0.0)))
