"""The operators for right-hand sides, as functions from nodes to nodes: laplacian, gradient, div_grad, upwind and more.

They are methods of `Space`, which knows the number of dimensions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn

from hpcstencil.numerics.finite_differences import Stencil
from hpcstencil.numerics.grid import AXES, Grid
from hpcstencil.symbolic import interpolation
from hpcstencil.symbolic.expressions import (
    HALFWAY,
    Constant,
    Convolution,
    Derivative,
    DivGrad,
    Halfway,
    Node,
    Operand,
    Parameter,
    Pointwise,
    Reduction,
    node,
    total,
)
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import nearest


@dataclass(frozen=True)
class Space:
    """The operators on a grid with ``ndim`` axes. They take nodes or numbers and return nodes.

    Only `point` and `at` use ``grid``, ``periodic`` (one entry per axis) and the interpolation ``order``. ``numbers``
    maps the nodes of parameters to (name, value), to check positions that parameters give. ``masked`` says whether the
    grid has solid cells. ``stencils`` are the user-defined stencils, by name.
    """

    ndim: int
    grid: Grid | None = None
    periodic: tuple[bool, ...] = ()
    numbers: Mapping[Node, tuple[str, float]] = field(default_factory=dict)
    order: int = 2
    masked: bool = False
    stencils: Mapping[str, Stencil] = field(default_factory=dict)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        known = [key for key, value in vars(Space).items() if callable(value) and not key.startswith("_")]
        near = "derivative" if re.fullmatch("d[xyz]+", name) else nearest(name, known)
        hint = f"did you mean '{near}'?" if near else f"there are {', '.join(known)}"
        raise AttributeError(f"space has no operator '{name}'; {hint}")

    def derivative(self, a: Operand, *axes: int) -> Node:
        """The partial derivative ∂/∂x_i ∂/∂x_j ... a, with one factor for each of ``axes``, which may repeat."""
        return Derivative(node(a), tuple(axes.count(axis) for axis in range(self.ndim)))

    def laplacian(self, a: Operand) -> Node:
        """∇²a: the sum of the second derivatives along all axes."""
        return total([self.derivative(a, axis, axis) for axis in range(self.ndim)])

    def gradient(self, a: Operand) -> tuple[Node, ...]:
        """∇a, as a tuple with one node per axis."""
        return tuple(self.derivative(a, axis) for axis in range(self.ndim))

    def gradient_squared(self, a: Operand) -> Node:
        """|∇a|²: the sum of the squared first derivatives along all axes."""
        return total([d * d for d in self.gradient(a)])

    def divergence(self, *components: Operand) -> Node:
        """∇·(a, b, c), with one component per axis."""
        return total([self.derivative(a, axis) for axis, a in enumerate(components)])

    def div_grad(self, coefficient: Operand, a: Operand) -> Node:
        """∇·(k ∇a), where ``coefficient`` is k. Both k and ∇a are evaluated at the faces between cells, so that the
        integral of a is conserved."""
        return total([DivGrad(node(coefficient), node(a), axis) for axis in range(self.ndim)])

    def diffusion(self, coefficient: Node, a: Operand) -> Node:
        """∇·(D ∇a), where ``coefficient`` is D: the cheaper D ∇²a if D is a scalar parameter, else `div_grad`."""
        return coefficient * self.laplacian(a) if isinstance(coefficient, Parameter) else self.div_grad(coefficient, a)

    def difference(self, a: Operand, axis: int) -> Node:
        """∂a/∂x along ``axis``, half a cell away from a: on faces if a is at cell centres, at centres if a is on faces."""
        return Halfway(node(a), axis, "difference")

    def mean(self, a: Operand, axis: int) -> Node:
        """a interpolated along ``axis`` to half a cell away: to faces if a is at cell centres, to centres if a is on
        faces."""
        return Halfway(node(a), axis, "mean")

    def below(self, a: Operand, axis: int) -> Node:
        """The value of a half a cell below along ``axis``, without interpolation."""
        return Halfway(node(a), axis, "below")

    def above(self, a: Operand, axis: int) -> Node:
        """The value of a half a cell above along ``axis``, without interpolation."""
        return Halfway(node(a), axis, "above")

    def stencil(self, name: str, a: Operand) -> Node:
        """The user-defined stencil ``name`` of [equation.stencils] applied to a: Σ_j w_j a(x + o_j).

        Raises InputError if the input has no stencil of this name.
        """
        if name not in self.stencils:
            raise InputError(
                f"equation.stencils.{name}: expected its weights, but it is missing; write {name} = [[...]]"
            )
        return Convolution(node(a), name, self.stencils[name])

    def point(self, *position: Operand) -> Node:
        """A point source δ(x - position), spread over nearby cells with the weights of `interpolation`.

        Its integral over the grid is 1. ``position`` has one entry per axis, in the length unit of the input. Raises
        ValueError if an entry is a constant outside the grid, and InputError if it is a parameter with such a value.
        """
        assert self.grid is not None
        weight = node(1.0 / self.grid.cell_volume)
        for axis, place in enumerate(map(node, position)):
            self._check_inside(self.grid, axis, place)
            along = interpolation.weight(self.grid, axis, place, self.order, self.periodic[axis], self.masked)
            weight = weight * along
        return weight

    def _check_inside(self, grid: Grid, axis: int, place: Node) -> None:
        lower, upper = grid.lower[axis], grid.upper[axis]
        if place in self.numbers:
            name, value = self.numbers[place]
            if not lower <= value <= upper:
                extent = f"{lower:g} to {upper:g} along {AXES[axis]}"
                raise InputError(
                    f"equation.{name}: expected a position in the grid, {extent}, but got {value:g}; move it, or "
                    "change the grid"
                )
        elif isinstance(place, Constant) and not lower <= place.value <= upper:
            raise ValueError(f"{place.value:g} is outside of the grid, {lower:g} to {upper:g} along {AXES[axis]}")

    def at(self, a: Operand, *position: Operand) -> Node:
        """The value of a at a position, interpolated as the integral of a times `point`. It is a tree of reductions.

        On a grid with solid cells it is divided by the integral of `point` over the fluid. Raises the same errors as
        `point`.
        """
        point = self.point(*position)
        value = Reduction("integral", node(a) * point)
        return value / Reduction("integral", point) if self.masked else value

    def upwind(self, a: Operand, *velocity: Operand) -> Node:
        """v·∇a, with each derivative biased to the upwind side. ``velocity`` has one component per axis."""
        terms: list[Node] = []
        for axis, component in enumerate(velocity):
            v = node(component)
            orders = tuple(int(b == axis) for b in range(self.ndim))
            lower, upper = (Derivative(node(a), orders, bias) for bias in (-1, 1))
            terms.append(v * Pointwise("where", (Pointwise("greater", (v, node(0.0))), lower, upper)))
        return total(terms)

    def operators(self) -> dict[str, tuple[Callable[..., Node], int, int]]:
        """The operators of the expression language: name -> (function, least and largest number of arguments)."""
        table: dict[str, tuple[Callable[..., Node], int, int]] = {
            "laplacian": (self.laplacian, 1, 1),
            "gradient_squared": (self.gradient_squared, 1, 1),
            "divergence": (self.divergence, self.ndim, self.ndim),
            "div_grad": (self.div_grad, 2, 2),
            "upwind": (self.upwind, 1 + self.ndim, 1 + self.ndim),
            "point": (self.point, self.ndim, self.ndim),
        }
        for name in self.stencils:
            table[name] = (partial(self.stencil, name), 1, 1)
        for i in range(self.ndim):
            for kind in HALFWAY:
                table[f"{kind}_{AXES[i]}"] = (partial(getattr(self, kind), axis=i), 1, 1)
            table["d" + AXES[i]] = ((lambda a, i=i: self.derivative(a, i)), 1, 1)
            for j in range(i, self.ndim):
                table["d" + AXES[i] + AXES[j]] = ((lambda a, i=i, j=j: self.derivative(a, i, j)), 1, 1)
        return table
