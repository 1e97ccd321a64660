"""Compiled programs, shared by the simulations of this process.

Parameters, the step size and the end time are arguments of a compiled program. Simulations that differ only in these, in
their initial states or in their output therefore share one program, which is compiled once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import jax
import numpy as np

from hpcstencil.runtime.communicator import Communicator
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.simulation.start import composed

# The attributes of a `Problem` that compiled code does not contain, or takes as arguments.
NOT_COMPILED = frozenset((
    "config", "equation", "parameters", "symbols", "bounds", "initial", "given", "contents", "held", "damping", "members",
    "receivers", "source", "objective", "misfit",
))  # fmt: skip
KEPT = 8  # number of programs that are kept after the last simulation that used them was closed


@dataclass
class Program:
    """A composed simulation with its compiled code, the key under which it is shared (see `dependence`), and the number
    of open simulations that use it."""

    depends_on: tuple[Any, ...]
    simulation: ComposedSimulation
    users: int = 0


class SharedPrograms:
    """The programs of this process, with the most recently used one last.

    All processes of a launch make the same calls in the same order. Threads take turns, because a program records for one
    simulation at a time: a thread holds ``turn`` while it steps or reduces fields with a program, or changes the list.
    """

    def __init__(self) -> None:
        self.programs: list[Program] = []
        self.turn = threading.RLock()

    @contextmanager
    def turn_of_others(self) -> Iterator[None]:
        """A context inside one of ``turn``, in which other threads have theirs."""
        self.turn.release()
        try:
            yield
        finally:
            self.turn.acquire()

    def take(
        self, decomposed: Decomposed, devices: Sequence[jax.Device], communicator: Communicator
    ) -> tuple[Program, ComposedSimulation]:
        """Find or compose a program for the problem, and return (program, simulation of the problem with that program).

        Call `give_back` with the program at the end. All processes call this together. Raises the errors of
        `backend_choice.chosen`.
        """
        wanted = dependence(decomposed, devices)
        with self.turn:
            found = next((program for program in self.programs if program.depends_on == wanted), None)
            if found is None:
                found = Program(wanted, composed(decomposed, devices, communicator))
            else:
                self.programs.remove(found)
            found.users += 1
            self.programs.append(found)
            self._drop_unused()
        return found, found.simulation.with_problem(decomposed.problem)

    def give_back(self, program: Program) -> None:
        """Release a program that `take` returned. All processes call this together."""
        with self.turn:
            program.users -= 1
            self._drop_unused()

    def _drop_unused(self) -> None:
        """Drop unused programs and free their communicators, except for the KEPT most recently used ones."""
        unused = [program for program in self.programs if not program.users]
        for program in unused[: max(0, len(unused) - KEPT)]:
            self.programs.remove(program)
            program.simulation.free()


PROGRAMS = SharedPrograms()


class ProgramUser:
    """Composes further problems on the devices of a ``simulation`` with shared programs, and keeps these until `close`."""

    def __init__(self, simulation: ComposedSimulation) -> None:
        self.simulation, self.programs = simulation, list[Program]()

    def composed(self, blocks: Decomposed) -> ComposedSimulation:
        """Return the simulation of a problem. All processes call this together. Raises the errors of `SharedPrograms.take`."""
        devices = self.simulation.device_grid.devices.devices
        program, simulation = PROGRAMS.take(blocks, devices, self.simulation.communicator)
        self.programs.append(program)
        return simulation

    def close(self) -> None:
        """Release the compiled programs. All processes call this together."""
        while self.programs:
            PROGRAMS.give_back(self.programs.pop())


def dependence(decomposed: Decomposed, devices: Sequence[jax.Device]) -> tuple[Any, ...]:
    """Everything on which compiled code depends, as a tuple. Problems with equal tuples can share a program."""
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
        {each.name: getattr(problem, each.name) for each in fields(problem) if each.name not in NOT_COMPILED},
        len(problem.members),
        decomposed.topology,
        tuple(devices),
    )
