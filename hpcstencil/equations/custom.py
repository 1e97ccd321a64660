"""An equation written in the input file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import ClassVar

from hpcstencil.symbolic.expressions import Node
from hpcstencil.symbolic.operators import Space
from hpcstencil.symbolic.parser import Scope, parse


class Custom:
    """∂u/∂t = [equation.rhs] u, one expression per field; parameters are the keys beside the equation's name."""

    parameters: ClassVar[Mapping[str, float]] = {}

    def __init__(self, expressions: Mapping[str, str]) -> None:
        self.expressions = expressions

    def fields(self, ndim: int) -> tuple[str, ...]:
        return tuple(self.expressions)

    def rhs(self, f: SimpleNamespace, p: SimpleNamespace, space: Space) -> dict[str, Node]:
        scope = Scope(space.ndim, {**vars(f), **vars(p)}, operators=True, space=space)
        return {name: parse(text, scope, f"equation.rhs.{name}") for name, text in self.expressions.items()}


def parameters_used(texts: Iterable[str]) -> set[str]:
    """Names that occur in any of the expressions."""
    return {name for text in texts for name in re.findall(r"[A-Za-z_]\w*", text)}
