"""Expression trees, the symbolic form of right-hand sides, initial states, boundary values and diagnostics.

A tree is built by the methods of an equation or parsed from text. Each backend translates it to array code or generated
code, and `stencil_reach` determines how many ghost cells it needs. This module uses neither JAX nor NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Any, ClassVar, TypeVar, Union, dataclass_transform

from hpcstencil.numerics.finite_differences import Stencil

Number = int | float
Operand = Union["Node", Number]

# Pointwise functions of the expression language and the number of their arguments.
FUNCTIONS = {
    "where": 3, "abs": 1, "sqrt": 1, "exp": 1, "log": 1, "sin": 1, "cos": 1, "tan": 1, "tanh": 1,
    "minimum": 2, "maximum": 2, "sign": 1,
}  # fmt: skip
SUM = "sum"  # the kind of a `Reduction` over receivers and their samples, in an objective


class Node:
    """The base class of all nodes of a tree.

    Arithmetic and comparisons of nodes and numbers return nodes. A node has no value yet: bool() and float() raise
    TypeError.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]  # set on every concrete node by `frozen`, which makes it a dataclass
    __array_ufunc__: ClassVar[None] = (
        None  # numpy's functions reject nodes, and its scalars leave arithmetic to the node
    )

    @cached_property
    def children(self) -> tuple[Node, ...]:
        """The direct sub-trees, from left to right. They are cached, since traversals read them often."""
        found: list[Node] = []
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, Node):
                found.append(value)
            elif isinstance(value, tuple):
                found.extend(item for item in value if isinstance(item, Node))
        return tuple(found)

    @cached_property
    def kinds(self) -> frozenset[type[Node]]:
        """The classes of the nodes in the tree."""
        return frozenset((type(self),)).union(*map(attrgetter("kinds"), self.children))

    @cached_property
    def axes(self) -> frozenset[int]:
        """The axes whose coordinates the tree depends on."""
        own = (self.axis,) if isinstance(self, Coordinate) else ()
        return frozenset(own).union(*map(attrgetter("axes"), self.children))

    @cached_property
    def field_nodes(self) -> tuple[Field, ...]:
        """The different nodes of fields in the tree, in a fixed order."""
        own = (self,) if isinstance(self, Field) else ()
        return tuple(dict.fromkeys(chain(own, *map(attrgetter("field_nodes"), self.children))))

    @cached_property
    def field_names(self) -> frozenset[str]:
        """The names of the fields that the tree depends on."""
        own = (self.name,) if isinstance(self, Field) else ()
        return frozenset(own).union(*map(attrgetter("field_names"), self.children))

    @cached_property
    def depths(self) -> dict[Any, tuple[int, ...]]:
        """What `Discretization.depth` has found for the tree, by its other arguments."""
        return {}

    @cached_property
    def apart(self) -> tuple[Any, ...]:
        """The values of the node's fields, with None in the place of each sub-tree."""

        def without(value: Any) -> Any:
            if isinstance(value, tuple) and any(isinstance(item, Node) for item in value):
                return tuple(map(without, value))
            return None if isinstance(value, Node) else value

        return tuple(without(getattr(self, name)) for name in self.__dataclass_fields__)

    # The text, the hash and equality depend on the whole tree. Sub-trees are shared, so each is written, hashed and compared
    # once, however often it is used.

    def __repr__(self) -> str:
        return as_text((self,))

    @cached_property
    def _hash(self) -> int:
        return hash((type(self), self.apart, self.children))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        """Whether two trees are equal. Equal nodes remember one of them as ``_same``, and are not compared again."""
        found, seen, pending = list[tuple[Node, Node]](), set[tuple[int, int]](), [(self, other)]
        while pending:
            a, b = pending.pop()
            if not isinstance(b, Node) or type(a) is not type(b):
                return False
            first, second = a.__dict__.get("_same", a), b.__dict__.get("_same", b)
            if first is second or (id(first), id(second)) in seen:
                continue
            if hash(a) != hash(b) or a.apart != b.apart:
                return False
            seen.add((id(first), id(second)))
            found.append((a, b))
            pending.extend(zip(a.children, b.children, strict=True))
        for a, b in found:
            b.__dict__["_same"] = a.__dict__.get("_same", a)
        return True

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
        raise TypeError("cannot convert a symbolic expression to a float")

    def __neg__(self) -> Node:
        return Pointwise("negative", (self,))


N = TypeVar("N", bound=Node)


@dataclass_transform(frozen_default=True, eq_default=False)
def frozen(cls: type[N]) -> type[N]:
    """Decorator that turns a class of nodes into a frozen dataclass, which is compared and written as a `Node`."""
    return dataclass(frozen=True, eq=False, repr=False)(cls)


@frozen
class Constant(Node):
    """A literal number. Unlike the value of a `Parameter`, it is part of the compiled code."""

    value: float


