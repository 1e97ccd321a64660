"""The transposes of the operators, in gather form: each is again an operator, of the adjoint field times something.

For J = Σ_i c_i (Op a)_i, `transposed_operator` returns ∂J/∂a_i as trees of c. The identities are those of `operands`:
  derivative   (∂^m)ᵀ c = (-1)^m ∂^m c, with Dirichlet and Neumann exchanged for odd m; a biased stencil has its bias reversed
  div_grad     Σ c ∇·(k ∇a) is bilinear: (∇·k∇)ᵀ c = ∇·(k ∇c), and ∂J/∂k = -mean(∂a ∂c) over the two faces of a cell
  halfway      (difference to faces)ᵀ = -(difference to centres), meanᵀ = mean, belowᵀ = above
  stencils     the reflected weights
Beside boundaries `boundary_transposes` transposes the other operators.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from hpcstencil.adjoint.boundary_transposes import reflected
from hpcstencil.adjoint.operands import Operands
from hpcstencil.numerics.finite_differences import Stencil
from hpcstencil.symbolic.boundary_kinds import NO_FLUX
from hpcstencil.symbolic.expressions import (
    Convolution,
    Derivative,
    DivGrad,
    Halfway,
    Neighbour,
    Node,
    Operator,
    total,
    varies,
)
from hpcstencil.symbolic.stencil_reach import Discretization
from hpcstencil.validation.errors import InputError


def transposed_operator(
    part: Operator, c: Node, wanted: Collection[Node], operands: Operands, space: Discretization
) -> list[tuple[Node, Node]]:
    """The derivatives of Σ c ``part`` with respect to those operands of the operator that are ``wanted``.

    The result has pairs (operand, tree). ``c`` is a tree that varies. The conditions of new operands are added to
    ``operands``. Raises InputError for what has no transpose here.
    """
    match part:
        case Derivative(operand, orders, bias):
            return [(operand, _derivative(part, orders, bias, c, operands, space))]
        case DivGrad():
            return _div_grad(part, c, wanted, operands, space)
        case Halfway(operand):
            return [(operand, reflected(part, c))]
        case Neighbour(operand, axis, side):
            if not operands.walls([axis]):
                return [(operand, reflected(part, c))]
            here, there = (replace(part, operand=o) for o in _both(part, c, axis, operands, space))
            pairs = [here, replace(here, side=-side), there, -replace(there, side=-side)]
            return [(operand, 0.5 * total(pairs))]
        case Convolution(operand):
            return [(operand, _convolution(part, c, operands))]


def _reach(part: Operator, axis: int, space: Discretization) -> int:
    return max(space.reach(part)[axis])


def _both(part: Operator, c: Node, axis: int, operands: Operands, space: Discretization) -> tuple[Node, Node]:
    """The operands of the even part of a stencil along ``axis``, c, and of its odd part, -c, beside a boundary."""
    (operand,) = part.children
    reach = _reach(part, axis, space)
    even, odd = (operands.mirrored(operand, {axis: parity}, reach) for parity in (1, -1))
    return operands.placed(c, even), operands.placed(-c, odd)


def _derivative(
    part: Derivative, orders: Sequence[int], bias: int, c: Node, operands: Operands, space: Discretization
) -> Node:
    axes = [axis for axis, m in enumerate(orders) if m]
    walls = operands.walls(axes)
    if not bias:
        parities = {axis: (-1) ** orders[axis] for axis in axes}
        reach = max((_reach(part, axis, space) for axis in walls), default=0)
        faces = operands.mirrored(part.operand, {axis: parities[axis] for axis in walls}, reach, mixed=len(axes) > 1)
        return replace(part, operand=operands.placed(-c if math.prod(parities.values()) < 0 else c, faces))
    if not walls:
        return reflected(part, c)
    (axis,) = axes
    even, odd = _both(part, c, axis, operands, space)
    here, there = replace(part, operand=even), replace(part, operand=odd)
    return 0.5 * total([here, -replace(here, bias=-bias), there, replace(there, bias=-bias)])


def _div_grad(
    part: DivGrad, c: Node, wanted: Collection[Node], operands: Operands, space: Discretization
) -> list[tuple[Node, Node]]:
    k, a, axis = part.coefficient, part.operand, part.axis
    walls, reach = operands.walls([axis]), _reach(part, axis, space)
    found: list[tuple[Node, Node]] = []
    wide = bool(walls) and space.order > 2
    if a in wanted:
        if wide and not _is_even(k, axis, operands):
            raise InputError(
                "numerics.order: gradients through div_grad beside a boundary are available for order 2, and for higher orders "
                "only if the coefficient has zero normal derivative there; set it to 2"
            )
        faces = operands.mirrored(a, dict.fromkeys(walls, 1), reach)
        found.append((a, replace(part, operand=operands.placed(c, faces))))
    if k in wanted and wide:
        raise InputError(
            "numerics.order: gradients with respect to the coefficient of div_grad beside a boundary are available for order 2 "
            "only; set it to 2"
        )
    if k in wanted and walls:
        # Half a face's product goes to each of its two cells. On the boundary it all goes to one cell, so that c - c_ghost has
        # to be (1 + α_k) c, where α_k is the mirror factor of the coefficient.
        other = operands.placed(c, operands.mirrored(k, dict.fromkeys(walls, -1), reach))
        once = tuple(int(b == axis) for b in range(len(space.spacing)))
        pairs = [Derivative(a, once, side) * Derivative(other, once, side) for side in (-1, 1)]
        found.append((k, -0.5 * total(pairs)))
    elif k in wanted:
        across = [Halfway(x, axis, "difference", "faces") for x in (a, c)]
        found.append((k, -Halfway(across[0] * across[1], axis, "mean", "centres")))
    return found


def _is_even(k: Node, axis: int, operands: Operands) -> bool:
    """Whether a coefficient is equal in a ghost cell and its mirror image, on both sides of an axis."""
    if varies(k):
        return all(operands.face(k, axis, side) == NO_FLUX for side in (0, 1))
    return axis not in k.axes


def _convolution(part: Convolution, c: Node, operands: Operands) -> Node:
    """The transpose of a user-defined stencil: beside boundaries, the sum of its parts of each parity per axis."""
    stencil = part.stencil
    if stencil.by_fft:
        raise InputError(
            f'equation.stencils.{part.name}: gradients are not available yet with method = "fft"; remove it'
        )
    reaches = [max(pair) for pair in zip(stencil.lower, stencil.upper, strict=True)]
    axes = [axis for axis, n in enumerate(reaches) if n]
    walls, mixed = operands.walls(axes), len(axes) > 1
    reach, terms = max((reaches[axis] for axis in walls), default=0), []
    for parities in itertools.product((1, -1), repeat=len(walls)):
        by_axis = dict(zip(walls, parities, strict=True))
        weights: dict[tuple[int, ...], float] = {}
        for offset, w in zip(stencil.offsets, stencil.weights, strict=True):
            for flipped in itertools.product((1, -1), repeat=len(walls)):
                sign = dict(zip(walls, flipped, strict=True))
                # The part of a parity is the sum over reflections of w / 2, negative if odd; its transpose, parity times it.
                place = tuple(o * sign.get(axis, -1) for axis, o in enumerate(offset))
                factor = math.prod(p * (p if s < 0 else 1) for p, s in zip(parities, flipped, strict=True))
                weights[place] = weights.get(place, 0.0) + w * factor / 2 ** len(walls)
        kept = {place: w for place, w in weights.items() if w}
        if kept:
            operand = operands.placed(c, operands.mirrored(part.operand, by_axis, reach, mixed))
            terms.append(Convolution(operand, part.name, Stencil(tuple(kept), tuple(kept.values()))))
    return total(list(terms))
