"""Pointwise functions of nodes and numbers, for equations written in Python: exp(f.u), where(f.u > 0, a, b)."""

from __future__ import annotations

from collections.abc import Callable

from hpcstencil.symbolic.expressions import FUNCTIONS, Node, Operand, Pointwise, Time, node


def _function(name: str) -> Callable[..., Node]:
    """Make the Python function for the pointwise function ``name``. It raises TypeError for a wrong number of
    arguments."""

    def apply(*arguments: Operand) -> Node:
        if len(arguments) != FUNCTIONS[name]:
            raise TypeError(f"{name}() takes {FUNCTIONS[name]} argument(s), not {len(arguments)}")
        return Pointwise(name, tuple(map(node, arguments)))

    apply.__name__ = apply.__qualname__ = name
    return apply


where, absolute = _function("where"), _function("abs")
sqrt, exp, log = _function("sqrt"), _function("exp"), _function("log")
sin, cos, tan, tanh = _function("sin"), _function("cos"), _function("tan"), _function("tanh")
minimum, maximum, sign = _function("minimum"), _function("maximum"), _function("sign")
t = Time()