@frozen
class Field(Node):
    """A field of the equation, by name: one value per cell.

    With ``beyond``, the field is also evaluated in the ghost cells outside non-periodic boundaries, for use by an
    operator around it. `staggering.located` sets this on the fields and operators inside the operand of a `Halfway`.
    """

    name: str
    beyond: bool = False


PARAMETER_FIELD = "parameter."  # begins the name of a field that holds a parameter; user-defined names contain no dot


def parameter_field(name: str) -> Field:
    """The field that holds a parameter with one value per cell, from a file or an array. It lives at cell centres and is
    constant in time."""
    return Field(PARAMETER_FIELD + name)


def data_field(name: str) -> Field:
    """The field that holds data of the objective, such as a target. It lives at cell centres."""
    return Field(f"data.{name}")


def samples_field(name: str) -> Field:
    """The name that stands for the samples of the table ``name`` of [probes] in an objective: one value per receiver."""
    return Field(f"probes.{name}")


def is_parameter_field(part: Node) -> bool:
    """Whether a node is a field made by `parameter_field`."""
    return isinstance(part, Field) and part.name.startswith(PARAMETER_FIELD)


@frozen
class Parameter(Node):
    """A scalar parameter of the equation. Its value is passed to compiled code at run time, so that another value needs
    no recompilation."""

    name: str


@frozen
class Coordinate(Node):
    """The coordinate of the cell centre along an axis, in the length unit of the input."""

    axis: int


@frozen
class Time(Node):
    """The time at which the tree is evaluated. In a right-hand side it is the time of the integrator stage."""


@frozen
class StepSize(Node):
    """The size dt of the time step. It occurs only in the slopes of a method that takes damping implicitly."""


@dataclass(frozen=True)
class Samples:
    """Samples of a time series that are passed to compiled code at run time: the parameter ``name``, float64 of shape
    (count,)."""

    name: str
    count: int

    def __len__(self) -> int:
        return self.count


@frozen
class Series(Node):
    """A time-dependent parameter, interpolated linearly between the samples ``values`` at times 0, dt, 2 dt, ...

    It is evaluated at the time ``operand`` and is 0 before the first and after the last sample. With ``slope``, the
    node is the derivative of this piecewise linear function.
    """

    operand: Node
    values: tuple[float, ...] | Samples
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
    """A function applied cell by cell: an arithmetic operation, a comparison, or one of FUNCTIONS."""

    function: str
    arguments: tuple[Node, ...]


@frozen
class Derivative(Node):
    """A partial derivative of ``operand``.

    ``orders`` is the order of differentiation per axis: (1, 1) is ∂²/∂x∂y. A ``bias`` of -1 or +1 selects an upwind
    stencil for a first derivative, shifted to the lower or upper side; 0 is the central stencil. ``beyond`` is as in
    `Field`.
    """

    operand: Node
    orders: tuple[int, ...]
    bias: int = 0
    beyond: bool = False


@frozen
class DivGrad(Node):
    """One term of ∇·(k ∇a), in conservative form: ∂/∂x (coefficient · ∂operand/∂x) along ``axis``. ``beyond`` is as in
    `Field`."""

    coefficient: Node
    operand: Node
    axis: int
    beyond: bool = False


@frozen
class Halfway(Node):
    """A value of ``operand`` half a cell away along ``axis``: at faces for an operand at centres, and vice versa.

    ``kind`` is "difference" for the first derivative, "mean" for interpolation, and "below" or "above" for the value of
    the neighbour on that side. ``onto`` is the target, the lower "faces" of cells or their "centres". It is "" until
    `staggering.located` sets it. ``beyond`` is as in `Field`.
    """

    operand: Node
    axis: int
    kind: str
    onto: str = ""
    beyond: bool = False


HALFWAY = ("difference", "mean", "below", "above")


@frozen
class Neighbour(Node):
    """The value of ``operand`` in the adjacent cell along ``axis``, below (``side`` -1) or above (+1). ``beyond`` is as
    in `Field`."""

    operand: Node
    axis: int
    side: int
    beyond: bool = False


@frozen
class Convolution(Node):
    """A user-defined stencil applied to ``operand``: Σ_j w_j operand(x + o_j).

    ``stencil`` holds the weights w_j and the offsets o_j, in cells, and ``name`` is its key in [equation.stencils].
    ``beyond`` is as in `Field`.
    """

    operand: Node
    name: str
    stencil: Stencil
    beyond: bool = False


Operator = Derivative | DivGrad | Halfway | Neighbour | Convolution
OPERATORS = (Derivative, DivGrad, Halfway, Neighbour, Convolution)  # nodes that read neighbouring cells


