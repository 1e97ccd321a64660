"""Parts of a step, grouped into passes over the grid, and the C++ text of the passes.

A part computes some arrays in all cells from earlier arrays. It joins the previous pass if it reads that pass's results
only in the cell itself, never in neighbours. In the same way, the first pass of the next step may join the last pass, in
all steps of a call but the last.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from hpcstencil.backends.backend import Unsupported
from hpcstencil.backends.native.expression_writer import Numbers, Offset
from hpcstencil.backends.native.pass_statements import OF_STEP, Cells, Row, Scope
from hpcstencil.backends.native.scalars import Functions, Scalars
from hpcstencil.backends.native.zero_regions import NO_LAYERS, NONE_ABSENT, Absent, Layers
from hpcstencil.problem.problem import Problem
from hpcstencil.symbolic.expressions import Field, Node

AXIS_OF = {1: (2,), 2: (0, 2), 3: (0, 1, 2)}  # axes of the problem -> those of the driver
MOST_AT_ONCE = 4  # planes that a pass computes together, as in program.hpp
MOST_PLANES = 1024  # largest number of planes that a pass may read or write
LONG = 150  # a pass with more statements per cell computes one plane at a time
MANY_ARRAYS = 40  # a step with more arrays computes one plane at a time in three dimensions
FEW = 40  # if no pass has more statements, planes that are single rows are computed four at a time
MOST_SLIDING = 6  # most rows that are read by sliding vectors; each keeps three vectors in registers
MANY_ROWS = 12  # if more rows are read per cell, the processor lacks registers for all their addresses

Write = Callable[[Cells, Offset], str]  # writes the statements for an array's value in a cell, and names it


def value_of(tree: Node) -> Write:
    """Return the function that writes the statements for the value of a tree."""
    return lambda code, at: code.value(tree, at)


@dataclass(frozen=True)
class Array:
    """An array that a step uses.

    Attributes
    ----------
    operand
        The tree whose values it holds; None for arrays that need no ghost cells, such as slopes and errors.
    node
        The time within the step, as a fraction of dt, at which boundary conditions define its ghost cells.
    deep
        Whether cells beyond the boundary are computed like inner cells, instead of by a boundary condition.
    beside
        The arrays that hold the fields at that time, by field, unless these are the first arrays of the step.
    rate_of
        The field of whose time derivative it holds values; "" for other arrays.
    """

    operand: Node | None
    node: float = 0.0
    deep: bool = False
    beside: Mapping[str, int] = field(default_factory=dict)
    rate_of: str = ""


@dataclass(frozen=True, eq=False)
class Part:
    """One unit of work within a step: the computation of one or more arrays in every cell.

    ``outputs`` maps the number of each array to the function that writes the C++ statements for its value. ``scope``
    says which arrays hold trees that are already computed, and at which time within the step the trees are evaluated.
    ``trees`` are the right-hand sides that are evaluated for the outputs, by array.
    """

    outputs: Mapping[int, Write]
    scope: Scope
    trees: Mapping[int, Node] = field(default_factory=dict)


Parts = tuple[Part, ...]  # of one pass


@dataclass(frozen=True)
class StepPlan:
    """The step of a problem as ``parts``, which compute ``arrays``.

    The first arrays are the fields, followed by the estimated errors of some fields. ``ends`` are the numbers of the arrays
    that hold these after the step. ``layers`` are the absorbing layers outside which some arrays are 0. ``injected`` are the
    arrays that values are added to after their pass (injection.hpp), and how many of the parts come before the addition.
    A pass computes ``most_at_once`` planes together at most.
    """

    problem: Problem
    arrays: tuple[Array, ...]
    parts: Parts
    ends: tuple[int, ...]
    layers: Layers = NO_LAYERS
    injected: Mapping[int, int] = field(default_factory=dict)
    most_at_once: int = MOST_AT_ONCE

    @property
    def ndim(self) -> int:
        """The number of axes of the grid."""
        return self.problem.config.grid.ndim

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields, in the order of the first arrays."""
        return fields_of(self.problem)

    @property
    def field_of(self) -> list[int]:
        """For each array, the index of the field that it holds, or -1. Estimated errors count as additional fields."""
        ends = {array: number for number, array in enumerate(self.ends)}
        values: dict[Node | None, int] = {Field(name): number for number, name in enumerate(self.fields)}
        return [ends.get(n, values.get(array.operand, -1)) for n, array in enumerate(self.arrays)]

    @cached_property
    def beside_faces(self) -> set[int]:
        """The arrays that hold the fields that the boundary conditions of arrays read, at the times of these arrays."""
        names = fields_beside_faces(self)
        return {array.beside[name] for array in self.arrays if array.beside for name in names}

    @cached_property
    def layer_axes(self) -> list[frozenset[int]]:
        """For each array, the axes of the layers outside which it is 0; empty if it is not 0 there."""
        trees = (Field(array.rate_of) if array.rate_of else array.operand for array in self.arrays)
        return [frozenset() if tree is None else self.layers.axes(tree) for tree in trees]

    def absent(self, axes: Collection[int]) -> Absent:
        """Return what is 0 in cells that lie in the layers of these ``axes`` and of no other one."""
        return Absent(
            frozenset(name for name, axis in self.layers.axis.items() if axis not in axes),
            frozenset(n for n, own in enumerate(self.layer_axes) if own and not own & set(axes)),
        )


