"""The values of expressions with derivatives in all cells, computed by native code for diagnostics.

A program of their own computes them. It is that of a step which moves nothing in time: each expression gets a field, and the
step replaces this field by the values that the expression has at the beginning of the step. So operators, boundary
conditions and thin blocks are those of steps.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hpcstencil.backends.backend import Cellwise, Unsupported
from hpcstencil.backends.native.compiler import begun
from hpcstencil.backends.native.passes import AXIS_OF
from hpcstencil.backends.native.program import Program, program
from hpcstencil.backends.native.value_program import evaluable, fields_read
from hpcstencil.config.settings import Config
from hpcstencil.numerics.integrators import Method, Stage
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.problem.problem import Problem
from hpcstencil.runtime.threads import threads_for
from hpcstencil.symbolic.expressions import Convolution, Field, Node, walk

if TYPE_CHECKING:
    import jax

    from hpcstencil.distributed.device_grid import DeviceGrid
    from hpcstencil.distributed.halo import Fields
    from hpcstencil.distributed.windows import Parameters

REPLACED = Method((Stage(values=(), slopes=((0, 1.0),)),), order=1)  # new u = dt f(u)
ONE = 1.0  # its dt
# The most steps between two rows for which steps that load more are faster than calls that end there (measured by hand).
FREQUENT = 25


def field_of(number: int) -> str:
    """Return the name of the field for the expression with this number. No field of an equation can have it."""
    return f"value {number}"


def valued(problem: Problem, trees: Sequence[Node]) -> Problem:
    """Return the problem whose step replaces the `field_of` each of the ``trees`` by its values."""
    time = replace(problem.config.time, tolerance=None, cfl=None, dt=ONE)
    made = {field_of(n): tree for n, tree in enumerate(trees)}
    return replace(
        problem,
        config=replace(problem.config, time=time),
        fields=(*problem.fields, *made),
        trees=made,
        method=REPLACED,
        groups={},
        damped={},
        apart={},
        parts={},
        injected=(),
    )


class Input(ctypes.Structure):
    """The struct Input of program.hpp."""

    _fields_ = (("array", ctypes.c_int), ("reach", ctypes.c_int * 3), ("straight", ctypes.c_bool))


class Inputs(ctypes.Structure):
    """The struct Inputs of pipeline.hpp: an array of `Input`, and its length."""

    _fields_ = (("input", ctypes.POINTER(Input)), ("count", ctypes.c_int64))


@dataclass(frozen=True)
class StencilValues:
    """The program that computes the values of ``trees``."""

    trees: tuple[Node, ...]
    program: Program

    @classmethod
    def of(cls, problem: Problem, fields: Sequence[str]) -> StencilValues | None:
        """Return the program for the reductions of a problem that native code does not evaluate by rows.

        ``fields`` are those of the program that takes the steps. The result is None if there are no such reductions, in an
        ensemble, or if native code cannot compute them. These reasons do not depend on the decomposition, and neither do the
        bits of the values.
        """
        by_rows = problem.config.time.tolerance is None
        trees = [
            tree
            for tree in problem.reduced()
            if not isinstance(tree, Field)
            and set() < fields_read(tree) <= set(fields)  # reverse steps have sums of fields that others of them have
            and not (by_rows and evaluable(tree, fields))
        ]
        parts = (part for tree in trees for part in walk(tree))
        if not trees or problem.members or any(isinstance(part, Convolution) and part.stencil.by_fft for part in parts):
            return None
        try:
            return cls(tuple(trees), program(valued(problem, trees), most_at_once=1))  # as `StencilRecords` need it
        except Unsupported:
            return None

    def recorded(self, library: ctypes.CDLL, fields: Sequence[str], config: Config) -> bool:
        """Return whether steps record the values: the program with these ``fields``, in ``library``.

        Expressions that read further than a step does make all steps load more, so they are recorded if rows are frequent.
        """
        every, ndim = config.diagnostics.every_steps, config.grid.ndim
        if every is None or config.time.tolerance is not None or self.program.reads is None:
            return False
        if not library.can_record_stencils(ctypes.byref(inputs_of(self.program, fields))):
            return False
        return every <= FREQUENT or not any(self.more_reach(library, fields, ndim, 1))

    def more_reach(self, library: ctypes.CDLL, fields: Sequence[str], ndim: int, steps: int) -> tuple[int, ...]:
        """Return how many cells further beyond a block ``steps`` steps load if they record the values, per axis of the grid.

        ``library`` is the program that takes the steps, or its cost model.
        """
        inputs, found = inputs_of(self.program, fields), (ctypes.c_int64 * 3)()
        library.more_reach(ctypes.byref(inputs), ctypes.c_int64(steps), found)
        return tuple(found[axis] for axis in AXIS_OF[ndim])

    def begin(self) -> None:
        """Start compiling in a thread."""
        begun(self.program.text, self.program.driver)

    def compiled(self, device_grid: DeviceGrid) -> CompiledValues:
        """Compile the program for a device grid, whose exchange must be outside of passes.

        Raises Unsupported if the program does not compile.
        """
        from hpcstencil.backends.native.ffi_call import native
        from hpcstencil.backends.native.time_loop import in_sections

        code = native(self.program, threads_for(device_grid.topology.device_count), steps_per_exchange=0)
        made, names = in_sections(code, device_grid), self.program.fields
        ends = [self.program.ends[names.index(field_of(n))] for n in range(len(self.trees))]

        def evaluate(fields: Fields, parameters: Parameters, time: Any) -> list[jax.Array]:
            given = {n: fields[name] for n, name in enumerate(names) if name in fields}
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


def inputs_of(program: Program, fields: Sequence[str]) -> Inputs:
    """Return `Program.reads`, which must not be None, as inputs of the program with these ``fields``, in the same order."""
    assert program.reads is not None
    inputs = [
        Input(fields.index(name), (ctypes.c_int * 3)(*reach), straight)
        for name, (reach, straight) in program.reads.items()
    ]
    return Inputs((Input * len(inputs))(*inputs), len(inputs))
