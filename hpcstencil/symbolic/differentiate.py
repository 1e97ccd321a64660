"""Symbolic differentiation of trees of coordinates, time and parameters, by the chain rule.

It provides the source terms of manufactured solutions: substituting a chosen solution into an equation gives the source
for which this solution is exact (P. Roache, "Code verification by the method of manufactured solutions", J. Fluids Eng.
124 (2002) 4-10).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from hpcstencil.numerics.finite_differences import UNROLLED, is_large
from hpcstencil.symbolic.expressions import (
    Constant,
    Convolution,
    Coordinate,
    Derivative,
    DivGrad,
    Field,
    Halfway,
    Node,
    Parameter,
    Pointwise,
    Series,
    Time,
    bottom_up,
    is_parameter_field,
    node,
    substitute,
    total,
)
from hpcstencil.validation.errors import InputError

ZERO, ONE = Constant(0.0), Constant(1.0)
PIECEWISE_CONSTANT = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal", "sign")


def where(condition: Node, a: Node, b: Node) -> Node:
    """The tree of where(condition, a, b), simplified if both branches are equal."""
    return a if a == b else Pointwise("where", (condition, a, b))


# Rules by function name: (f, its arguments, the derivatives of the arguments) -> the derivative of f
RULES: dict[str, Callable[[Node, tuple[Node, ...], tuple[Node, ...]], Node]] = {
    "add": lambda f, x, d: plus(d[0], d[1]),
    "subtract": lambda f, x, d: plus(d[0], times(Constant(-1.0), d[1])),
    "multiply": lambda f, x, d: plus(times(d[0], x[1]), times(x[0], d[1])),
    "divide": lambda f, x, d: _quotient(f, x, d),
    "negative": lambda f, x, d: times(Constant(-1.0), d[0]),
    "power": lambda f, x, d: _power(f, x, d),
    "sqrt": lambda f, x, d: over(d[0], times(Constant(2.0), f)),
    "exp": lambda f, x, d: times(f, d[0]),
    "log": lambda f, x, d: over(d[0], x[0]),
    "sin": lambda f, x, d: times(Pointwise("cos", (x[0],)), d[0]),
    "cos": lambda f, x, d: times(Constant(-1.0), times(Pointwise("sin", (x[0],)), d[0])),
    "tan": lambda f, x, d: times(plus(ONE, times(f, f)), d[0]),
    "tanh": lambda f, x, d: times(plus(ONE, times(Constant(-1.0), times(f, f))), d[0]),
    "abs": lambda f, x, d: times(Pointwise("sign", (x[0],)), d[0]),
    "where": lambda f, x, d: where(x[0], d[1], d[2]),
    "minimum": lambda f, x, d: where(Pointwise("less", x), d[0], d[1]),
    "maximum": lambda f, x, d: where(Pointwise("less", x), d[1], d[0]),
    **dict.fromkeys(PIECEWISE_CONSTANT, lambda f, x, d: ZERO),
}


def _quotient(f: Node, x: tuple[Node, ...], d: tuple[Node, ...]) -> Node:
    """The derivative of a quotient; that of 1/b is a product, rounded alike everywhere (`linear_damping.damped`)."""
    if x[0] == ONE:
        return times(Constant(-1.0), times(times(f, f), d[1]))
    return over(plus(d[0], times(Constant(-1.0), times(f, d[1]))), x[1])


def plus(a: Node, b: Node) -> Node:
    """The sum a + b, simplified if either term is the constant 0."""
    return b if a == ZERO else a if b == ZERO else a + b


def times(a: Node, b: Node) -> Node:
    """The product a·b, simplified if either factor is the constant 0 or 1."""
    if ZERO in (a, b):
        return ZERO
    return b if a == ONE else a if b == ONE else a * b


def over(a: Node, b: Node) -> Node:
    """The quotient a / b, simplified if a is the constant 0 or b the constant 1."""
    return ZERO if a == ZERO else a if b == ONE else a / b


def _power(f: Node, x: tuple[Node, ...], d: tuple[Node, ...]) -> Node:
    """The derivative of f = base ** exponent, given both with their derivatives. By the exponent, it is 0 where f is 0."""
    base, exponent = x
    slope = times(times(exponent, base ** (exponent - 1.0)), d[0])
    if isinstance(exponent, Constant):
        power = base if exponent.value == 2.0 else base ** Constant(exponent.value - 1.0)
        slope = times(times(exponent, power), d[0])
    by_exponent = Pointwise("where", (Pointwise("equal", (f, ZERO)), ZERO, f * Pointwise("log", (base,))))
    return plus(slope, times(by_exponent, d[1]))


def derivative(tree: Node, variable: Node) -> Node:
    """The partial derivative ∂tree/∂variable, where ``variable`` is a `Coordinate` or `Time`.

    Parameters are constants. The tree must contain neither operators nor fields, except that ∂/∂t accepts fields of
    parameters (`parameter_field`), which are constant in time.
    """
    known: dict[Node, Node] = {}
    for part in bottom_up(tree):
        if isinstance(part, Pointwise):
            slopes = tuple(known[argument] for argument in part.arguments)
            known[part] = RULES[part.function](part, part.arguments, slopes) if set(slopes) != {ZERO} else ZERO
        elif isinstance(part, Series):
            known[part] = times(replace(part, slope=True), known[part.operand])
        else:
            assert isinstance(part, Constant | Coordinate | Parameter | Time) or (
                is_parameter_field(part) and variable == Time()
            ), part
            known[part] = ONE if part == variable else ZERO
    return known[tree]


def exact(tree: Node, fields: Mapping[str, Node], spacing: Sequence[float] = ()) -> Node:
    """Substitute known solutions for the fields of a tree, and apply its differential operators exactly.

    ``fields`` maps each field to a tree of coordinates and time. The result is again such a tree. ``spacing`` is the
    cell width per axis; it is needed for user-defined stencils and on staggered grids, where values on faces are
    expressed by the coordinates of the centre of the cell with the same index.

    Raises InputError for nodes without a closed form, such as reductions and noise, and for user-defined stencils with
    more than UNROLLED weights.
    """
    known: dict[Node, Node] = {}
    for part in bottom_up(tree):
        match part:
            case Field(name):
                known[part] = fields[name]
            case Pointwise(function, arguments):
                known[part] = Pointwise(function, tuple(known[a] for a in arguments))
            case Derivative(operand, orders):
                known[part] = _repeated(known[operand], orders)
            case Halfway(operand, axis, kind):
                here = derivative(known[operand], Coordinate(axis)) if kind == "difference" else known[operand]
                half = spacing[axis] / 2 * (1 if part.onto == "centres" else -1)
                known[part] = substitute(here, partial(_moved, axis=axis, by=half))
            case Convolution(operand, name, stencil):
                if is_large(stencil):
                    raise InputError(
                        f"verify: not available yet with equation.stencils.{name}, which has more than {UNROLLED} "
                        "weights; try a smaller one"
                    )
                pairs = zip(stencil.offsets, stencil.weights, strict=True)
                known[part] = total([times(Constant(w), _away(known[operand], o, spacing)) for o, w in pairs])
            case DivGrad(coefficient, operand, axis):
                variable = Coordinate(axis)
                flux = times(known[coefficient], derivative(known[operand], variable))
                known[part] = derivative(flux, variable)
            case Constant() | Coordinate() | Parameter() | Time() | Series():
                known[part] = part
            case _:
                raise InputError(f"{type(part).__name__.lower()}: there is no derivative of it in closed form")
    return known[tree]


def _moved(part: Node, axis: int, by: float) -> Node | None:
    """The coordinate along ``axis`` shifted by a distance, or None for other nodes; for `substitute`."""
    return part + by if part == Coordinate(axis) else None


def _away(tree: Node, offset: Sequence[int], spacing: Sequence[float]) -> Node:
    """The tree with its coordinates shifted by ``offset`` cells per axis."""
    for axis, (o, dx) in enumerate(zip(offset, spacing, strict=True)):
        if o:
            tree = substitute(tree, partial(_moved, axis=axis, by=o * dx))
    return tree


def _repeated(tree: Node, orders: tuple[int, ...]) -> Node:
    """The tree differentiated ``orders[axis]`` times along each axis."""
    for axis, count in enumerate(orders):
        for _ in range(count):
            tree = derivative(tree, Coordinate(axis))
    return tree


def mode(amplitude: float, phases: list[Node]) -> Node:
    """Build the tree amplitude · cos(phase_1) · cos(phase_2) ..."""
    result: Node = node(amplitude)
    for phase in phases:
        result = result * Pointwise("cos", (phase,))
    return result


def residual(tree: Node, solution: Node, fields: Mapping[str, Node], spacing: Sequence[float]) -> Node:
    """The source with which ``solution`` solves ∂u/∂t = tree + source: ∂(solution)/∂t minus the exact ``tree``.

    ``fields`` maps every field, u included, to its exact solution. Raises the same errors as `exact`.
    """
    return total([derivative(solution, Time()), times(Constant(-1.0), exact(tree, fields, spacing))])
