"""A step of a method as passes over the grid, and the C++ text of it that `driver.hpp` runs.

Each pass computes some arrays in all cells from arrays before it. What a derivative is taken of, other than a field, is an
array of its own, which a pass before computes. The last pass of a stage evaluates the right-hand sides and forms the
stage's values at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from hpcstencil.boundary import NO_FLUX, WALL, Face
from hpcstencil.expressions import (
    OPERATORS,
    Field,
    Node,
    bottom_up,
    children,
    on_plane,
    varies,
    walk,
)
from hpcstencil.integrators import MEMORY, Stage
from hpcstencil.native.emit import Cells, Fixed, Numbers, Offset, Scalars, Tables, Unsupported, changes
from hpcstencil.problem import Problem

AXIS_OF = {1: (2,), 2: (0, 2), 3: (0, 1, 2)}  # axes of the problem -> those of the driver
MOST_PLANES = 60  # of the arrays that a pass looks at: `driver.hpp` has room for so many


@dataclass(frozen=True)
class Program:
    """C++ text, and what it is to be given: the numbers of its expressions, what stands for p[] and c[] in it."""

    text: str
    fields: tuple[str, ...]
    parameters: tuple[str, ...]
    constants: tuple[float, ...]


@dataclass
class Array:
    """An array of the step: which ``face`` conditions continue it beyond the boundary, at which part of the step."""

    operand: Node | None
    node: float = 0.0
    deep: bool = False
    used_at: set[float] = field(default_factory=set)


@dataclass
class Pass:
    """Text of a pass and what it needs."""

    function: str
    scalars: int
    inputs: list[tuple[int, list[int]]]
    planes: list[tuple[int, int]]
    outputs: list[int]
    jam: int


def program(problem: Problem) -> Program:
    """The native program of a problem. Raises Unsupported, with a sentence, where there is none."""
    if problem.members:
        raise Unsupported("ensembles are computed by the other kernels")
    try:
        return Planner(problem).program()
    except RecursionError:
        raise Unsupported("an expression is too deeply nested") from None


Write = Callable[[Cells, Offset], str]  # writes the statements for an array's value in a cell, and names it


def value_of(tree: Node) -> Write:
    """What writes the value of a tree."""
    return lambda code, at: code.value(tree, at)


class Planner:
    """Makes the passes of one step of a problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.fields = tuple(sorted(problem.fields))  # as jax has them, in compiled code and in exchanged strips
        self.ndim = problem.config.grid.ndim
        self.axis_of = AXIS_OF[self.ndim]
        self.discretization = problem.discretization
        self.numbers = Numbers(tuple(problem.parameters))
        self.scalars = Scalars(self.numbers, self.discretization, self.axis_of)
        self.tables = Tables(self.numbers, self.discretization, self.axis_of)
        self.fixed = Fixed(self.numbers, self.discretization, self.axis_of)
        self.arrays = [Array(Field(name)) for name in self.fields]
        self.passes: list[Pass] = []
        self.functions: dict[str, str] = {}  # text -> name
        import os

        self.jam = int(os.environ.get("JAM", "2")) if self.ndim == 3 else 1

    # ---- one step ----

    def program(self) -> Program:
        problem, method = self.problem, self.problem.method
        start = {name: n for n, name in enumerate(self.fields)}
        values: dict[int, dict[str, int]] = {0: start}  # of each stage: field -> array
        slopes: dict[int, dict[str, int]] = {}
        last_use = {j: i for i, stage in enumerate(method.stages) for j, _ in stage.slopes}
        end = dict(start)
        for i, stage in enumerate(method.stages):
            fresh = [j for j, _ in stage.slopes if j not in slopes]
            for j in fresh[:-1]:
                slopes[j] = self.slopes(j, values[j], self.trees(j))
            moved = dict(values[i])
            new = fresh[-1] if fresh else None
            self.stage(stage, values, slopes, moved, new, keep=new is not None and last_use[new] > i)
            values[i + 1] = end = moved
        self.check_times()
        ends = [end[name] for name in self.fields]
        return Program(self.text(ends), self.fields, tuple(problem.parameters), tuple(self.numbers.constants))

    def trees(self, j: int) -> Mapping[str, Node]:
        """The right-hand sides whose slopes at the j-th value the method uses."""
        return self.problem.apart if j and self.problem.apart else self.problem.trees

    def slopes(self, j: int, values: Mapping[str, int], trees: Mapping[str, Node]) -> dict[str, int]:
        """A pass for slopes alone."""
        node = self.problem.method.nodes[j]
        held = self.inner(values, trees, node)
        made = {name: self.array(None, node) for name in trees}
        self.add({made[name]: value_of(tree) for name, tree in trees.items()}, held, node)
        return made

    def stage(
        self,
        stage: Stage,
        values: Mapping[int, Mapping[str, int]],
        slopes: dict[int, dict[str, int]],
        moved: dict[str, int],
        new: int | None,
        keep: bool,
    ) -> None:
        """The passes of one stage: ``new`` is the value whose slopes are taken here, to ``keep`` for later stages."""
        problem, groups = self.problem, self.problem.groups
        trees = {} if new is None else self.trees(new)
        known = [*slopes.values(), trees] if new is not None else list(slopes.values())
        moving = [
            name
            for name in values[0]
            if all(name in (trees if j == new else slopes[j]) for j, _ in stage.slopes)
            and (stage.group is None or groups[name] == stage.group)
        ]
        assert known or not moving
        wanted = trees if keep else {name: trees[name] for name in moving if name in trees}
        node = 0.0 if new is None else problem.method.nodes[new]
        held = self.inner(values[new or 0], wanted, node)
        number = len(values)
        at_node = problem.method.nodes[number]
        outputs: dict[int, Write] = {}
        kept: dict[str, int] = {}
        for name in moving:
            target = self.array(Field(name), at_node)
            outputs[target] = self.combination(stage, name, values, slopes, new, trees)
            moved[name] = target
            if stage.remembered:
                kept[name] = self.array(None, node)
                moved[name + MEMORY] = kept[name]
        if keep:
            for name in wanted:
                kept.setdefault(name, self.array(None, node))
            assert new is not None
            slopes[new] = kept
        for name, array in kept.items():
            outputs[array] = value_of(trees[name])
        self.add(outputs, held, node, {trees[name] for name in kept})

    def combination(
        self,
        stage: Stage,
        name: str,
        values: Mapping[int, Mapping[str, int]],
        slopes: Mapping[int, Mapping[str, int]],
        new: int | None,
        trees: Mapping[str, Node],
    ) -> Write:
        """What writes Σ_j a_j y_j + dt Σ_j b_j k_j of a field."""

        def write(code: Cells, at: tuple[int, int, int]) -> str:
            result = ""
            for j, a in stage.values:
                value = code.loaded_once(values[j][name], at)
                text = value if a == 1.0 else f"{code.scalar((), a)} * {value}"
                result = code.let(f"{result} + {text}" if result else text)
            for j, b in stage.slopes:
                scale = f"dt * {b!r}"
                if j == new:
                    if code.shares(trees[name]):
                        result = code.let(f"{result} + {code.scalar((), 1.0, scale)} * {code.value(trees[name], at)}")
                    else:
                        result = code.added(result, code.terms(trees[name], at), scale)
                else:
                    result = code.let(
                        f"{result} + {code.scalar((), 1.0, scale)} * {code.loaded_once(slopes[j][name], at)}"
                    )
            if stage.remembered:
                before = code.loaded_once(values[0][name + MEMORY], at)
                result = code.let(f"{result} + {code.scalar((), 1.0, f'dt * {stage.remembered!r}')} * {before}")
            return result

        return write

    # ---- arrays and passes ----

    def array(self, operand: Node | None, node: float, deep: bool = False) -> int:
        self.arrays.append(Array(operand, node, deep))
        return len(self.arrays) - 1

    def inner(self, values: Mapping[str, int], trees: Mapping[str, Node], node: float) -> dict[Node, int]:
        """Passes for all that derivatives are taken of; the arrays that hold a tree."""
        held: dict[Node, int] = {Field(name): number for name, number in values.items()}
        level: dict[Node, int] = dict.fromkeys(held, 0)
        wanted: dict[Node, int] = {}
        depth: dict[Node, int] = {}
        for part in (part for tree in trees.values() for part in bottom_up(tree)):
            if part in depth:
                continue
            depth[part] = max((depth[child] for child in children(part)), default=0)
            if isinstance(part, OPERATORS):
                for operand in children(part):
                    if varies(operand) and operand not in level:
                        level[operand] = wanted[operand] = depth[operand] + 1
                depth[part] = max([depth[part], *(level.get(operand, 0) for operand in children(part))])
        for number in sorted(set(wanted.values())):
            group = [operand for operand, n in wanted.items() if n == number]
            made = {operand: self.array(operand, node, deep=self.problem.staggered) for operand in group}
            self.add({made[operand]: value_of(operand) for operand in group}, held, node)
            held.update(made)
        return held

    def add(
        self, outputs: Mapping[int, Write], held: Mapping[Node, int], node: float, shared: Collection[Node] = ()
    ) -> None:
        """A pass that computes ``outputs``: what writes each array's value, by number; ``shared`` are trees of several."""
        if not outputs:
            return
        code = Cells(
            self.numbers,
            self.discretization,
            self.axis_of,
            self.scalars,
            self.tables,
            self.fixed,
            held,
            node,
            self.problem.mask,
        )
        code.shared.update(shared)
        stores, numbers = [], list(outputs)
        for row in range(self.jam):
            code.jammed = row
            for n, array in enumerate(numbers):
                value = outputs[array](code, (0, row, 0))
                code.row.append(f"real* const o{n}_{row} = out[{n}].p + (j + {row}) * out[{n}].pitch;")
                stores.append(f"store(o{n}_{row} + x, {value});")
        for array, reach in code.reach.items():
            if any(reach):
                self.arrays[array].used_at.add(node)
        inputs = [(array, reach) for array, reach in code.reach.items()]
        places = {array: n for n, (array, _) in enumerate(inputs)} | {
            array: array for array, _ in code.planes if array < 0
        }
        planes = [(places[array], offset) for array, offset in code.planes]
        if len(planes) > MOST_PLANES or len(outputs) > MOST_PLANES:
            raise Unsupported("the equation looks at too many arrays at once")
        body = "\n".join([
            "(const Place& q, const Rows* in, const Rows* out, long j0, long j1, long x0, long x1) {",
            "typedef vec W;",
            *code.head,
            f"for (long j = j0; j < j1; j += {self.jam}) {{",
            *code.row,
            "for (long x = x0; x < x1; x += LANES) {",
            *code.lines,
            *stores,
            "}", "}", "}",
        ])  # fmt: skip
        name = self.functions.setdefault(body, f"pass{len(self.functions)}")
        self.passes.append(Pass(name, len(self.scalars.entries), inputs, planes, numbers, self.jam))
        self.scalars.entries += code.own

    def check_times(self) -> None:
        """Ghost cells are made once per array: at one time."""
        ends = {array for p in self.passes for array in p.outputs}
        for number, array in enumerate(self.arrays):
            if array.operand is None or array.deep:
                continue
            times = array.used_at if number in ends or number < len(self.fields) else set()
            given = [
                v
                for (operand, _, _), face in self.problem.faces.items()
                if operand == array.operand
                for v in face.values
            ]
            if any(changes(value) for value in given) and times - {array.node}:
                raise Unsupported("boundary values change in time within a step of this integrator")

    # ---- ghost cells ----

    def face(self, number: int, axis: int, side: int) -> str:
        """The entry of an array for a side, and the function that makes its ghost cells."""
        array = self.arrays[number]
        if array.operand is None or array.deep or self.problem.config.boundary.periodic[axis]:
            return "{}"
        face = self.problem.faces.get((array.operand, axis, side), NO_FLUX)
        grid = self.problem.config.grid
        place = (grid.lower, grid.upper)[side][axis]
        values = [on_plane(value, axis, place) for value in face.values]
        nexts = list(dict.fromkeys(part.name for v in values for part in walk(v) if isinstance(part, Field)))
        across = self.axis_of[axis] == 2
        code = FaceCells(
            self.numbers,
            self.discretization,
            self.axis_of,
            self.scalars,
            self.tables,
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
        name = self.functions.setdefault(body, f"face{len(self.functions)}")
        base = len(self.scalars.entries)
        self.scalars.entries += code.own
        ids = ", ".join(str(self.fields.index(n)) for n in nexts)
        listed = f"(const int[]){{{ids}}}" if nexts else "nullptr"
        return f"{{{name}, {base}, {str(face.kind == WALL).lower()}, {len(nexts)}, {listed}}}"

    # ---- text ----

    def text(self, ends: Sequence[int]) -> str:
        real = {"float32": "float", "float64": "double"}[self.problem.config.numerics.precision]
        faces = {}
        for number, array in enumerate(self.arrays):
            entries = ["{{}, {}}"] * 3
            for axis in range(self.ndim):
                entries[self.axis_of[axis]] = f"{{{self.face(number, axis, 0)}, {self.face(number, axis, 1)}}}"
            faces[number] = f"{{{str(array.deep).lower()}, {{{', '.join(entries)}}}}}"
        functions = [f"static void {name}{body}" for body, name in self.functions.items()]
        rows, listed = [], []
        for n, p in enumerate(self.passes):
            inputs = ", ".join(f"{{{array}, {{{', '.join(map(str, reach))}}}}}" for array, reach in p.inputs)
            planes = ", ".join(f"{{{i}, {o}}}" for i, o in p.planes)
            listed += [
                f"static const Input inputs{n}[] = {{{inputs or '{}'}}};",
                f"static const Plane planes{n}[] = {{{planes or '{}'}}};",
                f"static const int outputs{n}[] = {{{', '.join(map(str, p.outputs))}}};",
            ]
            rows.append(
                f"{{{p.function}, {p.scalars}, {len(p.inputs)}, {len(p.planes)}, {len(p.outputs)}, {p.jam}, "
                f"inputs{n}, planes{n}, outputs{n}}}"
            )
        fixed = [f"case {n}: {{ {text} }}" for n, text in enumerate(self.fixed.texts)]
        cases = [f"case {n}: {{ {text} }}" for n, text in enumerate(self.tables.texts)]
        return "\n".join([
            f"typedef {real} real;",
            f"constexpr int PARAMETERS = {len(self.problem.parameters)}, MOST_OFFSET = {self.numbers.furthest};",
            f"constexpr int FIELDS = {len(self.fields)}, ARRAYS = {len(self.arrays)}, PASSES = {len(self.passes)}, "
            f"TABLES = {len(self.tables.texts)}, FIXED = {len(self.fixed.texts)}, SCALARS = {len(self.scalars.entries)};",
            '#include "driver.hpp"',
            '#include "cells.hpp"',
            *functions,
            *listed,
            f"const Pass passes[PASSES] = {{{', '.join(rows)}}};",
            f"const Array arrays[ARRAYS] = {{{', '.join(faces[n] for n in range(len(self.arrays)))}}};",
            f"const int ends[FIELDS] = {{{', '.join(map(str, ends))}}};",
            f"const int table_axis[TABLES + 1] = {{{', '.join(map(str, [*self.tables.axes, 0]))}}};",
            "static void prepare(const double* p, const double* c, double time, double dt, real* s) {",
            *self.scalars.lines(),
            "}",
            "static real tabulate(int table, const double* p, const double* c, const double* const* coordinates,",
            "                     const long* index) {",
            "const double time = 0, dt = 0; (void)time; (void)dt;",
            "switch (table) {", *cases, "}", "return 0;", "}",
            "static real fix(int number, const double* p, const double* c, const double* const* coordinates,",
            "                const long* index) {",
            "const double time = 0, dt = 0; (void)time; (void)dt;",
            "switch (number) {", *fixed, "}", "return 0;", "}", "",
        ])  # fmt: skip


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
