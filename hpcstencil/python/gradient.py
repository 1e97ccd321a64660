"""The objective and its gradient for Python programs and the command."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from hpcstencil.adjoint.problem import adjoint_of
from hpcstencil.gradient.compose import sweep_of
from hpcstencil.gradient.sweep import Result, Sweep
from hpcstencil.io.array_file import ArrayInMemory
from hpcstencil.python.datasets import gathered
from hpcstencil.python.shared_programs import PROGRAMS, Program
from hpcstencil.runtime.communicator import agree
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.simulation.simulation import Simulation
from hpcstencil.simulation.state import State


class Gradient:
    """The reverse sweep of a simulation, composed once.

    ``assigned`` are the fields whose initial values are not expressions, and ``held`` the data of the objective from Python,
    by dotted key. All processes create it together. Raises InputError for what has no gradient yet.
    """

    def __init__(self, simulation: Simulation, assigned: Collection[str], held: Mapping[str, ArrayInMemory]) -> None:
        problem, communicator = simulation.problem, simulation.communicator
        expressed = frozenset(problem.initial) - frozenset(assigned)
        adjoint = agree(communicator, lambda: adjoint_of(problem, expressed))
        self.programs: list[Program] = []

        def compose(blocks: Decomposed) -> Simulation:
            program, backward = PROGRAMS.take(blocks, simulation.device_grid.devices.devices, communicator)
            self.programs.append(program)
            return backward

        self.sweep, self.plan = sweep_of(simulation, adjoint, compose, held)

    def at(self, state: State) -> tuple[float, dict[str, Any]]:
        """The objective and its gradient for a run that begins with ``state``; see `Simulation.value_and_gradient`."""
        result = self.sweep(dict(state.fields), self.plan.states)
        return result.value, collected(self.sweep, result)

    def close(self) -> None:
        """Release the compiled programs. All processes call this together."""
        while self.programs:
            PROGRAMS.give_back(self.programs.pop())


def collected(sweep: Sweep, result: Result) -> dict[str, Any]:
    """The gradient by the entry of gradient.of. All processes call this together.

    A number is a float. An array on the global grid, in the dtype of the run, is on rank 0; it is None on other processes.
    """
    forward, gradient = sweep.forward, dict[str, Any](result.numbers)
    for key, array in result.arrays.items():
        block = np.array(forward.block(array))
        starts = [start for start, _ in forward.ranges]
        gradient[key] = gathered(forward.communicator, block, starts, forward.problem.config.grid.shape)
    return {one.key: gradient[one.key] for one in sweep.adjoint.unknowns}
