"""Transposes beside boundaries by the general rule, also of values that are evaluated beyond boundaries.

Let S be a stencil along one axis, and E the extension of its operand to ghost cells, u_{-j} = α_j u_{j-1} + β_j. For
J = Σ c_i (S E u)_i, the derivative ∂J/∂u takes three steps:
  1. c is continued by zeros, since nothing is computed beyond the boundary
  2. the reflected stencil is applied, also in the places of ghost cells
  3. the result in each ghost cell, times α_j, is added to its mirror image
If β_j depends on fields, as at an open end, the result times ∂β_j/∂v is added to the field v in the cell next to the boundary.
If α_j and β_j depend on a parameter p, the result times ∂α_j/∂p u_{j-1} + ∂β_j/∂p is added to the derivative with respect to p.
The rule holds for every stencil and every α. Where the identity of `operands` applies, a single operator suffices.

On a staggered grid, inner results are evaluated beyond boundaries from the ghost cells of fields (`Field.beyond`). Their
derivatives then have values there too, which go through the operators below, and step 3 follows at the fields. So a derivative
is a tree for the cells of the grid, and one for each row of places beyond a boundary that it reaches: an `Extended`. The tree
for the k-th row, k = 1, 2, ..., has the value of a place in the cell that is its mirror image, number k - 1 from the boundary.
Its values in other cells have no meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from hpcstencil.adjoint.operands import Operands, changed_ghost, linear, with_fields
from hpcstencil.numerics.finite_differences import Stencil
from hpcstencil.numerics.grid import AXES
from hpcstencil.symbolic.boundary_kinds import KINDS, NO_CONDITION, Face
from hpcstencil.symbolic.differentiate import ONE, ZERO, plus, times
from hpcstencil.symbolic.expressions import (
    Constant,
    Convolution,
    Coordinate,
    Derivative,
    DivGrad,
    Halfway,
    Neighbour,
    Node,
    Operator,
    Pointwise,
    has_own_ghosts,
    on_plane,
    rebuilt,
    varies,
    walk,
)
from hpcstencil.symbolic.stencil_reach import Discretization
from hpcstencil.validation.errors import InputError

# Rows of places beyond boundaries: (axis, side, k) per axis, in the order of the axes. () are the cells of the grid.
Place = tuple[tuple[int, int, int], ...]
Extended = dict[Place, Node]

REFLECTED = {"mean": "mean", "difference": "difference", "below": "above", "above": "below"}


def reflected(part: Operator, c: Node) -> Node:
    """The operator with the reflected stencil, applied to ``c``. It is the transpose on a grid without boundaries."""
    match part:
        case Derivative(_, orders, bias):
            even = replace(part, operand=c, bias=-bias, beyond=False)
            return -even if sum(orders) % 2 else even
        case Halfway(_, axis, kind, onto):
            other = Halfway(c, axis, REFLECTED[kind], "centres" if onto == "faces" else "faces")
            return -other if kind == "difference" else other
        case Neighbour(_, axis, side):
            return Neighbour(c, axis, -side)
        case Convolution(_, name, stencil):
            places = tuple(tuple(-o for o in offset) for offset in stencil.offsets)
            return Convolution(c, name, Stencil(places, stencil.weights))
    raise TypeError(f"no reflected stencil of {type(part).__name__}")


@dataclass
class Walls:
    """The general rule for one set of ``operands``, with the stencils of ``space``.

    The leaves are the unknowns of the operands. ``slope`` returns the derivative of a boundary value with respect to one of
    them.
    """

    operands: Operands
    space: Discretization
    slope: Callable[[Node, Node], Node]
    cleared: dict[Node, Node] = field(default_factory=dict)

    def needed(self, part: Operator, places: Iterable[Place]) -> bool:
        """Whether the transpose of ``part`` needs the general rule, where its result has a derivative in these places."""
        if any(places):
            return True
        reaches = [max(pair) for pair in self.space.reach(part)]
        walls = self.operands.walls(axis for axis, reach in enumerate(reaches) if reach)
        operands = [child for child in part.children if varies(child)]
        if walls and (isinstance(part, Halfway) or not all(has_own_ghosts(child) for child in operands)):
            return True
        if self.depends(part):
            return not isinstance(part, DivGrad) or self.space.order > 2
        mixed = sum(map(bool, reaches)) > 1

        def varying(face: Face, reach: int) -> bool:
            """Whether the mirror factor is not the same for all ghost cells, as the identity requires."""
            by_place = any(value.axes or value.field_names for value in face.values[:-1])
            return KINDS[face.kind].factor_varies and (reach > 1 or (mixed and by_place))

        here = not isinstance(part, DivGrad) and (isinstance(part, Derivative) or not mixed)
        return any(KINDS[face.kind].on_face or (here and varying(face, reach)) for face, reach in self.faces(part))

    def faces(self, part: Operator) -> list[tuple[Face, int]]:
        """The conditions of the operands of ``part`` on boundaries beyond which it reads, with its number of ghost cells."""
        reaches = [max(pair) for pair in self.space.reach(part)]
        walls = self.operands.walls(axis for axis, reach in enumerate(reaches) if reach)
        sides = [(child, axis, side) for child in part.children if varies(child) for axis in walls for side in (0, 1)]
        return [(self.operands.face(*where), reaches[where[1]]) for where in sides]

    def depends(self, part: Operator) -> bool:
        """Whether ``part`` has derivatives with respect to leaves in boundary values of its operands."""
        return any(self.beside(face) for face, _ in self.faces(part))

    def beside(self, face: Face) -> list[Node]:
        """The leaves on which the values of a face depend, if the general rule applies to it."""
        if not self.operands.general(face):
            return []
        found = [part for value in face.values for part in walk(value) if part in self.operands.unknowns]
        return list(dict.fromkeys(found))

    # ---- values in places ----

    def at(self, tree: Node, place: Place) -> Node:
        """A tree of the equation at ``place``, as a tree for cells of the grid."""
        if not place:
            return self.inside(tree)
        offset = [0] * len(self.space.spacing)
        for axis, side, k in place:
            offset[axis] = (2 * k - 1) * (1 if side else -1)
        return _shifted(tree, offset)

    def inside(self, tree: Node) -> Node:
        """A tree of the equation whose value is needed in cells of the grid alone."""
        if tree not in self.cleared:
            made = rebuilt(tree, self.inside) if isinstance(tree, Pointwise) else tree
            self.cleared[tree] = replace(made, beyond=False) if getattr(made, "beyond", False) else made
        return self.cleared[tree]

    def in_cell(self, axis: int, side: int, number: int, tree: Node) -> Node:
        """The tree in the cells with this number from a boundary, counted from 0, and 0 elsewhere."""
        boundary, width = self.operands.domain[axis][side], self.space.spacing[axis]

        def within(cells: int) -> Node:
            x = Coordinate(axis)
            return x > boundary - cells * width if side else x < boundary + cells * width

        found = Pointwise("where", (within(number + 1), tree, ZERO))
        return Pointwise("where", (within(number), ZERO, found)) if number else found

    # ---- the three steps ----

    def transposed(self, part: Operator, c: Extended) -> dict[tuple[Node, Place], Node]:
        """The derivatives of Σ c ``part`` with respect to the operand of ``part``, and to leaves, by these and by place.

        If the operand has ghost cells of its own, they are folded back, so that the result has no other place than (). Raises
        InputError for user-defined stencils along several axes and for `DivGrad`.
        """
        (operand, *_) = part.children
        axes = [axis for axis, reach in enumerate(self.space.reach(part)) if any(reach)]
        if isinstance(part, DivGrad) or (len(axes) > 1 and not isinstance(part, Derivative)):
            what = "div_grad" if isinstance(part, DivGrad) else "stencils along several axes"
            raise InputError(
                f"boundary: gradients are not available yet for {what} beside open ends, boundary values from arrays and "
                "unknowns in robin conditions, and on staggered grids beside any boundary; use numerics.order = 2, other "
                "conditions, or differences and means"
            )
        found = c if axes else {place: reflected(part, tree) for place, tree in c.items()}
        for axis in axes:
            one = part
            if isinstance(part, Derivative):  # a mixed one is the product of those along its axes
                one = replace(part, orders=tuple(m if a == axis else 0 for a, m in enumerate(part.orders)))
            found = self.along_axis(one, axis, found)
        if not has_own_ghosts(operand):
            return {(operand, place): tree for place, tree in found.items()}
        return {(leaf, ()): tree for leaf, tree in self.folded(operand, found).items()}

    def beside_div_grad(self, part: DivGrad, c: Node) -> Iterator[tuple[Node, Node]]:
        """Yield (leaf, derivative of Σ c ``part``) for leaves in the boundary values of both operands, where the general rule
        is not needed for the operands themselves: a second-order stencil reads one ghost cell, k_g or a_g, of each.

        The flux through the boundary adds (k + k_g)/2 (a_g - a)/dx² to the cell beside it.
        """
        axis, k, a = part.axis, part.coefficient, part.operand
        c = times(Constant(self.space.spacing[axis] ** -2), c)
        for side in (0, 1) if self.operands.walls([axis]) else ():
            k_ghost, a_ghost = (Neighbour(operand, axis, 1 if side else -1) for operand in (k, a))
            row = axis, side, 1
            if varies(a) and self.beside(self.operands.face(a, axis, side)):
                yield from self.given(a, row, (), times(Constant(0.5) * (k + k_ghost), c))
            if varies(k) and self.beside(self.operands.face(k, axis, side)):
                yield from self.given(k, row, (), times(Constant(0.5) * (a_ghost - a), c))

    def along_axis(self, part: Operator, axis: int, c: Extended) -> Extended:
        """Steps 1 and 2 for an operator along one axis, from derivatives ``c`` with respect to its result."""
        if self.operands.periodic[axis]:
            return {place: reflected(part, tree) for place, tree in c.items()}
        found = Extended()
        for rest, along in _by_axis(c, axis).items():
            for place, tree in self.along(part, axis, along):
                _add(found, tuple(sorted((*rest, *place))), tree)
        return found

    def along(self, part: Operator, axis: int, c: Extended) -> Iterator[tuple[Place, Node]]:
        """Yield the results of steps 1 and 2 along one axis, from the trees of ``c`` for its rows and for the cells: pairs (row
        beyond a boundary of this axis or (), tree)."""
        (stencil,) = self.space.stencils(part)
        weights = {offset[axis]: w for offset, w in zip(stencil.offsets, stencil.weights, strict=True)}
        for row, tree in c.items():
            if not row:
                outside = {(axis, side): NO_CONDITION for side in (0, 1)}
                yield (), reflected(part, self.operands.placed(tree, outside))
            for side in (0, 1):
                # Cells are counted from this boundary; the place k beyond it has the number -k. A result at p reads p + o.
                sign = -1 if side else 1
                reads = {sign * o: w for o, w in weights.items()}
                if not row:
                    for k in range(1, 1 - min(reads)):
                        terms = {sign * (-k - o - (k - 1)): w for o, w in reads.items() if o <= -k}
                        yield ((axis, side, k),), self.weighted(tree, axis, terms)
                elif row[0][1] == side:
                    yield from self.from_row(row[0], tree, reads)

    def from_row(
        self, row: tuple[int, int, int], tree: Node, reads: Mapping[int, float]
    ) -> Iterator[tuple[Place, Node]]:
        """Yield the part of `along` that comes from one row. ``reads`` are weights by offset, away from the boundary."""
        axis, side, k = row
        for o, w in reads.items():
            there = o - k
            mirror = there if there >= 0 else -there - 1
            term = times(Constant(w), self.weighted(tree, axis, {(-1 if side else 1) * (k - 1 - mirror): 1.0}))
            yield (((axis, side, -there),), term) if there < 0 else ((), self.in_cell(axis, side, there, term))

    def weighted(self, tree: Node, axis: int, terms: Mapping[int, float]) -> Node:
        """The sum of a tree in cells at some offsets along ``axis``, times their weights. It is needed where these exist."""
        if [*terms] == [0]:
            return times(Constant(terms[0]), tree)
        offsets = tuple(tuple(o if a == axis else 0 for a in range(len(self.space.spacing))) for o in terms)
        return Convolution(tree, "", Stencil(offsets, tuple(terms.values())))

    def folded(self, operand: Node, c: Extended) -> dict[Node, Node]:
        """Step 3: the derivatives with respect to the cells of an operand with ghost cells of its own, and to leaves in its
        boundary values."""
        result: dict[Node, Node] = {}
        for axis in reversed(range(len(self.space.spacing))):  # ghost cells are filled in the order of the axes
            found = Extended()
            for rest, along in _by_axis(c, axis).items():
                for place, tree in along.items():
                    _add(found, rest, self.mirrored(operand, place[0], rest, tree) if place else tree)
                    for leaf, other in self.given(operand, place[0], rest, tree) if place else ():
                        result[leaf] = plus(result.get(leaf, ZERO), other)
            c = found
        return {**result, operand: plus(c.get((), ZERO), result.get(operand, ZERO))}

    def given(self, operand: Node, row: tuple[int, int, int], rest: Place, tree: Node) -> Iterator[tuple[Node, Node]]:
        """Yield (leaf, derivative) for leaves in the boundary values of a ``row``. The arguments are those of `mirrored`."""
        axis, side, k = row
        face = self.operands.face(operand, axis, side)
        for leaf in self.beside(face):
            if rest:
                raise InputError(
                    f"boundary.{AXES[axis]}: gradients are not available yet for operators that read the corners of the domain "
                    "beside boundary values with fields; use another condition"
                )
            boundary, height = self.operands.domain[axis][side], Constant((2 * k - 1) * self.space.spacing[axis])
            there = replace(face, values=tuple(on_plane(value, axis, boundary) for value in face.values))
            inwards = {(-1 if side else 1) * (k - 1): 1.0}
            *slopes, last = (self.slope(value, leaf) for value in there.values)
            of_factor: Node = ZERO
            if any(slope != ZERO for slope in slopes):
                mirror = self.weighted(self.inside(operand), axis, inwards)
                of_factor = changed_ghost(there, mirror, height, slopes)
            change = plus(times(linear(there, height), last), of_factor)
            yield leaf, self.in_cell(axis, side, 0, times(change, self.weighted(tree, axis, inwards)))

    def mirrored(self, operand: Node, row: tuple[int, int, int], rest: Place, tree: Node) -> Node:
        """The ghost cells of a ``row``, of which ``tree`` is the derivative, folded onto their mirror images.

        ``rest`` are the rows of other axes in which they lie as well.
        """
        axis, side, k = row
        face = self.operands.face(operand, axis, side)
        if not KINDS[face.kind].on_face:
            return self.in_cell(axis, side, k - 1, times(self.factor(face, row, rest), tree))
        # The mirror image lies one cell further inside; on the upper side the first place is on the boundary itself, given.
        number = k - 2 if side else k
        if number < 0:
            return ZERO
        towards = (k - 1 - number) * (-1 if side else 1)
        return self.in_cell(axis, side, number, times(Constant(-1.0), self.weighted(tree, axis, {towards: 1.0})))

    def factor(self, face: Face, row: tuple[int, int, int], rest: Place) -> Node:
        """The mirror factor α of the ghost cells in a row, which lie in the rows ``rest`` of other axes as well."""
        axis, side, k = row
        kind, height = KINDS[face.kind], (2 * k - 1) * self.space.spacing[axis]
        if not kind.factor_varies:
            return Constant(kind.ghost(float, 1.0, height, 0.0))
        coefficients = replace(face, values=face.values[:-1])
        if with_fields(coefficients) and rest:
            raise InputError(
                f"boundary.{AXES[axis]}: gradients are not available yet for operators that read the corners of the domain if "
                f"the coefficients of {face.kind} are arrays; give expressions"
            )
        values = [on_plane(value, axis, self.operands.domain[axis][side]) for value in coefficients.values]
        factor = self.at(kind.ghost(Constant, ONE, Constant(height), *values, ZERO), rest)
        if with_fields(coefficients):  # which lie in the cells next to the boundary
            factor = self.weighted(factor, axis, {(1 if side else -1) * (k - 1): 1.0})
        return factor


def _shifted(tree: Node, offset: Iterable[int]) -> Node:
    """The value of a tree in the cell at an offset, which is one number per axis."""
    if not tree.axes and not tree.field_names:
        return tree
    return Convolution(tree, "", Stencil((tuple(offset),), (1.0,)))


def _by_axis(c: Extended, axis: int) -> dict[Place, Extended]:
    """The trees by the rows of other axes, then by the row of this axis."""
    found: dict[Place, Extended] = {}
    for place, tree in c.items():
        own = tuple(row for row in place if row[0] == axis)
        found.setdefault(tuple(row for row in place if row[0] != axis), {})[own] = tree
    return found


def _add(found: Extended, place: Place, tree: Node) -> None:
    if tree != ZERO:
        found[place] = plus(found.get(place, ZERO), tree)
