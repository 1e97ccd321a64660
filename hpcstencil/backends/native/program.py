"""The C++ text of a step: its passes, the ghost cells of its arrays, and the tables by which the driver runs it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hpcstencil.backends.backend import Unsupported
from hpcstencil.backends.native.compiler import DriverPart
from hpcstencil.backends.native.expression_writer import Offset, is_flat
from hpcstencil.backends.native.pass_statements import Cells, Scope
from hpcstencil.backends.native.passes import MOST_AT_ONCE, Pass
from hpcstencil.backends.native.step import Step, step_of
from hpcstencil.backends.native.thin_blocks import Section, sections
from hpcstencil.problem.problem import Problem
from hpcstencil.symbolic.boundary_kinds import KINDS, NO_FLUX, Face
from hpcstencil.symbolic.expressions import Field, Node, on_plane, walk


@dataclass(frozen=True)
class Program:
    """The C++ text of a problem's step, with the data that its callers need.

    Attributes
    ----------
    text
        The C++ text of the step.
    outline
        The C++ text of a step that computes nothing, for the cost model. Equations with the same stencils share it.
    driver
        The C++ texts of the code that runs both, in parts.
    fields, errors
        The names of the fields that it steps, and of the fields whose estimated errors it returns.
    parameters, sampled, constants
        The names of the values in p[] of the text, those of the time series that follow them, and the values of c[], all in
        order.
    fixed
        The number of arrays with functions of several coordinates, which the program keeps between calls.
    sections
        The sections of a step, for thin blocks (`thin_blocks`).
    ends
        The numbers of the arrays that hold fields and errors after a step.
    recordable
        The fields whose cells probes can record after every step, even within a call of many steps.
    reads
        The fields that the step reads if it is a single pass: each with the distance of the reads in cells per axis of the
        driver, and whether it is read along only one axis at a time. None if there are more passes.
    injections
        The number of times per step that values can be added to single cells of a field of `Problem.injected`.
    """

    text: str
    outline: str
    driver: tuple[DriverPart, ...]
    fields: tuple[str, ...]
    errors: tuple[str, ...]
    parameters: tuple[str, ...]
    sampled: tuple[str, ...]
    constants: tuple[float, ...]
    fixed: int
    sections: tuple[Section, ...]
    ends: tuple[int, ...]
    recordable: tuple[str, ...]
    reads: Mapping[str, tuple[Sequence[int], bool]] | None
    injections: int

    @property
    def kept(self) -> tuple[str, ...]:
        """The fields that a step does not change."""
        return tuple(name for n, name in enumerate(self.fields) if self.ends[n] == n)


# The headers of the parts of a driver. The last one has all functions that Python calls. Where several parts have the same
# inline function, the library has that of the first one.
DRIVERS = {
    "blocked": ("sweep.hpp", "tiled_driver.hpp", "recording.hpp", "driver.hpp"),
    "reference": ("recording.hpp", "reference_driver.hpp"),
}


def with_driver(program: Program, driver: str) -> Program:
    """Return the program with another driver of `DRIVERS`, against which tests compare.

    Raises ValueError for an unknown driver.
    """
    if driver not in DRIVERS:
        raise ValueError(f"expected one of the drivers {', '.join(DRIVERS)}, but got {driver}")
    real = program.driver[0].text.splitlines()[0]
    return replace(program, driver=parts(real, driver))


def parts(real: str, driver: str) -> tuple[DriverPart, ...]:
    """Return the parts of a driver. ``real`` is the C++ definition of the type of a cell.

    The last part plans the work of the others, and is compiled with less optimization, which takes two thirds of the time.
    """
    *others, last = DRIVERS[driver]
    without = "#define ENTRY static inline"
    return (
        *(DriverPart(f'{real}\n{without}\n#include "{name}"\n') for name in others),
        DriverPart(f'{real}\n#include "{last}"\n', "-O1"),
    )


def program(problem: Problem, most_at_once: int = MOST_AT_ONCE) -> Program:
    """Generate the native program of a problem, whose passes compute ``most_at_once`` planes together at most.

    Raises Unsupported, with the reason, if native code cannot compute it.
    """
    try:
        step = step_of(problem, most_at_once)
        plan, sides = step.plan, sides_of(step)
        written, outlined = text(step, sides), outline(step, sides)
        return Program(
            text=written,
            outline=outlined,
            driver=parts(real(step), "blocked"),
            fields=plan.fields,
            errors=tuple(problem.errors()),
            parameters=problem.numbers,
            sampled=tuple(problem.sampled),
            constants=tuple(step.text.numbers.constants),
            fixed=len(step.text.fixed.texts),
            sections=sections(step.passes[: len(step.parts)], plan.arrays, beside(sides), plan.ends, step.text.axis_of),
            ends=plan.ends,
            recordable=recordable(step),
            reads=reads_of(step),
            injections=len(plan.injected),
        )
    except RecursionError:
        raise Unsupported("an expression is too deeply nested") from None


def reads_of(step: Step) -> dict[str, tuple[Sequence[int], bool]] | None:
    """Return the value of `Program.reads` for a step."""
    if len(step.passes) > 1:
        return None
    return {step.plan.fields[array]: (reach, straight) for array, reach, straight in step.passes[0].inputs}


def recordable(step: Step) -> tuple[str, ...]:
    """Return the fields whose cells probes can record after every step.

    A pass stores such a field, or the last pass of the step computes it and can do so again (`Unstored` in
    cell_samples.hpp). A pass that joins two steps may skip fields that no later pass reads. Memory fields of absorbing
    layers are stored only near these.
    """
    plan, passes = step.plan, step.passes[: len(step.parts)]
    made = {array for each in passes for array in each.outputs}
    if step.joins_steps:
        joined = set(step.passes[-1].outputs)
        made -= {array for array in passes[0].outputs if array + len(plan.arrays) not in joined}
    return tuple(
        name for name, end in zip(plan.fields, plan.ends, strict=False) if end in made and name not in plan.layers.axis
    )


@dataclass(frozen=True)
class Side:
    """The ghost cells of an array on one side of the block.

    The C++ ``function`` computes them, and ``scalars`` is the index of its first scalar. ``wall`` says whether the array has
    values on the boundary itself. ``nexts`` are the numbers of the arrays that the function reads.
    """

    function: str
    scalars: int
    wall: bool
    nexts: tuple[int, ...]

    def entry(self, bare: bool) -> str:
        """Return the entry of this side in the C++ table of arrays, with a placeholder for the function if ``bare``."""
        ids = ", ".join(map(str, self.nexts))
        listed = f"(const int[]){{{ids}}}" if self.nexts else "nullptr"
        called = "fill, 0" if bare else f"{self.function}, {self.scalars}"
        return f"{{{called}, {str(self.wall).lower()}, {len(self.nexts)}, {listed}}}"


Sides = dict[tuple[int, int, int], Side]  # by array, axis and end
OTHERS = ("PARAMETERS", "CONSTANTS", "TABLES", "FIXED", "SCALARS")  # an outline has none of these


def real(step: Step) -> str:
    """Return the C++ definition of the type of a cell."""
    return f"typedef {'float' if step.plan.problem.config.numerics.precision == 'float32' else 'double'} real;"


def counts(step: Step, furthest: Sequence[int] = (0, 0, 0), **others: int) -> list[str]:
    """Return the C++ definitions of the counts that `program.hpp` declares.

    ``furthest`` is as in `Numbers`. ``others`` are the counts named in `OTHERS`, 0 by default.
    """
    problem, layers = step.plan.problem, step.plan.layers
    reach = [0, 0, 0]
    for axis, n in enumerate(problem.discretization.radius(problem.right_hand_sides()) if layers.profiles else ()):
        reach[step.text.axis_of[axis]] = n
    return [
        f"const int GIVEN = {len(step.plan.fields)}, FIELDS = {len(step.plan.ends)}, ARRAYS = {len(step.plan.arrays)}, "
        f"PASSES = {len(step.parts)}, AT_ONCE = {max(p.at_once for p in step.passes)}, "
        f"PLANES = {max(most_planes(p) for p in step.passes)};",
        f"const int LAYERS = {bits(step, layers.profiles)}, LAYER_TABLES = {sum(map(len, layers.profiles.values()))};",
        f"const long LAYER_REACH[] = {{{', '.join(map(str, reach))}}};",
        f"const int {', '.join(f'{name} = {others.get(name, 0)}' for name in OTHERS)};",
        f"const long MAX_OFFSET[] = {{{', '.join(map(str, furthest))}}};",
        "static_assert(AT_ONCE <= MOST_AT_ONCE);",
        f"const int INJECTIONS = {len(step.plan.injected)}, REPLAYED = {len(problem.replayed)};",
        f"const bool FLAT = {str(is_flat(step.text.axis_of)).lower()};",
        f"const bool JOINS_STEPS = {str(step.joins_steps).lower()};",
        f"const double STATEMENTS = {step.statements:.1f};",
    ]


def bits(step: Step, axes: Iterable[int]) -> int:
    """Return the number whose bits stand for these axes of the problem, by their number in the driver."""
    return sum(1 << step.text.axis_of[axis] for axis in axes)


def most_planes(each: Pass) -> int:
    """Return the largest number of planes that the driver hands to a pass, of those it reads and of those it writes."""
    read = [len(v.planes) * (each.at_once // v.at_once) for v in each.variants.values()]
    return max(*read, len(each.outputs) * each.at_once)


def geometry(step: Step, sides: Sides, bare: bool) -> list[str]:
    """Return the C++ tables of passes and arrays, with placeholders for their functions if ``bare``."""
    arrays, rows, listed = [], [], []
    for number, array in enumerate(step.plan.arrays):
        entries = ["{{}, {}}"] * 3
        for axis in range(step.plan.ndim):
            pair = (sides.get((number, axis, side)) for side in (0, 1))
            entries[step.text.axis_of[axis]] = f"{{{', '.join(side.entry(bare) if side else '{}' for side in pair)}}}"
        arrays.append(f"{{{str(array.deep).lower()}, {{{', '.join(entries)}}}}}")
    for n, p in enumerate(step.passes):
        inputs = ", ".join(
            f"{{{array}, {{{', '.join(map(str, reach))}}}, {str(straight).lower()}}}"
            for array, reach, straight in p.inputs
        )
        listed += [
            f"static const Input inputs{n}[] = {{{inputs or '{}'}}};",
            f"static const int outputs{n}[] = {{{', '.join(map(str, p.outputs))}}};",
        ]
        variants = {}
        for axes, v in p.variants.items():
            name = f"{n}_{bits(step, axes)}"
            planes = ", ".join(f"{{{i}, {o}}}" for i, o in v.planes)
            listed += [
                f"static const Plane planes{name}[] = {{{planes or '{}'}}};",
                f"static const int filled{name}[] = {{{', '.join(map(str, v.outputs)) or '0'}}};",
                f"static const Variant variant{name} = {{{'compute, 0' if bare else f'{v.function}, {v.scalars}'}, "
                f"{len(v.planes)}, {len(v.outputs)}, {v.at_once}, planes{name}, filled{name}}};",
            ]
            variants[bits(step, axes)] = f"&variant{name}"
        every = ", ".join(variants[mask & max(variants)] for mask in range(8))
        rows.append(f"{{{len(p.inputs)}, {len(p.outputs)}, {p.at_once}, inputs{n}, outputs{n}, {{{every}}}}}")
    order = [*step.plan.injected]
    injected = [order.index(array) if array in order else -1 for array in range(len(step.plan.arrays))]
    return [
        *listed,
        f"const Pass passes[] = {{{', '.join(rows)}}};",
        f"const Array arrays[] = {{{', '.join(arrays)}}};",
        f"const int ends[] = {{{', '.join(map(str, step.plan.ends))}}};",
        f"const int injected[] = {{{', '.join(map(str, injected))}}};",
        f"const int field_of[] = {{{', '.join(map(str, step.plan.field_of))}}};",
        f"const unsigned char layers_of[] = {{{', '.join(str(bits(step, axes)) for axes in step.plan.layer_axes)}}};",
    ]


def sides_of(step: Step) -> Sides:
    """Return the sides of all arrays that need ghost cells, and add their functions to those of the step."""
    sides: Sides = {}
    for number, axis, end in itertools.product(range(len(step.plan.arrays)), range(step.plan.ndim), (0, 1)):
        made = side(step, number, axis, end)
        if made:
            sides[number, axis, end] = made
    return sides


def beside(sides: Sides) -> dict[int, set[int]]:
    """Return, for each array that has ghost cells, the other arrays that its boundary conditions read, all by number."""
    found: dict[int, set[int]] = {}
    for (number, _, _), side in sides.items():
        found.setdefault(number, set()).update(side.nexts)
    return found


def outline(step: Step, sides: Sides) -> str:
    """Return the C++ text of a step's tables, for the cost model, with functions that compute nothing."""
    return "\n".join([
        real(step),
        '#include "program.hpp"',
        *counts(step),
        "static void compute(const Place&, const Rows*, const Rows*, long, long, long, long) {}",
        "static void fill(const Place&, real*, const real*, long, const Rows*, long, long, long, long, long) {}",
        *geometry(step, sides, bare=True),
        "const int table_axis[] = {0}, layer_table[LAYER_TABLES + 1] = {0};",
        "void prepare(const double*, const double*, double, double, double, real*) {}",
        "real tabulate(int, const double*, const double*, const double* const*, const long*) { return 0; }",
        "real fix(int, const double*, const double*, const double* const*, const long*) { return 0; }", "",
    ])  # fmt: skip


