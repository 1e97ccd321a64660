"""Von Neumann's stability analysis of any equation, from its trees, with coefficients frozen at the initial state.

∂u/∂t = F(u) is linearized at the initial state, with coefficients taken from one cell. For a mode exp(i θ·j) of the
cells j every operator is then a number, its symbol Σ_o w_o exp(i θ·o) over the offsets o of its stencil. The modes grow
with the eigenvalues λ(θ) of the matrix of ∂F_m/∂u_n (Hundsdorfer & Verwer (2003), sect. I.3; frozen coefficients: sect.
I.4.5). The analysis samples cells and θ and ignores walls, so the result is an estimate and not a bound: it may miss
the narrow peak of a coefficient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcstencil.numerics.finite_differences import Stencil
from hpcstencil.numerics.grid import Grid
from hpcstencil.numerics.integrators import Method, amplification
from hpcstencil.problem.parameter_files import key_of
from hpcstencil.problem.problem import Problem
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.differentiate import ONE, RULES, ZERO
from hpcstencil.symbolic.expressions import (
    Constant,
    Convolution,
    Derivative,
    DivGrad,
    Field,
    Halfway,
    Neighbour,
    Node,
    Pointwise,
    Series,
    Time,
    at_time,
    bottom_up,
    size_and_height,
    substitute,
)
from hpcstencil.symbolic.stencil_reach import Discretization

CELLS = (5, 3, 1)  # candidates for the number of sampled cells per axis; the first that fits ROOM is used
ANGLES = 9  # angles θ per axis, from -π to π; from 0 along the first axis
ROOM = 400_000  # limit on the total size of all matrices, in numbers
HIGHEST = 200  # levels of a tree; taller ones are not analysed
GROWING = 1e-6  # real part of a rate, in units of the fastest one, from which on the mode grows in the equation itself
GROWTH = 1e3  # a run in which a mode grows by more than this factor is called unstable

Offset = tuple[int, ...]
Symbol = dict[str, np.ndarray]  # of each field, of shape (cells or 1, angles)


class Frozen:
    """An equation linearized at its initial state: the values of trees in a sample of cells, and their symbols.
    ``initial`` are the initial expressions by field, and ``per_axis`` is the number of cells sampled per axis."""

    def __init__(
        self,
        grid: Grid,
        periodic: Sequence[bool],
        discretization: Discretization,
        initial: Mapping[str, Node],
        parameters: Mapping[str, float],
        per_axis: int,
    ) -> None:
        self.grid, self.periodic, self.discretization = grid, periodic, discretization
        self.initial, self.parameters = initial, numpy_evaluate.by_node(parameters)
        ranges = [np.unique(np.linspace(0, n - 1, per_axis).round().astype(np.int64)) for n in grid.shape]
        self.cells = [axis.ravel() for axis in np.meshgrid(*ranges, indexing="ij")]
        half = np.linspace(0.0, np.pi, ANGLES // 2 + 1)
        whole = np.linspace(-np.pi, np.pi, ANGLES)
        angles = np.meshgrid(half, *[whole] * (grid.ndim - 1), indexing="ij")
        self.angles = [axis.ravel() for axis in angles]
        self.values: dict[tuple[Node, Offset], Any] = {}
        self.symbols: dict[Node, Symbol] = {}

    def rates(self, trees: Mapping[str, Node]) -> np.ndarray:
        """The eigenvalues λ of ∂F_m/∂u_n for all sampled cells and modes: a complex array of one axis, in 1/time. Cells
        and modes whose matrix is not finite are left out."""
        symbols = [self.symbol(tree) for tree in trees.values()]
        entries = [symbol.get(name, np.zeros((1, 1))) for symbol in symbols for name in trees]
        matrices = np.stack(np.broadcast_arrays(*entries), -1).reshape(-1, len(trees), len(trees))
        return np.linalg.eigvals(matrices[np.isfinite(matrices).all((1, 2))]).ravel()

    # ---- values in cells ----

    def value(self, tree: Node, at: Offset) -> Any:
        """The value of a tree at an offset of ``at`` cells from the sampled cells, in the initial state and at t = 0:
        one number, or a float64 array (cells,)."""
        if (tree, at) not in self.values:
            self.values[tree, at] = self._value(tree, at)
        return self.values[tree, at]

    def _value(self, tree: Node, at: Offset) -> Any:
        match tree:
            case Field(name):
                if name not in self.initial:
                    return np.float64(0.0)
                return numpy_evaluate.evaluate(self.initial[name], *self._place(at))
            case Time():
                return np.float64(0.0)
            case Series():
                return numpy_evaluate.evaluate(at_time(tree, 0.0))
            case DivGrad():
                gradient, mean, divergence = self.discretization.div_grad(tree)

                def flux(there: Offset) -> Any:
                    return self._sum(mean, tree.coefficient, there) * self._sum(gradient, tree.operand, there)

                pairs = zip(divergence.offsets, divergence.weights, strict=True)
                return sum(w * flux(_moved(at, o)) for o, w in pairs)
            case Derivative() | Halfway() | Neighbour() | Convolution():
                (stencil,) = self.discretization.stencils(tree)
                return self._sum(stencil, tree.operand, at)
            case Pointwise(_, arguments):
                names = [Field(str(n)) for n in range(len(arguments))]
                given = dict(zip(names, [self.value(argument, at) for argument in arguments], strict=True))
                return numpy_evaluate.evaluate(Pointwise(tree.function, tuple(names)), values=given)
        coordinates, parameters, index = self._place(at)
        return numpy_evaluate.evaluate(tree, coordinates, parameters, index)

    def _sum(self, stencil: Stencil, operand: Node, at: Offset) -> Any:
        pairs = zip(stencil.offsets, stencil.weights, strict=True)
        return sum(w * self.value(operand, _moved(at, o)) for o, w in pairs)

    def _place(self, at: Offset) -> tuple[list[np.ndarray], Mapping[Any, Any], np.ndarray]:
        """Coordinates, parameters and indices for `numpy_evaluate.evaluate`. Positions beyond a wall are moved to the
        last cell."""
        there = [
            (cells + o) % n if ring else np.clip(cells + o, 0, n - 1)
            for cells, o, n, ring in zip(self.cells, at, self.grid.shape, self.periodic, strict=True)
        ]
        grid = self.grid
        coordinates = [a + (i + 0.5) * dx for a, i, dx in zip(grid.lower, there, grid.spacing, strict=True)]
        return coordinates, self.parameters, np.ravel_multi_index(there, grid.shape)

    # ---- symbols ----

    def symbol(self, tree: Node) -> Symbol:
        """The symbol of a tree: its derivative with respect to each field, for every mode. Arrays by field name, of
        shape (cells or 1, angles); fields on which the tree does not depend are missing."""
        for part in bottom_up(tree):
            if part not in self.symbols:
                self.symbols[part] = self._symbol(part)
        return self.symbols[tree]

    def _symbol(self, tree: Node) -> Symbol:
        here = (0,) * self.grid.ndim
        match tree:
            case Field(name):
                return {name: np.ones((1, 1))}
            case Pointwise(function, arguments):
                terms = []
                for n, argument in enumerate(arguments):
                    if self.symbols[argument]:
                        slopes = tuple(ONE if m == n else ZERO for m in range(len(arguments)))
                        slope = RULES[function](tree, arguments, slopes)
                        terms.append(_scaled(self.symbols[argument], _column(self.value(slope, here))))
                return _added(terms)
            case DivGrad(coefficient, operand):
                gradient, mean, divergence = self.discretization.div_grad(tree)
                k, step = (_column(self._sum(s, part, here)) for s, part in ((mean, coefficient), (gradient, operand)))
                fluxes = [
                    _scaled(self.symbols[operand], k * self._of(gradient)),
                    _scaled(self.symbols[coefficient], step * self._of(mean)),
                ]
                return _scaled(_added(fluxes), self._of(divergence))
            case Derivative() | Halfway() | Neighbour() | Convolution():
                (stencil,) = self.discretization.stencils(tree)
                return _scaled(self.symbols[tree.operand], self._of(stencil))
        return {}

    def _of(self, stencil: Stencil) -> np.ndarray:
        """The symbol of a stencil."""
        return np.array(stencil.weights) @ np.exp(1j * np.array(stencil.offsets) @ np.array(self.angles))


def _column(value: Any) -> np.ndarray:
    """A value that is one number or one per cell, shaped to broadcast against all angles."""
    return np.asarray(value).reshape(-1, 1)


def rates(
    trees: Mapping[str, Node],
    initial: Mapping[str, Node],
    parameters: Mapping[str, float],
    grid: Grid,
    periodic: Sequence[bool],
    discretization: Discretization,
) -> np.ndarray:
    """The rates λ of modes near the initial state: a complex array of one axis, in 1/time. ``trees`` are the time
    derivatives by field and ``initial`` the initial expressions (0 for fields without one). The result is empty if the
    trees are too tall."""
    if any(size_and_height(tree)[1] > HIGHEST for tree in trees.values()):
        return np.zeros(0, complex)
    modes = ANGLES**grid.ndim * len(trees) ** 2
    per_axis = next((n for n in CELLS if n**grid.ndim * modes <= ROOM), CELLS[-1])
    with np.errstate(all="ignore"):
        return Frozen(grid, periodic, discretization, initial, parameters, per_axis).rates(trees)


def stable_step(rates: np.ndarray, method: Method, end: float, dt: float) -> float:
    """The largest step up to ``dt`` for which no decaying or oscillating mode of these ``rates`` grows by more than a
    factor of GROWTH until the time ``end``."""
    fastest = np.abs(rates).max(initial=0.0)
    bounded = rates[rates.real <= GROWING * fastest]
    bounded = np.minimum(bounded.real, 0.0) + 1j * bounded.imag

    def grows(step: float) -> bool:
        most = _amplified(method, step * bounded).max(initial=1.0)
        return bool(max(1.0, end / step) * math.log(most) > math.log(GROWTH))

    low = dt
    while grows(low):
        low /= 2
    high = min(2 * low, dt)
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if grows(middle) else (middle, high)
    return low


def _amplified(method: Method, z: np.ndarray) -> np.ndarray:
    """The factor by which one step multiplies each mode, for z = dt λ. For a method without an amplification factor it
    is 1 within the method's ``limits`` and infinite beyond."""
    if method.limits is None:
        with np.errstate(all="ignore"):
            return np.nan_to_num(np.abs(amplification(method, z)), nan=math.inf, posinf=math.inf)
    real, imaginary = (limit or math.inf for limit in method.limits)
    return np.where(np.abs(z.real) / real + np.abs(z.imag) / imaginary <= 1.0, 1.0, math.inf)


