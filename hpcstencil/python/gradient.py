"""The objective and its gradient for Python programs and the command."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from hpcstencil.adjoint.problem import adjoint_of
from hpcstencil.gradient.compose import planned, sweep_of
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

        self.sweep = sweep_of(simulation, adjoint, compose, held)

    def at(self, state: State) -> tuple[float, dict[str, Any]]:
        """The objective and its gradient for a run that begins with ``state``; see `Simulation.value_and_gradient`."""
        fields = dict(state.fields)
        sweep, plan = planned(self.sweep, fields)
        result = sweep(fields, plan.states)
        return result.value, collected(sweep, result)

    def close(self) -> None:
        """Release the compiled programs. All processes call this together."""
        while self.programs:
            PROGRAMS.give_back(self.programs.pop())


def collected(sweep: Sweep, result: Result) -> dict[str, Any]:
    """The gradient by the entry of gradient.of. All processes call this together.

    A number is a float. An array on the global grid, in the dtype of the run, is on rank 0; it is None on other processes.
    """
    blocks = {key: np.array(sweep.forward.block(array)) for key, array in result.arrays.items()}
    gradient = {**result.numbers, **gathered_blocks(sweep.forward, blocks)}
    return {one.key: gradient[one.key] for one in sweep.adjoint.unknowns}


def gathered_blocks(simulation: Simulation, blocks: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers as they are, and arrays on the global grid from this process's blocks, on rank 0, None on other processes.

    All processes call this together.
    """
    starts = [start for start, _ in simulation.ranges]
    shape, communicator = simulation.problem.config.grid.shape, simulation.communicator
    return {
        key: gathered(communicator, value, starts, shape) if np.ndim(value) else value for key, value in blocks.items()
    }
