"""The ghost cells of the operands in an adjoint or a tangent.

Let S be a stencil along one axis, and E the extension of u to ghost cells, u_{-j} = α u_{j-1} + β. With weights s_o, the
matrix of S E is s_{j-i} + α s_{-1-j-i} beside a lower boundary, and its transpose s_{i-j} + α s_{-1-i-j}. If the weights have
the parity p, s_{-o} = p s_o, the transpose is p times the same stencil, with the mirror factor p α:
  p (s_{j-i} + p α s_{-1-i-j}).
So the transpose of an operator is the same operator again, whose operand has other boundary conditions. β does not depend on
u and drops out. A stencil without parity is the sum of an even and an odd part.

The identity needs a factor α that is equal for all ghost cells of a row. Where a stencil reaches along several axes, α must
also be equal for all rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hpcstencil.numerics.grid import AXES
from hpcstencil.symbolic.boundary_kinds import KINDS, NO_FLUX, Face
from hpcstencil.symbolic.expressions import OPERATORS, Constant, Coordinate, Field, Node, varies, walk
from hpcstencil.validation.errors import InputError

Faces = Mapping[tuple[Node, int, int], Face]


@dataclass
class Operands:
    """The boundary conditions of all operands, of the equation and of its adjoint.

    ``given`` are the conditions of the equation, as `Problem.faces`, and ``trees`` its trees. ``periodic`` and ``spacing``
    have one entry per axis. ``added`` collects the conditions of new operands.
    """

    given: Faces
    trees: Iterable[Node]
    periodic: tuple[bool, ...]
    spacing: tuple[float, ...]
    added: dict[tuple[Node, int, int], Face] = field(default_factory=dict)

    def __post_init__(self) -> None:
        parts = [part for tree in self.trees for part in walk(tree) if isinstance(part, OPERATORS)]
        self.used = {operand for part in parts for operand in part.children}

    def face(self, operand: Node, axis: int, side: int) -> Face:
        """The condition of an operand of the equation on one side (0 lower, 1 upper) of an axis that is not periodic."""
        return self.given.get((operand, axis, side), NO_FLUX)

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
                if kind.mirrored is None:
                    raise InputError(
                        f"{where}: gradients are not available yet with {face.kind}; use another condition"
                    )
                if kind.factor_varies and not tangent:
                    if reach > 1:
                        raise InputError(
                            f"{where}: gradients are not available yet with {face.kind} and stencils that need more than one "
                            "ghost cell; set numerics.order = 2, or use dirichlet or neumann"
                        )
                    factor = face.values[:-1]
                    if mixed and any(isinstance(p, Coordinate | Field) for v in factor for p in walk(v)):
                        raise InputError(
                            f"{where}: gradients of mixed derivatives are not available yet with {face.kind} whose "
                            "coefficients depend on the place; give numbers"
                        )
                found[axis, side] = kind.mirrored(parity, self.spacing[axis], face.values)
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

    def walls(self, axes: Iterable[int]) -> list[int]:
        """Those of the ``axes`` that are not periodic."""
        return [axis for axis in axes if not self.periodic[axis]]

    def homogeneous(self, operand: Node, slope: Node, axes: Iterable[int]) -> Node:
        """The derivative ``slope`` of an operand, as an operand of the same operator, which reaches along ``axes``.

        Raises InputError if it is a function of the coordinates while the operand has ghost cells of its own, which would
        have to be mirrored.
        """
        walls = self.walls(axes)
        if not varies(operand) or not walls:
            return slope
        if not varies(slope):
            raise InputError(
                "gradient.of: not available yet where a parameter adds to a field inside an operator beside a boundary; "
                "write the terms apart"
            )
        return self.placed(slope, self.mirrored(operand, dict.fromkeys(walls, 1), 1, tangent=True))
