"""Composition of a simulation from a prepared problem, a device grid and the steps of its backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hpcstencil.distributed.device_blocks import Devices
from hpcstencil.distributed.device_grid import DeviceGrid
from hpcstencil.distributed.exchange import exchange_for
from hpcstencil.runtime.communicator import Communicator
from hpcstencil.simulation.adaptive_step import Control
from hpcstencil.simulation.prepared import Choice, Decomposed, Prepared, prepared_with
from hpcstencil.simulation.simulation import ComposedSimulation


def with_kernel(
    kernel: str, decomposed: Decomposed, communicator: Communicator, devices: Sequence[Any]
) -> ComposedSimulation:
    """Compose the simulation of a decomposed problem with this kernel, whatever others there are. Collective.

    Raises Unsupported if the kernel does not support the problem; "shift" supports every one.
    """
    return compose(prepared_with(decomposed, Choice(kernel), communicator), communicator, devices)


def compose(prepared: Prepared, communicator: Communicator, devices: Sequence[Any]) -> ComposedSimulation:
    """Compose the simulation of this process on its ``devices``, without compiling steps. Collective."""
    problem, plan, lowered = prepared.problem, prepared.plan, prepared.lowered
    topology = plan.topology_of(communicator.rank)
    places = problem.discretization.radius(problem.differentiated(), coordinates=True)
    on_devices = Devices(topology, tuple(devices))
    own = None if communicator.mpi is None else communicator.mpi.Clone()
    device_grid = DeviceGrid(
        topology=topology,
        grid=problem.config.grid,
        devices=on_devices,
        exchange=exchange_for(problem.config.decomposition.exchange, topology, on_devices, own),
        radius=plan.radius,
        margin=tuple((plan.rounds + 1) * r + p + 1 for r, p in zip(plan.radius, places, strict=True)),
        halo_wraps=plan.rounds == 1 and lowered.halo_wraps,
        constants=problem.constants(),
    )
    device_grid = replace(device_grid, exchange=lowered.exchange(plan, device_grid, communicator))
    steps = lowered.steps(plan, device_grid, communicator)
    return ComposedSimulation(
        prepared=prepared,
        communicator=communicator,
        device_grid=device_grid,
        steps=steps,
        control=None if problem.config.time.tolerance is None else Control.of(problem, steps),
        extremes=steps.reductions({}, tuple(problem.measured.values())),
        diagnosed=steps.reductions(problem.needs(problem.reduced()), problem.reduced()),
        derived={
            stream: steps.cellwise(problem.needs(trees.values()), tuple(trees.values()))
            for stream, trees in problem.derived.items()
        },
        exchange_mpi=own,
    )