def fields_of(problem: Problem) -> tuple[str, ...]:
    """Return the names of a problem's fields, sorted as JAX sorts the keys of a dict.

    Compiled code and exchanged strips have this order.
    """
    return tuple(sorted(problem.fields))


@dataclass(frozen=True)
class Variant:
    """A C++ function that computes a pass in some cells: those in the layers of some axes and outside the others.

    Attributes
    ----------
    function
        The name of the function.
    scalars
        The index of its first scalar in s[].
    planes
        The planes that it reads: (index of an input of the pass, offset along the first axis). Fixed arrays and arrays of a
        step have negative indices, as in program.hpp.
    outputs
        The indices of those outputs of the pass that it fills. The others are 0.
    at_once
        The number of planes that it computes together.
    """

    function: str
    scalars: int
    planes: list[tuple[int, int]]
    outputs: list[int]
    at_once: int


@dataclass(frozen=True)
class Pass:
    """A pass over the grid, as the C++ driver needs it.

    Attributes
    ----------
    inputs
        The arrays that it reads: (number, distance of the reads in cells per axis, whether it reads along only one axis at
        a time).
    outputs
        The numbers of the arrays that it fills. An array of the next step is offset by the number of all arrays.
    variants
        Its functions, by the axes in whose layers the cells lie. Without layers there is one, for the empty set.
    """

    inputs: list[tuple[int, list[int], bool]]
    outputs: list[int]
    variants: Mapping[frozenset[int], Variant]

    @property
    def whole(self) -> Variant:
        """The function that computes all outputs."""
        return self.variants[max(self.variants, key=len)]

    @property
    def at_once(self) -> int:
        """The number of planes that the driver computes together: a multiple of that of each variant."""
        return max(variant.at_once for variant in self.variants.values())


class Text:
    """The C++ text that the passes of a step share.

    It has the ``functions`` of the passes, the run-time ``numbers`` of expressions, the ``scalars`` computed once per step,
    the ``tables`` of functions of one coordinate, and the ``fixed`` arrays of functions of several coordinates.
    """

    def __init__(self, problem: Problem) -> None:
        self.axis_of = AXIS_OF[problem.config.grid.ndim]
        self.discretization = problem.discretization
        self.numbers = Numbers(problem.numbers, problem.sampled)
        self.scalars = Scalars(self.numbers, self.discretization, self.axis_of)
        self.tables = Functions(self.numbers, self.discretization, self.axis_of)
        self.fixed = Functions(self.numbers, self.discretization, self.axis_of)
        self.functions: dict[str, str] = {}  # text -> name
        self.replayed, self.replayed_in_half = problem.replayed, problem.replayed_in_half

    def statements(
        self,
        parts: Sequence[Part],
        planes: int = 1,
        by_pitch: bool = False,
        slides: Collection[Row] = (),
        absent: Absent = NONE_ABSENT,
    ) -> Cells:
        """Write the statements for the ``parts`` of a pass that computes ``planes`` planes together.

        ``by_pitch``, ``slides`` and ``absent`` are as in `Cells`. Absent arrays are not computed.
        """
        code = Cells(
            self.numbers,
            self.discretization,
            self.axis_of,
            self.scalars,
            self.tables,
            self.fixed,
            NOWHERE,
            by_pitch,
            slides,
            absent,
            self.replayed,
            self.replayed_in_half,
        )
        for part in parts:
            code.turn_to(part.scope)
            values = {}
            wanted = {array: write for array, write in part.outputs.items() if array not in absent.arrays}
            for plane in range(planes):
                at = (plane, 0, 0)
                code.scope = replace(part.scope, plane=plane)
                values.update({(array, at): write(code, at) for array, write in wanted.items()})
            renamed = part.scope.renamed
            code.made.update({(renamed.get(array, array), at): name for (array, at), name in values.items()})
        return code


NOWHERE = Scope({}, 0.0)  # before the first part


