"""Translation of expression trees to array code, for the right-hand sides on one device's block.

Each `Value` records the windows, ranges of cells per axis, that it covers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hpcstencil.backends.xla.fourier_sum import by_fft
from hpcstencil.backends.xla.stencil_kernels import Kernel
from hpcstencil.distributed.ghost_cells import Ghosts, next_to
from hpcstencil.distributed.windows import STEP_SIZE, Frame, Number, Parameters, Value, Window, Windows, common
from hpcstencil.numerics.finite_differences import Stencil
from hpcstencil.numerics.pointwise import functions, integer_power
from hpcstencil.symbolic.boundary_kinds import NO_FLUX, Face
from hpcstencil.symbolic.expressions import (
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
    Samples,
    Series,
    StepSize,
    Time,
    bottom_up,
    has_own_ghosts,
    walk,
)
from hpcstencil.symbolic.numpy_evaluate import ROUNDED
from hpcstencil.symbolic.stencil_reach import Discretization, Needs


@dataclass(frozen=True)
class Rules:
    """How expression trees are evaluated on this run's grid.

    Attributes
    ----------
    discretization
        The stencils of derivatives.
    kernel
        The stencil kernel.
    faces
        The boundary conditions by field or inner result, axis and side. An inner result without a condition has zero
        normal derivative.
    domain
        (lower, upper) coordinates of the grid per axis.
    dtype
        The run's precision, in which everything is computed.
    """

    discretization: Discretization
    kernel: Kernel
    faces: Mapping[tuple[Node, int, int], Face]
    domain: tuple[tuple[float, float], ...]
    dtype: np.dtype


@dataclass
class Evaluation:
    """Evaluator of expression trees on one device's block at one ``time``, for use inside compiled code.

    ``fields`` are local arrays with ghost cells on halo sides. ``needs`` maps operands to the ghost cells that they
    require. Each sub-tree is computed once.
    """

    rules: Rules
    frame: Frame
    needs: Needs
    fields: Mapping[str, Value]
    parameters: Parameters
    time: Number

    def __post_init__(self) -> None:
        self.known: dict[Node, Value] = {}
        self.extended: dict[Node, Value] = {}
        self.functions = functions(jnp, self.rules.dtype)
        self.everywhere: Windows = (None,) * self.frame.ndim

    def __call__(self, tree: Node) -> Value:
        """Return the value of a tree, on the largest windows that the fields allow.

        Sub-trees are evaluated from the bottom up, so that a deep tree does not exhaust Python's stack.
        """
        if tree not in self.known:
            for part in bottom_up(tree):
                if part not in self.known:
                    self.known[part] = self.compute(part)
        return self.known[tree]

    def compute(self, tree: Node) -> Value:
        """Return the value of one node whose sub-trees are evaluated already. Raises TypeError for an unknown node."""
        match tree:
            case Field(name, beyond):
                return self.extend(Field(name)) if beyond else self.fields[name]
            case Constant(value):
                return self.scalar(self.number(value))
            case Parameter(name):
                return self.scalar(self.parameters[name])
            case Time():
                return self.scalar(self.time)
            case StepSize():
                return self.scalar(self.parameters[STEP_SIZE])
            case Series(operand):
                return self.scalar(self.series(tree, self.time if operand == Time() else self(operand).array))
            case Coordinate(axis):
                return self.coordinate(axis)
            case Pointwise():
                return self.pointwise(tree)
            case Derivative():
                return self.derivative(tree)
            case DivGrad():
                return self.div_grad(tree)
            case Halfway():
                return self.halfway(tree)
            case Neighbour():
                return self.neighbour(tree)
            case Convolution():
                return self.convolution(tree)
        raise TypeError(f"no array code for {type(tree).__name__}")

    def scalar(self, value: float | np.ndarray | jax.Array) -> Value:
        """Return a single number, the same in all cells, as a `Value` in the run's precision with shape (1, ..., 1)."""
        return Value(jnp.asarray(value).astype(self.rules.dtype).reshape((1,) * self.frame.ndim), self.everywhere)

    def series(self, tree: Series, time: Any) -> jax.Array:
        """Return the time series ``tree``, or its slope, at a time: float64 of shape (1,); 0 outside the samples."""
        samples, per_second = tree.values, self.frame.constants.get(1.0 / tree.dt, 1.0 / tree.dt)
        values = jnp.asarray(self.parameters[samples.name] if isinstance(samples, Samples) else np.array(samples))
        place = jnp.reshape(jnp.asarray(time, jnp.float64), (1,)) * per_second
        last = len(values) - 1
        inside = (place >= 0) & (place <= last * (1 + ROUNDED))
        place = jnp.minimum(place, last)
        first = jnp.clip(jnp.floor(place), 0, last - 1).astype(jnp.int32)
        below, above = values[first], values[first + 1]
        found = (above - below) * per_second if tree.slope else below + (place - first) * (above - below)
        return jnp.where(inside, found, 0.0)

    def coordinate(self, axis: int) -> Value:
        """Return the cell-centre coordinates of this device's block along ``axis``.

        They are in the units of the input and in the run's precision. The array has `Frame.margin` extra cells on both
        sides along ``axis`` and length 1 along the other axes.
        """
        shape = [1] * self.frame.ndim
        shape[axis] = -1
        windows = list(self.everywhere)
        margin = self.frame.margin[axis]
        windows[axis] = (-margin, self.frame.cells[axis] + margin)
        return Value(self.frame.coordinates[axis].astype(self.rules.dtype).reshape(shape), tuple(windows))

    def pointwise(self, tree: Pointwise) -> Value:
        """Return the value of a pointwise function, in the run's precision, on the windows that its arguments share."""
        match tree:
            case Pointwise("power", (base, Constant(exponent))) if (n := integer_power(exponent)) is not None:
                value = self(base)
                return replace(value, array=lax.integer_pow(value.array, n))
        values = [self(argument) for argument in tree.arguments]
        windows = common(values)
        if tree.function == "divide" and values[1].windows == self.everywhere:
            # XLA turns division by a single number into multiplication, but not in every decomposition.
            inverse = values[1].array.dtype.type(1) / values[1].array
            return Value(values[0].array * inverse, windows)
        return Value(self.functions[tree.function](*(v.crop(windows).array for v in values)), windows)

    def derivative(self, tree: Derivative) -> Value:
        """Return the value of a partial derivative; 0 if the operand is constant along an axis of differentiation."""
        stencil = self.rules.discretization.derivative(tree)
        value = self.extend(tree.operand)
        if any(window is None and order for window, order in zip(value.windows, tree.orders, strict=True)):
            return self.scalar(0.0)
        return self.apply(stencil, value, self.shrunk(value, tree.operand, stencil.lower, stencil.upper))

    def halfway(self, tree: Halfway) -> Value:
        """Return a difference, a mean or a neighbour's value, half a cell from the operand's position."""
        stencil = self.rules.discretization.halfway(tree)
        value = self.extend(tree.operand)
        if value.windows[tree.axis] is None:  # constant along the axis
            return self.scalar(0.0) if tree.kind == "difference" else value
        return self.apply(stencil, value, self.shrunk(value, tree.operand, stencil.lower, stencil.upper))

    def neighbour(self, tree: Neighbour) -> Value:
        """Return the operand's value in the adjacent cell on the node's side of its axis."""
        (stencil,) = self.rules.discretization.stencils(tree)
        value = self.extend(tree.operand)
        return self.apply(stencil, value, self.shrunk(value, tree.operand, stencil.lower, stencil.upper))

    def convolution(self, tree: Convolution) -> Value:
        """Return the weighted sum of the operand's values in the surrounding cells, by the node's stencil."""
        value = self.extend(tree.operand)
        stencil = tree.stencil.collapsed([axis for axis, window in enumerate(value.windows) if window is None])
        windows = self.shrunk(value, tree.operand, stencil.lower, stencil.upper)
        if not stencil.by_fft or len(stencil.weights) == 1:
            return self.apply(stencil, value, windows)
        start = tuple(
            0 if want is None or have is None else want[0] - have[0]
            for have, want in zip(value.windows, windows, strict=True)
        )
        shape = tuple(1 if want is None else want[1] - want[0] for want in windows)
        return Value(by_fft(self.known_cells(value, tree), stencil, start, shape), windows)

    def known_cells(self, value: Value, tree: Convolution) -> jax.Array:
        """Return the array of a stencil's operand with zeros in all undefined cells.

        Undefined cells lie beyond the ghost cells of a boundary, or beyond the block if that is smaller than the array. No
        valid result depends on them, but a Fourier transform would spread a NaN in them to all cells.
        """
        array = value.array
        for axis, window in enumerate(value.windows):
            if window is None:
                continue
            count, cells, sides = self.frame.counts[axis], self.frame.cells[axis], self.frame.sides[axis]
            place = lax.broadcasted_iota(jnp.int64, array.shape, axis) + window[0]
            if not isinstance(count, int):
                array = jnp.where(place < count + (window[1] - cells), array, 0)
            if tree.beyond:
                continue
            for side, reach in enumerate((tree.stencil.lower[axis], tree.stencil.upper[axis])):
                if sides[side].boundary:
                    unknown = place >= count + reach if side else place < -reach
                    array = jnp.where(self.frame.touches[axis][side] & unknown, 0, array)
        return array

    def div_grad(self, tree: DivGrad) -> Value:
        """Return one term of ∇·(k ∇a): the difference of the fluxes k ∂a/∂x at the two faces of a cell.

        k is averaged to the faces.
        """
        gradient, mean, divergence = self.rules.discretization.div_grad(tree)
        value, coefficient = self.extend(tree.operand), self.extend(tree.coefficient)
        if value.windows[tree.axis] is None:  # one value along the axis: no gradient
            return self.scalar(0.0)
        around = [max(pair) for pair in self.rules.discretization.reach(tree)]
        used = {tree.operand: value, tree.coefficient: coefficient}
        windows = common([replace(v, windows=self.shrunk(v, part, around, around)) for part, v in used.items()])
        faces = tuple(
            None if w is None else (w[0] - low, w[1] + high)
            for w, low, high in zip(windows, divergence.lower, divergence.upper, strict=True)
        )
        if coefficient.windows[tree.axis] is not None:
            coefficient = self.apply(mean, coefficient, faces)
        flux = self.apply(gradient, value, faces)
        coefficient = coefficient.crop(faces)
        flux = Value(coefficient.array * flux.array, common([coefficient, flux]))
        return self.apply(divergence, flux, windows)

    def apply(self, stencil: Stencil, value: Value, windows: Windows) -> Value:
        """Return the result of ``stencil`` on ``windows``; axes without a window keep their single value.

        A stencil that only copies a neighbour's value uses no arithmetic, because other cells may be solid and hold
        non-finite values.
        """
        kept = tuple(None if have is None else want for have, want in zip(value.windows, windows, strict=True))
        if stencil.weights == (1.0,):
            return Value(moved(value, kept, stencil.offsets[0]), kept)
        start, shape = [], []
        for have, want in zip(value.windows, windows, strict=True):
            start.append(0 if have is None or want is None else want[0] - have[0])
            shape.append(1 if have is None or want is None else want[1] - want[0])
        return Value(self.rules.kernel(value.array, stencil, tuple(start), tuple(shape), self.number), kept)

    def number(self, value: float) -> jax.Array:
        """Return a number of an expression or a stencil as an array of shape (), in the run's precision.

        If `Frame.constants` holds it, it is a run-time value, which the compiler cannot fold into others.
        """
        return jnp.asarray(self.frame.constants.get(value, value)).astype(self.rules.dtype)

    def shrunk(self, value: Value, operand: Node, lower: Sequence[int], upper: Sequence[int]) -> Windows:
        """Return the windows of the result of a stencil that reads ``lower`` and ``upper`` cells around each cell.

        They are smaller than those of ``value`` on halo sides, whose ghost cells are used up. On sides that were extended
        by periodic wrapping or a boundary condition, the result covers the whole block. For an operand without ghost cells of
        its own, they are smaller on all sides.
        """
        result: list[Window | None] = []
        extended = has_own_ghosts(operand)
        for axis, window in enumerate(value.windows):
            if window is None:
                result.append(None)
            else:
                low, high = self.frame.sides[axis]
                result.append((
                    window[0] + lower[axis] if low.kind == "halo" or not extended else 0,
                    window[1] - upper[axis] if high.kind == "halo" or not extended else self.frame.cells[axis],
                ))  # fmt: skip
        return tuple(result)

    def extend(self, operand: Node) -> Value:
        """Return the value of an operator's operand with the ghost cells that the operator needs.

        An operand without ghost cells of its own can be evaluated beyond the block directly.
        """
        if not has_own_ghosts(operand):
            return self(operand)
        if operand not in self.extended:
            self.extended[operand] = self.surrounded(operand, *self.needs[operand])
        return self.extended[operand]

    def surrounded(self, operand: Node, widths: Sequence[tuple[int, int]], corners: bool) -> Value:
        """Return the value of an operand with ghost cells of these ``widths``, (lower, upper) per axis.

        ``corners`` says whether the ghost cells in corners are needed.
        """
        spacing = self.rules.discretization.spacing
        condition = partial(self.condition, operand, widths if corners else ())
        return Ghosts(self.frame, spacing, widths, condition).around(self.inside(self(operand)), corners)

    def inside(self, value: Value) -> Value:
        """Return the value without its cells beyond periodic and boundary sides, broadcast to all remaining cells.

        Broadcasting matters because a value that is constant along an axis, such as a vanishing derivative, may differ in
        ghost cells.
        """
        windows: list[Window] = []
        fields = common(list(self.fields.values()))
        for window, reached, cells, sides in zip(
            value.windows, fields, self.frame.cells, self.frame.sides, strict=True
        ):
            known = window or reached
            assert known is not None  # fields have a window on every axis
            low, high = (side.kind == "halo" for side in sides)
            windows.append((known[0] if low else 0, known[1] if high else cells))
        return value.spread(windows)

    def condition(
        self, operand: Node, corners: Sequence[tuple[int, int]], axis: int, side: int, windows: Windows
    ) -> tuple[str, list[jax.Array]]:
        """Return (kind, values) of the operand's boundary condition at one side of an axis.

        The values are arrays on ``windows``, whose entry for that axis is None. If ``corners`` has non-zero widths, fields
        in these values also have ghost cells along earlier axes.
        """
        face = self.rules.faces.get((operand, axis, side), NO_FLUX)
        there = replace(self)  # a separate evaluation: its coordinate and fields are those next to the face
        there.known[Coordinate(axis)] = there.scalar(self.rules.domain[axis][side])
        before = tuple(pair if a < axis else (0, 0) for a, pair in enumerate(corners))
        for name in beside([face]):
            field = self.surrounded(Field(name), before, True) if any(map(any, before)) else self.fields[name]
            there.known[Field(name)] = next_to(field, axis, side, self.frame)
        return face.kind, [there(value).crop(windows).array for value in face.values]


