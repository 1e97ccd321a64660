"""A run together with its derivative along a direction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hpcstencil.adjoint.problem import OBJECTIVE, TANGENT
from hpcstencil.adjoint.tangent import Tangent
from hpcstencil.distributed.halo import Fields
from hpcstencil.numerics.schedule import Clock, Schedule
from hpcstencil.runtime.communicator import agree
from hpcstencil.simulation.diagnostics import Diagnostics
from hpcstencil.simulation.simulation import Simulation
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.expressions import Field

Direction = Mapping[str, Any]


@dataclass(frozen=True)
class TangentRun:
    """A tangent problem on this process, as a ``simulation``. ``data`` are the fields of the objective's data on the devices.

    A direction maps the key of each unknown to a number or to this process's block.
    """

    tangent: Tangent
    simulation: Simulation
    data: Fields

    def numbers(self, direction: Direction) -> dict[str, float]:
        """The numbers of a direction, by the parameter of the tangent problem."""
        return {self.tangent.along(one): direction[one.key] for one in self.tangent.unknowns if one.kind == "number"}

    def along(self, direction: Direction) -> TangentRun:
        """The same with the numbers of a direction. Compiled code is shared."""
        numbers = {self.tangent.along(one): direction[one.key] for one in self.tangent.unknowns if one.kind == "number"}
        problem = self.simulation.problem
        problem = replace(problem, parameters={**problem.parameters, **numbers})
        prepared = replace(self.simulation.prepared, problem=problem)
        return replace(self, simulation=replace(self.simulation, prepared=prepared))

    def start(self, fields: Fields, direction: Direction) -> Fields:
        """The fields of the tangent problem at t = 0, from those of the problem and a direction. Collective.

        The given fields are kept. The numbers must be those of `along`.
        """
        simulation, problem = self.simulation, self.simulation.problem
        given = {self.tangent.along(one): direction[one.key] for one in self.tangent.unknowns if one.kind != "number"}
        constant = {name: np.asarray(simulation.block(fields[name])) for name in problem.given}

        def blocks() -> dict[str, np.ndarray]:
            found = {}
            known = {Field(name): block for name, block in {**constant, **given}.items()}
            for name in problem.fields:
                if not name.startswith(TANGENT):
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
                found[name] = np.array(block)
            return found

        own = jax.tree.map(jnp.copy, dict(fields))
        return {**own, **simulation.put(agree(simulation.communicator, blocks))}

    def to_end(self, fields: Fields) -> Fields:
        """The fields at the end of the run, which begins with ``fields``. These are overwritten. Collective."""
        time = self.simulation.problem.config.time
        schedule, clock = Schedule(time.end, time.dt), Clock()
        assert schedule.total_steps is not None  # `tangent_of` refuses steps of other sizes
        while clock.step < schedule.total_steps:
            leap = schedule.leap(clock, 0.0, schedule.total_steps - clock.step)
            fields = jax.block_until_ready(self.simulation.advance(fields, leap.steps))
            clock = leap.after
        return fields

    def objective(self, fields: Fields) -> float:
        """The derivative of the objective along the direction, for these fields at the end of the run. Collective."""
        simulation, problem = self.simulation, self.simulation.problem
        diagnostics = Diagnostics(problem.diagnostics, simulation.diagnosed, problem.parameters)
        return float(diagnostics.evaluate({**fields, **self.data}, problem.config.time.end)[OBJECTIVE])
