"""Solid cells in the domain, and their effect on right-hand sides, initial states and diagnostics.

The surface of the solid consists of cell faces, and acts on the fluid like a boundary of the domain (`boundary_kinds`).
Where an operator would read a solid neighbour, it reads the mirror image of its own cell instead: u itself for no flux,
or 2 g - u for the value u = g on the face between the two. Fluxes between fluid cells do not change, values inside the
solid are never used, and the integral of a diffusing field is conserved. All of this is expressed in trees, so backends
need no support for masks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpcstencil.config.settings import Config
from hpcstencil.io.array_file import ArrayFile, ArrayInMemory
from hpcstencil.io.dataset_names import MASK_DATASET
from hpcstencil.numerics.topology import Range
from hpcstencil.problem.parameter_files import refuse_files, refuse_series
from hpcstencil.symbolic.boundary_kinds import Face
from hpcstencil.symbolic.expressions import (
    OPERATORS,
    Constant,
    Convolution,
    Coordinate,
    Derivative,
    DivGrad,
    Field,
    Halfway,
    Neighbour,
    Node,
    Parameter,
    Pointwise,
    Reduction,
    bottom_up,
    is_parameter_field,
    node,
    rebuilt,
    shared,
    substitute,
    total,
    varies,
    walk,
)
from hpcstencil.symbolic.parser import Scope, parse
from hpcstencil.symbolic.reduction_kinds import REDUCTIONS
from hpcstencil.symbolic.staggering import position_of, positions_in
from hpcstencil.symbolic.stencil_reach import Discretization
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.schema import expression_text

SOLID = "mask.solid"  # user-defined field names contain no dot
ALL_SOLID = "mask.solid: expected some cells that are not solid, but it covers the whole grid; change it"
HUGE = {"float32": 3.0e38, "float64": 1.0e308}


@dataclass(frozen=True)
class Mask:
    """The solid cells and the condition on their surface.

    ``solid`` is a tree that is not 0 in solid cells: an expression of coordinates and parameters, or the field SOLID,
    which is read from ``array``. ``value`` is the value of fields on the surface, as a tree of coordinates, time and
    parameters, or None for no flux. ``reflected`` has, per axis, the fields that change sign on reflection. If ``kept``
    is true, the solid cells are a field of the state (SOLID) that is constant in time and has ghost cells like others.
    """

    solid: Node
    value: Node | None
    array: ArrayFile | ArrayInMemory | None
    discretization: Discretization
    reflected: tuple[Collection[str], ...]
    kept: bool

    @property
    def is_read(self) -> bool:
        """Whether the solid cells are read from a file or array, so that they are not known before the run starts."""
        return self.array is not None

    def differs(self, listed: Collection[str]) -> bool:
        """Whether the solid cells depend on one of the ``listed`` parameters, in which ensemble members differ."""
        return any(isinstance(part, Parameter) and part.name in listed for part in walk(self.solid))

    def cells(self, beyond: bool = False) -> Node:
        """A tree that is 1 in solid cells and 0 in fluid cells. ``beyond`` is as in `Field`, and has an effect only if
        the mask is ``kept``."""
        return Field(SOLID, beyond) if self.kept else self.solid

    def beside(self, tree: Node) -> Node:
        """Rewrite the operators of a tree so that they apply the surface condition instead of reading solid cells.

        Raises InputError for derivatives above second order along an axis, for user-defined stencils, and for operators
        on face values other than those that return to cell centres.
        """
        made: dict[int, Node] = {}
        place = positions_in(tree, {}, len(self.reflected))
        for part in bottom_up(tree):
            new = rebuilt(part, lambda child: made[id(child)])
            at_home = not any(any(place[id(child)] or ()) for child in part.children)
            leads_back = isinstance(part, Halfway) and part.onto == "centres"
            if isinstance(part, OPERATORS) and not at_home and not leads_back:
                raise InputError(
                    "mask: not available yet for operators on face values, other than those that take them back to cell "
                    "centres; take the values back first, or remove the mask"
                )
            match new:
                case Convolution(_, name):
                    raise InputError(
                        f"mask: not available yet beside equation.stencils.{name}, which would read solid cells; "
                        "remove one of them"
                    )
                case Derivative() if varies(new.operand):
                    new = self._derivative(new)
                case DivGrad() if varies(new):
                    new = self._div_grad(new)
                case Halfway(onto="faces") if varies(new.operand):
                    new = self._halfway(new)
            made[id(part)] = new
        return made[id(tree)]

    def _derivative(self, tree: Derivative) -> Node:
        """A `Derivative` with the surface condition. A mixed derivative is applied along one axis after the other."""
        if max(tree.orders) > 2:
            raise InputError("mask: supports only first and second derivatives; nest operators for higher ones")
        result = tree.operand
        for axis, order in enumerate(tree.orders):
            if order:
                orders = tuple(order if a == axis else 0 for a in range(len(tree.orders)))
                stencil = self.discretization.derivative(replace(tree, operand=result, orders=orders))
                pairs = zip(stencil.offsets, stencil.weights, strict=True)
                terms = [node(w) * self._neighbour(result, axis, offset[axis], tree.beyond) for offset, w in pairs]
                result = total(terms)
        return result

    def _neighbour(self, operand: Node, axis: int, side: int, beyond: bool) -> Node:
        """The operand in the adjacent cell on ``side`` (-1 or +1), or its mirror image if that cell is solid. For side 0
        it is the operand itself."""
        if side == 0:
            return operand
        image = operand
        if _is_unknown(operand) and self.value is not None:
            image = 2.0 * self._on_face(self.value, axis, side) - operand
        elif isinstance(operand, Field) and operand.name in self.reflected[axis]:
            image = -operand
        return Pointwise("where", (self._solid(axis, side, beyond), image, Neighbour(operand, axis, side, beyond)))

    def _solid(self, axis: int, side: int, beyond: bool) -> Node:
        """A tree that is 1 where the adjacent cell on ``side`` is solid, else 0."""
        return Neighbour(self.cells(beyond), axis, side, beyond)

    def _on_face(self, value: Node, axis: int, side: int) -> Node:
        """Shift a tree of coordinates from the cell centre to the face on ``side``."""
        here = Coordinate(axis)
        half = side * self.discretization.spacing[axis] / 2
        return substitute(value, lambda part: here + half if part == here else None)

    def _div_grad(self, tree: DivGrad) -> Node:
        """A `DivGrad` with the surface condition: the divergence of the fluxes k (a' - a) through the two faces of a cell.

        Both cells at a face compute the same flux, so the integral is conserved.
        """
        fluxes: list[Node] = []
        for side in (-1, 1):
            step = Neighbour(tree.operand, tree.axis, side, tree.beyond) - tree.operand
            flux = self._mean(tree, side) * step
            at_surface = self._flux_at_surface(tree, side, step)
            fluxes.append(Pointwise("where", (self._solid(tree.axis, side, tree.beyond), at_surface, flux)))
        return total(fluxes) * node(1.0 / self.discretization.spacing[tree.axis] ** 2)

    def _mean(self, tree: DivGrad, side: int) -> Node:
        """The coefficient of a flux at the face on ``side``: the mean of both cells, or the coefficient itself if it is
        constant along the axis."""
        k = tree.coefficient
        if not varies(k) and tree.axis not in k.axes:
            return k
        return 0.5 * (k + Neighbour(k, tree.axis, side, tree.beyond))

    def _flux_at_surface(self, tree: DivGrad, side: int, step: Node) -> Node:
        """The flux through a face on the surface.

        It is 0 if the surface has no flux. It is also 0 if the operand is computed from fields, whose mirror image has
        the same value. ``step`` is the difference between the two cells, used for an operand of coordinates only.
        """
        operand, k = tree.operand, tree.coefficient
        if self.value is None or (varies(operand) and not _is_unknown(operand)):
            return Constant(0.0)
        given = self._on_face(self.value, tree.axis, side)
        if _is_unknown(k):
            k = given
        elif not any(_is_unknown(part) for part in walk(k)):
            k = self._mean(tree, side)
        return k * (2.0 * (given - operand)) if varies(operand) else k * step

    def _halfway(self, tree: Halfway) -> Node:
        """A `Halfway` from cell centres to faces with the surface condition."""
        operand, axis = tree.operand, tree.axis
        image = self._mirrored(operand, axis)

        def beside(kind: str, other: str) -> Node:
            solid, value = (replace(tree, operand=part, kind=kind) for part in (self.cells(True), operand))
            return Pointwise("where", (solid, replace(tree, operand=image, kind=other), value))

        below, above = beside("below", "above"), beside("above", "below")
        match tree.kind:
            case "below":
                return below
            case "above":
                return above
            case "mean":
                return 0.5 * (below + above)
        return (above - below) * node(1.0 / self.discretization.spacing[axis])

    def _mirrored(self, tree: Node, axis: int) -> Node:
        """The value of the mirror image of a tree, reflected at a face normal to ``axis``, at the position of the tree
        itself."""
        made: dict[int, Node] = {}
        for part in bottom_up(tree):
            new = rebuilt(part, lambda child: made[id(child)])
            match new:
                case Field(name) if name in self.reflected[axis]:
                    new = -new
                case Halfway(_, along, kind) if along == axis:
                    other = {"below": "above", "above": "below"}.get(kind, kind)
                    new = replace(new, kind=other) if kind != "difference" else -new
                case Neighbour(_, along, side) if along == axis:
                    new = replace(new, side=-side)
            made[id(part)] = new
        return made[id(tree)]


def _is_unknown(part: Node) -> bool:
    """Whether a node is a field of the equation, to which the surface condition applies."""
    return isinstance(part, Field) and not is_parameter_field(part)


def refuse_name(names: Collection[str]) -> None:
    """Raise InputError if a field or parameter in ``names`` has the name of the dataset of solid cells in the output."""
    if MASK_DATASET in names:
        raise InputError(
            f"mask: the output has the solid cells under the name '{MASK_DATASET}'; rename the field or parameter"
        )


def mask_of(
    config: Config, symbols: Mapping[str, Node], reflected: tuple[Collection[str], ...], trees: Collection[Node]
) -> Mask | None:
    """The mask of the input, or None.

    ``symbols`` are the parameters as nodes, and ``reflected`` is as in `Mask`. ``trees`` are all trees to which the
    mask will be applied; if one of them has values on faces, the mask is ``kept`` as a field. Raises InputError for
    malformed expressions, and for a value on the surface if ``trees`` have values on faces.
    """
    if config.mask is None:
        return None
    ndim = config.grid.ndim
    value = config.mask.surface
    surface = None if value is None else parse(expression_text(value), Scope(ndim, symbols), "mask.surface.value")
    discretization = Discretization(config.numerics.order, config.grid.spacing)
    on_faces = any(Halfway in tree.kinds for tree in trees)
    if on_faces and surface is not None:
        raise InputError(
            'mask.surface: expected "no_flux" for an equation or diagnostics with values on faces of cells (difference_x and '
            "its like, and finite volumes, as in 'euler'), but got a value; change it"
        )
    if config.mask.array is not None:
        return Mask(Field(SOLID), surface, config.mask.array, discretization, reflected, kept=True)
    solid = parse(config.mask.solid, Scope(ndim, symbols, time=False), "mask.solid")
    refuse_files(solid, "mask.solid", "write the solid cells to a file too")
    refuse_series(solid, "mask.solid", "solid cells do not change")
    solid = Pointwise("not_equal", (solid, Constant(0.0)))
    for axis, periodic in enumerate(config.boundary.periodic):
        if not periodic:  # ghost cells outside the domain are not solid: the boundary condition applies there
            x = Coordinate(axis)
            solid = solid * (x > config.grid.lower[axis]) * (x < config.grid.upper[axis])
    return Mask(solid, surface, None, discretization, reflected, kept=on_faces)


def solid_in_file(file: ArrayFile | ArrayInMemory, ranges: Sequence[Range], shape: Sequence[int]) -> np.ndarray:
    """Read which cells of a block are solid: a bool array in the shape of the block, without ghost cells.

    ``ranges`` holds the global index range (start, stop) of the block per axis, and ``shape`` is the shape of the grid.
    Raises InputError, on this process only, if the shape of the array does not match.
    """
    try:
        return file.read(ranges, shape) != 0
    except InputError as error:
        raise InputError(f"mask.solid: {error}") from None


def masked_rates(mask: Mask | None, trees: Mapping[str, Node]) -> dict[str, Node]:
    """The right-hand sides by field, with the surface condition and with 0 in solid cells; unchanged without a mask.

    Raises the errors of `Mask.beside`.
    """
    if mask is None:
        return dict(trees)
    return shared({name: in_fluid(mask, mask.beside(tree)) for name, tree in trees.items()})


def masked_faces(mask: Mask | None, faces: Mapping[tuple[Node, int, int], Face]) -> dict[tuple[Node, int, int], Face]:
    """The boundary conditions by (operand, axis, side), with the operands as they appear in `masked_rates`.

    Raises the errors of `Mask.beside`.
    """
    if mask is None:
        return dict(faces)
    return {(mask.beside(operand), axis, side): face for (operand, axis, side), face in faces.items()}


def in_fluid(mask: Mask | None, tree: Node, otherwise: float = 0.0) -> Node:
    """The tree in fluid cells and the number ``otherwise`` in solid cells; unchanged without a mask."""
    return tree if mask is None else Pointwise("where", (mask.cells(), Constant(otherwise), tree))


def masked_initial(mask: Mask | None, initial: Mapping[str, Node]) -> dict[str, Node]:
    """The initial expressions by field, with 0 in solid cells. If the mask is ``kept``, the field SOLID is added.

    With a mask from a file or array, whose cells are not known yet, the expressions are unchanged.
    """
    if mask is None or mask.is_read:
        return dict(initial)
    masked = {name: Pointwise("where", (mask.solid, Constant(0.0), tree)) for name, tree in initial.items()}
    return {**masked, SOLID: mask.solid} if mask.kept else dict(masked)


def masked_derived(mask: Mask | None, trees: Mapping[str, Node], key: str) -> dict[str, Node]:
    """Expressions of a stream or probe, by name, with the surface condition and with 0 in solid cells.

    ``key`` is the dotted key of their table, for messages. Raises InputError for values on faces, and the errors of
    `Mask.beside`.
    """
    if mask is None:
        return dict(trees)
    for name, tree in trees.items():
        if any(position_of(tree, {}, len(mask.reflected)) or ()):
            raise InputError(
                f"{key}.{name}: not available yet on faces of cells with [mask]; bring values "
                "back to centres with mean_x() and its like"
            )
    return {name: in_fluid(mask, mask.beside(tree)) for name, tree in trees.items()}


def masked_diagnostics(mask: Mask | None, trees: Mapping[str, Node], precision: str) -> dict[str, Node]:
    """The diagnostics by name, with each reduction over fluid cells only.

    For min() and max(), solid cells hold a huge number in the range of ``precision`` ("float32" or "float64"). Raises
    InputError for reductions of values on faces, and the errors of `Mask.beside`.
    """
    if mask is None:
        return dict(trees)

    def fluid(part: Node) -> Node | None:
        if not isinstance(part, Reduction):
            return None
        if any(position_of(part.operand, {}, len(mask.reflected)) or ()):
            raise InputError(
                "diagnostics: not available yet for face values with [mask]; take them back to cell centres with mean_x() and "
                "its like"
            )
        kind = REDUCTIONS[part.kind]
        operand = in_fluid(mask, mask.beside(part.operand), -kind.extreme * HUGE[precision])
        if kind.is_mean:
            return Reduction("integral", operand) / Reduction("integral", 1.0 - mask.cells())
        return Reduction(part.kind, operand)

    return {name: substitute(tree, fluid) for name, tree in trees.items()}
