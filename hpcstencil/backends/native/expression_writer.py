"""Translation of expression trees to C++ statements: the base class of all writers.

The weights of finite differences are integers times a common factor. Weights with equal integers share one multiplication.
Values at opposite offsets are added first, so that symmetric fields stay symmetric.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hpcstencil.backends.backend import Unsupported
from hpcstencil.numerics.finite_differences import Stencil
from hpcstencil.numerics.pointwise import half_integer_power, integer_power
from hpcstencil.symbolic.expressions import (
    Constant,
    Convolution,
    Derivative,
    DivGrad,
    Halfway,
    Neighbour,
    Node,
    Pointwise,
    Samples,
    StepSize,
    Time,
    varies,
)
from hpcstencil.symbolic.stencil_reach import Discretization, constant_along

Offset = tuple[int, int, int]
HERE: Offset = (0, 0, 0)
OPERATORS = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
COMPARISONS = {
    "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=", "equal": "==", "not_equal": "!=",
}  # fmt: skip
MOST_COMMON = 6000  # largest common denominator that is tried for the weights of a stencil


def whole_numbers(weights: Sequence[float]) -> tuple[float, tuple[int, ...]] | None:
    """Return (factor, integers) whose products are the weights; None if they have no small common denominator."""
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
    """The numbers that a program receives at run time.

    Attributes
    ----------
    parameters
        The names of the values in p[], in order.
    sampled
        The names and lengths of time series in p[], in order. They follow the parameters and one number more.
    constants
        The values of c[], in order.
    blocks
        The positions of lists of values in c[].
    furthest
        The largest offset, per axis of the driver, at which a coordinate is read.
    """

    parameters: Sequence[str]
    sampled: Mapping[str, int] = field(default_factory=dict)
    constants: list[float] = field(default_factory=list)
    blocks: dict[tuple[float, ...], int] = field(default_factory=dict)
    furthest: list[int] = field(
        default_factory=lambda: [0, 0, 0]
    )  # largest offset of a coordinate, per axis of the driver

    def constant(self, value: float) -> str:
        """Return the C++ expression for a constant, and add the constant to c[] if it is new."""
        if value not in self.constants:
            self.constants.append(value)
        return f"c[{self.constants.index(value)}]"

    def block(self, values: tuple[float, ...]) -> int:
        """Return the position in c[] of the first of ``values``, which are stored there consecutively."""
        if values not in self.blocks:
            self.blocks[values] = len(self.constants)
            self.constants.extend(values)
        return self.blocks[values]

    def samples_of(self, values: tuple[float, ...] | Samples) -> str:
        """Return the C++ expression for a pointer to the samples of a time series."""
        if not isinstance(values, Samples):
            return f"c + {self.block(values)}"
        names = list(self.sampled)
        before = sum(self.sampled[name] for name in names[: names.index(values.name)])
        return f"p + {len(self.parameters) + 1 + before}"


def changes(tree: Node) -> bool:
    """Return whether the tree depends on time or on the step size."""
    return Time in tree.kinds or StepSize in tree.kinds


def is_flat(axis_of: Sequence[int]) -> bool:
    """Return whether a grid has no second axis of the driver, so that planes are single rows. ``axis_of`` is as in `Writer`."""
    return 1 not in axis_of


@dataclass
class Writer(ABC):
    """Writer of C++ statements that compute expression trees.

    Each value is written once per offset; the statements are collected in ``lines``. Subclasses define `leaf` and
    `literal`.
    """

    numbers: Numbers
    discretization: Discretization
    axis_of: Sequence[int]  # axis of the problem -> axis of the driver
    kind = "W"

    def __post_init__(self) -> None:
        self.lines: list[str] = []
        self.known: dict[tuple[Any, Offset], str] = {}
        self.count = 0

    @abstractmethod
    def leaf(self, tree: Node, at: Offset) -> str | None:
        """Return the C++ expression for a tree whose value at the offset ``at`` is available; None if it must be computed."""

    @abstractmethod
    def literal(self, value: float) -> str:
        """Return the C++ expression for a number in an expression or a stencil."""

    def let(self, text: str) -> str:
        """Write a statement that assigns a C++ expression to a new name, and return the name."""
        name = f"v{self.count}"
        self.count += 1
        self.lines.append(f"const {self.kind} {name} = {text};")
        return name

    def once(self, key: Hashable, at: Offset, make: Callable[[], str]) -> str:
        """Return the C++ name stored under (``key``, ``at``); the first call creates it by ``make``."""
        if (key, at) not in self.known:
            self.known[key, at] = make()
        return self.known[key, at]

    def value(self, tree: Node, at: Offset = HERE) -> str:
        """Return the C++ expression for the value of a tree at the offset ``at``, in cells per axis of the driver."""
        if isinstance(tree, Neighbour):
            (stencil,) = self.discretization.stencils(tree)
            return self.value(tree.operand, self.shifted(at, stencil.offsets[0]))
        return self.once(tree, at, lambda: self.leaf(tree, at) or self.computed(tree, at))

    def shifted(self, at: Offset, offset: Sequence[int]) -> Offset:
        """Return the offset ``at`` (axes of the driver) moved by ``offset`` (axes of the problem)."""
        places = list(at)
        for axis, o in enumerate(offset):
            places[self.axis_of[axis]] += o
        return (places[0], places[1], places[2])

    def computed(self, tree: Node, at: Offset) -> str:
        """Return the C++ expression for a tree that is not a leaf, at the offset ``at``.

        Raises Unsupported for a node that native code does not support.
        """
        match tree:
            case Constant(value):
                return self.literal(value)
            case Pointwise("add" | "subtract" | "negative"):
                return self.sum_of_terms(tree, at)
            case Pointwise():
                return self.let(self.pointwise(tree, at))
            case Derivative() | DivGrad() | Halfway() if constant_along(tree):
                kept = isinstance(tree, Halfway) and tree.kind != "difference"
                return self.value(tree.operand, at) if kept else self.literal(0.0)
            case Derivative() | Halfway() | Convolution():
                (stencil,) = self.discretization.stencils(tree)
                return self.weighted(stencil, tree.operand, at)
            case DivGrad():
                return self.div_grad(tree, at)
        raise Unsupported(f"{type(tree).__name__} has no native code")

    def sum_of_terms(self, tree: Pointwise, at: Offset) -> str:
        """Return the C++ expression for a sum, a difference or a negative value, at the offset ``at``."""
        values = [self.value(argument, at) for argument in tree.arguments]
        if tree.function == "negative":
            return self.let(f"-{values[0]}")
        return self.let(f"{values[0]} {OPERATORS[tree.function]} {values[1]}")

    def pointwise(self, tree: Pointwise, at: Offset) -> str:
        """Return the C++ expression for a function, an arithmetic operation or a comparison, at the offset ``at``."""
        match tree:
            case Pointwise("power", (base, Constant(exponent))) if (n := integer_power(exponent)) is not None:
                return self.power(self.value(base, at), n)
            case Pointwise("power", (base, Constant(exponent))) if (n := half_integer_power(exponent)) is not None:
                root = self.let(f"f_sqrt({self.value(base, at)})")
                root = self.let(f"f_abs({root})") if n % 2 == 0 else root  # the root of -0.0 is -0.0
                product = self.let(f"{self.power(self.value(base, at), abs(n))} * {root}") if n else root
                return product if exponent > 0 else f"one<{self.kind}>() / {product}"
        values = [self.value(argument, at) for argument in tree.arguments]
        if tree.function in OPERATORS:
            return f"{values[0]} {OPERATORS[tree.function]} {values[1]}"
        if tree.function in COMPARISONS:
            condition = f"{values[0]} {COMPARISONS[tree.function]} {values[1]}"
            return f"choose({condition}, one<{self.kind}>(), zero<{self.kind}>())"
        if tree.function == "where":
            return f"choose({values[0]} != zero<{self.kind}>(), {values[1]}, {values[2]})"
        return f"f_{tree.function}({', '.join(values)})"

    def power(self, base: str, n: int) -> str:
        """Return the C++ expression for ``base`` to the power ``n``, by repeated squaring as in `lax.integer_pow`."""
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

    def weighted(self, stencil: Stencil, operand: Node, at: Offset) -> str:
        """Return the C++ expression for Σ_j w_j operand(at + o_j), with weights w_j and offsets o_j of the stencil."""
        if stencil.weights == (1.0,):
            return self.value(operand, self.shifted(at, stencil.offsets[0]))
        whole = whole_numbers(stencil.weights)
        factor, ratios = whole or (1.0, stencil.weights)
        result = self.gathered(dict(zip(stencil.offsets, ratios, strict=True)), operand, at)
        return result if factor == 1.0 else self.let(f"{self.literal(factor)} * {result}")

    def gathered(self, ratios: Mapping[tuple[int, ...], float], operand: Node, at: Offset) -> str:
        """Return the C++ expression for Σ_j r_j operand(at + o_j), where ``ratios`` maps the offsets o_j to r_j.

        Values at opposite offsets are added first, so that symmetric fields stay symmetric. Equal ratios share one
        multiplication. The last product, of the cell itself for a symmetric stencil, is rounded before it is added. The sum
        of the others is rounded alike for a constant, so its ∇² is exactly 0 (order 2; order 4 in up to two dimensions).
        """
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
        for n, (r, parts) in enumerate(sorted(terms.items(), key=lambda item: (abs(item[0]) != 1.0, -len(item[1])))):
            together = self.let(" + ".join(parts).replace("+ -", "- "))
            if abs(r) == 1.0:
                sign = "-" if r == -1.0 else "+" if result else ""
                result = self.let(f"{result} {sign} {together}".strip())
            elif result and n + 1 == len(terms):
                result = self.let(f"{result} + {self.literal(r)} * {together}")
            else:
                result = self.plus_product(result, self.literal(r), together)
        return result

    def plus_product(self, sum_: str, factor: str, value: str) -> str:
        """Return the C++ name of ``sum_`` + ``factor`` · ``value``, rounded once. ``sum_`` may be ""."""
        return self.let(f"fused({factor}, {value}, {sum_})" if sum_ else f"{factor} * {value}")

    def div_grad(self, tree: DivGrad, at: Offset) -> str:
        """Return the C++ expression for ∂(k ∂a/∂x)/∂x along the node's axis, from fluxes at the faces between cells."""
        gradient, mean, divergence = self.discretization.div_grad(tree)
        varying = varies(tree.coefficient) or tree.axis in tree.coefficient.axes

        def flux(place: Offset) -> str:
            coefficient = tree.coefficient
            k = self.weighted(mean, coefficient, place) if varying else self.value(coefficient, at)
            return self.let(f"{k} * {self.weighted(gradient, tree.operand, place)}")

        fluxes: dict[tuple[int, ...], str] = {}
        for offset in divergence.offsets:
            place = self.shifted(at, offset)
            fluxes[offset] = self.once(("flux", tree), place, partial(flux, place))
        factor, ratios = whole_numbers(divergence.weights) or (1.0, divergence.weights)
        terms = [f"{'-' if r < 0 else '+'} {'' if abs(r) == 1 else self.literal(abs(r)) + ' * '}{fluxes[o]}"
                 for o, r in sorted(zip(divergence.offsets, ratios, strict=True), key=lambda pair: -pair[1])]  # fmt: skip
        return self.let(f"{self.literal(factor)} * ({' '.join(terms).removeprefix('+ ')})")
