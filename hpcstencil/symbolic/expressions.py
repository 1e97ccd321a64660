"""The expression tree of a right-hand side: a few kinds of nodes, built by an equation from symbols or parsed from
text.

An equation is written once, as this tree. Kernels turn it into array code, and `stencil_reach` finds how many ghost
cells it needs. This module uses neither jax nor numpy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, TypeVar, Union, dataclass_transform

from hpcstencil.numerics.finite_differences import Stencil

Number = int | float
Operand = Union["Node", Number]

# Pointwise functions of the expression language and the number of their arguments.
FUNCTIONS = {
    "where": 3, "abs": 1, "sqrt": 1, "exp": 1, "log": 1, "sin": 1, "cos": 1, "tan": 1, "tanh": 1,
    "minimum": 2, "maximum": 2, "sign": 1,
}  # fmt: skip
REDUCTIONS = ("integral", "mean", "min", "max")


class Node:
    """The base class of all nodes. Arithmetic and comparisons of nodes make nodes; nodes have no truth value and no
    numeric value."""

    __dataclass_fields__: ClassVar[dict[str, Any]]  # set on every concrete node by `frozen`, which makes it a dataclass
    __array_ufunc__: ClassVar[None] = (
        None  # numpy's functions reject nodes, and its scalars leave arithmetic to the node
    )

    @cached_property
    def children(self) -> tuple[Node, ...]:
        """The direct sub-trees. They are cached because they are read more often than anything else."""
        found: list[Node] = []
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Node):
                found.append(value)
            elif isinstance(value, tuple):
                found.extend(item for item in value if isinstance(item, Node))
        return tuple(found)

    def __add__(self, other: Operand) -> Node:
        return Pointwise("add", (self, node(other)))

    def __radd__(self, other: Operand) -> Node:
        return Pointwise("add", (node(other), self))

    def __sub__(self, other: Operand) -> Node:
        return Pointwise("subtract", (self, node(other)))

    def __rsub__(self, other: Operand) -> Node:
        return Pointwise("subtract", (node(other), self))

    def __mul__(self, other: Operand) -> Node:
        return Pointwise("multiply", (self, node(other)))

    def __rmul__(self, other: Operand) -> Node:
        return Pointwise("multiply", (node(other), self))

    def __truediv__(self, other: Operand) -> Node:
        return Pointwise("divide", (self, node(other)))

    def __rtruediv__(self, other: Operand) -> Node:
        return Pointwise("divide", (node(other), self))

    def __pow__(self, other: Operand) -> Node:
        return Pointwise("power", (self, node(other)))

    def __rpow__(self, other: Operand) -> Node:
        return Pointwise("power", (node(other), self))

    def __lt__(self, other: Operand) -> Node:
        return Pointwise("less", (self, node(other)))

    def __le__(self, other: Operand) -> Node:
        return Pointwise("less_equal", (self, node(other)))

    def __gt__(self, other: Operand) -> Node:
        return Pointwise("greater", (self, node(other)))

    def __ge__(self, other: Operand) -> Node:
        return Pointwise("greater_equal", (self, node(other)))

    def __bool__(self) -> bool:
        raise TypeError("an expression has no truth value yet; choose with where(condition, a, b)")

    def __float__(self) -> float:
        raise TypeError("an expression is no number yet")

    def __neg__(self) -> Node:
        return Pointwise("negative", (self,))


N = TypeVar("N", bound=Node)


@dataclass_transform(frozen_default=True)
def frozen(cls: type[N]) -> type[N]:
    """Make a class of nodes a frozen dataclass that caches its hash. Parts of a tree are shared; without the cache each
    would be hashed once per use."""
    made = dataclass(frozen=True)(cls)
    first = made.__hash__

    def remembered(self: object) -> int:
        known = self.__dict__.get("_hash")
        if known is None:
            known = self.__dict__["_hash"] = first(self)
        return int(known)

    made.__hash__ = remembered  # type: ignore[method-assign]  # of a class that is not in use yet
    return made


@frozen
class Constant(Node):
    """A number written in the equation."""

    value: float


@frozen
class Field(Node):
    """An unknown of the equation, by name. ``beyond`` says that its ghost cells beyond walls are used too.
    `staggering.located` sets it for fields and operators inside the operand of a `Halfway`."""

    name: str
    beyond: bool = False


PARAMETER_FIELD = "parameter."  # begins the name of a field that holds a parameter; user-defined names contain no dot


def parameter_field(name: str) -> Field:
    """The field that holds the parameter ``name``, read from a file, one number per cell. It lives at cell centres and
    never changes."""
    return Field(PARAMETER_FIELD + name)


def is_parameter_field(part: Node) -> bool:
    """Whether a node is a `parameter_field`."""
    return isinstance(part, Field) and part.name.startswith(PARAMETER_FIELD)


@frozen
class Parameter(Node):
    """A number of the equation that is passed to compiled code at run time, so that a sweep does not recompile."""

    name: str


@frozen
class Coordinate(Node):
    """The coordinate of the cell centre along an axis, in the input's unit of length."""

    axis: int


