"""The ghost cells of the operands in an adjoint or a tangent.

Let S be a stencil along one axis, and E the extension of u to ghost cells, u_{-j} = α u_{j-1} + β. With weights s_o, the
matrix of S E is s_{j-i} + α s_{-1-j-i} beside a lower boundary, and its transpose s_{i-j} + α s_{-1-i-j}. If the weights have
the parity p, s_{-o} = p s_o, the transpose is p times the same stencil, with the mirror factor p α:
  p (s_{j-i} + p α s_{-1-i-j}).
So the transpose of an operator is the same operator again, whose operand has other boundary conditions. β does not depend on
u and drops out. A stencil without parity is the sum of an even and an odd part.

The identity needs a factor α that is equal for all ghost cells of a row. Where a stencil reaches along several axes, α must
also be equal for all rows.

Along a direction in which a parameter of α and β changes, the ghost cell changes by α u̇_mirror + (∂α/∂p u_mirror + ∂β/∂p) ṗ.
As β is linear in the last value of a face, the derivative of the operand has the same kind of boundary with another last
value. For a robin condition a u + b ∂u/∂n = r, that value is ṙ - ȧ u - ḃ ∂u/∂n with u and ∂u/∂n on the boundary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hpcstencil.numerics.grid import AXES
from hpcstencil.symbolic.boundary_kinds import KINDS, NO_FLUX, Face
from hpcstencil.symbolic.differentiate import ONE, ZERO, derivative, over, plus, times, where
from hpcstencil.symbolic.expressions import (
    OPERATORS,
    Constant,
    Coordinate,
    Field,
    Node,
    Parameter,
    has_own_ghosts,
    on_plane,
    substitute,
    varies,
    walk,
)
from hpcstencil.validation.errors import InputError

Faces = Mapping[tuple[Node, int, int], Face]
Along = Callable[[Face], Sequence[Node]]  # the derivatives of the values of a face along a direction


@dataclass
class Operands:
    """The boundary conditions of all operands, of the equation and of its adjoint.

    ``given`` are the conditions of the equation, as `Problem.faces`, and ``trees`` its trees. ``periodic``, ``spacing``,
    ``domain``, the coordinates of both boundaries, and ``rows``, the number of ghost cells that any tree needs, have one entry
    per axis. ``unknowns`` are the fields, numbers and time series with respect to which the adjoint has derivatives, in order.
    ``added`` collects the conditions of new operands.
    """

    given: Faces
    trees: Iterable[Node]
    periodic: tuple[bool, ...]
    spacing: tuple[float, ...]
    domain: tuple[tuple[float, float], ...]
    rows: tuple[int, ...]
    unknowns: tuple[Node, ...] = ()
    added: dict[tuple[Node, int, int], Face] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = [part for tree in self.trees for part in walk(tree) if isinstance(part, OPERATORS)]
        self.used = {operand for part in parts for operand in part.children}

    def face(self, operand: Node, axis: int, side: int) -> Face:
        """The condition of an operand of the equation on one side (0 lower, 1 upper) of an axis that is not periodic."""
        return self.given.get((operand, axis, side), NO_FLUX)

    def general(self, face: Face) -> bool:
        """Whether a face needs the general rule of `boundary_transposes`.

        That is so if its values contain fields or arrays, or if a mirror factor depends on an unknown.
        """
        return with_fields(face) or any(part in self.unknowns for value in face.values[:-1] for part in walk(value))

    def mirrored(
        self, operand: Node, parities: Mapping[int, int], reach: int, mixed: bool = False, tangent: bool = False
    ) -> dict[tuple[int, int], Face]:
        """The conditions, by (axis, side), whose mirror factors are ``parities`` times those of ``operand``.

        ``parities`` has an entry, 1 or -1, for each axis that is not periodic and along which the stencil reaches.
        ``reach`` is the number of ghost cells that it needs there, and ``mixed`` says whether it reaches along several axes,
        periodic ones included. For a ``tangent``, whose parities are all 1, the factor may differ from cell to cell.

        Raises InputError where the identity of this module does not hold.
        """
        found = {}
        for axis, parity in parities.items():
            for side in (0, 1):
                face = self.face(operand, axis, side)
                kind, where = KINDS[face.kind], f"boundary.{AXES[axis]}"
                if kind.factor_varies and not tangent:
                    if reach > 1:
                        raise InputError(
                            f"{where}: gradients are not available yet with {face.kind} and stencils that need more than one "
                            "ghost cell; set numerics.order = 2, or use dirichlet or neumann"
                        )
                    factor = face.values[:-1]
                    if mixed and any(value.axes or value.field_names for value in factor):
                        raise InputError(
                            f"{where}: gradients of stencils along several axes are not available yet with {face.kind} whose "
                            "coefficients depend on the place; give numbers"
                        )
                mirrored = kind.mirrored(parity, self.spacing[axis], face.values)
                if mirrored is None:
                    raise InputError(
                        f"{where}: gradients are not available yet with {face.kind}; use another condition"
                    )
                found[axis, side] = mirrored
        return found

    def placed(self, operand: Node, faces: Mapping[tuple[int, int], Face]) -> Node:
        """An operand with the values of ``operand`` and these conditions, by (axis, side).

        Ghost cells belong to trees, so where an equal tree has other conditions, the result has factors of 1 that make it
        different.
        """
        while any(self.known(operand, axis, side) not in (None, face) for (axis, side), face in faces.items()):
            operand = Constant(1.0) * operand
        for (axis, side), face in faces.items():
            self.added[operand, axis, side] = face
        return operand

    def known(self, operand: Node, axis: int, side: int) -> Face | None:
        """The condition that an operand has already; None if it is new."""
        if (operand, axis, side) in self.added:
            return self.added[operand, axis, side]
        return self.face(operand, axis, side) if operand in self.used else self.given.get((operand, axis, side))

    def beyond(self, operand: Field, slope: Node, along: Along) -> Node:
        """The derivative of a field that is evaluated beyond boundaries. ``slope`` is that of the field, another field or 0."""
        own, walls = Field(operand.name), self.walls(range(len(self.periodic)))
        if not isinstance(slope, Field):
            return self.continued(own, ZERO, along) if self.change(own, walls, along) else ZERO
        reaches = {axis: self.rows[axis] for axis in walls}
        for (axis, side), face in self.moved(own, reaches, along).items():
            assert self.added.setdefault((slope, axis, side), face) == face
        return replace(slope, beyond=True)

    def walls(self, axes: Iterable[int]) -> list[int]:
        """Those of the ``axes`` that are not periodic."""
        return [axis for axis in axes if not self.periodic[axis]]

    def changed(self, operand: Node, slope: Node, reaches: Mapping[int, int], along: Along, zero: Node) -> Node:
        """The derivative of an operand along a direction, as an operand of the same operator; 0 if nothing changes.

        ``reaches`` are the numbers of ghost cells that the operator needs, by the axes along which it reads other cells.
        ``slope`` is the derivative of the tree of the operand, and ``along`` returns those of boundary values. ``zero`` is a
        tree of fields that is 0 in all cells: a tree without fields has no ghost cells of its own. Raises the InputError of
        `moved`.
        """
        walls = self.walls(reaches)
        if not has_own_ghosts(operand) or (slope == ZERO and not self.change(operand, walls, along)):
            return slope
        tree = slope if varies(slope) else plus(slope, zero)
        return self.placed(tree, self.moved(operand, {axis: reaches[axis] for axis in walls}, along)) if walls else tree

    def moved(self, operand: Node, reaches: Mapping[int, int], along: Along) -> dict[tuple[int, int], Face]:
        """The conditions of the derivative of an operand on these axes, with the numbers of ghost cells that are needed there.

        Raises InputError if a mirror factor changes, and more than one ghost cell is needed or the operand contains operators.
        """
        faces = self.mirrored(operand, dict.fromkeys(reaches, 1), 1, tangent=True)
        for (axis, side), face in faces.items():
            *factor, last = [ZERO, *along(self.face(operand, axis, side))]
            if any(slope != ZERO for slope in factor):
                last = plus(last, self.of_factor(operand, axis, side, factor[1:], reaches[axis]))
            faces[axis, side] = replace(face, values=(*face.values[:-1], last))
        return faces

    def of_factor(self, operand: Node, axis: int, side: int, slopes: Sequence[Node], reach: int) -> Node:
        """The last value of a face that changes the first ghost cell as changes of its other values do, by ``slopes``."""
        face, height = self.face(operand, axis, side), Constant(self.spacing[axis])
        if reach > 1 or not operand.kinds.isdisjoint(OPERATORS):
            raise InputError(
                f"boundary.{AXES[axis]}: derivatives along a direction of a parameter in the coefficients of {face.kind} are "
                "not available yet with stencils that need more than one ghost cell, and for results of operators; set "
                "numerics.order = 2, or use the gradient"
            )
        mirror = on_plane(operand, axis, self.domain[axis][side] + (0.5 - side) * self.spacing[axis])
        return over(changed_ghost(face, mirror, height, slopes), linear(face, height))

    def change(self, operand: Node, walls: Iterable[int], along: Along) -> bool:
        """Whether boundary values change on these axes."""
        faces = [self.face(operand, axis, side) for axis in walls for side in (0, 1)]
        return any(slope != ZERO for face in faces for slope in along(face))

    def continued(self, operand: Node, tree: Node, along: Along) -> Node:
        """The derivative of an operand, where ``tree`` is that in the cells, in ghost cells too: a function of the coordinates.

        ``tree`` and the derivatives of boundary values contain no fields.
        """
        for axis, periodic in enumerate(self.periodic):
            x, (lower, upper), width = Coordinate(axis), self.domain[axis], self.spacing[axis]
            if periodic:
                wrapped = [_replaced(tree, x, x + sign * (upper - lower)) for sign in (1, -1)]
                if wrapped[0] != tree:
                    tree = where(x < lower, wrapped[0], where(x > upper, wrapped[1], tree))
                continue
            inner = tree
            for side, boundary in enumerate((lower, upper)):
                face = self.face(operand, axis, side)
                kind = KINDS[face.kind]
                slopes = [on_plane(slope, axis, boundary) for slope in along(face)]
                if inner == ZERO and all(slope == ZERO for slope in slopes):
                    continue
                if any(slope != ZERO for slope in slopes[:-1]):
                    raise InputError(
                        f"boundary.{AXES[axis]}: derivatives by a parameter in the coefficients of "
                        f"{face.kind} are not available yet for arrays with conditions of their own; write numbers"
                    )
                slope = slopes[-1] if slopes else ZERO
                factor = [on_plane(value, axis, boundary) for value in face.values[:-1]]
                ghosts: Node = ZERO
                for k in reversed(range(1, self.rows[axis] + 1)):
                    # The mirror image is at this distance. It is shifted, because trees have operators.
                    height = (2 * k - (not kind.on_face)) * width
                    image = _replaced(inner, x, x - height if side else x + height)
                    row = kind.ghost(Constant, image, Constant(height), *factor, slope)
                    if kind.on_face and side and k == 1:
                        row = slope  # the first place is on the boundary itself
                    end = boundary + k * width if side else boundary - k * width
                    ghosts = where(x < end if side else x > end, row, ghosts)
                tree = where(x > boundary if side else x < boundary, ghosts, tree)
        return tree


def linear(face: Face, height: Node) -> Node:
    """The derivative of a ghost cell with respect to the last value of its face."""
    return KINDS[face.kind].ghost(Constant, ZERO, height, *face.values[:-1], ONE)


def changed_ghost(face: Face, mirror: Node, height: Node, slopes: Sequence[Node]) -> Node:
    """The derivative of a ghost cell along a direction in which the values of its face but the last one change by ``slopes``,
    where the value of its ``mirror`` image stays the same."""
    values, image = [Parameter(f"value {n}") for n in range(len(face.values))], Parameter("mirror")
    known: dict[Node, Node] = {image: mirror, **dict(zip(values, face.values, strict=True))}
    ghost: Node = KINDS[face.kind].ghost(Constant, image, height, *values)
    result: Node = ZERO
    for value, slope in zip(values, slopes, strict=False):
        if slope != ZERO:
            result = plus(result, times(substitute(derivative(ghost, value), lambda part: known.get(part)), slope))
    return result


def with_fields(face: Face) -> bool:
    """Whether boundary values depend on fields or arrays: on their values in the cells next to the boundary."""
    return any(value.field_names for value in face.values)


def _replaced(tree: Node, x: Node, other: Node) -> Node:
    """The tree with ``other`` in place of ``x``."""
    return substitute(tree, lambda part: other if part == x else None)
