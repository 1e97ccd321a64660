"""C++ text of values computed outside the loop over cells: numbers per step, functions of coordinates per call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hpcstencil.backends.native.expression_writer import Numbers, Offset, Writer
from hpcstencil.numerics.integrators import LaterNode
from hpcstencil.symbolic.expressions import (
    Coordinate,
    Node,
    Parameter,
    Series,
    StepSize,
    Time,
)
from hpcstencil.symbolic.stencil_reach import Discretization


@dataclass
class Scalar(Writer):
    """Writer of values that are the same in all cells or depend on coordinates alone.

    ``node`` is the time within the step, as a fraction of dt.
    """

    node: float = 0.0
    kind = "real"

    @property
    def time(self) -> str:
        """The C++ expression for the time, float64. It is rounded as in a step that begins with node 0."""
        begin, within = "time", self.node
        if isinstance(self.node, LaterNode):
            begin, within = f"(start + (step + {self.node.steps}) * dt)", self.node.within
        return f"{begin} + {within!r} * dt" if within else begin

    def literal(self, value: float) -> str:
        return f"real({self.numbers.constant(value)})"

    def leaf(self, tree: Node, at: Offset) -> str | None:
        match tree:
            case Parameter(name):
                return f"real(p[{self.numbers.parameters.index(name)}])"
            case Time():
                return f"real({self.time})"
            case StepSize():
                return "real(dt)"
            case Series(operand, values, dt, slope):
                time = self.time if operand == Time() else f"double({self.value(operand, at)})"
                samples, per_second = self.numbers.samples_of(values), self.numbers.constant(1.0 / dt)
                return f"real(series(({time}) * {per_second}, {samples}, {len(values)}, {per_second}, {int(slope)}))"
            case Coordinate(axis):
                a = self.axis_of[axis]
                self.numbers.furthest[a] = max(self.numbers.furthest[a], abs(at[a]))
                return f"real(coordinates[{a}][index[{a}] + ({at[a]})])"
        return None


@dataclass
class Functions:
    """Functions of coordinates that are computed once per call.

    Functions of one coordinate are stored in tables, functions of several in arrays. One instance lists the tables, another
    the arrays.
    """

    numbers: Numbers
    discretization: Discretization
    axis_of: Sequence[int]
    texts: dict[Node, str] = field(default_factory=dict)

    def index(self, tree: Node) -> int:
        """Return the number of the table or array that holds the values of a tree, and add it if it is new."""
        if tree not in self.texts:
            code = Scalar(self.numbers, self.discretization, self.axis_of)
            result = code.value(tree)
            self.texts[tree] = " ".join([*code.lines, f"return {result};"])
        return list(self.texts).index(tree)


@dataclass
class Scalars:
    """Numbers that are computed once per step for all passes: s[] of the C++ text. ``entries`` are their expressions."""

    numbers: Numbers
    discretization: Discretization
    axis_of: Sequence[int]
    writers: dict[float, Scalar] = field(default_factory=dict)
    entries: list[str] = field(default_factory=list)

    def text(self, tree: Node, node: float) -> str:
        """Return the C++ expression for a tree's value at the time t + ``node`` dt."""
        if node not in self.writers:
            writer = self.writers[node] = Scalar(self.numbers, self.discretization, self.axis_of, node)
            # All writers write into one C++ function, so their names must differ.
            writer.count = 10000 * len(self.writers)
        return self.writers[node].value(tree)

    def lines(self) -> list[str]:
        """Return the C++ statements that compute the numbers."""
        made = [line for writer in self.writers.values() for line in writer.lines]
        return [*made, *(f"s[{n}] = {text};" for n, text in enumerate(self.entries))]
