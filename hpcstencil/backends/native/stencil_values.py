"""The values of expressions with derivatives in all cells, computed by native code for diagnostics, probes and streams.

The expressions have a program of their own, with a step that does not advance the time: each expression gets a field, and the
step replaces this field by the values of the expression at the beginning of the step. So operators, boundary conditions and
thin blocks are those of steps.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hpcstencil.backends.backend import Cellwise, Unsupported
from hpcstencil.backends.native.compiler import compile_in_background
from hpcstencil.backends.native.cost_model import reach_of_steps
from hpcstencil.backends.native.passes import AXIS_OF
from hpcstencil.backends.native.program import Program, program
from hpcstencil.backends.native.value_program import evaluable
from hpcstencil.config.streams import expressions_key
from hpcstencil.numerics.integrators import Method, Stage
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.problem.problem import Problem
from hpcstencil.runtime.threads import threads_for
from hpcstencil.symbolic.expressions import Convolution, Field, Node, Operator, rebuilt, walk

if TYPE_CHECKING:
    import jax

    from hpcstencil.distributed.device_grid import DeviceGrid
    from hpcstencil.distributed.halo import Fields
    from hpcstencil.distributed.windows import Parameters

REPLACED = Method((Stage(values=(), slopes=((0, 1.0),)),), order=1)  # new u = dt f(u)
ONE = 1.0  # its dt
# The most steps between two rows for which steps that load more are faster than calls that end there (measured by hand).
FREQUENT = 25
EVALUATORS = 6  # as in pipeline.hpp: of sums over the grid, of cells, and the rest of streams
OF_SUMS, OF_CELLS, FIRST_OF_STREAMS = range(3)


def field_of(number: int) -> str:
    """Return the name of the field for the expression with this number. No field of an equation can have it."""
    return f"value {number}"


def _program(problem: Problem, trees: Sequence[Node]) -> Program | None:
    """Return the program that computes ``trees``, None if native code cannot."""
    try:
        return program(problem_of_values(problem, trees), most_at_once=1)  # one, for `StencilRecords`
    except Unsupported:
        return None


def problem_of_values(problem: Problem, trees: Sequence[Node]) -> Problem:
    """Return the problem whose step replaces the `field_of` each of the ``trees`` by its values.

    Trees and the boundary conditions of their operands may also read fields that the problem does not have, such as those of
    the run in a reverse sweep.
    """
    time = replace(problem.config.time, tolerance=None, cfl=None, dt=ONE)
    made = {field_of(n): tree for n, tree in enumerate(trees)}
    parts = {part for tree in trees for part in walk(tree)}
    beside = [value for (operand, _, _), face in problem.faces.items() if operand in parts for value in face.values]
    read = sorted({name for tree in (*trees, *beside) for name in tree.field_names})
    return replace(
        problem,
        config=replace(problem.config, time=time),
        fields=tuple(dict.fromkeys((*problem.fields, *read, *made))),
        trees=made,
        method=REPLACED,
        groups={},
        damped={},
        multistep_damping={},
        parts={},
        injected=(),
        replayed=(),
    )


def in_one_pass(problem: Problem, trees: Sequence[Node]) -> list[Node]:
    """Return trees with the same values, which native code computes in a single pass if their statements are few.

    The operand of an operator along periodic axes is evaluated in each cell that the operator reads. Along other axes it has
    ghost cells beside the boundaries, so it needs a pass of its own.
    """
    periodic, made = problem.config.boundary.periodic, dict[tuple[Node, bool], Node]()

    def visit(tree: Node, inside: bool = False) -> Node:
        """Return a tree, or a part of an operand of such an operator if it is ``inside``."""
        known = tree, inside
        if known not in made:
            within = inside
            if isinstance(tree, Operator):
                reach = problem.discretization.reach(tree)
                along = all(whole or not any(widths) for whole, widths in zip(periodic, reach, strict=True))
                within = along or (inside and all(isinstance(child, Field) for child in tree.children))
            new = rebuilt(tree, lambda child: visit(child, within))
            made[known] = replace(new, beyond=True) if inside and isinstance(new, Field | Operator) else new
        return made[known]

    return [visit(tree) for tree in trees]


class Input(ctypes.Structure):
    """The struct Input of program.hpp."""

    _fields_ = (("array", ctypes.c_int), ("reach", ctypes.c_int * 3), ("straight", ctypes.c_bool))


class Inputs(ctypes.Structure):
    """The struct Inputs of pipeline.hpp: an array of `Input`, and its length."""

    _fields_ = (("input", ctypes.POINTER(Input)), ("count", ctypes.c_int64))


@dataclass(frozen=True)
class StencilValues:
    """The program that computes the values of ``trees``. They are recorded after every ``every``-th step of a run; None if they
    are not recorded within calls, or if these steps are not known before."""

    trees: tuple[Node, ...]
    program: Program
    every: int | None

    @classmethod
    def of_diagnostics(cls, problem: Problem) -> StencilValues | None:
        """Return the program for the reductions of a problem that native code does not evaluate by rows; see `of`.

        None in an ensemble whose members do not take the same steps, where XLA reduces them. What native code computes does not
        depend on the fields that steps read: those of a reverse sweep may read a tape or states.
        """
        common = problem.has_common_steps
        if problem.members and not common:
            return None
        trees = [
            tree
            for tree in problem.reduced()
            if not isinstance(tree, Field) and tree.field_names and not (common and evaluable(tree))
        ]
        return cls.of(problem, trees, problem.config.diagnostics.every_steps)

    @classmethod
    def of_probes(cls, problem: Problem, fields: Sequence[str]) -> StencilValues | None:
        """Return the program for the expressions that receivers record; see `of`. None if one of them reads no fields."""
        trees = [*problem.probed.values()]
        if not all(set() < tree.field_names <= set(fields) for tree in trees):
            return None
        return cls.of(problem, trees, math.gcd(*(each.every for each in problem.receivers.values())))

    @classmethod
    def of_streams(cls, problem: Problem, fields: Sequence[str]) -> list[StencilValues]:
        """Return a program for the expressions of each stream that native code can compute; see `of`.

        Streams that record the same expressions after the same steps share one.
        """
        wanted, time = dict[tuple[Node, ...], dict[int | None, None]](), problem.config.time
        for name, stream in problem.config.output.streams.items():
            trees = tuple(problem.derived.get(expressions_key(name), {}).values())
            if all(set() < tree.field_names <= set(fields) for tree in trees) and len(set(trees)) == len(trees):
                every = 1 if stream.average else stream.steps_between(time.dt, time.end)
                wanted.setdefault(trees, {})[every if problem.has_common_steps else None] = None
        made = [(cls.of(problem, trees, None), steps) for trees, steps in wanted.items()]
        return [replace(values, every=every) for values, steps in made if values is not None for every in steps]

    @classmethod
    def of(cls, problem: Problem, trees: Sequence[Node], every: int | None) -> StencilValues | None:
        """Return the program for ``trees``; None without any, or if native code cannot compute one of them.

        Neither these reasons nor the bits of the values depend on the decomposition.
        """
        parts = (part for tree in trees for part in walk(tree))
        if not trees or any(isinstance(part, Convolution) and part.stencil.by_fft for part in parts):
            return None
        passed = in_one_pass(problem, trees)
        made = _program(problem, passed)
        if passed != [*trees] and (made is None or made.reads is None):
            made = _program(problem, trees)
        return None if made is None else cls(tuple(trees), made, every if problem.has_common_steps else None)

    def recorded(self, library: ctypes.CDLL, fields: Sequence[str], ndim: int) -> bool:
        """Return whether steps record the values: the program with these ``fields``, in ``library``.

        Expressions that read further than a step does make all steps load more, so they are recorded if rows are frequent.
        """
        if self.every is None or self.program.reads is None or not set(self.program.reads) <= set(fields):
            return False
        if not library.can_record_stencils(ctypes.byref(inputs_of(self.program, fields))):
            return False
        return self.every <= FREQUENT or not any(more_reach([self], library, fields, ndim, 1))

    def begin(self) -> None:
        """Start compiling in a thread."""
        compile_in_background(self.program.text, self.program.driver)

    def compiled(self, device_grid: DeviceGrid, members: int) -> CompiledValues:
        """Compile the program for a device grid, whose exchange must be outside of passes. ``members`` is as in `Native`.

        Raises Unsupported if the program does not compile.
        """
        from hpcstencil.backends.native.ffi_call import native
        from hpcstencil.backends.native.time_loop import in_sections

        code = native(
            self.program, threads_for(device_grid.topology.device_count), steps_per_exchange=0, members=members
        )
        made, names = in_sections(code, device_grid), self.program.fields
        ends = [self.program.ends[names.index(field_of(n))] for n in range(len(self.trees))]

        def evaluate(fields: Fields, parameters: Parameters, time: Any) -> list[jax.Array]:
            some = next(iter(fields.values()))  # stands for fields that nothing reads
            given = {n: fields.get(name, some) for n, name in enumerate(names)}
            arrays = made(given, parameters, StepRange(time, 0, ONE, 1))
            return [arrays[n] for n in ends]

        return CompiledValues(self.trees, self.program, code.library, evaluate)


@dataclass(frozen=True)
class CompiledValues:
    """The compiled ``program`` of `StencilValues`, in ``library``. ``evaluate`` computes the values of the ``trees``."""

    trees: tuple[Node, ...]
    program: Program
    library: ctypes.CDLL
    evaluate: Cellwise


@dataclass(frozen=True)
class ValuesOfRun:
    """The expressions with derivatives whose values a run wants, where native code computes them.

    ``diagnosed`` are those of diagnostics, and ``probed`` those that receivers record; None without any, or where XLA computes
    them. ``streamed`` are those of streams. ``fields`` are those of the program that takes the steps.
    """

    fields: tuple[str, ...]
    diagnosed: StencilValues | None
    probed: StencilValues | None
    streamed: Sequence[StencilValues]

    @classmethod
    def of(cls, problem: Problem, fields: tuple[str, ...]) -> ValuesOfRun:
        """Return those of a problem whose program has these ``fields``."""
        diagnosed, probed = StencilValues.of_diagnostics(problem), StencilValues.of_probes(problem, fields)
        return cls(fields, diagnosed, probed, StencilValues.of_streams(problem, fields))

    @property
    def all(self) -> list[StencilValues]:
        return [each for each in (self.diagnosed, self.probed, *self.streamed) if each is not None]

    def recorded(self, library: ctypes.CDLL, ndim: int) -> list[StencilValues | None]:
        """Return those that steps record, by the number of their evaluator; None for those that they do not.

        ``library`` is the program that takes the steps, or its cost model.
        """
        frequent = [each for each in self.streamed if each.every is not None]
        return [
            each if each is not None and each.recorded(library, self.fields, ndim) else None
            for each in (self.diagnosed, self.probed, *frequent)[:EVALUATORS]
        ]

    def more_reach(self, library: ctypes.CDLL, ndim: int, steps: int) -> tuple[int, ...] | None:
        """Return how many cells further beyond a block ``steps`` steps load because they record values, per axis.

        None if they record none.
        """
        recorded = self.recorded(library, ndim)
        return more_reach(recorded, library, self.fields, ndim, steps) if any(recorded) else None

    def recorded_within(
        self, library: ctypes.CDLL, ndim: int, steps: int, widths: Sequence[int]
    ) -> list[StencilValues | None]:
        """Return what `recorded` does; none if ``steps`` steps would have to read beyond halos of these ``widths`` for it."""
        recorded = self.recorded(library, ndim)
        if steps and any(recorded):
            more = more_reach(recorded, library, self.fields, ndim, steps)
            own = reach_of_steps(library, ndim, steps) if any(widths) else more
            if all(w == 0 or n + m <= w for n, m, w in zip(own, more, widths, strict=True)):
                return recorded
        return [None for _ in recorded]


def more_reach(
    recorded: Sequence[StencilValues | None], library: ctypes.CDLL, fields: Sequence[str], ndim: int, steps: int
) -> tuple[int, ...]:
    """Return how many cells further beyond a block ``steps`` steps load, per axis of the grid, if they record some values.

    ``recorded`` are those of the first evaluators, by number. ``library`` is the program that takes the steps, with these
    ``fields``, or its cost model.
    """
    others = [None] * (EVALUATORS - len(recorded))
    inputs = [inputs_of(each.program, fields) if each else None for each in (*recorded, *others)]
    addresses = [ctypes.addressof(each) if each else None for each in inputs]
    found = (ctypes.c_int64 * 3)()
    library.more_reach((ctypes.c_void_p * len(inputs))(*addresses), ctypes.c_int64(steps), found)
    return tuple(found[axis] for axis in AXIS_OF[ndim])


def inputs_of(program: Program, fields: Sequence[str]) -> Inputs:
    """Return `Program.reads`, which must not be None, as inputs of the program with these ``fields``, in the same order."""
    assert program.reads is not None
    inputs = [
        Input(fields.index(name), (ctypes.c_int * 3)(*reach), straight)
        for name, (reach, straight) in program.reads.items()
    ]
    return Inputs((Input * len(inputs))(*inputs), len(inputs))
