"""Compiled programs, shared by the simulations of this process that differ only in numbers.

Parameters, the time step and the end are arguments of a compiled program. So simulations that differ in these, in their
initial states or in what they write use one program, which is compiled once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from hpcstencil.problem.problem import Problem
from hpcstencil.runtime.communicator import Communicator
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.simulation.simulation import Simulation
from hpcstencil.simulation.start import composed

KEPT = 8  # programs that are kept though no simulation uses them


@dataclass
class Program:
    """A composed simulation, what it depends on, and the number of its users."""

    depends_on: tuple[Any, ...]
    simulation: Simulation
    users: int = 0


class SharedPrograms:
    """The programs of this process, with the most recently used one last. All processes of a launch make the same
    calls in the same order."""

    def __init__(self) -> None:
        self.programs: list[Program] = []

    def take(
        self, decomposed: Decomposed, devices: Sequence[jax.Device], communicator: Communicator
    ) -> tuple[Program, Simulation]:
        """A program for this problem, and the simulation of the problem with it. All processes call this together.

        Raises as `backend_choice.chosen`.
        """
        wanted = dependence(decomposed, devices)
        found = next((program for program in self.programs if program.depends_on == wanted), None)
        if found is None:
            found = Program(wanted, composed(decomposed, devices, communicator))
        else:
            self.programs.remove(found)
        found.users += 1
        self.programs.append(found)
        self._drop_unused()
        return found, with_problem(found.simulation, decomposed.problem)

    def give_back(self, program: Program) -> None:
        """Note that a user of the program is done. All processes call this together."""
        program.users -= 1
        self._drop_unused()

    def _drop_unused(self) -> None:
        """Drop unused programs and their communicators, except the most recently used ones."""
        unused = [program for program in self.programs if not program.users]
        for program in unused[: max(0, len(unused) - KEPT)]:
            self.programs.remove(program)
            if program.simulation.exchange_mpi is not None:
                program.simulation.exchange_mpi.Free()


PROGRAMS = SharedPrograms()


def dependence(decomposed: Decomposed, devices: Sequence[jax.Device]) -> tuple[Any, ...]:
    """Everything that a compiled program depends on. Two problems with equal results can share a program."""
    problem = decomposed.problem
    config = problem.config
    return (
        config.grid,
        config.numerics,
        config.decomposition,
        config.time.tolerance,
        config.time.dt is None,
        config.boundary.periodic,
        {name: np.shape(value) for name, value in problem.parameters.items()},
        problem.fields,
        problem.trees,
        problem.apart,
        problem.faces,
        problem.diagnostics,
        problem.derived,
        problem.measured,
        problem.method,
        problem.groups,
        problem.discretization,
        problem.positions,
        problem.mask,
        len(problem.members),
        decomposed.topology,
        tuple(devices),
    )


def with_problem(simulation: Simulation, problem: Problem) -> Simulation:
    """The simulation of another problem that can share its program."""
    control = simulation.control
    return replace(
        simulation,
        prepared=replace(simulation.prepared, problem=problem),
        control=None if control is None else replace(control, problem=problem, schedule=problem.schedule()),
    )
