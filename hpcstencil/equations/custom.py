"""The custom equation, whose right-hand side is written in the input file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import ClassVar

from hpcstencil.symbolic.expressions import Node
from hpcstencil.symbolic.operators import Space
from hpcstencil.symbolic.parser import Scope, parse


class Custom:
    """An equation written in the table [equation.rhs] of the input.

    ``expressions`` maps each field to the text of its time derivative. ``parameters`` has no defaults, because the
    table [equation] defines the parameters. `rhs` raises InputError for an expression that cannot be parsed.
    """

    parameters: ClassVar[Mapping[str, float]] = {}

    def __init__(self, expressions: Mapping[str, str]) -> None:
        self.expressions = expressions

    def fields(self, ndim: int) -> tuple[str, ...]:
        return tuple(self.expressions)

    def rhs(self, f: SimpleNamespace, p: SimpleNamespace, space: Space) -> dict[str, Node]:
        scope = Scope(space.ndim, {**vars(f), **vars(p)}, operators=True, space=space)
        return {name: parse(text, scope, f"equation.rhs.{name}") for name, text in self.expressions.items()}


def parameters_used(texts: Iterable[str]) -> set[str]:
    """The names that occur in any of the expressions, including names of fields and functions."""
    return {name for text in texts for name in re.findall(r"[A-Za-z_]\w*", text)}
