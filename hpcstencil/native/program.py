"""The C++ text of a step: its passes, the ghost cells of its arrays, and the tables by which `driver.hpp` runs it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from hpcstencil.boundary import NO_FLUX, WALL, Face
from hpcstencil.expressions import Field, Node, on_plane, walk
from hpcstencil.native.cells import Cells
from hpcstencil.native.compiler import compiler
from hpcstencil.native.step import Step
from hpcstencil.native.writer import Offset, Unsupported
from hpcstencil.problem import Problem
from hpcstencil.radius import axes_of


@dataclass(frozen=True)
class Program:
    """C++ text, and what it is to be given: the numbers of its expressions, what stands for p[] and c[] in it. ``fixed`` is how
    many arrays of functions of several coordinates it keeps."""

    text: str
    fields: tuple[str, ...]
    parameters: tuple[str, ...]
    constants: tuple[float, ...]
    fixed: int


def lack(problem: Problem, thin: bool) -> str:
    """Why native code cannot take the steps of this problem on a processor, as far as that is known without compiling; "" where
    it can. ``thin`` blocks have no room for a whole step between two exchanges."""
    if problem.config.time.tolerance is not None:
        return "steps that follow a tolerance are taken by the other kernels"
    if thin:
        return "blocks are too thin for a whole step between two exchanges"
    try:
        compiler()
        program(problem)
    except Unsupported as reason:
        return str(reason)
    return ""


def program(problem: Problem) -> Program:
    """The native program of a problem. Raises Unsupported, with a sentence, where there is none."""
    for known, made in lately:
        if known is problem:
            return made
    made = _program(problem)
    lately.append((problem, made))
    return made


lately: deque[tuple[Problem, Program]] = deque(maxlen=4)  # a run asks several times, and long texts take a while


def _program(problem: Problem) -> Program:
    try:
        step = Step(problem)
        written = text(step)
        numbers, fixed = tuple(step.numbers.constants), len(step.fixed.texts)
        return Program(written, step.fields, tuple(problem.parameters), numbers, fixed)
    except RecursionError:
        raise Unsupported("an expression is too deeply nested") from None


def text(step: Step) -> str:
    """The program of a step."""
    real = {"float32": "float", "float64": "double"}[step.problem.config.numerics.precision]
    faces = {}
    for number, array in enumerate(step.arrays):
        entries = ["{{}, {}}"] * 3
        for axis in range(step.ndim):
            entries[step.axis_of[axis]] = f"{{{face(step, number, axis, 0)}, {face(step, number, axis, 1)}}}"
        faces[number] = f"{{{str(array.deep).lower()}, {{{', '.join(entries)}}}}}"
    functions = [f"static void {name}{body}" for body, name in step.functions.items()]
    rows, listed = [], []
    for n, p in enumerate(step.passes):
        inputs = ", ".join(f"{{{array}, {{{', '.join(map(str, reach))}}}}}" for array, reach in p.inputs)
        planes = ", ".join(f"{{{i}, {o}}}" for i, o in p.planes)
        listed += [
            f"static const Input inputs{n}[] = {{{inputs or '{}'}}};",
            f"static const Plane planes{n}[] = {{{planes or '{}'}}};",
            f"static const int outputs{n}[] = {{{', '.join(map(str, p.outputs))}}};",
        ]
        rows.append(
            f"{{{p.function}, {p.scalars}, {len(p.inputs)}, {len(p.planes)}, {len(p.outputs)}, {p.at_once}, "
            f"inputs{n}, planes{n}, outputs{n}}}"
        )
    tables, fixed = (
        [f"case {n}: {{ {text} }}" for n, text in enumerate(functions.texts.values())]
        for functions in (step.tables, step.fixed)
    )
    table_axes = [step.axis_of[axis] for tree in step.tables.texts for axis in axes_of(tree)]
    return "\n".join([
        f"typedef {real} real;",
        f"constexpr int PARAMETERS = {len(step.problem.parameters)}, CONSTANTS = {len(step.numbers.constants)}, "
        f"MOST_OFFSET = {step.numbers.furthest};",
        f"constexpr int FIELDS = {len(step.fields)}, ARRAYS = {len(step.arrays)}, PASSES = {len(step.parts)}, "
        f"TABLES = {len(tables)}, FIXED = {len(fixed)}, SCALARS = {len(step.scalars.entries)}, "
        f"AT_ONCE = {max(p.at_once for p in step.passes)};",
        f"constexpr bool TURNS = {str(step.turns).lower()};",
        '#include "driver.hpp"',
        '#include "cells.hpp"',
        *functions,
        *listed,
        f"const Pass passes[PASSES + TURNS] = {{{', '.join(rows)}}};",
        f"const Array arrays[ARRAYS] = {{{', '.join(faces[n] for n in range(len(step.arrays)))}}};",
        f"const int ends[FIELDS] = {{{', '.join(map(str, step.ends))}}};",
        f"const int field_of[ARRAYS] = {{{', '.join(map(str, step.field_of()))}}};",
        f"const int table_axis[TABLES + 1] = {{{', '.join(map(str, [*table_axes, 0]))}}};",
        "static void prepare(const double* p, const double* c, double time, double dt, real* s) {",
        *step.scalars.lines(),
        "}",
        "static real tabulate(int table, const double* p, const double* c, const double* const* coordinates,",
        "                     const long* index) {",
        "const double time = 0, dt = 0; (void)time; (void)dt;",
        "switch (table) {", *tables, "}", "return 0;", "}",
        "static real fix(int number, const double* p, const double* c, const double* const* coordinates,",
        "                const long* index) {",
        "const double time = 0, dt = 0; (void)time; (void)dt;",
        "switch (number) {", *fixed, "}", "return 0;", "}", "",
    ])  # fmt: skip


def face(step: Step, number: int, axis: int, side: int) -> str:
    """The entry of an array for a side, and the function that makes its ghost cells."""
    array = step.arrays[number]
    if array.operand is None or array.deep or step.problem.config.boundary.periodic[axis]:
        return "{}"
    face = step.problem.faces.get((array.operand, axis, side), NO_FLUX)
    grid = step.problem.config.grid
    place = (grid.lower, grid.upper)[side][axis]
    values = [on_plane(value, axis, place) for value in face.values]
    nexts = list(dict.fromkeys(part.name for v in values for part in walk(v) if isinstance(part, Field)))
    across = step.axis_of[axis] == 2
    code = FaceCells(
        step.numbers,
        step.discretization,
        step.axis_of,
        step.scalars,
        step.tables,
        None,
        {},
        array.node,
        None,
        tuple(nexts),
        across,
    )
    given = [code.value(value) for value in values]
    result = ghost(code, face, given, grid.spacing[axis])
    loop = "long x = x0;" if across else "for (long x = x0; x < x1; x += LANES)"
    offset = "" if across else " + x"
    body = "\n".join([
        "(const Place& q, real* ghost, const real* mirror, long pitch, const Rows* next, long k, long j0, long j1, "
        "long x0, long x1) {",
        f"typedef {'real' if across else 'vec'} W;",
        *code.head, "for (long j = j0; j < j1; j++) {", *code.row, loop, "{",
        f"const W m = load<W>(mirror + j * pitch{offset});",
        *code.lines, f"store(ghost + j * pitch{offset}, {result});",
        "}", "}", "}",
    ])  # fmt: skip
    name = step.functions.setdefault(body, f"face{len(step.functions)}")
    base = len(step.scalars.entries)
    step.scalars.entries += code.own
    ids = ", ".join(str(step.fields.index(n)) for n in nexts)
    listed = f"(const int[]){{{ids}}}" if nexts else "nullptr"
    return f"{{{name}, {base}, {str(face.kind == WALL).lower()}, {len(nexts)}, {listed}}}"


@dataclass
class FaceCells(Cells):
    """Statements for ghost cells: fields are those next to the boundary; ``across`` the last axis they are made one by one."""

    nexts: tuple[str, ...] = ()
    across: bool = False

    def leaf(self, tree: Node, at: Offset) -> str | None:
        if isinstance(tree, Field):
            n = self.nexts.index(tree.name)
            return self.let(f"load<W>(next[{n}].p + j * next[{n}].pitch{'' if self.across else ' + x'})")
        return super().leaf(tree, at)


def ghost(code: Cells, face: Face, given: Sequence[str], spacing: float) -> str:
    """The ghost cell at distance k, from its mirror image m; the formulas are those of `boundary`."""
    two = "(one<W>() + one<W>())"
    if face.kind == WALL:
        return f"k ? {two} * {given[0]} - m : {given[0]}"
    if face.kind == "dirichlet":
        return f"{two} * {given[0]} - m"
    height = f"splat<W>(real((2 * k - 1) * double(q.s[{len(code.own)}])))"
    code.own.append(f"real({code.numbers.constant(spacing)})")
    if face.kind == "neumann":
        return f"m + {height} * {given[0]}"
    a, b, r = given
    half = code.let(f"{height} * splat<W>(real(0.5)) * {a}")
    return f"({height} * {r} - ({half} - {b}) * m) * (one<W>() / ({half} + {b}))"