@frozen
class Time(Node):
    """The time at which the tree is evaluated; in a right-hand side that is the time of the integrator's stage."""


@frozen
class Series(Node):
    """A number that follows time, given by the samples ``values`` at 0, dt, 2 dt, ... It is interpolated linearly at
    ``operand``, a function of time, and is 0 before the first and after the last sample. With ``slope`` the node is the
    time derivative of this function."""

    operand: Node
    values: tuple[float, ...]
    dt: float
    slope: bool = False


@frozen
class Noise(Node):
    """Uniform noise on [-1, 1), different in each cell. It depends only on the seed, the stream and the global cell
    index (`cell_noise`)."""

    seed: int
    stream: int = 0


@frozen
class Pointwise(Node):
    """A function of the values in one cell: arithmetic, comparison or one of FUNCTIONS."""

    function: str
    arguments: tuple[Node, ...]


@frozen
class Derivative(Node):
    """A partial derivative of ``operand``. ``orders`` has the order of the derivative along each axis. ``bias`` (-1 or
    +1) shifts the stencil of a first derivative to one side. ``beyond`` as in `Field`."""

    operand: Node
    orders: tuple[int, ...]
    bias: int = 0
    beyond: bool = False


@frozen
class DivGrad(Node):
    """One term of ∇·(k ∇a) in conservative form: ∂/∂x (coefficient ∂operand/∂x) along ``axis``; ``beyond`` as in
    `Field`."""

    coefficient: Node
    operand: Node
    axis: int
    beyond: bool = False


@frozen
class Halfway(Node):
    """A value half a cell from where ``operand`` lives, along an axis. ``kind`` is "difference" (the first derivative),
    "mean" (interpolation), or "below" or "above" for that neighbour's unchanged value. ``onto`` is the target: the
    lower "faces" of cells, or their "centres" again; `staggering.located` determines it. ``beyond`` as in `Field`."""

    operand: Node
    axis: int
    kind: str
    onto: str = ""
    beyond: bool = False


HALFWAY = ("difference", "mean", "below", "above")


@frozen
class Neighbour(Node):
    """The value of ``operand`` in the next cell along an axis, below (``side`` -1) or above (+1); ``beyond`` as in `Field`."""

    operand: Node
    axis: int
    side: int
    beyond: bool = False


@frozen
class Convolution(Node):
    """Σ_j w_j operand(x + o_j) with the stencil ``name`` of [equation.stencils]; ``beyond`` as in `Field`."""

    operand: Node
    name: str
    stencil: Stencil
    beyond: bool = False


Operator = Derivative | DivGrad | Halfway | Neighbour | Convolution
OPERATORS = (Derivative, DivGrad, Halfway, Neighbour, Convolution)  # nodes that read other cells than their own


@frozen
class Reduction(Node):
    """A single number computed from the whole grid: "integral", "mean", "min" or "max" (``kind``) of ``operand``. Only
    diagnostics use it."""

    kind: str
    operand: Node


def node(value: Operand) -> Node:
    """The value as a node; numbers become constants."""
    return value if isinstance(value, Node) else Constant(float(value))


def total(terms: list[Node]) -> Node:
    """Sum of one or more terms, from left to right."""
    result = terms[0]
    for term in terms[1:]:
        result = result + term
    return result


