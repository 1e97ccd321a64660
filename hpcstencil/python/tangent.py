"""Derivatives along a direction for Python programs: of the last fields, and of the gradient."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from hpcstencil.adjoint.problem import TANGENT, adjoint_of
from hpcstencil.adjoint.run_steps import steps_of
from hpcstencil.adjoint.tangent import tangent_of
from hpcstencil.gradient.compose import data_of, planned, sweep_of
from hpcstencil.gradient.members import Members
from hpcstencil.gradient.other_values import SweepFor
from hpcstencil.gradient.tangent import TangentRun
from hpcstencil.io.array_file import ArrayInMemory
from hpcstencil.python.assignment import as_array, block_of
from hpcstencil.python.gradient import collected, gathered_blocks
from hpcstencil.python.shared_programs import PROGRAMS
from hpcstencil.runtime.communicator import agree
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.simulation.simulation import Simulation
from hpcstencil.simulation.state import State
from hpcstencil.symbolic.expressions import PARAMETER_FIELD
from hpcstencil.validation.errors import InputError


class TangentLinear:
    """The tangent of a simulation along directions with the same keys, composed once.

    The arguments are as in `Gradient`, and the ``keys`` of the direction. All processes create it together. Raises InputError
    for what has no derivative yet.
    """

    def __init__(
        self,
        simulation: Simulation,
        assigned: Collection[str],
        held: Mapping[str, ArrayInMemory],
        keys: Collection[str],
    ) -> None:
        problem, communicator = simulation.problem, simulation.communicator
        expressed = frozenset(problem.initial) - frozenset(assigned)
        topology, devices = simulation.plan.topology, simulation.device_grid.devices.devices
        derived = agree(communicator, lambda: tangent_of(problem, expressed, tuple(keys)).on(topology))
        blocks = agree(communicator, lambda: Decomposed.of(derived.problem, communicator.size, len(devices)))
        self.expressed = {*expressed, *(name for name in derived.problem.initial if name.startswith(TANGENT))}
        program, composed = PROGRAMS.take(blocks, devices, communicator)
        self.programs, self.held = [program], held
        data = simulation.put(agree(communicator, lambda: data_of(simulation, held))) if problem.objective else {}
        first_slopes = composed.steps.slopes() if problem.method.multistep else None
        self.run = TangentRun(derived, composed, steps_of(problem), data, first_slopes)

    def at(self, state: State, direction: Mapping[str, Any]) -> dict[str, Any]:
        """The derivatives at the end of a run that begins with ``state``; see `Simulation.tangent`."""
        simulation = self.run.simulation
        problem = simulation.problem
        given = agree(simulation.communicator, lambda: self._direction(direction))
        run = self.run.along(given)
        fields, objective = run.to_end(run.start(dict(state.fields), given))
        blocks = {name: np.array(simulation.block(fields[TANGENT + name])) for name in problem.shown}
        found = gathered_blocks(simulation, blocks)
        return found | dict.fromkeys(problem.objective, objective)

    def _direction(self, direction: Mapping[str, Any]) -> dict[str, Any]:
        """The numbers and blocks of a direction. Raises InputError, on this process alone, for wrong values."""
        simulation, found = self.run.simulation, dict[str, Any]()
        for one in self.run.tangent.unknowns:
            key, value = f'direction["{one.key}"]', direction[one.key]
            if one.kind != "number":
                name = one.name if one.kind == "initial" else PARAMETER_FIELD + one.name
                found[one.key] = block_of(simulation, name, value, key)
                continue
            number = as_array(value, None, key)
            if number.ndim or not np.isfinite(number):
                raise InputError(f"{key}: expected a finite number, but got {value!r}; give one")
            found[one.key] = float(number)
        return found

    def hessian_product(self, state: State, direction: Mapping[str, Any]) -> dict[str, Any]:
        """The product of the Hessian and a direction; see `Simulation.hessian_product`."""
        simulation = self.run.simulation
        given = agree(simulation.communicator, lambda: self._direction(direction))
        run = self.run.along(given)
        reverse, states = self._reverse
        result = reverse(run.numbers(given), {}, lambda _: run.start(dict(state.fields), given), states)
        members = Members(simulation.problem.config, (reverse.sweep,))
        return collected(members, members.total(lambda *_: result))

    @cached_property
    def _reverse(self) -> tuple[SweepFor, int]:
        """(the reverse sweep of the tangent problem, the number of its stored states). Collective."""
        simulation = self.run.simulation
        problem, communicator = simulation.problem, simulation.communicator
        adjoint = agree(communicator, lambda: adjoint_of(problem, self.expressed))

        def compose(blocks: Decomposed) -> Simulation:
            program, backward = PROGRAMS.take(blocks, simulation.device_grid.devices.devices, communicator)
            self.programs.append(program)
            return backward

        sweep = sweep_of(simulation, adjoint, compose, self.held)
        sweep, plan = planned(replace(sweep, run=self.run.steps), {})
        return SweepFor(sweep), plan.states

    def close(self) -> None:
        """Release the compiled programs. All processes call this together."""
        for program in self.programs:
            PROGRAMS.give_back(program)