def text(step: Step, sides: Sides) -> str:
    """Return the C++ text of the program that takes a step."""
    functions = [f"static void {name}{body}" for body, name in step.text.functions.items()]
    profiles = [step.text.tables.index(tree) for trees in step.plan.layers.profiles.values() for tree in trees]
    tables, fixed = (
        [f"case {n}: {{ {text} }}" for n, text in enumerate(functions.texts.values())]
        for functions in (step.text.tables, step.text.fixed)
    )
    table_axes = [step.text.axis_of[axis] for tree in step.text.tables.texts for axis in tree.axes]
    return "\n".join([
        real(step),
        '#include "program.hpp"',
        *counts(
            step,
            step.text.numbers.furthest,
            PARAMETERS=len(step.plan.problem.numbers),
            CONSTANTS=len(step.text.numbers.constants),
            TABLES=len(tables),
            FIXED=len(fixed),
            SCALARS=len(step.text.scalars.entries),
        ),
        '#include "vector.hpp"',
        *['#include "half.hpp"'] * step.plan.problem.replayed_in_half,
        *functions,
        *geometry(step, sides, bare=False),
        f"const int table_axis[] = {{{', '.join(map(str, [*table_axes, 0]))}}};",
        f"const int layer_table[] = {{{', '.join(map(str, [*profiles, 0]))}}};",
        "void prepare(const double* p, const double* c, double start, double step, double dt, real* s) {",
        "const double time = start + step * dt; (void)time;",
        *step.text.scalars.lines(),
        "}",
        "real tabulate(int table, const double* p, const double* c, const double* const* coordinates,",
        "              const long* index) {",
        "const double time = 0, dt = 0; (void)time; (void)dt;",
        "switch (table) {", *tables, "}", "return 0;", "}",
        "real fix(int number, const double* p, const double* c, const double* const* coordinates,",
        "         const long* index) {",
        "const double time = 0, dt = 0; (void)time; (void)dt;",
        "switch (number) {", *fixed, "}", "return 0;", "}", "",
    ])  # fmt: skip