class Trials:
    """Statements written on trial, to count them and to find the cells that they read. Results are cached."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.written: dict[tuple[Parts, Absent], Cells] = {}

    def of(self, parts: Sequence[Part], absent: Absent = NONE_ABSENT) -> Cells:
        """Return the statements for one cell of the parts that share a pass, where some arrays are ``absent``."""
        known = tuple(parts), absent
        if known not in self.written:
            self.written[known] = Text(self.problem).statements(known[0], absent=absent)
        return self.written[known]


# ---- parts joined to passes ----


def group_into_passes(plan: StepPlan, trials: Trials) -> list[Parts]:
    """Group the parts of a step's plan into passes."""
    passes: list[Parts] = []
    for number, part in enumerate(plan.parts):
        if passes and can_join(plan, trials, (part,), passes[-1], number):
            passes[-1] = (*passes[-1], part)
        else:
            passes.append((part,))
    return passes


def joined_ends(plan: StepPlan, trials: Trials, passes: Sequence[Parts]) -> Parts:
    """Return the parts of the last pass of a step and the first pass of the next one, joined.

    The result is empty if the two cannot be joined. A pass reads the arrays of one step only (`Problem.replayed`).
    """
    of_step = any(array <= OF_STEP for array, _ in trials.of(passes[0]).reads.planes)
    if len(passes) < 2 or plan.problem.errors() or of_step:
        return ()
    results = [array for part in passes[0] for array in part.outputs]
    renamed = dict(enumerate(plan.ends)) | {array: array + len(plan.arrays) for array in results}
    first = tuple(replace(part, scope=replace(part.scope, renamed=renamed)) for part in passes[0])
    return (*passes[-1], *first) if can_join(plan, trials, first, passes[-1], len(plan.parts)) else ()


def can_join(plan: StepPlan, trials: Trials, parts: Parts, before: Parts, number: int) -> bool:
    """Return whether ``parts`` can be computed in the same pass as the parts ``before`` them.

    ``number`` is that of the first of them in the plan.
    """
    results = [array for part in before for array in part.outputs]
    if any(plan.arrays[array].deep for part in (*before, *parts) for array in part.outputs):
        return False
    reach = trials.of(parts).reads.reach
    if any(array in reach and number >= plan.injected.get(array, number + 1) for array in results):
        return False  # they need what is added after the pass
    return not any(any(reach.get(array, ())) for array in results)


def adds_too_early(plan: StepPlan, trials: Trials, passes: Sequence[Parts]) -> bool:
    """Return whether values are added to an array before all parts that need it without them are computed."""
    for array, number in plan.injected.items():
        own = next(parts for parts in passes if any(array in part.outputs for part in parts))
        others = (part for part in plan.parts[:number] if part not in own)
        if any(array in trials.of([part]).reads.reach for part in others):
            return True
    return False


# ---- the text of passes ----


def write_passes(plan: StepPlan, trials: Trials, passes: Sequence[Parts], ends: Parts, text: Text) -> list[Pass]:
    """Return all passes of a step, each of which stores the results that are needed later.

    Their functions are added to ``text``. If there are joined ``ends``, their pass is the last one.
    """
    read = [set(trials.of(parts).reads.reach) for parts in passes]
    wanted = {*plan.ends, *plan.beside_faces, *(array for arrays in read for array in arrays)}
    outside = plan.absent(frozenset())
    longest = max(len(trials.of(parts, outside).lines) for parts in passes)
    results = [pass_of(plan, trials, parts, wanted, longest, text) for parts in passes]
    if ends:
        begun, unread = {array for part in passes[0] for array in part.outputs}, only_written(plan, read)
        later = {array + len(plan.arrays) for array in begun & unread.union(*read[1:])}
        stored = ends_read(plan, trials, passes) | unread - begun | later
        results.append(pass_of(plan, trials, ends, stored, longest, text))
    return results


def ends_read(plan: StepPlan, trials: Trials, passes: Sequence[Parts]) -> set[int]:
    """Return the arrays of fields after a step that must be stored although the joined pass uses them directly.

    They are read by boundary conditions, or by a pass of the next step after its first one.
    """
    later = {array for parts in passes[1:] for array in trials.of(parts).reads.reach}
    beside = fields_beside_faces(plan)
    return {end for n, end in enumerate(plan.ends) if n in later or (n < len(plan.fields) and plan.fields[n] in beside)}


def only_written(plan: StepPlan, read: Sequence[set[int]]) -> set[int]:
    """Return the arrays, after a step, of the fields that no pass reads. ``read`` are the arrays that each pass reads.

    A step computes them anew, whatever they were; they may be recorded after each step.
    """
    return {end for n, end in enumerate(plan.ends) if not any(n in arrays for arrays in read)}


