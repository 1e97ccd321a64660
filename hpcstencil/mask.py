"""Solid cells in the domain: what they do to right-hand sides, initial states and diagnostics.

The surface of the solid runs along the faces of cells. A stencil that reaches from a fluid cell over the surface finds there
the mirror image of the fluid cell: u itself where there is no flux, 2 g - u where u = g on the surface, as at the boundary
of the domain (`boundary`). So the integral of a diffusing field is kept, and a flux between two fluid cells is that of a
domain without solid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcstencil.errors import InputError
from hpcstencil.expressions import (
    Constant,
    Coordinate,
    Derivative,
    Field,
    Node,
    Pointwise,
    Reduction,
    substitute,
    walk,
)
from hpcstencil.parser import Scope, parse
from hpcstencil.schema import expression_text
from hpcstencil.settings import Config

SOLID = "mask.solid"  # no field of the user's may have a dot in its name
HUGE = {"float32": 3.0e38, "float64": 1.0e308}


@dataclass(frozen=True)
class Mask:
    """``solid`` is other than 0 in solid cells, of coordinates and parameters alone, or the field SOLID, which never changes
    and is read from the ``dataset`` (file and name); ``value`` holds on their surface, None for no flux."""

    solid: Node
    value: Node | None
    dataset: tuple[Path, str] | None = None

    @property
    def is_read(self) -> bool:
        """Whether the solid cells stand in a dataset, so that they are known only when the run begins."""
        return self.dataset is not None


def mask_of(config: Config, symbols: Mapping[str, Node]) -> Mask | None:
    """The mask that the input asks for. Raises InputError for malformed expressions."""
    if config.mask is None:
        return None
    ndim = config.grid.ndim
    value = config.mask.value
    surface = None if value is None else parse(expression_text(value), Scope(ndim, symbols), "mask.surface.value")
    if config.mask.dataset is not None:
        return Mask(Field(SOLID), surface, config.mask.dataset)
    solid = parse(config.mask.solid, Scope(ndim, symbols, time=False), "mask.solid")
    solid = Pointwise("not_equal", (solid, Constant(0.0)))
    for axis, periodic in enumerate(config.boundary.periodic):
        if not periodic:  # beyond the boundary there is no solid: what holds there is the boundary's affair
            x = Coordinate(axis)
            solid = solid * (x > config.grid.lower[axis]) * (x < config.grid.upper[axis])
    return Mask(solid, surface)


def masked_rates(mask: Mask | None, trees: Mapping[str, Node]) -> dict[str, Node]:
    """The right-hand sides with 0 in solid cells, and mixed derivatives as one after the other.

    Raises InputError for derivatives that reach further than the next cell.
    """
    if mask is None:
        return dict(trees)
    for tree in trees.values():
        for part in walk(tree):
            if isinstance(part, Derivative) and max(part.orders) > 2:
                raise InputError(
                    "mask: fits equations of first and second derivatives only; nest operators for higher ones"
                )
    return {
        name: Pointwise("where", (mask.solid, Constant(0.0), substitute(tree, _apart))) for name, tree in trees.items()
    }


def _apart(part: Node) -> Node | None:
    """A mixed derivative taken apart along its axes; None for all else."""
    if not isinstance(part, Derivative) or sum(map(bool, part.orders)) < 2:
        return None
    result = substitute(part.operand, _apart)
    for axis, order in enumerate(part.orders):
        if order:
            result = Derivative(result, tuple(order if a == axis else 0 for a in range(len(part.orders))), part.bias)
    return result


def masked_initial(mask: Mask | None, initial: Mapping[str, Node]) -> dict[str, Node]:
    """The initial expressions with 0 in solid cells; those of a dataset are not known yet."""
    if mask is None or mask.is_read:
        return dict(initial)
    return {name: Pointwise("where", (mask.solid, Constant(0.0), tree)) for name, tree in initial.items()}


def masked_diagnostics(mask: Mask | None, trees: Mapping[str, Node], precision: str) -> dict[str, Node]:
    """The diagnostics over fluid cells alone."""
    if mask is None:
        return dict(trees)

    def fluid(part: Node) -> Node | None:
        if not isinstance(part, Reduction):
            return None
        left_out = {"min": HUGE[precision], "max": -HUGE[precision]}.get(part.kind, 0.0)
        operand = Pointwise("where", (mask.solid, Constant(left_out), substitute(part.operand, _apart)))
        if part.kind == "mean":
            return Reduction("integral", operand) / Reduction("integral", 1.0 - mask.solid)
        return Reduction(part.kind, operand)

    return {name: substitute(tree, fluid) for name, tree in trees.items()}
