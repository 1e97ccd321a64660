"""Von Neumann stability analysis of an arbitrary equation, with coefficients frozen at the initial state.

∂u/∂t = F(u) is linearized at the initial state, with the coefficients of one cell. For a mode exp(i θ·j), where j is
the cell index, each operator is then multiplication by its symbol Σ_o w_o exp(i θ·o), a sum over the offsets o of its
stencil. The modes grow at the rates λ(θ), the eigenvalues of the matrix ∂F_m/∂u_n (Hundsdorfer & Verwer (2003), sect.
I.3; frozen coefficients: sect. I.4.5). The analysis samples cells and angles θ and ignores walls, so its result is an
estimate and not a bound; it may miss a narrow peak of a coefficient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
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
ANGLES = 9  # angles θ per axis in [-π, π]; along the first axis only those in [0, π] are used, by symmetry
ROOM = 400_000  # limit on the number of entries of all matrices together
HIGHEST = 200  # largest number of levels of a tree that is analysed
GROWING = 1e-6  # a mode whose Re λ / max |λ| exceeds this grows in the equation itself, and is left out
ILL_POSED = 1e-3  # least Re λ / max |λ| of a mode that shows an ill-posed equation
FINER = 64  # ratio of the cell widths of the two grids on which the growth of waves is compared
RISING = 8  # growth that rises by more has no bound: it rises FINER-fold, or by a power of that
GROWTH = 1e3  # a run in which a mode grows by more than this factor is called unstable

Offset = tuple[int, ...]
Symbol = dict[str, np.ndarray]  # of each field, of shape (cells or 1, angles)


class Frozen:
    """An equation linearized at its initial state: the values and symbols of trees in a sample of cells.

    ``initial`` are the initial expressions by field, ``parameters`` numbers by name, ``periodic`` one flag per axis,
    and ``per_axis`` is the number of cells sampled per axis. With ``uniform``, the state and the coefficients count as uniform
    around each sampled cell.
    """

    def __init__(
        self,
        grid: Grid,
        periodic: Sequence[bool],
        discretization: Discretization,
        initial: Mapping[str, Node],
        parameters: Mapping[str, float],
        per_axis: int,
        uniform: bool,
    ) -> None:
        self.uniform = uniform
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

    def matrices(self, trees: Mapping[str, Node], rates: Mapping[str, Node]) -> tuple[np.ndarray, np.ndarray]:
        """(the matrices ∂F_m/∂u_n, the ``rates`` by field) for all sampled cells and angles.

        Both are in 1/time: a float64 or complex array of shape (modes, fields, fields), and float64 of shape (modes, fields),
        0 for fields without a rate. Modes whose matrix is not finite are left out.
        """
        symbols, count, here = [self.symbol(tree) for tree in trees.values()], len(trees), (0,) * self.grid.ndim
        entries = [symbol.get(name, np.zeros((1, 1))) for symbol in symbols for name in trees]
        entries += [_column(self.value(rates.get(name, ZERO), here)) for name in trees]
        modes = np.stack(np.broadcast_arrays(*entries), -1).reshape(-1, count * (count + 1))
        modes = modes[np.isfinite(modes).all(1)]
        return modes[:, : count * count].reshape(-1, count, count), modes[:, count * count :].real

    # ---- values in cells ----

    def value(self, tree: Node, at: Offset) -> Any:
        """The value of a tree in the initial state, at an offset of ``at`` cells from the sampled cells: one number, or a
        float64 array of shape (cells,)."""
        if (tree, at) not in self.values:
            self.values[tree, at] = self._value(tree, at)
        return self.values[tree, at]

    def _value(self, tree: Node, at: Offset) -> Any:
        """Compute the result of `value`."""
        match tree:
            case Field(name):
                if name not in self.initial:
                    return np.float64(0.0)
                return numpy_evaluate.evaluate(self.initial[name], *self._place(at))
            case Time():
                return np.float64(0.0)
            case Series():
                return numpy_evaluate.evaluate(at_time(tree, 0.0), values=self.parameters)
            case DivGrad() if self.uniform:
                return np.float64(0.0)
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
        """A stencil applied to ``operand``, at an offset of ``at`` cells from the sampled cells."""
        if self.uniform:
            return _sum_of(stencil.weights) * self.value(operand, at)
        pairs = zip(stencil.offsets, stencil.weights, strict=True)
        return sum(w * self.value(operand, _moved(at, o)) for o, w in pairs)

    def _place(self, at: Offset) -> tuple[list[np.ndarray], Mapping[Any, Any], np.ndarray]:
        """The arguments (coordinates, values, index) of `numpy_evaluate.evaluate` for the sampled cells shifted by
        ``at``. Cells outside a wall are replaced by the cell next to it."""
        there = [
            (cells + o) % n if ring else np.clip(cells + o, 0, n - 1)
            for cells, o, n, ring in zip(self.cells, at, self.grid.shape, self.periodic, strict=True)
        ]
        grid = self.grid
        coordinates = [a + (i + 0.5) * dx for a, i, dx in zip(grid.lower, there, grid.spacing, strict=True)]
        return coordinates, self.parameters, np.ravel_multi_index(there, grid.shape)

    # ---- symbols ----

    def symbol(self, tree: Node) -> Symbol:
        """The symbol of a tree: its derivative with respect to each field, for every mode.

        The result maps fields to complex or float64 arrays that broadcast to (cells, angles). Fields on which the tree
        does not depend are missing.
        """
        for part in bottom_up(tree):
            if part not in self.symbols:
                self.symbols[part] = self._symbol(part)
        return self.symbols[tree]

    def _symbol(self, tree: Node) -> Symbol:
        """The symbol of a node, computed from the symbols of its sub-trees by the chain rule."""
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
        """The symbol of a stencil at all angles: a complex array of shape (angles,)."""
        return np.array(stencil.weights) @ np.exp(1j * np.array(stencil.offsets) @ np.array(self.angles))


def _column(value: Any) -> np.ndarray:
    """A number, or an array of shape (cells,), reshaped to broadcast against angles: shape (1 or cells, 1)."""
    return np.asarray(value).reshape(-1, 1)


def matrices(
    trees: Mapping[str, Node],
    initial: Mapping[str, Node],
    parameters: Mapping[str, float],
    grid: Grid,
    periodic: Sequence[bool],
    discretization: Discretization,
    damped: Mapping[str, Node] = MappingProxyType({}),
    uniform: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """The matrices of modes near the initial state, and the damping rates ``damped`` there, as `Frozen.matrices` returns them.

    ``trees`` are the time derivatives by field, and ``initial`` the initial expressions; fields without one are 0. The
    result is empty if a tree has more than HIGHEST levels.
    """
    if any(size_and_height(tree)[1] > HIGHEST for tree in trees.values()):
        return np.zeros((0, len(trees), len(trees))), np.zeros((0, len(trees)))
    modes = ANGLES**grid.ndim * len(trees) ** 2
    per_axis = next((n for n in CELLS if n**grid.ndim * modes <= ROOM), CELLS[-1])
    with np.errstate(all="ignore"):
        return Frozen(grid, periodic, discretization, initial, parameters, per_axis, uniform).matrices(trees, damped)


def stable_step(rates: np.ndarray, method: Method, end: float, dt: float) -> float:
    """The largest step, at most ``dt``, for which no mode that decays or oscillates in the equation grows by more than a
    factor of GROWTH until the time ``end``. ``rates`` are the λ of all modes. The method must not be partitioned."""
    fastest = np.abs(rates).max(initial=0.0)
    bounded = rates[rates.real <= GROWING * fastest]
    bounded = np.minimum(bounded.real, 0.0) + 1j * bounded.imag
    return _longest(lambda step: float(_amplified(method, step * bounded).max(initial=1.0)), end, dt)


def stable_partitioned_step(
    matrices: np.ndarray, damping: np.ndarray, method: Method, groups: Sequence[int], end: float, dt: float
) -> float:
    """The same as `stable_step` for a partitioned method, whose step mixes the modes of a matrix.

    ``matrices`` and ``damping`` are as `Frozen.matrices` returns them, and ``groups`` the group of each field. A matrix with a
    mode that grows in the equation is left out.
    """
    rates = np.linalg.eigvals(matrices)
    bounded = (rates.real <= GROWING * np.abs(rates).max(initial=0.0)).all(1)

    def amplified(step: float) -> float:
        made = step_matrices(method, matrices[bounded], damping[bounded], groups, step)
        if not np.isfinite(made).all():
            return math.inf
        largest = float(np.abs(np.linalg.eigvals(made)).max(initial=1.0))
        return largest if largest > 1.0 + GROWING else 1.0  # a double eigenvalue is known to half the digits only

    return _longest(amplified, end, dt)


def step_matrices(
    method: Method, matrices: np.ndarray, damping: np.ndarray, groups: Sequence[int], dt: float
) -> np.ndarray:
    """The matrices, of shape (modes, fields, fields), by which one step of a partitioned method multiplies the fields.

    ``matrices`` are the ∂F_m/∂u_n in this shape, and ``damping`` the rates r in shape (modes, fields), both in 1/time.
    """
    weights = np.array([method.damping[group % 2] for group in groups])
    slopes = dt * matrices / (1.0 + dt * weights * damping)[:, :, None]
    values = [np.broadcast_to(np.eye(len(groups)), matrices.shape)]
    for stage in method.stages:
        rows = np.array([group == stage.group for group in groups])
        new = values[-1].astype(slopes.dtype)
        terms = [a * values[j] for j, a in stage.values] + [b * (slopes @ values[j]) for j, b in stage.slopes]
        new[:, rows] = np.sum(terms, axis=0)[:, rows]
        values.append(new)
    return values[-1]


def _longest(amplified: Callable[[float], float], end: float, dt: float) -> float:
    """The largest step, at most ``dt``, whose factor ``amplified(step)`` is at most GROWTH after all steps up to ``end``."""

    def grows(step: float) -> bool:
        return bool(max(1.0, end / step) * math.log(amplified(step)) > math.log(GROWTH))

    low = dt
    while grows(low):
        low /= 2
    high = min(2 * low, dt)
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if grows(middle) else (middle, high)
    return low


def _amplified(method: Method, z: np.ndarray) -> np.ndarray:
    """The factor |R| by which one step amplifies each mode, for z = dt λ: float64 in the shape of ``z``.

    For a method with ``limits`` it is 1 inside the triangle between them and infinite outside.
    """
    if method.limits is None:
        with np.errstate(all="ignore"):
            return np.nan_to_num(np.abs(amplification(method, z)), nan=math.inf, posinf=math.inf)
    real, imaginary = (limit or math.inf for limit in method.limits)
    return np.where(np.abs(z.real) / real + np.abs(z.imag) / imaginary <= 1.0, 1.0, math.inf)


def _sum_of(weights: Sequence[float]) -> float:
    """The sum of the weights of a stencil; exactly 0 for those of a derivative."""
    total = math.fsum(weights)
    return total if abs(total) > 1e-9 * math.fsum(map(abs, weights)) else 0.0


def _moved(at: Offset, by: Offset) -> Offset:
    """The sum of two offsets in cells."""
    return tuple(a + b for a, b in zip(at, by, strict=True))


def _scaled(symbol: Symbol, factor: np.ndarray) -> Symbol:
    """A symbol multiplied by ``factor``, an array that broadcasts to (cells, angles)."""
    return {name: part * factor for name, part in symbol.items()}


def _added(symbols: Sequence[Symbol]) -> Symbol:
    """The sum of symbols, field by field."""
    result: Symbol = {}
    for symbol in symbols:
        for name, part in symbol.items():
            result[name] = result[name] + part if name in result else part
    return result


def estimated_step(problem: Problem, dt: float) -> float:
    """Estimate the largest stable step of a problem, at most ``dt``, near its initial state.

    Fields whose initial values come from a file or an array are taken as 0, and solid cells are ignored.
    """
    config, method = problem.config, problem.method
    found, damping = matrices_near_start(problem)
    if method.partitioned:
        groups = [problem.groups[name] for name in problem.trees]
        return stable_partitioned_step(found, damping, method, groups, config.time.end, dt)
    return stable_step(np.linalg.eigvals(found).ravel(), method, config.time.end, dt)


def unbounded_growth(problem: Problem) -> float:
    """The rate, in 1/time, at which the fastest wave grows on the grid, if there is no bound for it on finer grids; else 0.

    Such a problem is ill-posed. The equation is examined near the initial state. This state is taken as uniform around each
    sampled cell, since strong gradients on the grid are no property of the equation (Kreiss & Lorenz, "Initial-Boundary Value
    Problems and the Navier-Stokes Equations" (1989), ch. 2). The result is 0 if initial values or parameters come from files or
    arrays.
    """
    config = problem.config
    if problem.given or config.initial.file is not None or any(key.startswith("initial.") for key in problem.held):
        return 0.0
    here, finer = (np.linalg.eigvals(matrices_near_start(problem, n, uniform=True)[0]) for n in (1, FINER))
    growth, fastest = float(here.real.max(initial=0.0)), float(finer.real.max(initial=0.0))
    rounding = ILL_POSED * np.abs(finer).max(initial=0.0)  # of eigenvalues that coincide
    return growth if growth > 0.0 and fastest > max(rounding, RISING * growth) else 0.0


def matrices_near_start(problem: Problem, finer: int = 1, uniform: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The `matrices` of a problem near its initial state, on a grid with ``finer`` times as many cells per axis.

    With ``uniform``, the state counts as uniform around each sampled cell. Parameters given as arrays are replaced by their
    largest magnitude, and initial values from arrays or files by 0.
    """
    grid, periodic = problem.config.grid, problem.config.boundary.periodic
    largest = {name: Constant(problem.contents[key_of(name)].magnitude) for name in problem.given}

    def known(part: Node) -> Node | None:
        return largest.get(part.name) if isinstance(part, Field) else None

    initial = {**{name: substitute(tree, known) for name, tree in problem.initial.items()}, **largest}
    spacing = tuple(dx / finer for dx in problem.discretization.spacing)
    discretization = replace(problem.discretization, spacing=spacing)
    return matrices(problem.trees, initial, problem.parameters, grid, periodic, discretization, problem.damped, uniform)
