"""The number of ghost cells that a tree needs, computed from the stencils of its operators, nested ones included."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hpcstencil.numerics.finite_differences import Stencil, biased, central, product, shifted, staggered
from hpcstencil.symbolic.expressions import (
    OPERATORS,
    Convolution,
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

# Operand with a boundary condition -> (number of ghost cells (lower, upper) per axis, whether corners are needed)
Needs = dict[Node, tuple[tuple[tuple[int, int], ...], bool]]


@dataclass(frozen=True)
class Discretization:
    """The spatial discretization: the stencils of the operators for a formal ``order`` and a cell width per axis
    (``spacing``)."""

    order: int
    spacing: tuple[float, ...]

    def derivative(self, tree: Derivative) -> Stencil:
        """The stencil of a partial derivative. For a mixed derivative it is the tensor product of stencils along the
        axes."""
        factors = []
        for axis, m in enumerate(tree.orders):
            if m and tree.bias:
                factors.append(biased(self.order, tree.bias, axis, self.spacing))
            elif m:
                factors.append(central(m, self.order, axis, self.spacing))
        return product(*factors)

    def div_grad(self, tree: DivGrad) -> tuple[Stencil, Stencil, Stencil]:
        """The three stencils of `DivGrad`: the gradient at the upper face of a cell, the mean at that face, and the
        divergence in the cell from its faces."""
        upper = [staggered(m, self.order, +1, tree.axis, self.spacing) for m in (1, 0)]
        return upper[0], upper[1], staggered(1, self.order, -1, tree.axis, self.spacing)

    def halfway(self, tree: Halfway) -> Stencil:
        """The stencil of a `Halfway`, in indices where a cell and its lower face have the same index.

        The tree must come from `staggering.located`, which sets ``onto``.
        """
        assert tree.onto, "staggering.located must set the target of a Halfway first"
        side = -1 if tree.onto == "faces" else 1
        if tree.kind in ("below", "above"):
            return shifted(min(0, side) + (tree.kind == "above"), tree.axis, len(self.spacing))
        return staggered(int(tree.kind == "difference"), self.order, side, tree.axis, self.spacing)

    def stencils(self, tree: Node) -> tuple[Stencil, ...]:
        """The stencils that a node applies: three for `DivGrad`, one for other operators, none for nodes that are not
        operators."""
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
        """The number of ghost cells (lower, upper) per axis that an operator needs from its operands."""
        if not isinstance(tree, DivGrad):
            (stencil,) = self.stencils(tree)
            return tuple(zip(stencil.lower, stencil.upper, strict=True))
        gradient, _, divergence = self.div_grad(tree)
        width = gradient.lower[tree.axis] + divergence.lower[tree.axis]
        return tuple((width, width) if axis == tree.axis else (0, 0) for axis in range(len(self.spacing)))

    def needs(self, trees: Iterable[Node]) -> Needs:
        """The ghost cells that the trees need from each operand that has a boundary condition itself (`has_own_ghosts`).

        The result has the largest number (lower, upper) per axis that any operator needs, and whether corners are
        needed. For a field marked ``beyond``, this number is the reach of the outermost operator around it.
        """
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
                    for name in operand.field_names:
                        ask(Field(name), tuple((n, n) for n in self.radius([part])), True)
        return result

    def radius(self, trees: Iterable[Node], coordinates: bool = False) -> tuple[int, ...]:
        """The width of the halo that a block needs to evaluate the trees in all its cells: one number per axis, for both
        sides.

        The reaches of nested operators add up. Operators on trees without fields count only if ``coordinates`` is true,
        because they read no cells outside the block, only coordinates.
        """
        depths = [self.depth(tree, coordinates) for tree in trees]
        return tuple(max((d[axis] for d in depths), default=0) for axis in range(len(self.spacing)))

    def depth(self, tree: Node, coordinates: bool) -> tuple[int, ...]:
        """The `radius` of one tree."""
        known = tree.depths.get((self, coordinates))
        if known is None:
            below = [self.depth(child, coordinates) for child in tree.children]
            known = tuple(max((b[axis] for b in below), default=0) for axis in range(len(self.spacing)))
            if isinstance(tree, OPERATORS) and (coordinates or varies(tree)):
                known = tuple(d + max(r) for d, r in zip(known, self.reach(tree), strict=True))
            tree.depths[self, coordinates] = known
        return known


def constant_along(tree: Operator) -> bool:
    """Whether an operator acts along an axis on which its operand, a tree without fields, is constant.

    False for user-defined stencils.
    """
    if isinstance(tree, Convolution):
        return False
    axes = {a for a, m in enumerate(tree.orders) if m} if isinstance(tree, Derivative) else {tree.axis}
    return not varies(tree.operand) and not axes <= tree.operand.axes
