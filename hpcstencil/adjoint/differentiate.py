"""Derivatives of right-hand sides with respect to fields and parameters, as trees.

For F(u) = f(..., Op_i[e_i(u)], ...),
  tangent     Ḟ = Σ (∂f/∂Op_i) Op_i[ė_i] + (∂f/∂u) u̇
  transposed  ∂(Σ λ F)/∂u = Σ (∂e_i/∂u) Op_iᵀ[(∂f/∂Op_i) λ] + (∂f/∂u) λ
Products come first, the transposed operator after. The pointwise derivatives are those of `symbolic.differentiate`. Where a
function has a kink, its derivative is that of one branch:
  where(c, a, b)  the branch taken; the condition has none
  minimum(a, b)   that of a if a < b, else of b;  maximum(a, b)  that of b if a < b, else of a
  abs(a)          sign(a), which is 0 at 0;  sqrt(a)  1 / (2 sqrt(a)), which is infinite at 0
The branch that is not taken contributes exactly 0, even if its value is not finite.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hpcstencil.adjoint.boundary_transposes import Extended, Place, Walls
from hpcstencil.adjoint.operands import Operands
from hpcstencil.adjoint.operators import transposed_operator
from hpcstencil.symbolic.boundary_kinds import Face
from hpcstencil.symbolic.differentiate import ONE, RULES, ZERO, over, plus, times
from hpcstencil.symbolic.expressions import (
    OPERATORS,
    Constant,
    Coordinate,
    DivGrad,
    Field,
    Node,
    Noise,
    Operator,
    Pointwise,
    bottom_up,
    shared,
    total,
)
from hpcstencil.symbolic.stencil_reach import Discretization

# Functions that choose one of two branches: their arguments -> (condition, (branch where it holds, other branch))
CHOICES: dict[str, Callable[[tuple[Node, ...]], tuple[Node, tuple[Node, Node]]]] = {
    "where": lambda x: (x[0], (x[1], x[2])),
    "minimum": lambda x: (Pointwise("less", x), (x[0], x[1])),
    "maximum": lambda x: (Pointwise("less", x), (x[1], x[0])),
}
Guards = tuple[tuple[Node, bool], ...]  # (condition, whether it must hold), from the outermost where() inwards


@dataclass
class Sum:
    """A sum of trees. Terms that are products of the same factors are added up to a multiple of one of them.

    ``terms`` are (number, product) by the factors of the product.
    """

    terms: dict[frozenset[tuple[Node, int]], tuple[float, Node]] = field(default_factory=dict)

    def add(self, tree: Node) -> None:
        """Add a tree to the sum."""
        if tree == ZERO:
            return
        number, rest = _number_apart(tree)
        key = frozenset(Counter(_factors(rest)).items())
        number += self.terms.pop(key, (0.0, rest))[0]
        if number != 0.0:
            self.terms[key] = number, rest

    @property
    def tree(self) -> Node:
        """The sum as a tree; the constant 0 if there are no terms."""
        return total([times(Constant(number), rest) for number, rest in self.terms.values()] or [ZERO])


def _number_apart(tree: Node) -> tuple[float, Node]:
    """A product as (the product of the numbers in it, the product of all else)."""
    if isinstance(tree, Constant):
        return tree.value, ONE
    if isinstance(tree, Pointwise) and tree.function == "multiply":
        (a, x), (b, y) = map(_number_apart, tree.arguments)
        return a * b, tree if a == b == 1.0 and ONE not in (x, y) else times(x, y)
    return 1.0, tree


def _factors(tree: Node) -> list[Node]:
    """The factors of a product."""
    if isinstance(tree, Pointwise) and tree.function == "multiply":
        return [factor for argument in tree.arguments for factor in _factors(argument)]
    return [tree]


def tangent(
    tree: Node, directions: Mapping[Node, Node], operands: Operands, space: Discretization, field: Node = ZERO
) -> Node:
    """The derivative of a tree along ``directions``, which map fields and parameters to their own derivatives.

    ``field`` is any field that is known where the result is evaluated; it is needed if the tree has operators. If the
    directions are of parameters alone, the values of faces to which the general rule applies (`Operands.general`) count as
    constant, as `transposed` has their derivatives. The conditions of new operands are added to ``operands``. Raises the
    InputError of `Operands.changed`.
    """
    known: dict[Node, Node] = {}

    of_fields = any(isinstance(leaf, Field) for leaf in directions)

    def along(face: Face) -> list[Node]:
        constant = not of_fields and operands.general(face)
        return [ZERO if constant else tangent(value, directions, operands, space, field) for value in face.values]

    for part in bottom_up(tree):
        if isinstance(part, Pointwise):
            slopes = tuple(known[argument] for argument in part.arguments)
            known[part] = RULES[part.function](part, part.arguments, slopes) if set(slopes) != {ZERO} else ZERO
        elif isinstance(part, OPERATORS):
            result: Node = ZERO
            for name in ("operand", "coefficient") if isinstance(part, DivGrad) else ("operand",):
                child = getattr(part, name)
                slope = operands.changed(child, known[child], _reaches(part, space), along, Constant(0.0) * field)
                if slope != ZERO:
                    changed: dict[str, Any] = {name: slope}
                    result = plus(result, replace(part, **changed))
            known[part] = result
        elif isinstance(part, Field) and part.beyond:
            known[part] = operands.beyond(part, directions.get(Field(part.name), ZERO), along)
        else:
            known[part] = directions.get(part, ZERO)
    return known[tree]


def _reaches(part: Operator, space: Discretization) -> dict[int, int]:
    """The number of ghost cells that an operator needs, by the axes along which it reads other cells."""
    return {axis: max(reach) for axis, reach in enumerate(space.reach(part)) if any(reach)}


def transposed(
    trees: Mapping[str, Node],
    seeds: Mapping[str, Node],
    operands: Operands,
    space: Discretization,
) -> dict[Node, Node]:
    """The derivatives of Σ_name Σ_cells seeds[name] trees[name] with respect to the unknowns of ``operands`` in each cell.

    ``seeds`` are fields. The result has a tree for each field among the unknowns on which the sum depends. It also has one for
    each number and time series in boundary values to which the general rule applies: the part of the derivative that comes from
    these values. The conditions of new operands are added to ``operands``. Raises the InputError of `transposed_operator` and
    of `Walls`.
    """
    if not trees:
        return {}
    merged = shared(trees)

    def by_leaf(value: Node, leaf: Node) -> Node:
        return tangent(value, {leaf: ONE}, operands, space)

    walls = Walls(operands, space, by_leaf)
    leaves = [leaf for leaf in operands.unknowns if isinstance(leaf, Field)]
    numbers = [leaf for leaf in operands.unknowns if not isinstance(leaf, Field)]
    order = list(dict.fromkeys(bottom_up(total(list(merged.values())))))
    wanted = {*leaves, *(replace(leaf, beyond=True) for leaf in leaves)}
    active: dict[Node, bool] = dict.fromkeys(wanted, True)
    for part in order:
        below = any(active[child] for child in part.children)
        active[part] = part in wanted or below or (isinstance(part, OPERATORS) and walls.depends(part))
    sums: dict[Node, dict[tuple[Place, Guards], Sum]] = {}
    of_numbers: dict[Node, Node] = {}

    def reaching(part: Node) -> dict[tuple[Place, Guards], Node]:
        found = {where: terms.tree for where, terms in sums.get(part, {}).items()}
        return {where: tree for where, tree in found.items() if tree != ZERO}

    def add(part: Node, place: Place, guards: Guards, tree: Node) -> None:
        if part in numbers:
            of_numbers[part] = plus(of_numbers.get(part, ZERO), tree)
        elif active[part] and tree != ZERO:
            sums.setdefault(part, {}).setdefault((place, guards), Sum()).add(tree)

    for name, tree in merged.items():
        if tree not in numbers:  # a tree that is a number alone has no boundary values
            add(tree, (), (), seeds[name])
    for part in reversed(order):  # every node after all nodes that use it
        reached = reaching(part)
        if isinstance(part, Pointwise):
            for (place, guards), c in reached.items():
                for child, guard, slope in _slopes(part, active):
                    added = guards if guard is None or guard in guards else (*guards, guard)
                    add(child, place, added, times(c, walls.at(slope, place)))
        elif isinstance(part, OPERATORS) and reached:
            sought = _guarded(reached, walls)
            if walls.needed(part, sought):
                for (leaf, place), tree in walls.transposed(part, sought).items():
                    add(leaf, place, (), tree)
                continue
            if isinstance(part, DivGrad):
                for leaf, tree in walls.beside_div_grad(part, sought[()]):
                    add(leaf, (), (), tree)
            factor, rest = _split(sought[()])
            both = {child for child in part.children if active[child]}
            for child, tree in transposed_operator(part, rest, both, operands, space):
                add(child, (), (), times(factor, tree))
    found = {part: _guarded(reached, walls) for part in sums if part in wanted and (reached := reaching(part))}
    result = {part: c[()] for part, c in found.items() if part in leaves} | of_numbers
    for leaf in leaves:
        if (beyond := replace(leaf, beyond=True)) in found:
            for part, tree in walls.folded(leaf, found[beyond]).items():
                result[part] = plus(result.get(part, ZERO), tree)
    return result


def _split(tree: Node) -> tuple[Node, Node]:
    """A tree as (factor that is equal in all cells, rest), so that operators apply to the rest, which is often a field."""
    if isinstance(tree, Pointwise):
        x = tree.arguments
        if tree.function == "multiply":
            if _uniform(x[0]) or _uniform(x[1]):
                factor, other = x if _uniform(x[0]) else (x[1], x[0])
                inner, rest = _split(other)
                return times(factor, inner), rest
            (f, a), (g, b) = _split(x[0]), _split(x[1])
            return times(f, g), times(a, b)
        if tree.function == "divide" and _uniform(x[1]):
            inner, rest = _split(x[0])
            return over(inner, x[1]), rest
    return ONE, tree


def _uniform(tree: Node) -> bool:
    """Whether a tree has the same value in all cells."""
    return tree.kinds.isdisjoint((Field, Coordinate, Noise))


def _slopes(part: Pointwise, active: Mapping[Node, bool]) -> Iterator[tuple[Node, tuple[Node, bool] | None, Node]]:
    """Yield (argument, condition under which it counts or None, derivative) for the active arguments of a function."""
    x = part.arguments
    if part.function in CHOICES:
        condition, branches = CHOICES[part.function](x)
        for child, holds in zip(branches, (True, False), strict=True):
            if active[child]:
                yield child, (condition, holds), ONE
        return
    for number, child in enumerate(x):
        if active[child]:
            unit = tuple(ONE if n == number else ZERO for n in range(len(x)))
            yield child, None, RULES[part.function](part, x, unit)


def _guarded(sums: Mapping[tuple[Place, Guards], Node], walls: Walls) -> Extended:
    """The sum of trees, each of which counts where its conditions hold and is 0 elsewhere, by place."""
    terms: dict[Place, list[Node]] = {}
    for (place, guards), tree in sums.items():
        for condition, holds in reversed(guards):
            here = walls.at(condition, place)
            tree = Pointwise("where", (here, tree, ZERO) if holds else (here, ZERO, tree))
        terms.setdefault(place, []).append(tree)
    return {place: total(each) for place, each in terms.items()}
