"""The objective and its gradient for Python programs and the command."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from hpcstencil.adjoint.derivation import adjoint_of
from hpcstencil.adjoint.members import differing, single_runs
from hpcstencil.distributed.halo import Fields
from hpcstencil.gradient.members import Members, Total, members_of
from hpcstencil.io.array_file import ArrayInMemory
from hpcstencil.python.datasets import gathered
from hpcstencil.python.shared_programs import ProgramUser
from hpcstencil.runtime.communicator import agree
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.simulation.state import State


class Gradient(ProgramUser):
    """The reverse sweep of a simulation, composed once; in an ensemble, of each member.

    ``assigned`` has the fields whose initial values are not expressions, and whether each member has its own, and ``held`` the
    data of the objective from Python, by dotted key. All processes create it together. Raises InputError for what has no
    gradient yet.
    """

    def __init__(
        self, simulation: ComposedSimulation, assigned: Mapping[str, bool], held: Mapping[str, ArrayInMemory]
    ) -> None:
        super().__init__(simulation)
        problem, communicator = simulation.problem, simulation.communicator
        first = single_runs(problem)[0]
        expressed = tuple(name for name in problem.initial if name not in assigned)
        adjoint = agree(communicator, lambda: adjoint_of(first, expressed))
        forward = member_alone(simulation, self.composed)
        own = differing(problem, adjoint.unknowns, assigned)
        self.members = members_of(problem, forward, adjoint, self.composed, held, own, expressed)

    def at(self, state: State) -> tuple[float, dict[str, Any]]:
        """The objective and its gradient for a run that begins with ``state``; see `Simulation.value_and_gradient`."""

        def begin(number: int) -> Fields:
            return fields_of_member(self.simulation, state, number)

        members, plans = self.members.planned(begin)
        total = members.total(lambda number, sweep: sweep(begin(number), plans[number].states))
        return total.value, collected(members, total)


def member_alone(
    simulation: ComposedSimulation, compose: Callable[[Decomposed], ComposedSimulation]
) -> ComposedSimulation:
    """The simulation of the first member of an ensemble alone, on the same blocks, or that of a single run. Collective."""
    if not simulation.problem.members:
        return simulation
    first, topology = simulation.problem.members[0], simulation.plan.topology
    communicator, devices = simulation.communicator, simulation.device_grid.devices.devices
    blocks = replace(first.config.decomposition, processes=topology.processes, devices=topology.devices)
    alone = replace(first, config=replace(first.config, decomposition=blocks))
    return compose(agree(communicator, lambda: Decomposed.of(alone, communicator.size, len(devices))))


def fields_of_member(simulation: ComposedSimulation, state: State, number: int) -> Fields:
    """The fields of one member of an ensemble on the devices, or those of a single run."""
    if not simulation.problem.members:
        return dict(state.fields)
    blocks = {name: simulation.block(array)[..., number] for name, array in state.fields.items()}
    return simulation.put({name: np.ascontiguousarray(block) for name, block in blocks.items()})


def collected(members: Members, total: Total) -> dict[str, Any]:
    """The gradient by the entry of gradient.of. All processes call this together.

    A number is a float, or a float64 array with a value per member. A time series is a float64 array with a value per sample.
    An array on the global grid, in the dtype of the run, perhaps with the members first, is on rank 0; it is None on other
    processes.
    """
    gradient = {**total.numbers, **total.series, **gathered_blocks(members.forward, total.blocks)}
    return {one.key: gradient[one.key] for one in members.unknowns}


def gathered_blocks(
    simulation: ComposedSimulation, blocks: Mapping[str, Any], series: Collection[str] = ()
) -> dict[str, Any]:
    """Numbers and time ``series`` as they are, and arrays on the global grid from this process's blocks, on rank 0, None on
    other processes.

    Blocks may have the members of an ensemble as first axis. All processes call this together.
    """
    starts = [start for start, _ in simulation.ranges]
    shape, communicator = simulation.problem.config.grid.shape, simulation.communicator
    return {
        key: gathered(communicator, value, starts, (*np.shape(value)[: -len(shape)], *shape))
        if np.ndim(value) and key not in series
        else value
        for key, value in blocks.items()
    }