def fields_beside_faces(plan: StepPlan) -> set[str]:
    """Return the names of the fields that the boundary conditions of arrays read."""
    operands = {array.operand for array in plan.arrays}
    faces = [face for (operand, _, _), face in plan.problem.faces.items() if operand in operands]
    return {name for face in faces for value in face.values for name in value.field_names}


def planes_at_once(plan: StepPlan, statements: int, longest: int) -> int:
    """Return the number of planes that a pass of ``statements`` statements per cell computes together.

    The sweep advances by the largest number of any pass, and each array between two passes holds as many planes more. So it
    also depends on the statements of the ``longest`` pass: it is four only if all passes have few statements, and one in
    three dimensions if any pass is long, because planes then take much memory and a plane computed alone costs little more.
    It is one there, too, if the step has many arrays.
    """
    much_memory = plan.ndim == 3 and (longest > LONG or len(plan.arrays) > MANY_ARRAYS)
    if plan.ndim == 1 or statements > LONG or much_memory:
        return 1
    few = plan.ndim == 2 and max(longest, statements) <= FEW
    return min(MOST_AT_ONCE if few else 2, plan.most_at_once)


def pass_of(plan: StepPlan, trials: Trials, parts: Parts, wanted: Collection[int], longest: int, text: Text) -> Pass:
    """Return the pass of ``parts``, which stores their ``wanted`` results.

    Its functions and scalars are added to ``text``; ``longest`` is as in `planes_at_once`. Raises Unsupported if the pass reads
    or writes more than `MOST_PLANES` planes.
    """
    reads = trials.of(parts).reads
    inputs = [(array, reach, array not in reads.corners) for array, reach in reads.reach.items()]
    places = {array: n for n, array in enumerate(reads.reach)}
    outputs = list(dict.fromkeys(array for array, _ in trials.of(parts).made if array in wanted))
    variants = {
        axes: variant_of(plan, trials, parts, places, outputs, plan.absent(axes), longest, text)
        for axes in reversed(plan.layers.subsets())
    }
    return Pass(inputs, outputs, variants)


def variant_of(
    plan: StepPlan,
    trials: Trials,
    parts: Parts,
    places: Mapping[int, int],
    outputs: Sequence[int],
    absent: Absent,
    longest: int,
    text: Text,
) -> Variant:
    """Return the function of a pass for cells where some arrays are ``absent``, and add it to ``text``.

    ``places`` are the indices of the pass's inputs, by array, and ``outputs`` the arrays that it fills. Raises Unsupported
    like `pass_of`.
    """
    tried = trials.of(parts, absent)
    planes = planes_at_once(plan, len(tried.lines), longest)
    along = tried.reads.along
    most = sorted(along, key=lambda row: -len(along[row]))[: MOST_SLIDING // planes]
    slides = {(array, i + plane, j) for array, i, j in most for plane in range(planes)}
    code = text.statements(parts, planes, len(tried.row) > MANY_ROWS, slides, absent)
    made = {array for array, _ in code.made}
    stored = [array for array in outputs if array in made]
    looked_at = [(array if array < 0 else places[array], offset) for array, offset in code.reads.planes]
    if len(looked_at) > MOST_PLANES or planes * len(outputs) > MOST_PLANES:
        raise Unsupported(f"one pass of the step would read or write more than {MOST_PLANES} planes")
    body = function_of(code, stored)
    name = text.functions.setdefault(body, f"pass{len(text.functions)}")
    first = len(text.scalars.entries)
    text.scalars.entries += code.own
    return Variant(name, first, looked_at, [outputs.index(array) for array in stored], planes)


def function_of(code: Cells, outputs: Sequence[int]) -> str:
    """Return the C++ function of a pass, without its name, that stores the arrays ``outputs``."""
    rows, stores = [], []
    for (array, (plane, _, _)), value in code.made.items():
        if array in outputs:
            n = plane * len(outputs) + outputs.index(array)
            rows.append(f"real* const o{n} = out[{n}].p + j * out[{n}].pitch;")
            stores.append(f"store(o{n} + x, {value});")
    return "\n".join([
        "(const Place& q, const Rows* in, const Rows* out, long j0, long j1, long x0, long x1) {",
        "typedef vec W;",
        *code.head,
        "for (long j = j0; j < j1; j++) {",
        *code.row,
        *rows,
        "for (long x = x0; x < x1; x += LANES) {",
        *(f"{name}.enter(x);" for name in code.sliding),
        *code.lines,
        *stores,
        *(f"{name}.leave();" for name in code.sliding),
        "}", "}", "}",
    ])  # fmt: skip
