"""∂u/∂t = F(u, x, t) on one whole grid: an interpreter of input files, for tests to compare with.

It is written from docs/input.md and the literature, by somebody who had not read how the package evaluates trees, makes
ghost cells or steps in time. It imports nothing of the package. numpy, float64, one array per value and no attention to speed:
where it and docs/input.md differ, one of them is wrong.

Finite differences: B. Fornberg, Math. Comp. 51 (1988) 699-706, here by solving for the weights in whole numbers.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

AXES = "xyz"
COMPARISONS: dict[type, Callable[..., Any]] = {
    ast.Lt: np.less, ast.LtE: np.less_equal, ast.Gt: np.greater, ast.GtE: np.greater_equal, ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}  # fmt: skip
ARITHMETIC: dict[type, Callable[..., Any]] = {
    ast.Add: np.add, ast.Sub: np.subtract, ast.Mult: np.multiply, ast.Div: np.divide, ast.Pow: np.power,
}  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": np.abs, "sqrt": np.sqrt, "exp": np.exp, "log": np.log, "sin": np.sin, "cos": np.cos, "tan": np.tan,
    "tanh": np.tanh, "sign": np.sign, "minimum": np.minimum, "maximum": np.maximum,
    "where": lambda condition, a, b: np.where(np.not_equal(condition, 0), a, b),
}  # fmt: skip
NO_FLUX = {"neumann": 0.0}


def along(a: np.ndarray, axis: int, start: int, count: int) -> np.ndarray:
    """Some layers of an array."""
    return a[tuple(slice(start, start + count) if b == axis else slice(None) for b in range(a.ndim))]


def parsed(text: Any) -> ast.expr:
    return ast.parse(str(text).strip(), mode="eval").body


# ---- stencils --------------------------------------------------------------------------------------------------------

Stencil = dict[int, float]  # cells away -> weight


@lru_cache
def weights(places: tuple[Fraction, ...], derivative: int) -> list[float]:
    """The weights w with Σ w_j f(places_j) = f^(derivative)(0) for polynomials of the highest degree possible."""
    n = len(places)
    rows = [
        [place**power for place in places] + [Fraction(math.factorial(power) if power == derivative else 0)]
        for power in range(n)
    ]
    for i in range(n):  # Gauss-Jordan elimination
        pivot = next(r for r in range(i, n) if rows[r][i] != 0)
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [a / rows[i][i] for a in rows[i]]
        for r in range(n):
            if r != i:
                rows[r] = [a - rows[r][i] * b for a, b in zip(rows[r], rows[i], strict=True)]
    return [float(row[-1]) for row in rows]


def central(order: int, derivative: int) -> Stencil:
    """First or second derivative in a cell, from order / 2 cells on both sides."""
    cells = range(-order // 2, order // 2 + 1)
    return dict(zip(cells, weights(tuple(map(Fraction, cells)), derivative), strict=True))


def biased(order: int) -> Stencil:
    """First derivative of order - 1 from one more cell below than above."""
    cells = range(-order // 2, order // 2)
    return dict(zip(cells, weights(tuple(map(Fraction, cells)), 1), strict=True))


def half_way(order: int, derivative: int) -> Stencil:
    """Value (0) or derivative (1) between cells -1 and 0, from order / 2 cells on both sides."""
    cells = range(-order // 2, order // 2)
    return dict(zip(cells, weights(tuple(Fraction(2 * c + 1, 2) for c in cells), derivative), strict=True))


# ---- where a value is wanted ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """The grid's cells and ``margin`` more on both sides of each axis; at their centres (0) or lower faces (1).

    ``beyond``: cells of the margin are worked out from the fields' ghost cells.
    """

    margin: tuple[int, ...]
    position: tuple[int, ...]
    beyond: bool = False

    def wider(self, axis: int, cells: int) -> Place:
        margin = tuple(m + cells * (a == axis) for a, m in enumerate(self.margin))
        return replace(self, margin=margin)


class Reference:
    """A run of an input, given as tables."""

    def __init__(self, tables: Mapping[str, Any]):
        grid, equation = tables["grid"], tables["equation"]
        self.shape: tuple[int, ...] = tuple(grid["shape"])
        self.ndim = len(self.shape)
        self.lower = list(grid.get("lower", [0.0] * self.ndim))
        self.upper = list(grid.get("upper", [a + n for a, n in zip(self.lower, self.shape, strict=True)]))
        self.h = [(b - a) / n for a, b, n in zip(self.lower, self.upper, self.shape, strict=True)]
        self.rhs = {name: parsed(text) for name, text in equation["rhs"].items()}
        self.parameters = {k: parsed(v) for k, v in equation.items() if k not in ("name", "rhs")}
        numerics, time = tables.get("numerics", {}), tables["time"]
        self.order: int = numerics.get("order", 2)
        self.method: str = numerics.get("integrator", "rk4")
        self.stages, self.epsilon = numerics.get("stages"), numerics.get("epsilon", 0.0)
        self.end, self.dt = float(time["end"]), float(time["dt"])
        self.read_boundary(tables.get("boundary", {}))
        self.fields: dict[str, np.ndarray] = {}
        self.t = 0.0
        self.solid, self.surface, self.masked = np.zeros(self.shape, bool), None, "mask" in tables
        self.here = Place((0,) * self.ndim, (0,) * self.ndim)
        if "mask" in tables:
            self.solid = np.broadcast_to(self.value(parsed(tables["mask"]["solid"]), self.here) != 0, self.shape)
            surface = tables["mask"].get("surface", "no_flux")
            self.surface = None if surface == "no_flux" else parsed(surface["value"])
        initial = tables.get("initial", {})
        for name in self.rhs:
            values = np.broadcast_to(self.value(parsed(initial.get(name, 0.0)), self.here), self.shape)
            self.fields[name] = np.where(self.solid, 0.0, values)
        self.diagnostics = {k: parsed(v) for k, v in tables.get("diagnostics", {}).items() if k != "every_steps"}

    def read_boundary(self, tables: Mapping[str, Any]) -> None:
        """What holds at both sides of each axis, for each field and for the inner results that are named."""

        def sides(condition: Any) -> tuple[Any, Any]:
            if isinstance(condition, Mapping) and "lower" in condition:
                return condition["lower"], condition["upper"]
            return condition, condition

        axes = AXES[: self.ndim]
        common = {a: tables.get(a, "periodic") for a in axes}
        self.periodic = [common[a] == "periodic" for a in axes]
        self.conditions = {name: [sides({**common, **tables.get(name, {})}[a]) for a in axes] for name in self.rhs}
        self.inner = {}
        for text, condition in tables.get("operators", {}).items():
            of_axis = condition if set(condition) & set(axes) else dict.fromkeys(axes, condition)
            self.inner[ast.dump(parsed(text))] = [sides(of_axis.get(a, NO_FLUX)) for a in axes]

    # ---- expressions -----------------------------------------------------------------------------------------------

    def coordinates(self, place: Place) -> list[np.ndarray]:
        """Along a periodic axis those of the cells that stand for the margin, else the true ones."""
        found = []
        for axis, (n, m, face) in enumerate(zip(self.shape, place.margin, place.position, strict=True)):
            index = np.arange(-m, n + m)
            index = index % n if self.periodic[axis] else index
            x = self.lower[axis] + (index + 0.5 - 0.5 * face) * self.h[axis]
            found.append(x.reshape([-1 if a == axis else 1 for a in range(self.ndim)]))
        return found

    def is_field(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in self.rhs

    def has_fields(self, node: ast.expr) -> bool:
        return any(isinstance(n, ast.Name) and n.id in self.rhs for n in ast.walk(node))

    def value(self, node: ast.expr, place: Place, coordinates: list[np.ndarray] | None = None) -> Any:
        """An expression in the cells of a place, or at coordinates given."""

        def of(child: ast.expr) -> Any:
            return self.value(child, place, coordinates)

        match node:
            case ast.Constant():
                return float(node.value)
            case ast.UnaryOp():
                return -of(node.operand) if isinstance(node.op, ast.USub) else of(node.operand)
            case ast.BinOp():
                return ARITHMETIC[type(node.op)](of(node.left), of(node.right))
            case ast.Compare():
                return COMPARISONS[type(node.ops[0])](of(node.left), of(node.comparators[0])) * 1.0
            case ast.Call():
                name = node.func.id  # type: ignore[attr-defined]
                if name in FUNCTIONS:
                    return FUNCTIONS[name](*map(of, node.args))
                return self.operator(name, node.args, place)
        assert isinstance(node, ast.Name), ast.dump(node)
        return self.named(node.id, place, coordinates)

    def named(self, name: str, place: Place, coordinates: list[np.ndarray] | None) -> Any:
        if name in self.rhs:
            assert not any(place.position), f"{name} does not live there"
            return self.with_ghosts(self.fields[name], self.conditions[name], place.margin)
        if name in self.parameters:
            return self.value(self.parameters[name], place, coordinates)
        if name in AXES:
            return (coordinates or self.coordinates(place))[AXES.index(name)]
        return {"t": self.t, "pi": math.pi}[name]

    # ---- operators -------------------------------------------------------------------------------------------------

    def operator(self, name: str, args: list[ast.expr], place: Place) -> Any:
        first, second = central(self.order, 1), central(self.order, 2)
        axes = range(self.ndim)
        kind, _, letters = name.partition("_")
        if kind in ("difference", "mean", "below", "above"):
            return self.half_cell(kind, AXES.index(letters), args[0], place)
        if name == "laplacian":
            return sum(self.derivative(args[0], place, {a: second}) / self.h[a] ** 2 for a in axes)
        if name == "gradient_squared":
            return sum((self.derivative(args[0], place, {a: first}) / self.h[a]) ** 2 for a in axes)
        if name == "divergence":
            return sum(self.derivative(arg, place, {a: first}) / self.h[a] for a, arg in enumerate(args))
        if name == "div_grad":
            return sum(self.flux_difference(args[0], args[1], a, place) for a in axes)
        if name == "upwind":
            below = biased(self.order)
            above = {-cell: -weight for cell, weight in below.items()}
            total: Any = 0.0
            for a, speed in enumerate(args[1:]):
                v = self.value(speed, place)
                slopes = [self.derivative(args[0], place, {a: s}) / self.h[a] for s in (below, above)]
                total = total + v * np.where(v > 0, *slopes)
            return total
        letters = name.removeprefix("d")
        assert name == "d" + letters and set(letters) <= set(AXES[: self.ndim]), name
        pair = [AXES.index(letter) for letter in letters]
        if len(pair) == 2 and pair[0] == pair[1]:
            return self.derivative(args[0], place, {pair[0]: second}) / self.h[pair[0]] ** 2
        if len(pair) == 2 and self.masked:
            inner = ast.Call(ast.Name(f"d{letters[0]}"), [args[0]], [])  # one axis after the other
            return self.operator(f"d{letters[1]}", [inner], place)
        return self.derivative(args[0], place, dict.fromkeys(pair, first)) / math.prod(self.h[a] for a in pair)

    def derivative(self, node: ast.expr, place: Place, stencils: Mapping[int, Stencil]) -> np.ndarray:
        """Stencils along some axes, one after the other, in cells of width 1."""
        reach = [max(map(abs, stencils[a])) if a in stencils else 0 for a in range(self.ndim)]
        result = self.operand(node, place, reach)
        for axis, stencil in stencils.items():
            result = sum(w * self.neighbour(result, node, axis, cell, reach[axis]) for cell, w in stencil.items())
        return result

    def operand(self, node: ast.expr, place: Place, reach: list[int]) -> np.ndarray:
        """What a derivative is taken of, with ``reach`` more cells around: by its own conditions at walls."""
        margin = tuple(m + r for m, r in zip(place.margin, reach, strict=True))
        wider, shape = replace(place, margin=margin), tuple(n + 2 * m for n, m in zip(self.shape, margin, strict=True))
        if place.beyond or not self.has_fields(node):
            return np.broadcast_to(self.value(node, replace(wider, beyond=True)), shape)
        assert not any(place.margin)
        if self.is_field(node):
            return self.named(node.id, wider, None)
        inner = np.broadcast_to(self.value(node, place), self.shape)
        default = [("periodic",) * 2 if ring else (NO_FLUX, NO_FLUX) for ring in self.periodic]
        given = self.inner.get(ast.dump(node), default)
        return self.with_ghosts(
            inner, [d if ring else g for d, g, ring in zip(default, given, self.periodic, strict=True)], margin
        )

    def neighbour(self, a: np.ndarray, node: ast.expr, axis: int, cell: int, reach: int) -> np.ndarray:
        """The value at an offset in cells, the array narrowed by the reach; beside a solid, its mirror image."""
        cells = a.shape[axis] - 2 * reach
        here, there = along(a, axis, reach, cells), along(a, axis, reach + cell, cells)
        if cell == 0 or not self.solid.any() or not self.has_fields(node):
            return there
        behind = self.behind_surface(here, axis, cell) if self.is_field(node) else here
        return np.where(self.solid_beside(axis, cell), behind, there)

    def half_cell(self, kind: str, axis: int, node: ast.expr, place: Place) -> np.ndarray:
        """The operators that lead half a cell, from centres to faces or back."""
        stencil = {
            "difference": half_way(self.order, 1), "mean": half_way(self.order, 0), "below": {-1: 1.0}, "above": {0: 1.0},
        }[kind]  # fmt: skip
        # Face i is between cells i - 1 and i, cell i between faces i and i + 1.
        offset = 0 if place.position[axis] else 1
        reach = max(abs(cell + offset) for cell in stencil)
        position = tuple(p ^ (a == axis) for a, p in enumerate(place.position))
        wider = replace(place.wider(axis, reach), position=position, beyond=True)
        shape = tuple(n + 2 * m for n, m in zip(self.shape, wider.margin, strict=True))
        a = np.broadcast_to(self.value(node, wider), shape)
        cells = a.shape[axis] - 2 * reach
        total = sum(w * along(a, axis, reach + cell + offset, cells) for cell, w in stencil.items())
        return total / self.h[axis] if kind == "difference" else total

    def flux_difference(self, k: ast.expr, node: ast.expr, axis: int, place: Place) -> np.ndarray:
        """∂/∂x (k ∂a/∂x): k interpolated to the faces, times the difference there; then the difference of the fluxes."""
        slope, mean = half_way(self.order, 1), half_way(self.order, 0)
        half = self.order // 2
        reach = [2 * half - 1 if a == axis else 0 for a in range(self.ndim)]
        across, coefficient = self.operand(node, place, reach), self.operand(k, place, reach)
        if self.solid.any():
            return self.flux_difference_beside_solids(k, node, across, coefficient, axis)
        cells = across.shape[axis] - 2 * reach[axis]
        faces = cells + 2 * half - 1  # face f of these is between cells f + half - 1 and f + half of the widened array
        difference = sum(w * along(across, axis, half + c, faces) for c, w in slope.items())
        flux = difference * sum(w * along(coefficient, axis, half + c, faces) for c, w in mean.items())
        return sum(w * along(flux, axis, half + c, cells) for c, w in slope.items()) / self.h[axis] ** 2

    def flux_difference_beside_solids(
        self, k: ast.expr, node: ast.expr, across: np.ndarray, coefficient: np.ndarray, axis: int
    ) -> np.ndarray:
        """Of order 2: each operand has its own value in a solid neighbour; nothing flows where the surface lets nothing."""
        closed = self.surface is None and (self.has_fields(k) or self.has_fields(node))
        total: Any = 0.0
        for cell in (-1, 1):
            there, here = (self.neighbour(across, node, axis, by, 1) for by in (cell, 0))
            behind, before = (self.neighbour(coefficient, k, axis, by, 1) for by in (cell, 0))
            flux = (there - here) * 0.5 * (behind + before)
            total = total + (np.where(self.solid_beside(axis, cell), 0.0, flux) if closed else flux)
        return total / self.h[axis] ** 2

    # ---- walls and solids ------------------------------------------------------------------------------------------

    def with_ghosts(self, a: np.ndarray, conditions: Any, margin: tuple[int, ...]) -> np.ndarray:
        """Ghost cells along x, then along y in those too, then along z."""
        done = [0] * self.ndim
        for axis, cells in enumerate(margin):
            if self.periodic[axis]:
                n = self.shape[axis]
                a = np.take(a, np.arange(-cells, n + cells) % n, axis)
            else:
                sides = [
                    [self.ghost(a, axis, side, j, conditions[axis][side], done) for j in range(cells)]
                    for side in (0, 1)
                ]
                a = np.concatenate([*sides[0][::-1], a, *sides[1]], axis)
            done[axis] = cells
        return a

    def ghost(self, a: np.ndarray, axis: int, side: int, j: int, condition: Any, done: list[int]) -> np.ndarray:
        """The cell j + 1 behind a wall: with its mirror image, d = (2 j + 1) h away, it fulfils the condition at the wall."""
        n = a.shape[axis]
        mirror = np.take(a, [n - 1 - j if side else j], axis)
        wall = self.coordinates(Place(tuple(done), (0,) * self.ndim))
        wall[axis] = np.full([1] * self.ndim, self.upper[axis] if side else self.lower[axis])

        def number(text: Any) -> Any:
            return self.value(parsed(text), self.here, wall)

        d = (2 * j + 1) * self.h[axis]
        ((kind, value),) = condition.items()
        if kind == "dirichlet":
            return 2 * number(value) - mirror
        if kind == "neumann":
            return mirror + d * number(value)
        assert kind == "robin", kind
        a_, b, r = (number(value[key]) for key in ("a", "b", "value"))
        return (r - (a_ / 2 - b / d) * mirror) / (a_ / 2 + b / d)

    def solid_beside(self, axis: int, cell: int) -> np.ndarray:
        """Where the neighbour below (-1) or above (1) is solid."""
        beside = np.roll(self.solid, -cell, axis)
        if not self.periodic[axis]:
            beside[tuple((0 if cell < 0 else -1) if a == axis else slice(None) for a in range(self.ndim))] = False
        return beside

    def behind_surface(self, a: np.ndarray, axis: int, cell: int) -> np.ndarray:
        """What a solid neighbour stands for: the mirror image, about the value at the face between them where one is given."""
        if self.surface is None:
            return a
        face = self.coordinates(self.here)
        face[axis] = face[axis] + 0.5 * cell * self.h[axis]
        return 2 * self.value(self.surface, self.here, face) - a

    # ---- steps -----------------------------------------------------------------------------------------------------

    def slopes(self, fields: Mapping[str, np.ndarray], t: float) -> dict[str, np.ndarray]:
        """The time derivative of each field; solid cells rest."""
        self.fields, self.t = dict(fields), t
        return {
            name: np.where(self.solid, 0.0, np.broadcast_to(self.value(tree, self.here), self.shape))
            for name, tree in self.rhs.items()
        }

    def run(self) -> dict[str, np.ndarray]:
        """The fields at the end."""
        steps = math.ceil(self.end / self.dt - 1e-9)
        fields, memory = dict(self.fields), {}
        for step in range(steps):
            t = step * self.dt
            dt = self.end - t if step == steps - 1 else self.dt
            fields = METHODS[self.method](self, fields, t, dt, memory)
        self.fields, self.t = fields, self.end
        return fields

    def diagnosed(self) -> dict[str, float]:
        """The diagnostics of the fields as they are now."""
        cell, fluid = math.prod(self.h), ~self.solid
        reductions = {
            "integral": lambda a: a.sum() * cell, "mean": np.mean, "min": np.min, "max": np.max,
        }  # fmt: skip

        def reduced(node: ast.expr) -> ast.expr:
            """The expression with its reductions replaced by their numbers."""

            class Reduce(ast.NodeTransformer):
                def visit_Call(inner, call: ast.Call) -> ast.expr:
                    if call.func.id in reductions:  # type: ignore[attr-defined]
                        a = np.broadcast_to(self.value(call.args[0], self.here), self.shape)
                        return ast.Constant(float(reductions[call.func.id](a[fluid])))  # type: ignore[attr-defined]
                    return inner.generic_visit(call)

            return Reduce().visit(node)

        return {
            name: float(self.value(reduced(ast.parse(ast.unparse(tree), mode="eval").body), self.here))
            for name, tree in self.diagnostics.items()
        }


# ---- methods ---------------------------------------------------------------------------------------------------------

Fields = dict[str, np.ndarray]


def add(*terms: tuple[float, Mapping[str, np.ndarray]]) -> Fields:
    """Σ c u over (c, fields)."""
    return {name: sum(c * fields[name] for c, fields in terms) for name in terms[0][1]}


def runge_kutta(a: list[list[float]], b: list[float]) -> Callable[..., Fields]:
    """The explicit method of a Butcher tableau, c_i = Σ_j a_ij."""

    def step(run: Reference, u: Fields, t: float, dt: float, memory: dict) -> Fields:
        k: list[Fields] = []
        for row in a:
            k.append(run.slopes(add((1.0, u), *((dt * w, s) for w, s in zip(row, k, strict=True))), t + sum(row) * dt))
        return add((1.0, u), *((dt * w, s) for w, s in zip(b, k, strict=True)))

    return step


# M. H. Carpenter & C. A. Kennedy, NASA TM-109112 (1994), table 3 (solution 3): five stages, two registers.
LSRK4_A = [
    0.0, -567301805773 / 1357537059087, -2404267990393 / 2016746695238, -3550918686646 / 2091501179385,
    -1275806237668 / 842570457699,
]  # fmt: skip
LSRK4_B = [
    1432997174477 / 9575080441755, 5161836677717 / 13612068292357, 1720146321549 / 2090206949498,
    3134564353537 / 4481467310338, 2277821191437 / 14882151754819,
]  # fmt: skip
LSRK4_C = [
    0.0, 1432997174477 / 9575080441755, 2526269341429 / 6820363962896, 2006345519317 / 3224310063776,
    2802321613138 / 2924317926251,
]  # fmt: skip


def lsrk4(run: Reference, u: Fields, t: float, dt: float, memory: dict) -> Fields:
    s = {name: np.zeros(run.shape) for name in u}
    for a, b, c in zip(LSRK4_A, LSRK4_B, LSRK4_C, strict=True):
        s = add((a, s), (dt, run.slopes(u, t + c * dt)))
        u = add((1.0, u), (b, s))
    return u


def ab2(run: Reference, u: Fields, t: float, dt: float, memory: dict) -> Fields:
    """u + dt ((3/2 + ε) f - (1/2 + ε) f_before); the first step has the same slope for both."""
    f = run.slopes(u, t)
    before = memory.get("before", f)
    memory["before"] = f
    return add((1.0, u), (dt * (1.5 + run.epsilon), f), (-dt * (0.5 + run.epsilon), before))


def first_group(rhs: Mapping[str, ast.expr]) -> set[str]:
    """Of fields that drive each other the first one, and every second one on the way from it."""
    driving = {a: {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} & set(rhs) for a, tree in rhs.items()}
    first: dict[str, bool] = {}

    def visit(name: str, is_first: bool) -> None:
        if name not in first:
            first[name] = is_first
            for other in rhs:
                if other != name and (other in driving[name] or name in driving[other]):
                    visit(other, not is_first)

    for name in rhs:
        visit(name, True)
    return {name for name in rhs if first[name]}


def leapfrog(run: Reference, u: Fields, t: float, dt: float, memory: dict) -> Fields:
    """Störmer-Verlet: half a step of the first group, a step of the other, half a step; damping - r u is taken implicitly.

    r is how much less the slope is where the field is larger by 1.
    """
    first = first_group(run.rhs)

    def moved(u: Fields, group: set[str], t: float, dt: float) -> Fields:
        f = run.slopes(u, t)
        r = {n: f[n] - run.slopes({**u, n: u[n] + 1.0}, t)[n] for n in group}
        return {n: a + dt * f[n] / (1 + dt / 2 * r[n]) if n in group else a for n, a in u.items()}

    u = moved(u, first, t, dt / 2)
    u = moved(u, set(u) - first, t + dt / 2, dt)
    return moved(u, first, t + dt, dt / 2)


def rkl2(run: Reference, u: Fields, t: float, dt: float, memory: dict) -> Fields:
    """C. D. Meyer, D. S. Balsara & T. D. Aslam, J. Comput. Phys. 257 (2014) 594-626, eqs. (16) to (18)."""
    s = run.stages
    b = [1 / 3, 1 / 3, *((j * j + j - 2) / (2 * j * (j + 1)) for j in range(2, s + 1))]
    a = [1 - x for x in b]
    w = 4 / (s * s + s - 2)
    first = run.slopes(u, t)
    before, now = u, add((1.0, u), (b[1] * w * dt, first))
    c = [0.0, b[1] * w, *((j * j + j - 2) / (s * s + s - 2) for j in range(2, s + 1))]
    for j in range(2, s + 1):
        mu, nu = (2 * j - 1) / j * b[j] / b[j - 1], -(j - 1) / j * b[j] / b[j - 2]
        f = run.slopes(now, t + c[j - 1] * dt)
        before, now = (
            now,
            add((mu, now), (nu, before), (1 - mu - nu, u), (mu * w * dt, f), (-a[j - 1] * mu * w * dt, first)),
        )
    return now


METHODS: dict[str, Callable[..., Fields]] = {
    "euler": runge_kutta([[]], [1.0]),
    "ssprk2": runge_kutta([[], [1.0]], [0.5, 0.5]),  # C.-W. Shu & S. Osher, J. Comput. Phys. 77 (1988) 439-471
    "ssprk3": runge_kutta([[], [1.0], [0.25, 0.25]], [1 / 6, 1 / 6, 2 / 3]),
    "rk4": runge_kutta([[], [0.5], [0.0, 0.5], [0.0, 0.0, 1.0]], [1 / 6, 1 / 3, 1 / 3, 1 / 6]),
    "bs3": runge_kutta([[], [0.5], [0.0, 0.75]], [2 / 9, 1 / 3, 4 / 9]),  # Bogacki & Shampine (1989)
    "dopri5": runge_kutta(  # J. R. Dormand & P. J. Prince, J. Comput. Appl. Math. 6 (1980) 19-26
        [
            [],
            [1 / 5],
            [3 / 40, 9 / 40],
            [44 / 45, -56 / 15, 32 / 9],
            [19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729],
            [9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656],
        ],
        [35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84],
    ),
    "lsrk4": lsrk4,
    "ab2": ab2,
    "leapfrog": leapfrog,
    "rkl2": rkl2,
}