def side(step: Step, number: int, axis: int, end: int) -> Side | None:
    """Return the side of the array ``number`` at the lower (0) or upper (1) ``end`` of an axis.

    The function that fills its ghost cells is added to those of the step. The result is None if the array needs no ghost
    cells there.
    """
    array = step.plan.arrays[number]
    if array.operand is None or array.deep or step.plan.problem.config.boundary.periodic[axis]:
        return None
    face = step.plan.problem.faces.get((array.operand, axis, end), NO_FLUX)
    grid = step.plan.problem.config.grid
    place = (grid.lower, grid.upper)[end][axis]
    values = [on_plane(value, axis, place) for value in face.values]
    nexts = list(dict.fromkeys(part.name for v in values for part in walk(v) if isinstance(part, Field)))
    across = step.text.axis_of[axis] == 2
    code = FaceCells(
        step.text.numbers,
        step.text.discretization,
        step.text.axis_of,
        step.text.scalars,
        step.text.tables,
        None,
        Scope({}, array.node),
        nexts=tuple(nexts),
        across=across,
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
    name = step.text.functions.setdefault(body, f"face{len(step.text.functions)}")
    base = len(step.text.scalars.entries)
    step.text.scalars.entries += code.own
    beside = tuple(array.beside.get(n, step.plan.fields.index(n)) for n in nexts)
    return Side(name, base, KINDS[face.kind].on_face, beside)


@dataclass
class FaceCells(Cells):
    """Writer of the statements for ghost cells.

    A field stands for its values in the cells next to the boundary; ``nexts`` are the fields that are read. If the boundary
    is ``across`` the last axis, ghost cells are computed one at a time instead of in vectors.
    """

    nexts: tuple[str, ...] = ()
    across: bool = False

    def leaf(self, tree: Node, at: Offset) -> str | None:
        if isinstance(tree, Field):
            n = self.nexts.index(tree.name)
            return self.let(f"load<W>(next[{n}].p + j * next[{n}].pitch{'' if self.across else ' + x'})")
        return super().leaf(tree, at)


@dataclass(frozen=True)
class Term:
    """The C++ text of a value, which supports the arithmetic of the formulas in `boundary_kinds`."""

    text: str

    def __add__(self, other: Term) -> Term:
        return Term(f"({self.text} + {other.text})")

    def __sub__(self, other: Term) -> Term:
        return Term(f"({self.text} - {other.text})")

    def __mul__(self, other: Term) -> Term:
        return Term(f"({self.text} * {other.text})")

    def __truediv__(self, other: Term) -> Term:
        return Term(f"({self.text} / {other.text})")


def ghost(code: Cells, face: Face, given: Sequence[str], spacing: float) -> str:
    """Return the C++ expression, by the formula of `boundary_kinds`, for the ghost cell at distance k with mirror cell m.

    ``given`` are the expressions for the condition's values, and ``spacing`` is the cell width across the boundary.
    """
    kind = KINDS[face.kind]
    height = f"splat<W>(real(({'2 * k' if kind.on_face else '2 * k - 1'}) * double(q.s[{len(code.own)}])))"
    made = kind.ghost(lambda c: Term(f"splat<W>(real({c!r}))"), Term("m"), Term(height), *map(Term, given)).text
    if height in made:
        code.own.append(f"real({code.numbers.constant(spacing)})")
    return f"k ? {made} : {given[0]}" if kind.on_face else made
