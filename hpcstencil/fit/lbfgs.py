"""L-BFGS with bounds: the least value of f(x) for lower <= x <= upper.

Unknowns are measured in units of their typical size, z = x / scale. With the gradient g with respect to z, an iteration is
  d = -H g on the free components, x' = P(x + scale α d), P the projection onto the bounds.
H is the limited-memory BFGS matrix of the last pairs s = z' - z, y = g' - g, applied by the two-loop recursion (J. Nocedal &
S. Wright, Numerical Optimization, 2nd ed. 2006, algorithm 7.4) to pairs that are reduced to the free components (C. T. Kelley,
Iterative Methods for Optimization, SIAM 1999, sect. 5.5.3). Its initial matrix is γ S with γ = s·y / y·S y, where S is the
preconditioner. A component is not free if it is at a bound, or nearer than a margin, and g pushes it there (D. Bertsekas,
SIAM J. Control Optim. 20 (1982) 221-246); it moves along -γ g.

The length α satisfies the weak Wolfe conditions, found by bracketing (A. Lewis & M. Overton, Math. Program. 141 (2013)
135-163) with quadratic interpolation. Where f changes by rounding only, the slope decides (W. Hager & H. Zhang, SIAM J. Optim.
16 (2005) 170-192). A value that is not finite counts as too large.

Vectors are dicts by unknown: NumPy numbers, or this process's blocks of arrays. Only `Space` communicates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

Vector = Mapping[str, Any]

ARMIJO, CURVATURE = 1e-4, 0.9  # constants of the Wolfe conditions
FIRST = 0.1  # largest change of an unknown in the first trial without a history, in units of its scale
LONGER = 4.0  # factor by which a step is lengthened
SHORTEST, HALF = 0.1, 0.5  # least and largest part of a bracket
BROKEN = 0.25  # the part after a value that is not finite
LEFT = 1e-10  # least part of s·y that the free components of a pair must have
MOST_TRIALS = 20  # evaluations along one direction
MARGIN = 1e-3  # of components near a bound, in units of the scale, at the start; it shrinks with the gradient norm
STALLED = 5  # iterations without progress, after which a fit ends
ROUNDING = 10.0  # error of f in units of its precision


class Space(Protocol):
    """Operations on vectors that need all processes. Their results are equal on all of them."""

    @property
    def precision(self) -> float:
        """The relative rounding error of a value in the precision of the run."""

    def dot(self, a: Vector, b: Vector) -> float:
        """The scalar product of two vectors. Collective."""

    def largest(self, a: Vector) -> float:
        """The largest magnitude of a component. Collective."""

    def preconditioned(self, a: Vector) -> Vector:
        """The preconditioner S, symmetric and positive, applied to a vector. Collective."""


@dataclass(frozen=True)
class Box:
    """The set of vectors between ``lower`` and ``upper``, whose components have the size ``scale``.

    Components where ``frozen`` is true keep their values. Entries are numbers, or blocks.
    """

    lower: Vector
    upper: Vector
    scale: Mapping[str, float]
    frozen: Vector

    def moved(self, x: Vector, length: float, direction: Vector) -> dict[str, Any]:
        """x + scale ``length`` ``direction``, projected onto the box."""
        return {key: self._cast(key, self._beyond(key, x, length, direction), x) for key in x}

    def _beyond(self, key: str, x: Vector, length: float, direction: Vector) -> Any:
        return x[key] + np.float64(self.scale[key] * length) * direction[key]

    def _cast(self, key: str, values: Any, like: Vector) -> Any:
        inside = np.where(self.frozen[key], like[key], np.clip(values, self.lower[key], self.upper[key]))
        return inside.astype(like[key].dtype)[()]

    def moving(self, x: Vector, length: float, direction: Vector) -> dict[str, Any]:
        """The components of ``direction`` along which the projected path still moves after this length."""
        found = {}
        for key in x:
            there = self._beyond(key, x, length, direction)
            inside = (there >= self.lower[key]) & (there <= self.upper[key])
            found[key] = np.where(inside, direction[key], 0).astype(direction[key].dtype)[()]
        return found

    def scaled_difference(self, x: Vector, other: Vector) -> dict[str, Any]:
        """(x - other) / scale."""
        return {key: ((x[key] - other[key]) / self.scale[key]).astype(x[key].dtype) for key in x}

    def active_set(self, x: Vector, gradient: Vector, margin: float = 0.0) -> dict[str, Any]:
        """Where a component is frozen, or at most ``margin`` from a bound to which the negative gradient points."""
        found = {}
        for key in x:
            near, g = margin * self.scale[key], gradient[key]
            low, high = (x[key] <= self.lower[key] + near) & (g > 0), (x[key] >= self.upper[key] - near) & (g < 0)
            found[key] = self.frozen[key] | low | high
        return found


@dataclass(frozen=True)
class Point:
    """Unknowns, the value of the objective there, and its gradient with respect to the unknowns in units of their scale."""

    unknowns: Vector
    value: float
    gradient: Vector


@dataclass(frozen=True)
class Row:
    """What is recorded of an iteration: the objective and the norm of the gradient after it, the length of the step in units
    of the direction, and the number of evaluations."""

    objective: float
    norm: float
    length: float
    evaluations: int


@dataclass(frozen=True)
class Pair:
    """An earlier step ``moved`` s, the change ``changed`` y of the gradient in it, and their ``product`` s·y > 0."""

    moved: Vector
    changed: Vector
    product: float


@dataclass(frozen=True)
class State:
    """The state of a fit after some iterations: all on which the next one depends. ``pairs`` has the oldest first."""

    point: Point
    pairs: tuple[Pair, ...]
    rows: tuple[Row, ...]


Objective = Callable[[Vector], "Point | None"]  # None if the objective is not finite


def without(vector: Vector, excluded: Vector) -> dict[str, Any]:
    """The vector with 0 where ``excluded`` is true. It may share memory with the given one."""
    return {
        key: np.where(excluded[key], 0, value).astype(value.dtype)[()] if np.any(excluded[key]) else value
        for key, value in vector.items()
    }


def plus(a: Vector, weight: float, b: Vector) -> dict[str, Any]:
    """a + ``weight`` b."""
    return {key: (value + weight * b[key]).astype(value.dtype) for key, value in a.items()}


def norm(space: Space, box: Box, point: Point) -> float:
    """The 2-norm of the gradient without the components at bounds that it would leave, which is 0 at a minimum."""
    free = without(point.gradient, box.active_set(point.unknowns, point.gradient))
    return math.sqrt(space.dot(free, free))


def first_state(space: Space, box: Box, point: Point) -> State:
    """The state of a fit that begins at a point."""
    return State(point, (), (Row(point.value, norm(space, box, point), 0.0, 1),))


def next_state(space: Space, box: Box, objective: Objective, state: State, history: int) -> State | None:
    """The state after one more iteration.

    It is None if there is no lower value along the direction, nor along the gradient, or if `_stalled`.
    """
    if _stalled(space, state):
        return None
    margin = MARGIN * min(1.0, state.rows[-1].norm / state.rows[0].norm)
    tried = 0
    for pairs in (state.pairs, ()) if state.pairs else ((),):
        direction = _direction(space, box, state.point, pairs, margin)
        found = _search(space, box, objective, state.point, direction, 1.0 if pairs else None)
        tried += found.evaluations
        if found.point is None:
            continue
        new = found.point
        s = box.scaled_difference(new.unknowns, state.point.unknowns)
        y = plus(new.gradient, -1.0, state.point.gradient)
        product = space.dot(s, y)
        curved = product > np.finfo(np.float64).eps * space.dot(y, y)
        kept = (*pairs, Pair(s, y, product))[-history:] if curved else pairs
        row = Row(new.value, norm(space, box, new), found.length, tried)
        return State(new, kept, (*state.rows, row))
    return None


def _direction(space: Space, box: Box, point: Point, pairs: Sequence[Pair], margin: float) -> dict[str, Any]:
    """-H g on the free components, and -γ g on the others; -S g if that is no direction of descent."""
    active = box.active_set(point.unknowns, point.gradient, margin)
    g = without(point.gradient, active)

    def smooth(vector: Vector) -> Vector:
        return without(space.preconditioned(vector), active)

    used, gamma = [], 1.0
    for pair in pairs:
        s, y = without(pair.moved, active), without(pair.changed, active)
        product = space.dot(s, y)
        if product > LEFT * pair.product:
            used.append((s, y, product))
    if used:
        _, y, product = used[-1]
        gamma = product / space.dot(y, smooth(y))
    r: Vector = g
    weights = []
    for s, y, product in reversed(used):
        weights.append(space.dot(s, r) / product)
        r = plus(r, -weights[-1], y)
    r = {key: (gamma * value).astype(value.dtype) for key, value in smooth(r).items()}
    for (s, y, product), weight in zip(used, reversed(weights), strict=True):
        r = plus(r, weight - space.dot(y, r) / product, s)
    if used and not space.dot(g, r) > 0:
        r = smooth(g)
    rest = plus(point.gradient, -1.0, g)  # of components that are not free
    return {key: np.where(box.frozen[key], 0, -(r[key] + gamma * rest[key])).astype(r[key].dtype)[()] for key in r}


@dataclass(frozen=True)
class Found:
    """The result of a line search: the point, None if there is none, its length, and the number of evaluations."""

    point: Point | None
    length: float
    evaluations: int


def _search(
    space: Space, box: Box, objective: Objective, start: Point, direction: Vector, length: float | None
) -> Found:
    """Search along P(x + scale α d) for a length α that satisfies the Wolfe conditions, beginning with ``length``.

    If it is None, the first length changes the unknowns by at most FIRST. The result is the longest step with enough decrease
    if no length is found that satisfies both conditions.
    """
    x, value, slope0 = start.unknowns, start.value, space.dot(start.gradient, direction)
    if not slope0 < 0:
        return Found(None, 0.0, 0)
    length = length or FIRST / space.largest(direction)
    slack = _slack(space, start)
    low, high = (0.0, value, slope0), (math.inf, math.inf)
    best = Found(None, 0.0, 0)
    for trial in range(1, MOST_TRIALS + 1):
        point = objective(box.moved(x, length, direction))
        if point is None:
            high = (length, math.inf)
        else:
            decrease = space.dot(start.gradient, box.scaled_difference(point.unknowns, x))
            slope = space.dot(point.gradient, box.moving(x, length, direction))
            enough = decrease < 0 and point.value <= value + ARMIJO * decrease
            nearly = decrease < 0 and point.value <= value + slack and slope <= (2 * ARMIJO - 1) * slope0
            if not (enough or nearly):
                high = (length, point.value)
            elif slope >= CURVATURE * slope0:
                return Found(point, length, trial)
            else:
                low, best = (length, point.value, slope), Found(point, length, trial)
        length = _between(low, high)
        if length in (low[0], high[0]):
            return Found(best.point, best.length, trial)
    return Found(best.point, best.length, MOST_TRIALS)


def _stalled(space: Space, state: State) -> bool:
    """Whether the last STALLED iterations have changed the objective by rounding alone, without a smaller gradient."""
    earlier, last = state.rows[:-STALLED], state.rows[-STALLED:]
    if not earlier:
        return False
    lower = earlier[-1].objective - last[-1].objective > _slack(space, state.point)
    return not lower and min(row.norm for row in last) >= min(row.norm for row in earlier)


def _slack(space: Space, point: Point) -> float:
    """A difference of the objective that may be rounding."""
    return ROUNDING * space.precision * abs(point.value)


def _between(low: tuple[float, float, float], high: tuple[float, float]) -> float:
    """The next length: beyond ``low`` = (length, value, slope) without an upper limit, else the minimum of the parabola
    through it and ``high`` = (length, value), inside the bracket."""
    at, value, slope = low
    if math.isinf(high[0]):
        return LONGER * at
    width = high[0] - at
    if not math.isfinite(high[1]):
        return at + BROKEN * width
    bend = high[1] - value - slope * width
    best = -slope * width / (2 * bend) if bend > 0 else HALF
    return at + min(max(best, SHORTEST), HALF) * width
