"""Evaluation of trees without operators in NumPy: initial states, bounds of parameters, arithmetic on diagnostics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcstencil.numerics.cell_noise import uniform
from hpcstencil.numerics.grid import Grid
from hpcstencil.numerics.pointwise import functions, integer_power
from hpcstencil.numerics.topology import Range
from hpcstencil.symbolic.expressions import (
    Constant,
    Coordinate,
    Field,
    Node,
    Noise,
    Parameter,
    Pointwise,
    Reduction,
    Samples,
    Series,
    Time,
    bottom_up,
    rebuilt,
    walk,
)

FUNCTIONS = functions(np, np.float64)
NUMBERS = frozenset((Constant, Parameter, Pointwise))  # classes of the nodes of a tree that is one number
CELLS_AT_ONCE = 2**18
ROUNDED = 1e-15  # relative tolerance for rounding in the time of the last sample of a series
SAMPLED = 2**16  # cells in which trees are evaluated at t = 0
MOST_CELLS = 2**24  # in which the bound of a parameter is computed


def evaluate(
    tree: Node,
    coordinates: Sequence[np.ndarray] = (),
    values: Mapping[Any, Any] | None = None,
    index: np.ndarray | None = None,
) -> Any:
    """Evaluate a tree in float64. The result has the broadcast shape of the arrays that the tree uses.

    ``coordinates`` are float64 arrays, one per axis, that broadcast against each other. ``values`` maps each Parameter,
    Field, Reduction or Time node in the tree, and the Parameter of `Samples`, to a number or an array. ``index`` holds global
    cell indices in the shape of the result; only noise uses them. Raises TypeError for operators, which need neighbouring
    cells.
    """

    def value(part: Node) -> Any:
        match part:
            case Constant(number):
                return np.float64(number)
            case Coordinate(axis):
                return coordinates[axis]
            case Field() | Parameter() | Reduction() | Time():
                return (values or {})[part]
            case Noise(seed, stream):
                assert index is not None
                return uniform(seed, stream, index)
            case Series(operand):
                return _sampled(part, value(operand), values or {})
            case Pointwise("power", (base, Constant(exponent))) if (n := integer_power(exponent)) is not None:
                return value(base) ** n
            case Pointwise(function, arguments):
                return FUNCTIONS[function](*map(value, arguments))
        raise TypeError(f"{type(part).__name__} cannot be evaluated here")

    with np.errstate(all="ignore"):
        return value(tree)


def _sampled(series: Series, at: Any, known: Mapping[Any, Any]) -> Any:
    """The value, or slope, of a time series at the times ``at``: float64, in their shape."""
    samples = series.values
    values = np.asarray(known[Parameter(samples.name)] if isinstance(samples, Samples) else samples)
    inside, first, weight = samples_beside(len(values), series.dt, at)
    step = values[first + 1] - values[first]
    found = step / series.dt if series.slope else values[first] + weight * step
    return np.where(inside, found, 0.0)[()]


def samples_beside(count: int, dt: float, at: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, for times ``at`` and a series of ``count`` samples: whether they are inside it, the number of the sample before,
    and the weight of the one after that. bool, int64 and float64, in their shape."""
    place, last = np.asarray(at, np.float64) * (1.0 / dt), count - 1
    inside = (place >= 0) & (place <= last * (1 + ROUNDED))
    place = np.minimum(place, last)
    first = np.clip(np.floor(place), 0, last - 1).astype(np.int64)
    return inside, first, place - first


def block_coordinates(grid: Grid, ranges: Sequence[Range]) -> list[np.ndarray]:
    """The coordinates of the cell centres of a block: one float64 array per axis, shaped to broadcast over the block.

    ``ranges`` holds the global index range (start, stop) of the block per axis.
    """
    return [
        grid.centres(axis, *r).reshape([-1 if a == axis else 1 for a in range(grid.ndim)])
        for axis, r in enumerate(ranges)
    ]


def block_index(grid: Grid, ranges: Sequence[Range]) -> np.ndarray:
    """The global cell index (int64, C order) of every cell of a block, in the shape of the block.

    ``ranges`` holds the global index range (start, stop) of the block per axis.
    """
    return np.ravel_multi_index(np.ix_(*(np.arange(*r) for r in ranges)), grid.shape)


def by_node(parameters: Mapping[str, float | np.ndarray]) -> dict[Node, Any]:
    """The values of parameters by node, as `evaluate` takes them.

    Numbers become NumPy scalars, which overflow to infinity where Python floats would raise OverflowError.
    """
    return {Parameter(name): np.float64(value) if np.ndim(value) == 0 else value for name, value in parameters.items()}


