"""The operators that an equation sees, as functions from nodes to nodes: laplacian, dx, div_grad, upwind, ...

Each works in any number of dimensions; the number is that of the `Space` that made it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from hpcstencil.expressions import (
    HALFWAY,
    Constant,
    Coordinate,
    Derivative,
    DivGrad,
    Halfway,
    Node,
    Operand,
    Parameter,
    Pointwise,
    node,
    total,
)
from hpcstencil.grid import AXES, Grid


@dataclass(frozen=True)
class Space:
    """The operators on a grid with ``ndim`` axes; those that have to know where places are need the ``grid`` itself, and
    which of its axes are ``periodic``."""

    ndim: int
    grid: Grid | None = None
    periodic: tuple[bool, ...] = ()

    def derivative(self, a: Operand, *axes: int) -> Node:
        """d/dx_i d/dx_j ... a, one factor per axis named."""
        return Derivative(node(a), tuple(axes.count(axis) for axis in range(self.ndim)))

    def laplacian(self, a: Operand) -> Node:
        """∇²a."""
        return total([self.derivative(a, axis, axis) for axis in range(self.ndim)])

    def gradient(self, a: Operand) -> tuple[Node, ...]:
        """∇a, one entry per axis."""
        return tuple(self.derivative(a, axis) for axis in range(self.ndim))

    def gradient_squared(self, a: Operand) -> Node:
        """|∇a|²."""
        return total([d * d for d in self.gradient(a)])

    def divergence(self, *components: Operand) -> Node:
        """∇·(a, b, c), one component per axis."""
        return total([self.derivative(a, axis) for axis, a in enumerate(components)])

    def div_grad(self, coefficient: Operand, a: Operand) -> Node:
        """∇·(k ∇a) with k and ∇a at the faces between cells, so that it conserves a."""
        return total([DivGrad(node(coefficient), node(a), axis) for axis in range(self.ndim)])

    def diffusion(self, coefficient: Node, a: Operand) -> Node:
        """∇·(D ∇a): D ∇²a where D is a number, `div_grad` where it varies in space."""
        return coefficient * self.laplacian(a) if isinstance(coefficient, Parameter) else self.div_grad(coefficient, a)

    def difference(self, a: Operand, axis: int) -> Node:
        """∂a/∂x_axis half a cell from where a lives: at faces of what lives at centres, and the other way round."""
        return Halfway(node(a), axis, "difference")

    def mean(self, a: Operand, axis: int) -> Node:
        """a interpolated half a cell from where it lives."""
        return Halfway(node(a), axis, "mean")

    def below(self, a: Operand, axis: int) -> Node:
        """The value of a half a cell below."""
        return Halfway(node(a), axis, "below")

    def above(self, a: Operand, axis: int) -> Node:
        """The value of a half a cell above."""
        return Halfway(node(a), axis, "above")

    def point(self, *position: Operand) -> Node:
        """δ(x - position), spread linearly over the cells next to it: its integral over the grid is 1. A place nearer to a
        wall than the first centre of a cell is moved there.

        Raises ValueError for a place outside of the grid.
        """
        assert self.grid is not None
        weight = node(1.0 / self.grid.cell_volume)
        for axis, place in enumerate(position):
            weight = weight * self._hat(self.grid, axis, node(place))
        return weight

    def _hat(self, grid: Grid, axis: int, place: Node) -> Node:
        """1 at the place, falling to 0 a cell away."""
        lower, upper, dx = grid.lower[axis], grid.upper[axis], grid.spacing[axis]
        if isinstance(place, Constant) and not lower <= place.value <= upper:
            raise ValueError(f"{place.value:g} is outside of the grid, {lower:g} to {upper:g} along {AXES[axis]}")
        if self.periodic[axis]:
            distance = Pointwise("abs", (Coordinate(axis) - place,))
            distance = Pointwise("minimum", (distance, (upper - lower) - distance))
        else:
            inside = Pointwise("minimum", (Pointwise("maximum", (place, node(lower + dx / 2))), node(upper - dx / 2)))
            distance = Pointwise("abs", (Coordinate(axis) - inside,))
        return Pointwise("maximum", (node(0.0), 1.0 - distance / dx))

    def upwind(self, a: Operand, *velocity: Operand) -> Node:
        """v·∇a with each derivative leaning against the sign of v."""
        terms: list[Node] = []
        for axis, component in enumerate(velocity):
            v = node(component)
            orders = tuple(int(b == axis) for b in range(self.ndim))
            lower, upper = (Derivative(node(a), orders, bias) for bias in (-1, 1))
            terms.append(v * Pointwise("where", (Pointwise("greater", (v, node(0.0))), lower, upper)))
        return total(terms)

    def operators(self) -> dict[str, tuple[Callable[..., Node], int, int]]:
        """Name in the expression language -> (function, least and most number of arguments)."""
        table: dict[str, tuple[Callable[..., Node], int, int]] = {
            "laplacian": (self.laplacian, 1, 1),
            "gradient_squared": (self.gradient_squared, 1, 1),
            "divergence": (self.divergence, self.ndim, self.ndim),
            "div_grad": (self.div_grad, 2, 2),
            "upwind": (self.upwind, 1 + self.ndim, 1 + self.ndim),
            "point": (self.point, self.ndim, self.ndim),
        }
        for i in range(self.ndim):
            for kind in HALFWAY:
                table[f"{kind}_{AXES[i]}"] = (partial(getattr(self, kind), axis=i), 1, 1)
            table["d" + AXES[i]] = ((lambda a, i=i: self.derivative(a, i)), 1, 1)
            for j in range(i, self.ndim):
                table["d" + AXES[i] + AXES[j]] = ((lambda a, i=i, j=j: self.derivative(a, i, j)), 1, 1)
        return table
