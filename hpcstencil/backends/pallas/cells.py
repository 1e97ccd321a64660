"""Evaluation of expression trees inside a GPU kernel, in the cells of a tile or at an offset from them.

A kernel cannot slice its values, so it loads neighbours from memory, which mostly hits the cache. Most tiles read only
inside their array. Tiles at the ``edge`` of a block also need cells beyond it (`Cells.beyond`): on a periodic axis those at
the other end, beyond a physical boundary the ghost cells that `boundary_kinds` computes from mirror cells, and beyond the
edge to another block those of a strip that this block sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas import triton

from hpcstencil.backends.pallas.strips import Beside, width
from hpcstencil.backends.pallas.tiles import Box, Offset, Tile, origin
from hpcstencil.backends.xla.evaluate import Rules
from hpcstencil.backends.xla.kernel_shift import weighted
from hpcstencil.distributed.windows import STEP_SIZE, Frame, Value
from hpcstencil.numerics.finite_differences import Stencil
from hpcstencil.numerics.pointwise import functions, integer_power
from hpcstencil.symbolic.boundary_kinds import KINDS, NO_FLUX
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
    StepSize,
    Time,
    bottom_up,
    varies,
)
from hpcstencil.symbolic.stencil_reach import constant_along


@dataclass
class Cells:
    """Evaluator of expression trees in the cells of a tile at one ``time``, for use inside a kernel.

    Attributes
    ----------
    arrays
        Values in memory, by the name of a field or of one of the ``operands``.
    frame
        The block, with the run-time values that the kernel received.
    edge
        Whether the tile may read beyond the edge of the block.
    least
        The least number of cells per axis that a device's block has.
    at_face
        (axis, side) of a face of the block, to evaluate the values of a boundary condition there. Fields then have the
        values of the cells next to the face.
    later
        With ``at_face``, the indices of the cells along the axes after the face's.
    """

    rules: Rules
    frame: Frame
    tile: Tile
    arrays: Mapping[str, Value]
    operands: Mapping[str, Node]
    parameters: Mapping[str, jax.Array]
    time: jax.Array
    edge: bool
    least: tuple[int, ...]
    at_face: tuple[int, int] | None = None
    later: tuple[jax.Array, ...] = ()

    def __post_init__(self) -> None:
        self.known: dict[tuple[Node, Offset], jax.Array] = {}
        self.faces: dict[tuple[str, int, int, Offset], Cells] = {}
        self.functions = {**functions(jnp, self.rules.dtype), "minimum": minimum, "maximum": maximum}

    def __call__(self, tree: Node, at: Offset | None = None) -> jax.Array:
        """Return the value of a tree at the offset ``at`` (default: no offset) from the tile's cells.

        It is in the run's dtype. Its shape broadcasts over the tile; it is () for a single number.
        """
        at = at or (0,) * self.frame.ndim
        if (tree, at) not in self.known:
            for part in bottom_up(tree, OPERATORS):
                if (part, at) not in self.known:
                    self.known[part, at] = self.compute(part, at)
        return self.known[tree, at]

    def compute(self, tree: Node, at: Offset) -> jax.Array:
        """Return the value, at the offset ``at``, of a node whose sub-trees are already evaluated.

        Raises TypeError for a node that GPU kernels do not support.
        """
        match tree:
            case Constant(value):
                return self.number(value)
            case Parameter(name):
                return self.parameters[name]
            case Time():
                return self.time.astype(self.rules.dtype)
            case StepSize():
                return self.parameters[STEP_SIZE].astype(self.rules.dtype)
            case Field(name):
                inside = not self.edge or (self.at_face is None and not any(at))
                if isinstance(self.tile, Box) and inside:
                    return self.tile.load(self.arrays[name], at)
                return self.beyond(name, at, self.later)
            case Coordinate(axis):
                return self.coordinate(axis, at)
            case Pointwise():
                return self.pointwise(tree, at)
            case Derivative() | DivGrad() | Halfway() if constant_along(tree):
                kept = isinstance(tree, Halfway) and tree.kind != "difference"
                return self(tree.operand, at) if kept else self.number(0.0)
            case Derivative() | Halfway() | Convolution():
                (stencil,) = self.rules.discretization.stencils(tree)
                return self.stencil(stencil, tree.operand, at)
            case DivGrad():
                return self.div_grad(tree, at)
            case Neighbour():
                (stencil,) = self.rules.discretization.stencils(tree)
                return self(tree.operand, moved(at, stencil.offsets[0]))
        raise TypeError(f"no kernel for {type(tree).__name__}")

    def number(self, value: float) -> Any:
        """Return a number as a scalar in the run's dtype."""
        return self.rules.dtype.type(value)

    def coordinate(self, axis: int, at: Offset) -> jax.Array:
        """Return the coordinate along ``axis`` of the cells at the offset ``at``.

        When trees are evaluated at a face, its normal coordinate is that of the face.
        """
        if self.at_face is not None and self.at_face[0] == axis:
            return self.number(self.rules.domain[axis][self.at_face[1]])
        if self.at_face is not None and self.at_face[0] < axis:
            places = self.later[axis - self.at_face[0] - 1] + self.frame.margin[axis]
            mask = self.tile.mask([axis]) if jnp.ndim(places) else None
            return triton.load(self.frame.coordinates[axis].at[(places,)], mask=mask)
        return self.tile.along(axis, self.frame.coordinates[axis], at[axis] + self.frame.margin[axis])

    def pointwise(self, tree: Pointwise, at: Offset) -> jax.Array:
        """Return the value of a function, an arithmetic operation or a comparison at the offset ``at``."""
        match tree:
            case Pointwise("power", (base, Constant(exponent))) if (n := integer_power(exponent)) is not None:
                return lax.integer_pow(self(base, at), n)
        values = [self(argument, at) for argument in tree.arguments]
        if tree.function == "divide" and values[1].ndim == 0:  # as `evaluate` does
            return values[0] * (self.number(1.0) / values[1])
        return self.functions[tree.function](*values)

    def stencil(self, stencil: Stencil, operand: Node, at: Offset) -> jax.Array:
        """Return Σ_j w_j operand(at + o_j), in a shape that broadcasts over the tile."""
        return weighted(stencil, lambda offset: self(operand, moved(at, offset)), self.number)

    def div_grad(self, tree: DivGrad, at: Offset) -> jax.Array:
        """Return ∂(k ∂a/∂x)/∂x along the node's axis, from fluxes at the faces between cells."""
        gradient, mean, divergence = self.rules.discretization.div_grad(tree)
        varying = varies(tree.coefficient) or tree.axis in tree.coefficient.axes

        def flux(offset: Offset) -> jax.Array:
            face = moved(at, offset)
            k = self.stencil(mean, tree.coefficient, face) if varying else self(tree.coefficient, face)
            return k * self.stencil(gradient, tree.operand, face)

        return weighted(divergence, flux, self.number)

    # ---- beyond the edge of a block ----

    def beyond(self, name: str, at: Offset, index: tuple[jax.Array, ...]) -> jax.Array:
        """Return the value of the array ``name`` at the offset ``at``, inside the block or beyond it.

        The recursion resolves one axis per call, the last axis first; ``index`` holds the cell indices along the axes that
        are done: those of mirror images, of the other end of a periodic axis, or still beyond an edge to another block. This
        order makes corners equal to those of `ghost_cells`, which fills axis after axis at full width.
        """
        axis, frame = self.frame.ndim - 1 - len(index), self.frame
        if axis < 0:
            return self.gathered(self.arrays[name], at, index)
        here, upper, count = self.index(axis) + at[axis], at[axis] > 0, frame.counts[axis]
        side = frame.sides[axis][upper]
        resolved = partial(self.beyond, name, at)
        if not at[axis] or (side.kind == "halo" and not side.boundary):
            return resolved((here, *index))
        if side.kind == "wrap":
            for _ in range(0, abs(at[axis]), frame.cells[axis]):  # once, unless the axis is shorter than the stencil
                outside = here >= count if upper else here < 0
                here = jnp.where(outside, here - count if upper else here + count, here)
            return resolved((here, *index))
        outside = here >= count if upper else here < 0
        if side.boundary:
            outside &= frame.touches[axis][upper]
        operand = self.operands.get(name, Field(name))
        face = self.rules.faces.get((operand, axis, int(upper)), NO_FLUX)
        kind = KINDS[face.kind]  # where cells lie on the face, the upper one is the first ghost
        mirror = jnp.minimum((2 * count if upper else 0) - here - (not kind.on_face), count - 1)
        value = resolved((jnp.where(outside, mirror, here), *index))
        along = tuple(o if a < axis else 0 for a, o in enumerate(at))
        beside = self.next_to(name, axis, int(upper), at, index)
        given = [beside(tree, along) for tree in face.values]
        height = abs(here - mirror).astype(self.rules.dtype) * self.number(self.rules.discretization.spacing[axis])
        ghost = kind.ghost(self.number, value, height, *given)
        if kind.on_face:
            ghost = jnp.where(here == count, given[0], ghost)
        return jnp.where(outside, ghost, value)

    def index(self, axis: int) -> Any:
        """Return the indices of the cells along an axis, in a shape that broadcasts over the tile.

        Along the normal of a face, this is a single index: that of the cell next to the face.
        """
        if self.at_face is not None and self.at_face[0] == axis:
            return self.frame.counts[axis] - 1 if self.at_face[1] else np.int32(0)
        return self.tile.index(axis)

    def gathered(self, value: Value, at: Offset, index: Sequence[jax.Array]) -> jax.Array:
        """Load the values of an array in the cells with the given indices, one array of indices per axis.

        They are at the offset ``at`` from the tile's cells. Cells outside the block are loaded from the strips, if the array
        has any: each from the strip of the last axis along which it lies outside.
        """
        wanted = self.tile.mask([axis for axis, i in enumerate(index) if jnp.ndim(i)])
        if not isinstance(value, Beside):
            return loaded(value.array, index, origin(value), wanted)
        within: jax.Array | None = wanted
        strips: list[tuple[Any, list[Any], jax.Array, jax.Array | None]] = []
        for axis, upper, strip in value.sides():
            if self.may_lie_beyond(axis, upper, at):
                count, place = self.frame.counts[axis], index[axis]
                outside = place >= count if upper else place < 0
                inside = outside & (place < count + width(strip, axis)) if upper else outside
                strips.append((strip, value.first(axis, upper, count), outside, both(wanted, inside)))
                within = both(within, ~outside)
        result = loaded(value.array, index, origin(value), within)
        for strip, first, outside, mask in strips:
            result = jnp.where(outside, loaded(strip, (value.number, *index), (0, *first), mask), result)
        return result

    def may_lie_beyond(self, axis: int, upper: int, at: Offset) -> bool:
        """Return whether cells at the offset ``at`` from the tile's may lie beyond a side of the block."""
        start, stop = self.tile.region[axis]
        return stop + at[axis] > self.least[axis] if upper else start + at[axis] < 0

    def next_to(self, name: str, axis: int, side: int, at: Offset, index: tuple[jax.Array, ...]) -> Cells:
        """Return the evaluator of boundary values at a face of the array ``name``, for its ghost cells at offset ``at``.

        ``index`` holds the indices, along the axes after the face's, of the cells in the block that the ghost cells mirror.
        """
        made = partial(replace, self, at_face=(axis, side), later=index)
        return self.faces.setdefault((name, axis, side, at), made())


def loaded(array: Any, index: Sequence[Any], first: Sequence[Any], mask: jax.Array | None) -> jax.Array:
    """Load the cells of an array with the given indices, one array of indices per axis, where ``mask`` is true.

    ``first`` are the indices of the array's first cell.
    """
    places = jnp.broadcast_arrays(*(jnp.asarray(i - start, jnp.int32) for i, start in zip(index, first, strict=True)))
    return triton.load(array.at[tuple(places)], mask=None if mask is None else jnp.broadcast_to(mask, places[0].shape))


def both(a: jax.Array | None, b: jax.Array | None) -> jax.Array | None:
    """Return where both masks are true; None stands for a mask that is true everywhere."""
    return b if a is None else a if b is None else a & b


def moved(at: Offset, offset: Offset) -> Offset:
    """Return the sum of two offsets."""
    return tuple(a + o for a, o in zip(at, offset, strict=True))


def minimum(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return the smaller of two values, or NaN if either is NaN. Triton's own minimum would drop the NaN."""
    return jnp.where((a < b) | (a != a), a, b)


def maximum(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return the larger of two values, or NaN if either is NaN."""
    return jnp.where((a > b) | (a != a), a, b)
