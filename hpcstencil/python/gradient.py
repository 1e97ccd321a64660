"""The objective and its gradient for `hpcstencil.Simulation.value_and_gradient`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from hpcstencil.adjoint.plan import plan_of
from hpcstencil.adjoint.problem import adjoint_of
from hpcstencil.gradient.sweep import Sweep, data_fields
from hpcstencil.problem.parameter_files import Blocks
from hpcstencil.python.datasets import gathered
from hpcstencil.python.shared_programs import PROGRAMS, Program
from hpcstencil.runtime.communicator import agree
from hpcstencil.simulation.file_blocks import checkpoint_block
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.simulation.simulation import Simulation
from hpcstencil.simulation.state import State


class Gradient:
    """The reverse sweep of a simulation, composed once.

    ``assigned`` are the fields whose initial values are not expressions, and ``held`` the data of the objective from Python,
    by dotted key. All processes create it together. Raises InputError for what has no gradient yet.
    """

    def __init__(self, simulation: Simulation, assigned: Collection[str], held: Mapping[str, Blocks]) -> None:
        problem, communicator = simulation.problem, simulation.communicator
        expressed = frozenset(problem.initial) - frozenset(assigned)
        adjoint = agree(communicator, lambda: adjoint_of(problem, expressed))
        topology = simulation.plan.topology
        self.plan = agree(communicator, lambda: plan_of(problem, topology))
        on_blocks = agree(communicator, lambda: adjoint.on(topology))
        devices = simulation.device_grid.devices.devices
        decomposed = agree(communicator, lambda: Decomposed.of(on_blocks, communicator.size, len(devices)))
        self.program: Program
        self.program, backward = PROGRAMS.take(decomposed, devices, communicator)
        self.sweep = Sweep(simulation, adjoint, backward, data_fields(simulation, held))

    def at(self, state: State) -> tuple[float, dict[str, Any]]:
        """The objective and its gradient for a run that begins with ``state``; see `Simulation.value_and_gradient`."""
        simulation = self.sweep.forward
        result = self.sweep(dict(state.fields), self.plan.states)
        starts = [start for start, _ in simulation.ranges]
        shape = simulation.problem.config.grid.shape
        gradient: dict[str, Any] = {}
        for one in self.sweep.adjoint.unknowns:
            if one.kind == "number":
                gradient[one.key] = result.numbers[one.key]
            else:
                block = np.array(checkpoint_block(simulation, result.arrays[one.key]))
                gradient[one.key] = gathered(simulation.communicator, block, starts, shape)
        return result.value, gradient

    def close(self) -> None:
        """Release the compiled program. All processes call this together."""
        PROGRAMS.give_back(self.program)
