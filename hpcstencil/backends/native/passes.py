"""Parts of a step joined to passes over the grid, and their text.

A part computes some arrays in all cells from arrays before it. It is joined to the pass before it where it looks at that one's
results in the same cell only; so is, in all steps but the last of a call, the first pass of the next step to the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hpcstencil.backends.native.expression_writer import Numbers, Offset, Unsupported
from hpcstencil.backends.native.pass_statements import Cells, Row
from hpcstencil.backends.native.scalars import Functions, Scalars
from hpcstencil.problem.problem import Problem
from hpcstencil.symbolic.expressions import Field, Node, walk

AXIS_OF = {1: (2,), 2: (0, 2), 3: (0, 1, 2)}  # axes of the problem -> those of the driver
MOST_PLANES = 256  # of the arrays that a pass looks at, or writes
LONG = 150  # statements for a cell from which on one plane is computed at a time
FEW = 40  # statements of each pass up to which planes that are single rows are computed four at a time
MOST_SLIDING = 6  # rows whose vectors slide, for each of which three are kept in registers
MANY_ROWS = 12  # looked at for a cell, of more than which a processor has no registers for all addresses

Write = Callable[[Cells, Offset], str]  # writes the statements for an array's value in a cell, and names it


@dataclass
class Array:
    """An array of the step: which ``face`` conditions continue it beyond the boundary, at which part of the step. ``beside``
    are the arrays that hold the fields then, if not the first ones."""

    operand: Node | None
    node: float = 0.0
    deep: bool = False
    beside: Mapping[str, int] = field(default_factory=dict)
    used_at: set[float] = field(default_factory=set)


@dataclass(frozen=True, eq=False)
class Part:
    """What computes ``outputs``, by number of the array; ``held`` are the trees that arrays hold, ``node`` tells where in the
    step the time is, ``shared`` are trees of several outputs. A part of the next step has ``renamed`` arrays."""

    outputs: Mapping[int, Write]
    held: Mapping[Node, int]
    node: float
    shared: Collection[Node] = ()
    renamed: Mapping[int, int] = field(default_factory=dict)


@dataclass
class Pass:
    """Text of a pass and what it needs; ``inputs`` are arrays, how far it looks at them along each axis, whether along one at
    a time; ``at_once`` planes are computed together. Outputs that are arrays of the next step have numbers beyond those of
    all arrays."""

    function: str
    scalars: int
    inputs: list[tuple[int, list[int], bool]]
    planes: list[tuple[int, int]]
    outputs: list[int]
    at_once: int


class Passes:
    """The passes of a step over ``arrays``, the first of which are the fields, then what is told of the ``errors`` of some;
    ``ends`` hold these after it. ``functions`` are texts in C++ by name. If it ``joins_steps``, the
    last entry joins the last pass of a step to the first one of the next."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.fields = tuple(sorted(problem.fields))  # as jax has them, in compiled code and in exchanged strips
        self.ndim = problem.config.grid.ndim
        self.axis_of = AXIS_OF[self.ndim]
        self.discretization = problem.discretization
        self.numbers = Numbers(tuple(problem.parameters))
        self.scalars = Scalars(self.numbers, self.discretization, self.axis_of)
        self.tables = Functions(self.numbers, self.discretization, self.axis_of)
        self.fixed = Functions(self.numbers, self.discretization, self.axis_of)
        self.errors = tuple(problem.errors())
        self.arrays = [*(Array(Field(name)) for name in self.fields), *(Array(None) for _ in self.errors)]
        self.ends: list[int] = []
        self.parts: list[list[Part]] = []  # of each pass
        self.passes: list[Pass] = []
        self.joins_steps = False
        self.functions: dict[str, str] = {}  # text -> name
        self.trials: dict[tuple[Part, ...], Cells] = {}  # what `tried` has written

    def add(
        self, outputs: Mapping[int, Write], held: Mapping[Node, int], node: float, shared: Collection[Node] = ()
    ) -> None:
        """Adds a part to the step."""
        if not outputs:
            return
        part = Part(outputs, dict(held), node, shared)
        for array, reach in self.tried([part]).reach.items():
            if any(reach):
                self.arrays[array].used_at.add(node)
        if self.parts and self.joins([part], self.parts[-1]):
            self.parts[-1].append(part)
        else:
            self.parts.append([part])

    def joins(self, parts: Sequence[Part], before: Sequence[Part]) -> bool:
        """Whether parts may be computed in the same pass as those before them."""
        results = [array for part in before for array in part.outputs]
        if any(self.arrays[array].deep for part in (*before, *parts) for array in part.outputs):
            return False
        reach = self.tried(parts).reach
        return not any(any(reach.get(array, ())) for array in results)

    def tried(self, parts: Sequence[Part]) -> Cells:
        """The statements of parts by themselves, for one cell."""
        if tuple(parts) not in self.trials:
            self.trials[tuple(parts)] = self.trial(parts)
        return self.trials[tuple(parts)]

    def trial(self, parts: Sequence[Part]) -> Cells:
        numbers = Numbers(self.numbers.parameters)
        scalars = Scalars(numbers, self.discretization, self.axis_of)
        tables, fixed = (Functions(numbers, self.discretization, self.axis_of) for _ in range(2))
        return self.written(parts, 1, numbers, scalars, tables, fixed)

    def written(
        self,
        parts: Sequence[Part],
        planes: int,
        numbers: Numbers,
        scalars: Scalars,
        tables: Functions,
        fixed: Functions,
        by_pitch: bool = False,
        slides: Collection[Row] = (),
    ) -> Cells:
        """The statements of parts for so many planes."""
        code = Cells(numbers, self.discretization, self.axis_of, scalars, tables, fixed, {}, 0.0, by_pitch, slides)
        for part in parts:
            code.turn_to(part.held, part.node, part.renamed, part.shared)
            values = {}
            for plane in range(planes):
                at = (plane, 0, 0)
                code.plane = plane
                values.update({(array, at): write(code, at) for array, write in part.outputs.items()})
            code.made.update({(part.renamed.get(array, array), at): name for (array, at), name in values.items()})
        return code

    def field_of(self) -> list[int]:
        """Of each array the number of the field that it is a value of; -1 where it is of none."""
        ends = {array: number for number, array in enumerate(self.ends)}
        values: dict[Node | None, int] = {Field(name): number for number, name in enumerate(self.fields)}
        return [ends.get(n, values.get(array.operand, -1)) for n, array in enumerate(self.arrays)]

    def write(self) -> None:
        """Writes all passes."""
        joined = self.joined_ends()
        self.joins_steps = bool(joined)
        read = [set(self.tried(parts).reach) for parts in self.parts]
        faces = self.problem.faces.values()
        beside = {p.name for face in faces for v in face.values for p in walk(v) if isinstance(p, Field)}
        at_faces = {array.beside[name] for array in self.arrays if array.beside for name in beside}
        for parts in self.parts:
            self.text(parts, {*self.ends, *at_faces, *(array for arrays in read for array in arrays)})
        if joined:
            later = {array for arrays in read[1:] for array in arrays}
            kept = {end for n, end in enumerate(self.ends) if n in later or self.fields[n] in beside}
            self.text(joined, kept | {array + len(self.arrays) for array in later})

    def joined_ends(self) -> list[Part]:
        """The last pass of a step and the first one of the next step; empty where they cannot be joined."""
        if len(self.parts) < 2 or self.errors:
            return []
        results = [array for part in self.parts[0] for array in part.outputs]
        renamed = dict(enumerate(self.ends)) | {array: array + len(self.arrays) for array in results}
        first = [replace(part, renamed=renamed) for part in self.parts[0]]
        return [*self.parts[-1], *first] if self.joins(first, self.parts[-1]) else []

    def at_once(self, parts: Sequence[Part]) -> int:
        """How many planes a pass computes together: four only if all are short, since a step goes on by the most of them."""
        if self.ndim == 1 or len(self.tried(parts).lines) > LONG:
            return 1
        return 4 if self.ndim == 2 and all(len(self.tried(p).lines) <= FEW for p in self.parts) else 2

    def text(self, parts: Sequence[Part], wanted: Collection[int]) -> None:
        """Writes a pass, which keeps the results that are ``wanted``."""
        tried = self.tried(parts)
        planes = self.at_once(parts)
        most = sorted(tried.along, key=lambda row: -len(tried.along[row]))[: MOST_SLIDING // planes]
        slides = {(array, i + plane, j) for array, i, j in most for plane in range(planes)}
        code = self.written(
            parts, planes, self.numbers, self.scalars, self.tables, self.fixed, len(tried.row) > MANY_ROWS, slides
        )
        outputs = list(dict.fromkeys(array for array, _ in code.made if array in wanted))
        stores = []
        for (array, (plane, _, _)), value in code.made.items():
            if array in outputs:
                n = plane * len(outputs) + outputs.index(array)
                code.row.append(f"real* const o{n} = out[{n}].p + j * out[{n}].pitch;")
                stores.append(f"store(o{n} + x, {value});")
        inputs = [(array, reach, array not in code.corners) for array, reach in code.reach.items()]
        places = {array: n for n, array in enumerate(code.reach)} | {a: a for a, _ in code.planes if a < 0}
        looked_at = [(places[array], offset) for array, offset in code.planes]
        if len(looked_at) > MOST_PLANES or planes * len(outputs) > MOST_PLANES:
            raise Unsupported("the equation looks at too many arrays at once")
        body = "\n".join([
            "(const Place& q, const Rows* in, const Rows* out, long j0, long j1, long x0, long x1) {",
            "typedef vec W;",
            *code.head,
            "for (long j = j0; j < j1; j++) {",
            *code.row,
            "for (long x = x0; x < x1; x += LANES) {",
            *(f"{name}.enter(x);" for name in code.sliding),
            *code.lines,
            *stores,
            *(f"{name}.leave();" for name in code.sliding),
            "}", "}", "}",
        ])  # fmt: skip
        name = self.functions.setdefault(body, f"pass{len(self.functions)}")
        self.passes.append(Pass(name, len(self.scalars.entries), inputs, looked_at, outputs, planes))
        self.scalars.entries += code.own
