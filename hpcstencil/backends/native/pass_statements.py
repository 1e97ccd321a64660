"""C++ statements for the cells of a pass, and a record of the cells that they read.

Stencils of the same array with the same coefficient are merged into one stencil, in integers times a common factor, so that
∇²1 is exactly 0. Products of coefficients are computed once per step.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from hpcstencil.backends.native.expression_writer import HERE, Offset, Writer, changes, is_flat, whole_numbers
from hpcstencil.backends.native.scalars import Functions, Scalars
from hpcstencil.backends.native.zero_regions import NONE_ABSENT, Absent
from hpcstencil.numerics.finite_differences import Stencil, is_large
from hpcstencil.symbolic.expressions import (
    FUNCTIONS,
    Constant,
    Convolution,
    Coordinate,
    Derivative,
    Field,
    Halfway,
    Neighbour,
    Node,
    Pointwise,
    varies,
    walk,
)
from hpcstencil.symbolic.zero_regions import vanishes

# Names stored under these keys are valid everywhere in a step.
FOR_ALL = ("array", "row", "pitch", "slide", "table", "scalar")
# What a statement computes with, besides numbers: values, or cells of rows and tables.
OPERANDS = re.compile(r"\b(?:[vhrsw]\d+|[xj]|in|q)\b")
OF_STEP = -1000  # and below: the arrays that each step has of its own, as in program.hpp
FEW_TABLES = 8  # functions of one coordinate that are combined in each cell, and not stored for all cells
FURTHEST = 7  # largest offset, in cells, at which a sliding vector can be read in both precisions
Row = tuple[int, int, int]  # an array, and the offsets of a plane and a row
Term = tuple[tuple[Node, ...], float, str]  # (factors that are the same in all cells, a number, the value in a cell)


@dataclass(frozen=True, eq=False)
class Scope:
    """The context in which a cell's statements are written.

    Attributes
    ----------
    held
        The numbers of the arrays that hold values of trees, by tree.
    node
        The time within the step, as a fraction of dt.
    shared
        Trees whose values are results themselves, besides being terms of others.
    deep
        The trees in ``held`` whose arrays are computed beyond the boundary. Sums load them as a whole.
    renamed
        For a part of the next step, the arrays that replace its own.
    plane
        Which of the planes that are computed together.
    """

    held: Mapping[Node, int]
    node: float
    shared: Collection[Node] = ()
    deep: Collection[Node] = ()
    renamed: Mapping[int, int] = field(default_factory=dict)
    plane: int = 0


@dataclass
class Reads:
    """A record of the cells that statements read.

    Attributes
    ----------
    planes
        The number of each plane, which is given by (array, offset along the first axis).
    reach
        The largest distance of a read along each axis, by array.
    corners
        The arrays that are read along several axes at once.
    along
        For each row, the offsets that are read along the last axis.
    """

    planes: dict[tuple[int, int], int] = field(default_factory=dict)
    reach: dict[int, list[int]] = field(default_factory=dict)
    corners: set[int] = field(default_factory=set)
    along: dict[Row, set[int]] = field(default_factory=dict)

    def plane(self, array: int, offset: int) -> int:
        """Return the number of the plane of ``array`` at ``offset`` along the first axis; a new plane gets the next number."""
        return self.planes.setdefault((array, offset), len(self.planes))

    def note(self, array: int, away: list[int]) -> None:
        """Record a read of an array, ``away`` cells from the current cell along each axis."""
        self.reach[array] = list(map(max, away, self.reach.get(array, away)))
        if sum(map(bool, away)) > 1:
            self.corners.add(array)


@dataclass
class Cells(Writer):
    """Writer of the statements for the cells of a pass, one ``scope`` after the other.

    With ``by_pitch``, rows are addressed by their distance from one row of the plane, which needs fewer registers. Rows in
    ``slides`` are read by sliding vectors (vector.hpp). Fields and arrays that are ``absent`` count as 0: statements that
    compute with nothing else run before the loop over cells. The arithmetic is the same, down to the signs of zeros.
    """

    scalars: Scalars
    tables: Functions
    fixed: Functions | None  # None where fixed arrays are not available
    scope: Scope
    by_pitch: bool = False  # rows are found by their distance from one of their plane
    slides: Collection[Row] = ()  # rows whose vectors slide, see vector.hpp
    absent: Absent = NONE_ABSENT
    replayed: Sequence[str] = ()  # fields in arrays of each step
    replayed_in_half: bool = False  # whether these arrays are in half precision, see half.hpp

    def __post_init__(self) -> None:
        super().__post_init__()
        self.head: list[str] = []
        self.row: list[str] = []
        self.own: list[str] = []  # of `Scalars`
        self.sliding: list[str] = []
        self.reads = Reads()
        self.made: dict[tuple[int, Offset], str] = {}  # values of arrays that this pass computes
        self.everywhere: set[str] = set()  # names of values that are the same in all cells

    def turn_to(self, scope: Scope) -> None:
        """Make ``scope`` the context of the following statements."""
        self.scope = scope
        self.known = {
            (key, at): name for (key, at), name in self.known.items() if isinstance(key, tuple) and key[0] in FOR_ALL
        }

    def literal(self, value: float) -> str:
        return self.scalar((), value)

    def scalar(self, factors: tuple[Node, ...], number: float, scale: str = "") -> str:
        """Return the C++ expression for the product of ``factors``, ``number`` and ``scale``, the same in all cells.

        ``scale`` is a factor as C++ text, or "".
        """

        def make() -> str:
            if not factors and not scale:
                text = f"real({self.numbers.constant(number)})"
            else:
                values = [f"double({self.scalars.text(factor, self.scope.node)})" for factor in factors]
                values += [] if number == 1.0 else [self.numbers.constant(number)]
                text = f"real({' * '.join([*values, *([scale] if scale else [])])})"
            self.own.append(text)
            later = " + SCALARS + 1" if self.scope.renamed else ""
            return self.hoisted(self.head, f"splat<W>(q.s[{len(self.own) - 1}{later}])")

        return self.once(("scalar", factors, number, scale, self.scope.node, bool(self.scope.renamed)), HERE, make)

    def hoisted(self, lines: list[str], text: str) -> str:
        """Assign ``text`` to a new name in ``lines``, which run before the loop over cells, and return the name."""
        name = f"h{self.count}"
        self.count += 1
        lines.append(f"const W {name} = {text};")
        if lines is self.head:
            self.everywhere.add(name)
        return name

    def let(self, text: str) -> str:
        if self.absent.arrays and set(OPERANDS.findall(text)) <= self.everywhere:
            return self.hoisted(self.head, text)
        return super().let(text)

    def nothing(self) -> str:
        """Return the C++ name of a vector of zeros."""
        return self.once(("scalar", "nothing"), HERE, lambda: self.hoisted(self.head, "zero<W>()"))

    def leaf(self, tree: Node, at: Offset) -> str | None:
        if tree in self.scope.held:
            return self.loaded(self.scope.held[tree], at)
        if isinstance(tree, Field):
            assert tree.name in self.replayed and at[1:] == (0, 0), f"{tree.name} is in no array"
            number = OF_STEP - self.replayed.index(tree.name)
            return self.once(("array", number), at, lambda: self.looked_up(number, at))
        if varies(tree):
            product = isinstance(tree, Pointwise) and tree.function == "multiply"
            return self.nothing() if product and self.absent.fields and vanishes(tree, self.absent.fields) else None
        axes = tree.axes
        if not axes:
            return self.scalar((tree,), 1.0)
        if is_tabulated(tree):
            (axis,) = axes
            number, a = self.tables.index(tree), self.axis_of[axis]
            place = f"q.table[{number}]"
            flat = is_flat(self.axis_of)  # the rows of a call may be planes
            texts = f"q.i{' + j * q.planes' * flat} + {at[0]}", f"j * q.rows + {at[1]}", f"x + {at[2]}"
            alone = (at[0] * (a == 0), at[1] * (a == 1), at[2] * (a == 2))
            if a == 2:
                return self.once(("table", number), alone, lambda: self.let(f"load<W>({place} + {texts[2]})"))
            lines = self.row if a or flat else self.head
            text = f"splat<W>({place}[{texts[a]}])"
            return self.once(("table", number), alone, lambda: self.hoisted(lines, text))
        if self.fixed is not None and len(axes) > 1 and not changes(tree) and is_fixed(tree):
            return self.looked_up(-1 - self.fixed.index(tree), at)
        return None

    def loaded(self, array: int, at: Offset) -> str:
        """Return the C++ expression for the value of an array at the offset ``at``, and record the read."""
        if array in self.absent.arrays:
            return self.nothing()
        array = self.scope.renamed.get(array, array)
        if (array, at) in self.made:
            return self.made[array, at]
        self.reads.note(array, [abs(at[0] - self.scope.plane), abs(at[1]), abs(at[2])])
        return self.once(("array", array), at, lambda: self.looked_up(array, at))

    def looked_up(self, array: int, at: Offset) -> str:
        """Return the C++ expression that loads an array at the offset ``at``; negative numbers are fixed arrays, and those from
        `OF_STEP` down arrays of a step."""
        plane, row = self.reads.plane(array, at[0]), self.row_of(array, at)
        this = (array, at[0], at[1])
        if array >= 0 and 0 < abs(at[2]) <= FURTHEST:
            self.reads.along.setdefault(this, set()).add(at[2])
        if this in self.slides and abs(at[2]) <= FURTHEST:
            slide = self.once(("slide", plane), (0, at[1], 0), lambda: self.slide(row))
            return self.let(f"{slide}.at<{at[2]}>()")
        return self.let(f"load<W>({row} + x + {at[2]})")

    def row_of(self, array: int, at: Offset) -> str:
        """Return the C++ expression for the address of the row of an array at the offset ``at`` along the first two axes."""
        plane = self.reads.plane(array, at[0])
        j, near = (0, at[1]) if self.by_pitch else (at[1], 0)
        number = f"(j + {j} * q.rows)" if j else "j"  # the pitch is negative if rows go down
        half = array <= OF_STEP and self.replayed_in_half
        kind, first = ("half*", f"(half*)in[{plane}].p") if half else ("real*", f"in[{plane}].p")
        row = self.once(
            ("row", plane),
            (0, j, 0),
            lambda: self.of_row(f"{kind} const", f"{first} + {number} * in[{plane}].pitch"),
        )
        if near:
            pitch = self.once(("pitch", array), HERE, lambda: self.of_row("long", f"in[{plane}].pitch * q.rows"))
            row += f" {'+' if near > 0 else '-'} {pitch if abs(near) == 1 else f'{pitch} * {abs(near)}'}"
        return row

    def slide(self, row: str) -> str:
        """Declare a sliding vector (`Sliding` in vector.hpp) along the row with this C++ name, and return its name."""
        name = f"s{self.count}"
        self.count += 1
        self.row.append(f"Sliding {name}({row}, x0);")
        self.sliding.append(name)
        return name

    def of_row(self, kind: str, text: str) -> str:
        """Assign ``text`` to a new name of the C++ type ``kind``, once per row, and return the name."""
        name = f"r{self.count}"
        self.count += 1
        self.row.append(f"const {kind} {name} = {text};")
        return name

    # ---- sums ----

    def in_loops(self, stencil: Stencil, operand: Node) -> bool:
        """Return whether a stencil is summed by loops: a large stencil whose operand is in an array."""
        return is_large(stencil) and operand in self.scope.held

    def weighted(self, stencil: Stencil, operand: Node, at: Offset) -> str:
        if not self.in_loops(stencil, operand):
            return super().weighted(stencil, operand, at)
        return self.looped(stencil, self.scope.held[operand], at)

    def looped(self, stencil: Stencil, array: int, at: Offset) -> str:
        """Return the C++ expression for Σ_j w_j array(at + o_j), with a loop for each run of weights along the last axis."""
        if array in self.absent.arrays:
            return self.nothing()
        array = self.scope.renamed.get(array, array)
        places = sorted((self.shifted(at, o), w) for o, w in zip(stencil.offsets, stencil.weights, strict=True))
        weights = self.once(("table", stencil), HERE, lambda: self.listed([w for _, w in places]))
        result, first = "", 0
        for n, (place, _) in enumerate(places, 1):
            self.reads.note(array, [abs(place[0] - self.scope.plane), abs(place[1]), abs(place[2])])
            if n < len(places) and places[n][0] == (place[0], place[1], place[2] + 1):
                continue
            row = f"{self.row_of(array, place)} + x + {places[first][0][2]}"
            text = f"convolved<W>({weights} + {first}, {n - first}, {row})"
            result, first = self.let(f"{result} + {text}" if result else text), n
        return result

    def listed(self, numbers: Sequence[float]) -> str:
        """Declare a constant C++ array of ``numbers`` and return its name."""
        name = f"w{self.count}"
        self.count += 1
        self.head.append(f"static const real {name}[] = {{{', '.join(map(repr, numbers))}}};")
        return name

    def sum_of_terms(self, tree: Pointwise, at: Offset) -> str:
        """Return the C++ expression for a sum or difference, with the stencils of linear operators merged."""
        return self.added("", self.terms(tree, at))

    def added(self, first: str, terms: Sequence[Term], scale: str = "") -> str:
        """Return the C++ expression for first + Σ scale · factors · number · value over the ``terms``; ``first`` may be ""."""
        result = first
        for factors, number, value in terms:
            if not factors and number in (1.0, -1.0) and not scale:
                text = value if number == 1.0 else f"-{value}"
                result = self.let(f"{result} + {text}".replace("+ -", "- ") if result else text)
            else:
                result = self.plus_product(result, self.scalar(factors, number, scale), value)
        return result

    def terms(self, tree: Node, at: Offset) -> list[Term]:
        """Return the terms whose sum is the tree, at the offset ``at``.

        Derivatives of the same operand with the same coefficient are merged into one stencil.
        """
        stencils: dict[tuple[tuple[Node, ...], float, Node], dict[tuple[int, ...], float]] = {}
        result: list[Term] = []
        for factors, number, part in flattened(tree, self.scope.deep):
            whole = None
            if (
                part not in self.scope.held
                and isinstance(part, Derivative | Halfway | Convolution)
                and varies(part.operand)
            ):
                (stencil,) = self.discretization.stencils(part)
                whole = None if self.in_loops(stencil, part.operand) else whole_numbers(stencil.weights)
            if whole is None or not isinstance(part, Derivative | Halfway | Convolution):
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


def is_fixed(tree: Node) -> bool:
    """Return whether a function of coordinates is stored because it is too expensive to compute in each cell and step.

    A tree that reads neighbours is not stored as a whole; its parts may be. Sums and products of a few functions of one
    coordinate each, such as a point source or a sponge, are not stored either: the functions are in tables, and loading an
    array takes longer than combining them.
    """
    if Neighbour in tree.kinds or is_combined(tree):
        return False
    if any(isinstance(part, Convolution) and is_large(part.stencil) for part in walk(tree)):
        return True
    parts = [part for part in walk(tree) if isinstance(part, Pointwise)]
    return len(parts) > 6 or any(part.function in FUNCTIONS for part in parts)


def is_combined(tree: Node) -> bool:
    """Return whether a tree consists of sums and products of at most `FEW_TABLES` functions of one coordinate, or numbers."""
    pending, count = [tree], 0
    while pending and count <= FEW_TABLES:
        part = pending.pop()
        if len(part.axes) <= 1:
            count += 1
        elif isinstance(part, Pointwise) and part.function in ("add", "subtract", "multiply"):
            pending += part.arguments
        else:
            return False
    return count <= FEW_TABLES


def is_tabulated(tree: Node) -> bool:
    """Return whether the tree is a function of one coordinate alone: its values are in a table."""
    return Coordinate in tree.kinds and not varies(tree) and len(tree.axes) == 1 and not changes(tree)


def is_scalar(tree: Node) -> bool:
    """Return whether the tree has the same value in all cells."""
    return tree.kinds.isdisjoint((Field, Coordinate))


def flattened(tree: Node, whole: Collection[Node] = ()) -> list[tuple[tuple[Node, ...], float, Node]]:
    """Return the terms whose sum is the tree, each as (factors, number, rest).

    A term is the product of all three; its factors have the same value in all cells. A tree that is not a sum is a single
    term. Sums inside the tree that are in ``whole``, and functions of one coordinate, are single terms, too.
    """

    def within(part: Node) -> list[tuple[tuple[Node, ...], float, Node]]:
        return [((), 1.0, part)] if part in whole else flattened(part, whole)

    if is_tabulated(tree):
        return [((), 1.0, tree)]
    match tree:
        case Pointwise("add", (a, b)):
            return within(a) + within(b)
        case Pointwise("subtract", (a, b)):
            return within(a) + [(f, -n, part) for f, n, part in within(b)]
        case Pointwise("negative", (a,)):
            return [(f, -n, part) for f, n, part in within(a)]
        case Pointwise("multiply", (a, b)) if is_scalar(a) != is_scalar(b):
            scalar, rest = (a, b) if is_scalar(a) else (b, a)
            return [times(scalar, f, n, part) for f, n, part in within(rest)]
        case Pointwise("divide", (a, b)) if is_scalar(b) and not is_scalar(a):
            return [((*f, Constant(1.0) / b), n, part) for f, n, part in within(a)]
    return [((), 1.0, tree)]


def times(scalar: Node, factors: tuple[Node, ...], number: float, part: Node) -> tuple[tuple[Node, ...], float, Node]:
    """Return the term (factors, number, part) multiplied by one more scalar."""
    if isinstance(scalar, Constant):
        return factors, number * scalar.value, part
    return (*factors, scalar), number, part