def _moved(at: Offset, by: Offset) -> Offset:
    return tuple(a + b for a, b in zip(at, by, strict=True))


def _scaled(symbol: Symbol, factor: np.ndarray) -> Symbol:
    return {name: part * factor for name, part in symbol.items()}


def _added(symbols: Sequence[Symbol]) -> Symbol:
    result: Symbol = {}
    for symbol in symbols:
        for name, part in symbol.items():
            result[name] = result[name] + part if name in result else part
    return result


def estimated_step(problem: Problem, dt: float) -> float:
    """The largest stable step of a problem up to ``dt``, estimated near its initial state. It is ``dt`` itself if the
    initial state or the mask is read from a file."""
    config = problem.config
    if config.initial.file is not None or (problem.mask is not None and problem.mask.is_read):
        return dt
    return stable_step(rates_near_start(problem), problem.method, config.time.end, dt)


def rates_near_start(problem: Problem) -> np.ndarray:
    """The `rates` of a problem near its initial state, which must not be read from a file. Parameters read from files
    count with their largest magnitude."""
    grid, periodic = problem.config.grid, problem.config.boundary.periodic
    largest = {name: Constant(problem.contents[key_of(name)].magnitude) for name in problem.given}

    def known(part: Node) -> Node | None:
        return largest.get(part.name) if isinstance(part, Field) else None

    initial = {**{name: substitute(tree, known) for name, tree in problem.initial.items()}, **largest}
    return rates(problem.trees, initial, problem.parameters, grid, periodic, problem.discretization)
