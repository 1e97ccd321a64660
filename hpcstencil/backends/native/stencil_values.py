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
from hpcstencil.backends.native.program import Program, program
from hpcstencil.numerics.integrators import Method, Stage
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.problem.problem import Problem
from hpcstencil.runtime.threads import threads_for
from hpcstencil.symbolic.expressions import Node

if TYPE_CHECKING:
    import jax

    from hpcstencil.distributed.device_grid import DeviceGrid
    from hpcstencil.distributed.halo import Fields
    from hpcstencil.distributed.windows import Parameters

REPLACED = Method((Stage(values=(), slopes=((0, 1.0),)),), order=1)  # new u = dt f(u)
ONE = 1.0  # its dt


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


@dataclass(frozen=True)
class StencilValues:
    """The program that computes the values of ``trees``."""

    trees: tuple[Node, ...]
    program: Program

    @classmethod
    def of(cls, problem: Problem, trees: Sequence[Node]) -> StencilValues | None:
        """Return the program for ``trees``; None if there are none, in an ensemble, or if native code cannot compute them.

        These reasons do not depend on the decomposition, and neither do the bits of the values.
        """
        if not trees or problem.members:
            return None
        try:
            return cls(tuple(trees), program(valued(problem, trees), most_at_once=1))  # as `StencilRecords` need it
        except Unsupported:
            return None

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
        step = in_sections(code, device_grid)

        def evaluate(fields: Fields, parameters: Parameters, time: Any) -> list[jax.Array]:
            after, _ = step(fields, parameters, StepRange(time, 0, ONE, 1))
            return [after[field_of(n)] for n in range(len(self.trees))]

        return CompiledValues(self.trees, self.program, code.library, evaluate)


@dataclass(frozen=True)
class CompiledValues:
    """The compiled ``program`` of `StencilValues`, in ``library``. ``evaluate`` computes the values of the ``trees``."""

    trees: tuple[Node, ...]
    program: Program
    library: ctypes.CDLL
    evaluate: Cellwise