def product(factors: list[Node]) -> Node:
    """Product of one or more factors, from left to right."""
    result = factors[0]
    for factor in factors[1:]:
        result = result * factor
    return result


def walk(tree: Node) -> Iterator[Node]:
    """The tree's nodes, from the top down, with each shared part once. A Laplacian holds its operand up to three times,
    so nested Laplacians would otherwise give thousands of times as many nodes."""
    seen, pending = set(), [tree]
    while pending:
        part = pending.pop()
        if id(part) not in seen:
            seen.add(id(part))
            yield part
            pending.extend(reversed(part.children))


def bottom_up(tree: Node, leaves: tuple[type[Node], ...] = ()) -> Iterator[Node]:
    """The tree's nodes as in `walk`, but with each node after the nodes below it. Nodes of the types ``leaves`` are not
    entered."""
    seen, pending = set(), [(tree, False)]
    while pending:
        part, ready = pending.pop()
        if ready or isinstance(part, leaves):
            yield part
        elif id(part) not in seen:
            seen.add(id(part))
            pending.append((part, True))
            pending.extend((child, False) for child in reversed(part.children))


def size_and_height(tree: Node) -> tuple[int, int]:
    """(number of nodes, number of levels) of the tree, with shared parts counted at every use."""
    known: dict[int, tuple[int, int]] = {}
    for part in bottom_up(tree):
        below = [known[id(child)] for child in part.children]
        known[id(part)] = 1 + sum(size for size, _ in below), 1 + max((height for _, height in below), default=0)
    return known[id(tree)]


def rebuilt(tree: Node, change: Callable[[Node], Node]) -> Node:
    """The top node of the tree, with each direct sub-tree replaced by ``change(sub-tree)``."""
    values = {}
    for field in fields(tree):
        value = getattr(tree, field.name)
        if isinstance(value, Node):
            value = change(value)
        elif isinstance(value, tuple):
            value = tuple(change(item) if isinstance(item, Node) else item for item in value)
        values[field.name] = value
    return type(tree)(**values)


def substitute(tree: Node, change: Callable[[Node], Node | None]) -> Node:
    """The tree with each part replaced by ``change(part)``; a part for which that is None is kept, and its sub-trees
    are treated likewise."""
    changed = change(tree)
    return rebuilt(tree, lambda part: substitute(part, change)) if changed is None else changed


def at_time(tree: Node, time: float) -> Node:
    """The tree with the constant ``time`` in place of `Time`."""
    return substitute(tree, lambda part: Constant(time) if isinstance(part, Time) else None)


def on_plane(tree: Node, axis: int, place: float) -> Node:
    """The tree with the constant ``place`` in place of the coordinate along ``axis``."""
    return substitute(tree, lambda part: Constant(place) if part == Coordinate(axis) else None)


def shared(trees: Mapping[str, Node]) -> dict[str, Node]:
    """The same trees by name, with equal parts merged into one object, so that comparing them is fast."""
    one: dict[tuple[Any, ...], Node] = {}
    made: dict[int, Node] = {}

    def mark(value: Any) -> Any:
        return tuple(map(mark, value)) if isinstance(value, tuple) else id(value) if isinstance(value, Node) else value

    for tree in trees.values():
        for part in bottom_up(tree):
            new = rebuilt(part, lambda child: made[id(child)])
            key = (type(new), *(mark(getattr(new, field.name)) for field in fields(new)))
            made[id(part)] = one.setdefault(key, new)
    return {name: made[id(tree)] for name, tree in trees.items()}


def varies(tree: Node) -> bool:
    """Whether the tree depends on a field. If it does, its ghost cells come from other blocks; otherwise it can be
    computed anywhere from coordinates and time."""
    return any(isinstance(part, Field) for part in walk(tree))


def has_own_ghosts(operand: Node) -> bool:
    """Whether the operand's ghost cells follow from a boundary condition of its own. Otherwise the operand is evaluated
    in the ghost cells, from coordinates and from fields that have such conditions."""
    return varies(operand) and any(isinstance(part, Field | Operator) and not part.beyond for part in walk(operand))
