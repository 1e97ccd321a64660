"""The C++ text of expressions of fields that native code evaluates by rows, for diagnostics.

A tree of this kind reads each field in its own cell only. Its program is compiled apart from that of the steps. The driver
calls its functions: for the rows that a level has just computed, or for all rows of a state (value_rows.hpp).
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from hpcstencil.backends.native.compiler import compile_in_background
from hpcstencil.backends.native.expression_writer import HERE, Numbers, Offset, Writer
from hpcstencil.backends.native.passes import AXIS_OF
from hpcstencil.backends.native.program import Program
from hpcstencil.problem.problem import Problem
from hpcstencil.symbolic.expressions import Constant, Coordinate, Field, Node, Parameter, Pointwise, Time
from hpcstencil.symbolic.stencil_reach import Discretization

MOST_FIELDS = 16  # of a tree, as in value_rows.hpp


def evaluable(tree: Node) -> bool:
    """Return whether native code evaluates a tree by rows."""
    plain = tree.kinds <= {Field, Constant, Parameter, Coordinate, Time, Pointwise}
    return plain and len(tree.field_names) <= MOST_FIELDS


class ValueTree(ctypes.Structure):
    """The struct ValueTree of value_rows.hpp."""

    _fields_ = (("row", ctypes.c_void_p), ("fields", ctypes.c_int64), ("field", ctypes.c_int64 * MOST_FIELDS))


@dataclass(frozen=True)
class ValueProgram:
    """The program that evaluates ``trees``.

    ``fields`` and ``parameters`` are the names of the fields and numbers of the program that takes the steps, in order, then
    those of other fields that trees read. ``axis_of`` is as in `Writer`, and ``precision`` is "float32" or "float64".
    """

    trees: tuple[Node, ...]
    fields: tuple[str, ...]
    parameters: tuple[str, ...]
    axis_of: tuple[int, ...]
    precision: str

    @classmethod
    def of(cls, program: Program, problem: Problem, trees: Iterable[Node]) -> ValueProgram:
        """Return the program that evaluates those of the ``trees`` that are `evaluable`, except plain fields.

        It evaluates none with steps from a tolerance, or in an ensemble unless the members take the same steps.
        """
        config, common = problem.config, problem.has_common_steps
        evaluated = dict.fromkeys(tree for tree in trees if common and not isinstance(tree, Field) and evaluable(tree))
        read = sorted({name for tree in evaluated for name in tree.field_names})
        return cls(
            tuple(evaluated),
            tuple(dict.fromkeys((*program.fields, *read))),
            tuple(program.parameters),
            AXIS_OF[config.grid.ndim],
            config.numerics.precision,
        )

    @cached_property
    def text(self) -> str:
        """The C++ text."""
        return "\n".join([
            f"typedef {'float' if self.precision == 'float32' else 'double'} real;",
            "#include <math.h>",
            '#include "program.hpp"',
            '#include "vector.hpp"',
            *(self._function(n, tree) for n, tree in enumerate(self.trees)), "",
        ])  # fmt: skip

    def read(self, tree: Node) -> list[str]:
        """Return the names of the fields that a tree reads, in the order in which its function expects them."""
        return sorted(tree.field_names)

    def _function(self, number: int, tree: Node) -> str:
        no_stencils = Discretization(2, ())
        code = ValueCells(Numbers(self.parameters), no_stencils, self.axis_of, self.read(tree))
        result = code.value(tree)
        return "\n".join([
            f'extern "C" void row{number}(const double* p, double time, const double* const* coordinates, '
            "const real* const* in, real* to, long n) {",
            "typedef vec W;", *code.head,
            "for (long x = 0; x < n; x += LANES) {", *code.lines, f"store(to + x, {result});", "}", "}",
        ])  # fmt: skip

    def begin(self) -> None:
        """Start compiling in a thread, if there is anything to evaluate."""
        if self.trees:
            compile_in_background(self.text)

    def loaded(self) -> dict[Node, ValueTree]:
        """Compile and load the program, and return its trees as the driver expects them.

        Raises Unsupported if the text does not compile.
        """
        library = compile_in_background(self.text).result()
        made = {}
        for n, tree in enumerate(self.trees):
            read = [self.fields.index(name) for name in self.read(tree)]
            address = ctypes.cast(getattr(library, f"row{n}"), ctypes.c_void_p)
            made[tree] = ValueTree(address, len(read), (ctypes.c_int64 * MOST_FIELDS)(*read))
        return made

    def numbers(self, parameters: Mapping[str, Any], member: int = 0) -> np.ndarray:
        """Return the values of p[] of the text: float64 of shape (parameters,); in an ensemble, those of a member."""
        values = [np.asarray(parameters[name], np.float64) for name in self.parameters]
        return np.array([value[member] if value.ndim else value for value in values], np.float64)


@dataclass
class ValueCells(Writer):
    """Writer of the statements that evaluate a tree in a vector of cells. ``fields`` are the names of in[], in order."""

    fields: Sequence[str]
    head: list[str] = field(default_factory=list)
    kind = "W"

    def hoisted(self, text: str) -> str:
        """Assign ``text`` to a new name before the loop over cells, and return the name."""
        name = f"h{self.count}"
        self.count += 1
        self.head.append(f"const W {name} = {text};")
        return name

    def literal(self, value: float) -> str:
        text = value.hex() if math.isfinite(value) else {math.inf: "INFINITY", -math.inf: "-INFINITY"}.get(value, "NAN")
        return self.once(("number", text), HERE, lambda: self.hoisted(f"splat<W>(real({text}))"))

    def leaf(self, tree: Node, at: Offset) -> str | None:
        match tree:
            case Field(name):
                return self.let(f"load<W>(in[{self.fields.index(name)}] + x)")
            case Parameter(name):
                return self.hoisted(f"splat<W>(real(p[{self.numbers.parameters.index(name)}]))")
            case Time():
                return self.hoisted("splat<W>(real(time))")
            case Coordinate(axis) if self.axis_of[axis] == 2:
                return self.let("rounded(coordinates[2] + x)")
            case Coordinate(axis):
                return self.hoisted(f"splat<W>(real(*coordinates[{self.axis_of[axis]}]))")
        return None