def beside(faces: Iterable[Face]) -> set[str]:
    """Return the names of the fields on which the boundary values at ``faces`` depend."""
    return {name for face in faces for value in face.values for name in value.field_names}


def _read_at_faces(trees: Iterable[Node], rules: Rules) -> set[str]:
    """Return the names of the fields that the boundary conditions of operands in ``trees`` read, and those of these fields in
    turn, whose ghost cells corners need."""
    operands = {part for tree in trees for part in walk(tree)}
    names, more = set[str](), {part.name for part in operands if isinstance(part, Field)}
    while not more <= names:
        names |= more
        operands |= {Field(name) for name in names}
        more = beside(face for (operand, _, _), face in rules.faces.items() if operand in operands)
    return more


def moved(value: Value, windows: Windows, offset: Sequence[int]) -> jax.Array:
    """Return the array of a value in the cells that lie ``offset`` (cells per axis) from those of ``windows``."""
    shifted = [None if w is None else (w[0] + o, w[1] + o) for w, o in zip(windows, offset, strict=True)]
    return value.crop(shifted).array


def of_members(action: Callable[..., Any], listed: Collection[str]) -> Callable[..., Any]:
    """Map ``action(fields, parameters, time, frame)`` over the members of an ensemble.

    The last axis of each input and output field is the member. The members differ in the ``listed`` parameters, and in
    the time and the step size if they are arrays.
    """

    def on_all(fields: Mapping[str, Value], parameters: Parameters, time: Number, frame: Frame) -> Any:
        own = {name for name in parameters if name in listed or (name == STEP_SIZE and jnp.ndim(parameters[name]))}
        axes = -1, {name: 0 if name in own else None for name in parameters}, 0 if jnp.ndim(time) else None
        return jax.vmap(lambda f, p, t: action(f, p, t, frame), axes, -1)(fields, parameters, time)

    return on_all


RightHandSide = Callable[[Mapping[str, Value], Parameters, Number, Frame], dict[str, Value]]


def right_hand_side(trees: Mapping[str, Node], rules: Rules, needs: Needs) -> RightHandSide:
    """Return the function (fields, parameters, t, frame) -> values of ``trees`` by name, for use inside compiled code.

    The input fields are local and padded with ghost cells. Each result covers the largest windows that theirs allow, in
    the run's precision.
    """
    looked_at = _read_at_faces(trees.values(), rules)

    def rhs(fields: Mapping[str, Value], parameters: Parameters, time: Number, frame: Frame) -> dict[str, Value]:
        used = {name for tree in trees.values() for name in tree.field_names}
        given = {name: fields[name] for name in used | looked_at}
        if looked_at:  # after a stage some fields reach further than others, further than the face values need
            windows = common(list(given.values()))
            given = {name: value.crop(windows) for name, value in given.items()}
        evaluate = Evaluation(rules, frame, needs, given, parameters, time)
        values = {}
        for name, tree in trees.items():
            value = evaluate(tree)
            values[name] = value.spread(common([*fields.values(), value]))
        return values

    return rhs
