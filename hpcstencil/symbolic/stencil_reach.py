"""The ghost cells that a tree needs, from the reach of its operators' stencils, nested ones included."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from hpcstencil.numerics.finite_differences import Stencil, biased, central, product, shifted, staggered
from hpcstencil.symbolic.expressions import (
    OPERATORS,
    Convolution,
    Coordinate,
    Derivative,
    DivGrad,
    Field,
    Halfway,
    Neighbour,
    Node,
    Operator,
    has_own_ghosts,
    varies,
    walk,
)

# Operand that has its own ghost cells -> (their number (lower, upper) per axis, whether corners are needed)
Needs = dict[Node, tuple[tuple[tuple[int, int], ...], bool]]


@dataclass(frozen=True)
class Discretization:
    """The choice of stencils for the operators: the formal ``order``, and the cell width per axis (``spacing``)."""

    order: int
    spacing: tuple[float, ...]

    def derivative(self, tree: Derivative) -> Stencil:
        """The stencil of a partial derivative; a mixed one is the product of the stencils along its axes."""
        factors = []
        for axis, m in enumerate(tree.orders):
            if m and tree.bias:
                factors.append(biased(self.order, tree.bias, axis, self.spacing))
            elif m:
                factors.append(central(m, self.order, axis, self.spacing))
        return product(*factors)

    def div_grad(self, tree: DivGrad) -> tuple[Stencil, Stencil, Stencil]:
        """(stencil of the gradient at the upper face of a cell, stencil of the mean there, stencil of the divergence
        from the faces around a cell)."""
        upper = [staggered(m, self.order, +1, tree.axis, self.spacing) for m in (1, 0)]
        return upper[0], upper[1], staggered(1, self.order, -1, tree.axis, self.spacing)

    def halfway(self, tree: Halfway) -> Stencil:
        """The stencil of a value half a cell away. A cell and its lower face have the same index. The tree must come
        from `staggering.located`."""
        assert tree.onto, "positions.located has to say where the operand lives"
        side = -1 if tree.onto == "faces" else 1
        if tree.kind in ("below", "above"):
            return shifted(min(0, side) + (tree.kind == "above"), tree.axis, len(self.spacing))
        return staggered(int(tree.kind == "difference"), self.order, side, tree.axis, self.spacing)

    def stencils(self, tree: Node) -> tuple[Stencil, ...]:
        """The stencils that an operator applies: three for `DivGrad`, one for the others, none for other nodes."""
        match tree:
            case Derivative():
                return (self.derivative(tree),)
            case DivGrad():
                return self.div_grad(tree)
            case Halfway():
                return (self.halfway(tree),)
            case Convolution(_, _, stencil):
                return (stencil,)
            case Neighbour(_, axis, side):
                return (shifted(side, axis, len(self.spacing)),)
        return ()

    def reach(self, tree: Node) -> tuple[tuple[int, int], ...]:
        """Ghost cells (lower, upper) per axis that an operator needs of its operands."""
        if not isinstance(tree, DivGrad):
            (stencil,) = self.stencils(tree)
            return tuple(zip(stencil.lower, stencil.upper, strict=True))
        gradient, _, divergence = self.div_grad(tree)
        width = gradient.lower[tree.axis] + divergence.lower[tree.axis]
        return tuple((width, width) if axis == tree.axis else (0, 0) for axis in range(len(self.spacing)))

    def needs(self, trees: Iterable[Node]) -> Needs:
        """The ghost cells that the trees need of each operand that has its own: the largest number (lower, upper) per
        axis that any operator needs, and whether corners are needed. A field used ``beyond`` walls gets the number that
        the outermost operator around it needs."""
        result: Needs = {}

        def ask(operand: Node, widths: tuple[tuple[int, int], ...], corners: bool) -> None:
            before, had_corners = result.get(operand, (widths, corners))
            most = tuple((max(a, c), max(b, d)) for (a, b), (c, d) in zip(widths, before, strict=True))
            result[operand] = most, corners or had_corners

        for part in (part for tree in trees for part in walk(tree) if isinstance(part, Operator)):
            corners = isinstance(part, Derivative | Convolution) and sum(map(any, self.reach(part))) > 1
            for operand in part.children:
                if has_own_ghosts(operand):
                    ask(operand, self.reach(part), corners)
                elif not part.beyond:
                    for name in {field.name for field in walk(operand) if isinstance(field, Field)}:
                        ask(Field(name), tuple((n, n) for n in self.radius([part])), True)
        return result

    def radius(self, trees: Iterable[Node], coordinates: bool = False) -> tuple[int, ...]:
        """The number of ghost cells per axis, on either side, that a block needs to evaluate the trees in all its
        cells; nested operators add up. Operators on coordinates alone count only if ``coordinates`` is true: they need
        positions outside the block, but no cells there."""
        ndim = len(self.spacing)

        @cache
        def depth(tree: Node) -> tuple[int, ...]:
            below = [depth(child) for child in tree.children]
            deepest = tuple(max((b[axis] for b in below), default=0) for axis in range(ndim))
            if isinstance(tree, OPERATORS) and (coordinates or varies(tree)):
                return tuple(d + max(r) for d, r in zip(deepest, self.reach(tree), strict=True))
            return deepest

        depths = [depth(tree) for tree in trees]
        return tuple(max((d[axis] for d in depths), default=0) for axis in range(ndim))


def axes_of(tree: Node) -> set[int]:
    """The axes whose coordinates the tree depends on."""
    return {part.axis for part in walk(tree) if isinstance(part, Coordinate)}


def constant_along(tree: Operator) -> bool:
    """Whether an operator reads neighbouring cells along some axis on which its operand is constant.
    False for stencils of the input."""
    if isinstance(tree, Convolution):
        return False
    axes = {a for a, m in enumerate(tree.orders) if m} if isinstance(tree, Derivative) else {tree.axis}
    return not varies(tree.operand) and not axes <= axes_of(tree.operand)
