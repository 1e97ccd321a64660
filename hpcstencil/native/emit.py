"""C++ text of trees: what a pass computes in a cell, from what, and how far it looks.

Sums of derivatives are gathered: stencils of one array with one coefficient become one stencil, whose weights are whole
numbers times a common factor (those of finite differences are rational), so that ∇²1 stays exactly 0; equal weights share
one multiplication, and coefficients are multiplied out once per step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hpcstencil.expressions import (
    FUNCTIONS,
    Constant,
    Coordinate,
    Derivative,
    DivGrad,
    Field,
    Halfway,
    Node,
    Parameter,
    Pointwise,
    Time,
    varies,
    walk,
)
from hpcstencil.mask import Mask
from hpcstencil.pointwise import integer_power
from hpcstencil.radius import Discretization
from hpcstencil.stencil import Stencil

Offset = tuple[int, int, int]
HERE: Offset = (0, 0, 0)
OPERATORS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
COMPARISONS = {
    "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=", "equal": "==", "not_equal": "!=",
}  # fmt: skip
MOST_COMMON = 6000  # largest common denominator that is looked for in the weights of a stencil


class Unsupported(Exception):
    """A sentence that says why there is no native code for a problem."""


def whole_numbers(weights: Sequence[float]) -> tuple[float, tuple[int, ...]] | None:
    """(factor, whole numbers) whose products are the weights; None where they have no small common denominator."""
    least = min(abs(w) for w in weights)
    for q in range(1, MOST_COMMON):
        ratios = [w / least * q for w in weights]
        if all(abs(r - round(r)) < 1e-9 * max(1.0, abs(r)) * q for r in ratios) and all(
            abs(r - round(r)) < 1e-6 for r in ratios
        ):
            return least / q, tuple(round(r) for r in ratios)
        if max(map(abs, ratios)) > 2**24:
            break
    return None


@dataclass
class Numbers:
    """What a program is given when it runs: numbers that expressions hold, parameters in order, and coordinates."""

    parameters: Sequence[str]
    constants: list[float] = field(default_factory=list)
    furthest: int = 0  # how far beyond its own place a function of coordinates looks

    def constant(self, value: float) -> str:
        if value not in self.constants:
            self.constants.append(value)
        return f"c[{self.constants.index(value)}]"


def stencil_of(tree: Derivative | Halfway, discretization: Discretization) -> Stencil:
    return discretization.derivative(tree) if isinstance(tree, Derivative) else discretization.halfway(tree)


def axes_of(tree: Node) -> set[int]:
    """The axes whose coordinates the tree depends on."""
    return {part.axis for part in walk(tree) if isinstance(part, Coordinate)}


def changes(tree: Node) -> bool:
    """Whether the tree depends on time."""
    return any(isinstance(part, Time) for part in walk(tree))


def along(tree: Node) -> tuple[int, ...]:
    """The axes that an operator looks along."""
    if isinstance(tree, Derivative):
        return tuple(axis for axis, m in enumerate(tree.orders) if m)
    assert isinstance(tree, DivGrad | Halfway)
    return (tree.axis,)


@dataclass
class Writer:
    """Statements that compute trees; each is written once per place. Subclasses say where leaves come from."""

    numbers: Numbers
    discretization: Discretization
    axis_of: Sequence[int]  # axis of the problem -> axis of the driver
    kind = "W"

    def __post_init__(self) -> None:
        self.lines: list[str] = []
        self.known: dict[tuple[Any, Offset], str] = {}
        self.count = 0

    def leaf(self, tree: Node, at: Offset) -> str | None:
        """What holds the value of a tree as it is; None where it is to be computed."""
        raise NotImplementedError

    def literal(self, value: float) -> str:
        """A number of an expression or a stencil."""
        raise NotImplementedError

    def let(self, text: str) -> str:
        """A name for the value of a text."""
        name = f"v{self.count}"
        self.count += 1
        self.lines.append(f"const {self.kind} {name} = {text};")
        return name

    def once(self, key: Any, at: Offset, make: Callable[[], str]) -> str:
        """What is known under a key, made the first time."""
        if (key, at) not in self.known:
            self.known[key, at] = make()
        return self.known[key, at]

    def value(self, tree: Node, at: Offset = HERE) -> str:
        """The value of a tree so many cells away."""
        return self.once(tree, at, lambda: self.leaf(tree, at) or self.computed(tree, at))

    def shifted(self, at: Offset, offset: Sequence[int]) -> Offset:
        places = list(at)
        for axis, o in enumerate(offset):
            places[self.axis_of[axis]] += o
        return (places[0], places[1], places[2])

    def computed(self, tree: Node, at: Offset) -> str:
        match tree:
            case Constant(value):
                return self.literal(value)
            case Pointwise("add" | "subtract" | "negative"):
                return self.sum(tree, at)
            case Pointwise():
                return self.let(self.pointwise(tree, at))
            case Derivative() | DivGrad() | Halfway() if self.constant_along(tree):
                kept = isinstance(tree, Halfway) and tree.kind != "difference"
                return self.value(tree.operand, at) if kept else self.literal(0.0)
            case Derivative() | Halfway():
                return self.stencil(tree, at)
            case DivGrad():
                return self.div_grad(tree, at)
        raise Unsupported(f"{type(tree).__name__} has no native code")

    def constant_along(self, tree: Derivative | DivGrad | Halfway) -> bool:
        """Whether what an operator is applied to is the same all along one of its axes."""
        return not varies(tree.operand) and not set(along(tree)) <= axes_of(tree.operand)

    def sum(self, tree: Pointwise, at: Offset) -> str:
        values = [self.value(argument, at) for argument in tree.arguments]
        if tree.function == "negative":
            return self.let(f"-{values[0]}")
        return self.let(f"{values[0]} {OPERATORS[tree.function]} {values[1]}")

    def pointwise(self, tree: Pointwise, at: Offset) -> str:
        match tree:
            case Pointwise("power", (base, Constant(exponent))) if (n := integer_power(exponent)) is not None:
                return self.power(self.value(base, at), n)
        values = [self.value(argument, at) for argument in tree.arguments]
        if tree.function in OPERATORS:
            return f"{values[0]} {OPERATORS[tree.function]} {values[1]}"
        if tree.function in COMPARISONS:
            told = f"{values[0]} {COMPARISONS[tree.function]} {values[1]}"
            return f"choose({told}, one<{self.kind}>(), nil<{self.kind}>())"
        if tree.function == "where":
            return f"choose({values[0]} != nil<{self.kind}>(), {values[1]}, {values[2]})"
        return f"f_{tree.function}({', '.join(values)})"

    def power(self, base: str, n: int) -> str:
        """Repeated squaring, as `lax.integer_pow` does it."""
        if n == 0:
            return f"one<{self.kind}>()"
        result, left = "", abs(n)
        while left:
            if left & 1:
                result = base if not result else self.let(f"{result} * {base}")
            left >>= 1
            if left:
                base = self.let(f"{base} * {base}")
        return result if n > 0 else f"one<{self.kind}>() / {result}"

    def stencil(self, tree: Derivative | Halfway, at: Offset) -> str:
        return self.weighted(stencil_of(tree, self.discretization), tree.operand, at)

    def weighted(self, stencil: Stencil, operand: Node, at: Offset) -> str:
        """Σ_j w_j operand(at + o_j)."""
        if stencil.weights == (1.0,):
            return self.value(operand, self.shifted(at, stencil.offsets[0]))
        whole = whole_numbers(stencil.weights)
        factor, ratios = whole or (1.0, stencil.weights)
        result = self.gathered(dict(zip(stencil.offsets, ratios, strict=True)), operand, at)
        return result if factor == 1.0 else self.let(f"{self.literal(factor)} * {result}")

    def gathered(self, ratios: Mapping[tuple[int, ...], float], operand: Node, at: Offset) -> str:
        """Σ_j r_j operand(at + o_j): opposite offsets first, so that what is symmetric stays so, and equal ratios together."""
        left = dict(sorted(ratios.items()))
        terms: dict[float, list[str]] = {}
        while left:
            offset, r = left.popitem()
            opposite = tuple(-o for o in offset)
            here = self.value(operand, self.shifted(at, offset))
            if left.get(opposite) == r:
                pair = f"({self.value(operand, self.shifted(at, opposite))} + {here})"
                terms.setdefault(r, []).append(pair)
                del left[opposite]
            elif left.get(opposite) == -r:
                pair = f"({here} - {self.value(operand, self.shifted(at, opposite))})"
                terms.setdefault(r, []).append(pair)
                del left[opposite]
            elif -r in terms:
                terms[-r].append(f"-{here}")
            else:
                terms.setdefault(r, []).append(here)
        result = ""
        for r, parts in sorted(terms.items(), key=lambda item: (abs(item[0]) != 1.0, -len(item[1]))):
            together = self.let(" + ".join(parts).replace("+ -", "- "))
            if abs(r) != 1.0:
                together = f"{self.literal(r)} * {together}"
            if not result:
                result = self.let(f"-{together}" if r == -1.0 else together)
            else:
                result = self.let(f"{result} {'-' if r == -1.0 else '+'} {together}")
        return result

    def div_grad(self, tree: DivGrad, at: Offset) -> str:
        gradient, mean, divergence = self.discretization.div_grad(tree)
        varying = varies(tree.coefficient) or tree.axis in axes_of(tree.coefficient)

        def flux(place: Offset) -> str:
            coefficient = tree.coefficient
            k = self.weighted(mean, coefficient, place) if varying else self.value(coefficient, at)
            return self.let(f"{k} * {self.slope(gradient, tree, place)}")

        fluxes: dict[tuple[int, ...], str] = {}
        for offset in divergence.offsets:
            place = self.shifted(at, offset)
            fluxes[offset] = self.once(("flux", tree), place, partial(flux, place))
        factor, ratios = whole_numbers(divergence.weights) or (1.0, divergence.weights)
        terms = [f"{'-' if r < 0 else '+'} {'' if abs(r) == 1 else self.literal(abs(r)) + ' * '}{fluxes[o]}"
                 for o, r in sorted(zip(divergence.offsets, ratios, strict=True), key=lambda pair: -pair[1])]  # fmt: skip
        return self.let(f"{self.literal(factor)} * ({' '.join(terms).removeprefix('+ ')})")

    def slope(self, gradient: Stencil, tree: DivGrad, at: Offset) -> str:
        """The gradient at the upper face of a cell."""
        return self.weighted(gradient, tree.operand, at)


@dataclass
class Scalar(Writer):
    """Values that are the same in all cells, or depend on coordinates alone; ``node`` tells where in the step the time is."""

    node: float = 0.0
    kind = "real"

    def literal(self, value: float) -> str:
        return f"real({self.numbers.constant(value)})"

    def leaf(self, tree: Node, at: Offset) -> str | None:
        match tree:
            case Parameter(name):
                return f"real(p[{self.numbers.parameters.index(name)}])"
            case Time():
                return f"real(time + {self.node!r} * dt)" if self.node else "real(time)"
            case Coordinate(axis):
                a = self.axis_of[axis]
                self.numbers.furthest = max(self.numbers.furthest, abs(at[a]))
                return f"real(coordinates[{a}][index[{a}] + ({at[a]})])"
        return None


@dataclass
class Tables:
    """Functions of one coordinate, worked out once per call."""

    numbers: Numbers
    discretization: Discretization
    axis_of: Sequence[int]
    known: dict[Node, int] = field(default_factory=dict)
    axes: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def index(self, tree: Node, axis: int) -> int:
        """The number of the table that holds a tree."""
        if tree not in self.known:
            code = Scalar(self.numbers, self.discretization, self.axis_of)
            result = code.value(tree)
            self.texts.append(" ".join([*code.lines, f"return {result};"]))
            self.known[tree] = len(self.axes)
            self.axes.append(self.axis_of[axis])
        return self.known[tree]


@dataclass
class Fixed:
    """Functions of several coordinates that take long to work out: arrays that are filled once and kept."""

    numbers: Numbers
    discretization: Discretization
    axis_of: Sequence[int]
    known: dict[Node, int] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)

    def index(self, tree: Node) -> int:
        """The number of the array that holds a tree."""
        if tree not in self.known:
            code = Scalar(self.numbers, self.discretization, self.axis_of)
            result = code.value(tree)
            self.texts.append(" ".join([*code.lines, f"return {result};"]))
            self.known[tree] = len(self.known)
        return self.known[tree]


@dataclass
class Scalars:
    """Numbers worked out once per step, dealt to the passes that use them."""

    numbers: Numbers
    discretization: Discretization
    axis_of: Sequence[int]
    writers: dict[float, Scalar] = field(default_factory=dict)
    entries: list[str] = field(default_factory=list)

    def text(self, tree: Node, node: float) -> str:
        """The value of a tree at so much of the step."""
        if node not in self.writers:
            writer = self.writers[node] = Scalar(self.numbers, self.discretization, self.axis_of, node)
            writer.count = 10000 * len(self.writers)  # all stand in one function
        return self.writers[node].value(tree)

    def lines(self) -> list[str]:
        made = [line for writer in self.writers.values() for line in writer.lines]
        return [*made, *(f"s[{n}] = {text};" for n, text in enumerate(self.entries))]


Term = tuple[tuple[Node, ...], float, str]  # factors that are the same in all cells, a number, and the value in a cell


@dataclass
class Cells(Writer):
    """Statements for the cells of a pass. ``held`` are the trees that arrays hold, by number of the array; ``node`` tells where
    in the step the time is."""

    scalars: Scalars
    tables: Tables
    fixed: Fixed | None  # None where fixed arrays are not at hand
    held: Mapping[Node, int]
    node: float
    mask: Mask | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.head: list[str] = []
        self.row: list[str] = []
        self.own: list[str] = []  # of `Scalars`
        self.planes: dict[tuple[int, int], int] = {}  # (array, offset along the first axis) -> number
        self.reach: dict[int, list[int]] = {}
        self.shared: set[Node] = set()  # trees whose values are wanted for themselves too

    def literal(self, value: float) -> str:
        return self.scalar((), value)

    def scalar(self, factors: tuple[Node, ...], number: float, scale: str = "") -> str:
        """The product of numbers that are the same in all cells; ``scale`` is a text."""

        def make() -> str:
            if not factors and not scale:
                text = f"real({self.numbers.constant(number)})"
            else:
                values = [f"double({self.scalars.text(factor, self.node)})" for factor in factors]
                values += [] if number == 1.0 else [self.numbers.constant(number)]
                text = f"real({' * '.join([*values, *([scale] if scale else [])])})"
            self.own.append(text)
            return self.hoisted(self.head, f"splat<W>(q.s[{len(self.own) - 1}])")

        return self.once(("scalar", factors, number, scale), HERE, make)

    def hoisted(self, lines: list[str], text: str) -> str:
        name = f"h{self.count}"
        self.count += 1
        lines.append(f"const W {name} = {text};")
        return name

    def leaf(self, tree: Node, at: Offset) -> str | None:
        if tree in self.held:
            return self.loaded_once(self.held[tree], at)
        if isinstance(tree, Field):
            raise AssertionError(f"{tree.name} is in no array")
        if varies(tree):
            return None
        axes = axes_of(tree)
        if not axes:
            return self.scalar((tree,), 1.0)
        if len(axes) == 1 and not changes(tree):
            (axis,) = axes
            number, a = self.tables.index(tree, axis), self.axis_of[axis]
            place = f"q.table[{number}]"
            texts = f"q.i + {at[0]}", f"j + {at[1]}", f"x + {at[2]}"
            alone = (at[0] * (a == 0), at[1] * (a == 1), at[2] * (a == 2))
            if a == 2:
                return self.once(("table", number), alone, lambda: self.let(f"load<W>({place} + {texts[2]})"))
            lines = self.row if a else self.head
            text = f"splat<W>({place}[{texts[a]}])"
            return self.once(("table", number), alone, lambda: self.hoisted(lines, text))
        if self.fixed is not None and len(axes) > 1 and not changes(tree) and takes_long(tree):
            return self.looked_up(-1 - self.fixed.index(tree), at)
        return None

    def loaded(self, array: int, at: Offset) -> str:
        """The value that an array holds."""
        reach = self.reach.setdefault(array, [0, 0, 0])
        for a in range(3):
            reach[a] = max(reach[a], abs(at[a] - (self.jammed if a == 1 else 0)))
        return self.looked_up(array, at)

    def looked_up(self, array: int, at: Offset) -> str:
        """The value in an array, or, where its number is negative, in a fixed one."""
        plane = self.planes.setdefault((array, at[0]), len(self.planes))
        row = self.once(
            ("row", plane), (0, at[1], 0), lambda: self.pointer(f"in[{plane}].p + (j + {at[1]}) * in[{plane}].pitch")
        )
        return self.let(f"load<W>({row} + x + {at[2]})")

    def loaded_once(self, array: int, at: Offset) -> str:
        """As `loaded`, written once."""
        return self.once(("array", array), at, lambda: self.loaded(array, at))

    def shares(self, tree: Node) -> bool:
        """Whether the value of a tree is known already, or used elsewhere in this pass."""
        return tree in self.shared

    jammed = 0  # which of the rows that are computed together is being written

    def pointer(self, text: str) -> str:
        name = f"r{self.count}"
        self.count += 1
        self.row.append(f"const real* const {name} = {text};")
        return name

    # ---- beside solid cells; what is there says `mask` ----

    def solid(self, at: Offset) -> str:
        """Whether a cell is solid, as a condition."""
        assert self.mask is not None
        return f"{self.value(self.mask.solid, at)} != nil<W>()"

    def surface(self, operand: Node, at: Offset) -> str | None:
        """The value that an operand has on the surface of the solid; None for no flux."""
        if self.mask is None or self.mask.value is None or not isinstance(operand, Field):
            return None
        return self.value(self.mask.value, at)

    def stencil(self, tree: Derivative | Halfway, at: Offset) -> str:
        if self.mask is None or not varies(tree.operand):
            return super().stencil(tree, at)
        stencil = stencil_of(tree, self.discretization)
        here, surface = self.value(tree.operand, at), self.surface(tree.operand, at)
        mirrored = here if surface is None else self.let(f"{self.literal(2.0)} * {surface} - {here}")
        result = ""
        for offset, weight in zip(stencil.offsets, stencil.weights, strict=True):
            there = here
            if any(offset):
                place = self.shifted(at, offset)
                there = f"choose({self.solid(place)}, {mirrored}, {self.value(tree.operand, place)})"
            term = f"{self.literal(weight)} * {there}"
            result = self.let(f"{result} + {term}" if result else term)
        return result

    def slope(self, gradient: Stencil, tree: DivGrad, at: Offset) -> str:
        plain = super().slope(gradient, tree, at)
        if self.mask is None:
            return plain
        upper = self.shifted(at, [int(axis == tree.axis) for axis in range(len(self.axis_of))])
        below, above, surface = self.solid(at), self.solid(upper), self.surface(tree.operand, at)
        to_above = to_below = self.literal(0.0)
        if surface is not None:
            step = self.literal(2.0 / self.discretization.spacing[tree.axis])
            to_above = self.let(f"{step} * ({surface} - {self.value(tree.operand, at)})")
            to_below = self.let(f"{step} * ({self.value(tree.operand, upper)} - {surface})")
        return self.let(f"choose({above}, {to_above}, choose({below}, {to_below}, {plain}))")

    # ---- sums ----

    def sum(self, tree: Pointwise, at: Offset) -> str:
        return self.added("", self.terms(tree, at))

    def added(self, first: str, terms: Sequence[Term], scale: str = "") -> str:
        """first + Σ scale factors number value."""
        result = first
        for factors, number, value in terms:
            if not factors and number in (1.0, -1.0) and not scale:
                text = value if number == 1.0 else f"-{value}"
            else:
                text = f"{self.scalar(factors, number, scale)} * {value}"
            result = self.let(f"{result} + {text}".replace("+ -", "- ") if result else text)
        return result

    def terms(self, tree: Node, at: Offset) -> list[Term]:
        """A tree as a sum; derivatives of one array with one coefficient are gathered to one stencil."""
        stencils: dict[tuple[tuple[Node, ...], float, Node], dict[tuple[int, ...], float]] = {}
        result: list[Term] = []
        for factors, number, part in flattened(tree):
            whole = None
            plain = self.mask is None and part not in self.held
            if plain and isinstance(part, Derivative | Halfway) and varies(part.operand):
                stencil = stencil_of(part, self.discretization)
                whole = whole_numbers(stencil.weights)
            if whole is None or not isinstance(part, Derivative | Halfway):
                result.append((factors, number, self.value(part, at)))
                continue
            base, ratios = whole
            sign = -1.0 if number < 0 else 1.0
            sums = stencils.setdefault((factors, abs(number) * base, part.operand), {})
            for offset, r in zip(stencil.offsets, ratios, strict=True):
                sums[offset] = sums.get(offset, 0) + sign * r
        for (factors, number, operand), sums in stencils.items():
            left = {offset: r for offset, r in sums.items() if r}
            if left:
                result.append((factors, number, self.gathered(left, operand, at)))
        return result or [((), 1.0, self.literal(0.0))]


def takes_long(tree: Node) -> bool:
    """Whether a tree of coordinates is better looked up than worked out for each cell and step."""
    parts = [part for part in walk(tree) if isinstance(part, Pointwise)]
    return len(parts) > 6 or any(part.function in FUNCTIONS for part in parts)


def is_scalar(tree: Node) -> bool:
    """Whether the tree has one value for all cells."""
    return not any(isinstance(part, Field | Coordinate) for part in walk(tree))


def flattened(tree: Node) -> list[tuple[tuple[Node, ...], float, Node]]:
    """The terms of a sum: factors that are the same in all cells, a number, and the rest."""
    match tree:
        case Pointwise("add", (a, b)):
            return flattened(a) + flattened(b)
        case Pointwise("subtract", (a, b)):
            return flattened(a) + [(f, -n, part) for f, n, part in flattened(b)]
        case Pointwise("negative", (a,)):
            return [(f, -n, part) for f, n, part in flattened(a)]
        case Pointwise("multiply", (a, b)) if is_scalar(a) != is_scalar(b):
            scalar, rest = (a, b) if is_scalar(a) else (b, a)
            return [times(scalar, f, n, part) for f, n, part in flattened(rest)]
        case Pointwise("divide", (a, b)) if is_scalar(b) and not is_scalar(a):
            return [((*f, Constant(1.0) / b), n, part) for f, n, part in flattened(a)]
    return [((), 1.0, tree)]


def times(scalar: Node, factors: tuple[Node, ...], number: float, part: Node) -> tuple[tuple[Node, ...], float, Node]:
    """A term multiplied by one more scalar."""
    if isinstance(scalar, Constant):
        return factors, number * scalar.value, part
    return (*factors, scalar), number, part