@frozen
class Reduction(Node):
    """A reduction of ``operand`` over the whole grid to one number, used in diagnostics. ``kind`` is a key of
    `reduction_kinds.REDUCTIONS`, or SUM."""

    kind: str
    operand: Node


def node(value: Operand) -> Node:
    """Convert a number to a `Constant`; return a node unchanged."""
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
    """Yield the nodes of a tree from the top down, and each shared node once.

    The Laplacian contains its operand up to three times, so visiting shared nodes at every use would take a time
    exponential in the depth of nesting.
    """
    seen, pending = set(), [tree]
    while pending:
        part = pending.pop()
        if id(part) not in seen:
            seen.add(id(part))
            yield part
            pending.extend(reversed(part.children))


def bottom_up(tree: Node, leaves: tuple[type[Node], ...] = ()) -> Iterator[Node]:
    """Yield the nodes of a tree, each after the nodes below it, and each shared node once.

    Nodes of the types ``leaves`` are yielded, possibly several times, but nodes below them are not visited.
    """
    seen, pending = set(), [(tree, False)]
    while pending:
        part, ready = pending.pop()
        if ready or isinstance(part, leaves):
            yield part
        elif id(part) not in seen:
            seen.add(id(part))
            pending.append((part, True))
            pending.extend((child, False) for child in reversed(part.children))


def as_text(trees: Iterable[Node]) -> str:
    """Return a text that determines the trees, with a line for each distinct node, however often it is used."""
    numbers, lines = dict[Node, int](), list[str]()
    for tree in trees:
        for part in bottom_up(tree):
            if part not in numbers:
                numbers[part] = len(numbers)
                lines.append(f"{type(part).__name__} {part.apart} {[numbers[child] for child in part.children]}")
        lines.append(f"tree {numbers[tree]}")
    return "\n".join(lines)


def size_and_height(tree: Node) -> tuple[int, int]:
    """(number of nodes, number of levels) of the tree. A shared node counts once per use."""
    known: dict[int, tuple[int, int]] = {}
    for part in bottom_up(tree):
        below = [known[id(child)] for child in part.children]
        known[id(part)] = 1 + sum(size for size, _ in below), 1 + max((height for _, height in below), default=0)
    return known[id(tree)]


def rebuilt(tree: Node, change: Callable[[Node], Node]) -> Node:
    """A copy of the top node of the tree, with each direct sub-tree replaced by ``change(sub-tree)``."""
    values = {}
    for name in tree.__dataclass_fields__:
        value = getattr(tree, name)
        if isinstance(value, Node):
            value = change(value)
        elif isinstance(value, tuple):
            value = tuple(change(item) if isinstance(item, Node) else item for item in value)
        values[name] = value
    return type(tree)(**values)


def substitute(tree: Node, change: Callable[[Node], Node | None]) -> Node:
    """Replace nodes of a tree, from the top down.

    A node for which ``change(node)`` is not None is replaced by that result, which is not searched further. Other nodes
    are kept, and their sub-trees are searched in turn.
    """
    changed = change(tree)
    return rebuilt(tree, lambda part: substitute(part, change)) if changed is None else changed


def at_time(tree: Node, time: float) -> Node:
    """The tree with `Time` replaced by the constant ``time``."""
    return substitute(tree, lambda part: Constant(time) if isinstance(part, Time) else None)


def on_plane(tree: Node, axis: int, place: float) -> Node:
    """The tree with the coordinate along ``axis`` replaced by the constant ``place``."""
    return substitute(tree, lambda part: Constant(place) if part == Coordinate(axis) else None)


def shared(trees: Mapping[str, Node]) -> dict[str, Node]:
    """The same trees, with equal sub-trees of all of them merged into one object, which makes comparisons fast."""
    one: dict[tuple[Any, ...], Node] = {}
    made: dict[int, Node] = {}

    def mark(value: Any) -> Any:
        return tuple(map(mark, value)) if isinstance(value, tuple) else id(value) if isinstance(value, Node) else value

    for tree in trees.values():
        for part in bottom_up(tree):
            new = rebuilt(part, lambda child: made[id(child)])
            key = (type(new), *(mark(getattr(new, name)) for name in new.__dataclass_fields__))
            made[id(part)] = one.setdefault(key, new)
    return {name: made[id(tree)] for name, tree in trees.items()}


def varies(tree: Node) -> bool:
    """Whether the tree depends on a field.

    If not, it can be computed in any cell from coordinates and time, and its ghost cells need no exchange.
    """
    return Field in tree.kinds


def has_own_ghosts(operand: Node) -> bool:
    """Whether the ghost cells of an operand are filled by a boundary condition of the operand itself.

    Otherwise the operand is evaluated in the ghost cells, from coordinates and from the ghost cells of its fields.
    """
    return varies(operand) and any(isinstance(part, Field | Operator) and not part.beyond for part in walk(operand))
