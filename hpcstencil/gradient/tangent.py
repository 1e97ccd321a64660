"""A run together with its derivative along a direction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hpcstencil.adjoint.names import OBJECTIVE, TANGENT
from hpcstencil.adjoint.run_steps import RunSteps
from hpcstencil.adjoint.tangent import Tangent
from hpcstencil.adjoint.unknowns import CellValues
from hpcstencil.distributed.device_grid import Body
from hpcstencil.distributed.halo import Fields
from hpcstencil.gradient.extreme_cells import objective_fields
from hpcstencil.gradient.forward_run import to_end
from hpcstencil.gradient.samples import Samples
from hpcstencil.numerics.integrators import MEMORY
from hpcstencil.runtime.communicator import agree
from hpcstencil.simulation.diagnostics import Diagnostics
from hpcstencil.simulation.initial_state import at_walls
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.expressions import Field

Direction = Mapping[str, Any]


@dataclass(frozen=True)
class TangentRun:
    """A tangent problem on this process, as a ``simulation``.

    ``steps`` are those of the run, none yet if they follow the solution, ``data`` the fields of the objective's data on the
    devices, and ``samples`` the receivers that the objective sums over, if there are any. ``first_slopes`` are those that a
    multistep method remembers at t = 0, None for others.

    A direction maps the key of each unknown to a number, to the samples of a time series, or to this process's block.
    """

    tangent: Tangent
    simulation: ComposedSimulation
    steps: RunSteps
    data: Fields
    samples: Samples | None = None
    first_slopes: Body | None = None

    def numbers(self, direction: Direction) -> dict[str, Any]:
        """The numbers and samples of a direction, by the parameter of the tangent problem."""
        unknowns = self.tangent.unknowns
        return {self.tangent.along(one): direction[one.key] for one in unknowns if not isinstance(one, CellValues)}

    def along(self, direction: Direction) -> TangentRun:
        """The same with the numbers of a direction. Compiled code is shared."""
        problem = self.simulation.problem
        problem = replace(problem, parameters={**problem.parameters, **self.numbers(direction)})
        return replace(self, simulation=self.simulation.with_problem(problem))

    def start(self, fields: Fields, direction: Direction) -> Fields:
        """The fields of the tangent problem at t = 0, from those of the problem and a direction. Collective.

        The given fields are kept. The numbers must be those of `along`.
        """
        simulation, problem = self.simulation, self.simulation.problem
        given = {
            self.tangent.along(one): direction[one.key] for one in self.tangent.unknowns if isinstance(one, CellValues)
        }
        constant = {name: np.asarray(simulation.block(fields[name])) for name in problem.given}

        def blocks() -> dict[str, np.ndarray]:
            found = {}
            known = {Field(name): block for name, block in {**constant, **given}.items()}
            for name in problem.fields:
                if not name.startswith(TANGENT) or name.endswith(MEMORY):
                    continue
                block = given.get(name, np.zeros([stop - start for start, stop in simulation.ranges], simulation.dtype))
                if name in problem.initial:
                    block = block + numpy_evaluate.block_values(
                        problem.initial[name],
                        problem.config.grid,
                        simulation.ranges,
                        problem.parameters,
                        simulation.dtype,
                        known,
                    )
                found[name] = at_walls(problem, name, np.array(block), simulation.ranges, [0.0])
            return found

        own = jax.tree.map(jnp.copy, dict(fields))
        return simulation.begun({**own, **simulation.put(agree(simulation.communicator, blocks))}, self.first_slopes)

    def to_end(self, fields: Fields) -> tuple[Fields, float]:
        """Take the run that begins with ``fields``, which are overwritten. Collective.

        Returns (the fields at its end, the derivative of the objective along the direction). The latter is 0 without one.
        """
        return to_end(self.simulation, self.steps, fields, self.samples, self._term)

    def _term(self, fields: Fields, step: int, sums: Mapping[str, float]) -> float:
        """The derivative of what these fields, after a number of steps, add to the objective; see `to_end`. Collective."""
        simulation, problem = self.simulation, self.simulation.problem
        diagnostics = Diagnostics(problem.diagnostics, simulation.diagnosed, {**problem.parameters, **sums})
        time = self.steps.time_of(step)
        return float(diagnostics.evaluate(objective_fields(simulation, fields, self.data, time), time)[OBJECTIVE])
