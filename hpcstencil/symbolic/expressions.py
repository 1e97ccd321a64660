"""The tree of a right-hand side: a few kinds of nodes, built by an equation from symbols or parsed from text.

An equation is written once, as this tree; kernels make array code of it, `tree.radius` says how many ghost cells it
needs. Nothing here knows jax or numpy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, TypeVar, Union, dataclass_transform

Number = int | float
Operand = Union["Node", Number]

# Pointwise functions of the expression language and the number of their arguments.
FUNCTIONS = {
    "where": 3, "abs": 1, "sqrt": 1, "exp": 1, "log": 1, "sin": 1, "cos": 1, "tan": 1, "tanh": 1,
    "minimum": 2, "maximum": 2, "sign": 1,
}  # fmt: skip
REDUCTIONS = ("integral", "mean", "min", "max")


class Node:
    """Base of all nodes: arithmetic on nodes makes nodes."""

    __dataclass_fields__: ClassVar[dict[str, Any]]  # of every concrete node, which `frozen` makes a dataclass
    __array_ufunc__: ClassVar[None] = None  # numpy's functions refuse nodes, and its numbers leave arithmetic to them

    @cached_property
    def children(self) -> tuple[Node, ...]:
        """Direct sub-trees, found once: they are asked for more often than anything else."""
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
    """A frozen dataclass that works its hash out once: parts of a tree are shared, and would be visited as often as they
    are used."""
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
    """An unknown of the equation, by name. ``beyond``: it is used beyond walls too, in its ghost cells. `staggering.located`
    says that of fields and operators inside the operand of a `Halfway`."""

    name: str
    beyond: bool = False


@frozen
class Parameter(Node):
    """A number that is handed to the compiled code at run time, so that a sweep does not compile again."""

    name: str


@frozen
class Coordinate(Node):
    """Cell centre along an axis."""

    axis: int


@frozen
class Time(Node):
    """The time of the integrator's stage."""


@frozen
class Noise(Node):
    """Uniform noise on [-1, 1) that depends on the seed, the stream and the global cell index alone."""

    seed: int
    stream: int = 0


@frozen
class Pointwise(Node):
    """A function of the values in one cell: arithmetic, comparison or one of FUNCTIONS."""

    function: str
    arguments: tuple[Node, ...]


@frozen
class Derivative(Node):
    """A partial derivative of ``operand``: ``orders`` per axis; ``bias`` -1 or +1 leans a first derivative to one side;
    ``beyond`` as in `Field`."""

    operand: Node
    orders: tuple[int, ...]
    bias: int = 0
    beyond: bool = False


@frozen
class DivGrad(Node):
    """One axis of the conservative form d/dx (coefficient * d/dx operand); ``beyond`` as in `Field`."""

    coefficient: Node
    operand: Node
    axis: int
    beyond: bool = False


@frozen
class Halfway(Node):
    """What lies half a cell from ``operand`` along an axis: its ``kind`` is a difference (the first derivative), a mean
    (interpolation), or the value "below" or "above" as it is. It leads ``onto`` the lower "faces" of cells or back onto
    their "centres"; `staggering.located` finds out which. ``beyond`` as in `Field`."""

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


Operator = Derivative | DivGrad | Halfway | Neighbour
OPERATORS = (Derivative, DivGrad, Halfway, Neighbour)  # nodes that look at other cells than their own


@frozen
class Reduction(Node):
    """A number made of the whole grid: integral, mean, min or max of ``operand``; in diagnostics only."""

    kind: str
    operand: Node


def node(value: Operand) -> Node:
    """The value as a node; numbers become constants."""
    return value if isinstance(value, Node) else Constant(float(value))


def total(terms: list[Node]) -> Node:
    """Sum of at least one term, from left to right."""
    result = terms[0]
    for term in terms[1:]:
        result = result + term
    return result


def product(factors: list[Node]) -> Node:
    """Product of at least one factor, from left to right."""
    result = factors[0]
    for factor in factors[1:]:
        result = result * factor
    return result


def walk(tree: Node) -> Iterator[Node]:
    """The node and all nodes below it, parts that are shared by several once: a Laplacian holds its operand up to three
    times, so that written out a nest of them has thousands of times the nodes that there are."""
    seen, pending = set(), [tree]
    while pending:
        part = pending.pop()
        if id(part) not in seen:
            seen.add(id(part))
            yield part
            pending.extend(reversed(part.children))


def bottom_up(tree: Node, leaves: tuple[type[Node], ...] = ()) -> Iterator[Node]:
    """As `walk`, but each node after those below it; nothing below nodes that count as ``leaves``."""
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
    """Nodes of the tree with shared parts written out each time, and its levels."""
    known: dict[int, tuple[int, int]] = {}
    for part in bottom_up(tree):
        below = [known[id(child)] for child in part.children]
        known[id(part)] = 1 + sum(size for size, _ in below), 1 + max((height for _, height in below), default=0)
    return known[id(tree)]


def rebuilt(tree: Node, change: Callable[[Node], Node]) -> Node:
    """The node with what ``change`` makes of each of its direct sub-trees."""
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
    """The tree with each node for which ``change`` returns another replaced by that."""
    changed = change(tree)
    return rebuilt(tree, lambda part: substitute(part, change)) if changed is None else changed


def at_time(tree: Node, time: float) -> Node:
    """The tree at one time."""
    return substitute(tree, lambda part: Constant(time) if isinstance(part, Time) else None)


def on_plane(tree: Node, axis: int, place: float) -> Node:
    """The tree where the coordinate along an axis is ``place``."""
    return substitute(tree, lambda part: Constant(place) if part == Coordinate(axis) else None)


def shared(trees: Mapping[str, Node]) -> dict[str, Node]:
    """The same trees, in which equal parts are one object: then telling that two are equal takes no time."""
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
    """Whether the tree depends on a field (and so has to be exchanged between blocks), not on coordinates alone."""
    return any(isinstance(part, Field) for part in walk(tree))


def has_own_ghosts(operand: Node) -> bool:
    """Whether the ghost cells of an operand follow from a condition of its own; else it is computed in them, of coordinates
    and of fields that have theirs."""
    return varies(operand) and any(isinstance(part, Field | Operator) and not part.beyond for part in walk(operand))
