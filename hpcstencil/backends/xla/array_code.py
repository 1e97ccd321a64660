"""Array code for a problem on this process's devices. The other backends use its reductions and time derivatives too."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hpcstencil.backends.backend import Attempt, Cellwise
from hpcstencil.backends.xla.evaluate import RightHandSide, Rules, of_members, right_hand_side
from hpcstencil.backends.xla.reductions import (
    CompiledTrees,
    Norm,
    Reductions,
    TreeReducer,
    compiled_error_sums,
    compiled_values,
    norm_of,
)
from hpcstencil.backends.xla.stencil_kernels import KERNELS, Kernel, tiled
from hpcstencil.backends.xla.time_step import Stepper
from hpcstencil.distributed.device_grid import Body, DeviceGrid
from hpcstencil.distributed.halo import Fields
from hpcstencil.distributed.windows import Parameters
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.problem.decomposition import Plan
from hpcstencil.problem.problem import Problem
from hpcstencil.runtime.communicator import Communicator
from hpcstencil.symbolic.expressions import Field, Node
from hpcstencil.symbolic.stencil_reach import Needs


@dataclass(frozen=True)
class ArrayCode:
    """The array code of a problem.

    ``rules`` say how its trees are evaluated, and ``stepper`` takes its steps. ``listed`` are the parameters in which the
    members of an ensemble differ; None for a single run.
    """

    problem: Problem
    rules: Rules
    stepper: Stepper
    communicator: Communicator
    listed: Collection[str] | None

    def attempt(self) -> Attempt:
        """Return the function that tries a step; see `backend.Attempt`. The method must have an error estimate."""
        weigh = right_hand_side(self.problem.errors(), self.rules, {})
        step = self.stepper.attempt(weigh if self.listed is None else of_members(weigh, self.listed))
        sums, norm = self.error_sums(), self.norm

        def attempt(fields: Fields, parameters: Parameters, this: StepRange, room: Fields) -> tuple[Fields, np.ndarray]:
            after, errors = step(fields, parameters, this.start, this.dt)
            return after, norm(sums(errors, parameters, 0.0))

        return attempt

    def error_sums(self) -> Body:
        """Return the function (squared errors by field, parameters, t) -> their sums (`compiled_error_sums`)."""
        errors = tuple(map(Field, self.problem.errors()))
        return compiled_error_sums(CompiledTrees(self.stepper.device_grid, self.rules, {}, errors, self.listed))

    @property
    def norm(self) -> Norm:
        """The collective function that turns the sums of squared errors into the error."""
        return norm_of(self.stepper.device_grid, self.communicator)

    def slopes(self) -> Body:
        """Return the function (fields, parameters, t) -> time derivatives by field, all without ghost cells."""
        return self.stepper.slopes(self.stepper.rhs)

    def reductions(self, needs: Needs, trees: Sequence[Node], reducer: TreeReducer | None = None) -> Reductions:
        """Return the reductions of ``trees``. ``needs`` maps the operands in them to the ghost cells that they require.

        ``reducer`` is that of `Reductions`; numpy reduces plain fields if it is None.
        """
        device_grid = self.stepper.device_grid
        return Reductions(device_grid, self.communicator, self.rules, needs, tuple(trees), self.listed, reducer)

    def cellwise(self, needs: Needs, trees: Sequence[Node]) -> Cellwise:
        """Return the function (fields, parameters, t) -> value of each of the ``trees`` in every cell."""
        return compiled_values(CompiledTrees(self.stepper.device_grid, self.rules, needs, trees, self.listed))


def array_code(
    problem: Problem, plan: Plan, device_grid: DeviceGrid, communicator: Communicator, stencils: str = "shift"
) -> ArrayCode:
    """Return the array code of a problem. ``stencils`` is the name of a kernel in `stencil_kernels.KERNELS`."""
    rules = rules_of(problem, tiled(KERNELS[stencils], plan.topology.tiles))
    needs = problem.needs(problem.right_hand_sides())
    listed = problem.listed if problem.members else None
    made: dict[int, RightHandSide] = {}  # by the id of their trees, so that equal ones are compiled once

    def rhs_of(trees: Mapping[str, Node]) -> RightHandSide:
        if id(trees) not in made:
            rhs = right_hand_side(trees, rules, needs)
            made[id(trees)] = rhs if listed is None else of_members(rhs, listed)
        return made[id(trees)]

    others = {number: rhs_of(trees) for number, trees in problem.slopes_elsewhere.items()}
    stepper = Stepper(
        device_grid, rhs_of(problem.slopes), problem.method, problem.groups, plan.steps_per_exchange, others
    )
    return ArrayCode(problem, rules, stepper, communicator, listed)


def rules_of(problem: Problem, kernel: Kernel) -> Rules:
    """Return the rules for evaluating the problem's trees, with ``kernel`` for the stencils."""
    config = problem.config
    return Rules(
        discretization=problem.discretization,
        kernel=kernel,
        faces=problem.faces,
        domain=tuple(zip(config.grid.lower, config.grid.upper, strict=True)),
        dtype=np.dtype(config.numerics.precision),
    )