def is_number(tree: Node, known: Mapping[Node, Any]) -> bool:
    """Whether a tree has a value that depends only on constants and the ``known`` parameters."""
    return tree.kinds <= NUMBERS and all(part in known for part in walk(tree) if isinstance(part, Parameter))


def taken(tree: Node, parameters: Mapping[str, float | np.ndarray]) -> Node:
    """Remove branches that are never taken: replace each where() by one of its branches if its condition depends only on
    constants and ``parameters``."""
    known = by_node(parameters)
    made: dict[int, Node] = {}
    for part in bottom_up(tree):
        match rebuilt(part, lambda child: made[id(child)]):
            case Pointwise("where", (condition, yes, no)) if is_number(condition, known):
                made[id(part)] = yes if evaluate(condition, values=known) else no
            case new:
                made[id(part)] = new
    return made[id(tree)]


def block_values(
    tree: Node,
    grid: Grid,
    ranges: Sequence[Range],
    parameters: Mapping[str, float | np.ndarray],
    dtype: np.dtype,
    fields: Mapping[Field, np.ndarray] | None = None,
) -> np.ndarray:
    """Evaluate a tree on a block: an array of ``dtype`` in the shape of the block, C-contiguous, without ghost cells.

    ``ranges`` holds the global index range (start, stop) of the block per axis. ``fields`` maps the fields in the tree
    to their values on the block. The evaluation is in float64 and takes a few planes at a time, which bounds the memory
    for temporaries.
    """
    (first, last), *rest = ranges
    known = by_node(parameters)
    block = np.empty([stop - start for start, stop in ranges], dtype)
    planes = max(1, CELLS_AT_ONCE // math.prod(block.shape[1:]))
    for start in range(first, last, planes):
        part = [(start, min(start + planes, last)), *rest]
        index = block_index(grid, part) if Noise in tree.kinds else None
        rows = slice(start - first, part[0][1] - first)
        here = {field: values[rows].astype(np.float64) for field, values in (fields or {}).items()}
        values = evaluate(tree, block_coordinates(grid, part), {**known, **here}, index)
        with np.errstate(over="ignore"):
            block[rows] = values
    return block


def spread(shape: Sequence[int], most: int) -> list[np.ndarray]:
    """Return about ``most`` cells of a grid, evenly spaced: their indices per axis, those of all cells if there are fewer."""
    axes = sum(n > 1 for n in shape)
    apart = max(1.0, (math.prod(shape) / most) ** (1 / max(1, axes)))
    return [np.unique(np.linspace(0, n - 1, math.ceil(n / apart)).astype(np.int64)) for n in shape]


def at_start(grid: Grid, parameters: Mapping[str, float | np.ndarray]) -> Callable[..., Any]:
    """Return the function that evaluates a tree at t = 0, in all cells of the grid or in about `SAMPLED`, evenly spaced.

    Its second argument maps further nodes, such as fields, to their values.
    """
    cells = spread(grid.shape, SAMPLED)
    places = [grid.centres_of(axis, chosen) for axis, chosen in enumerate(cells)]
    coordinates = np.meshgrid(*places, indexing="ij", sparse=True)
    index = np.asarray(np.ravel_multi_index(np.meshgrid(*cells, indexing="ij"), grid.shape))
    known = {**by_node(parameters), Time(): 0.0}

    def value(tree: Node, values: Mapping[Any, Any] | None = None) -> Any:
        with np.errstate(all="ignore"):
            return evaluate(tree, coordinates, {**known, **(values or {})}, index)

    return value


def largest(tree: Node, grid: Grid, parameters: Mapping[str, float | np.ndarray]) -> float:
    """Return the largest magnitude of a tree of coordinates over the cells of the grid; NaN if it is NaN in one of them.

    A tree that depends on more than MOST_CELLS cells is evaluated in some of them, evenly spaced, so a narrower peak may be
    missed.
    """
    axes = {part.axis for part in walk(tree) if isinstance(part, Coordinate)}
    cells = spread([n if axis in axes else 1 for axis, n in enumerate(grid.shape)], MOST_CELLS)
    first, *rest = (grid.centres_of(axis, chosen) for axis, chosen in enumerate(cells))
    known, planes = by_node(parameters), max(1, CELLS_AT_ONCE // math.prod(map(len, rest)))

    def of_planes(start: int) -> float:
        points = np.meshgrid(first[start : start + planes], *rest, indexing="ij", sparse=True)
        return float(np.abs(evaluate(tree, points, known)).max())

    return float(np.max([of_planes(start) for start in range(0, len(first), planes)]))
