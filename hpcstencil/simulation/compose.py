"""Compose a simulation from equation, stencils, boundaries, integrator, exchange and kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hpcstencil.backends.native.ffi_call import NATIVE, native
from hpcstencil.backends.native.shared_memory import shared_edges_for
from hpcstencil.backends.pallas.passes import PALLAS
from hpcstencil.backends.xla.evaluate import Rules, of_members, right_hand_side
from hpcstencil.backends.xla.reductions import Reductions
from hpcstencil.backends.xla.stencil_kernels import KERNELS, Kernel, tiled
from hpcstencil.backends.xla.time_step import Stepper
from hpcstencil.distributed.device_blocks import Devices
from hpcstencil.distributed.device_grid import Machine
from hpcstencil.io.direct_write import Pieces
from hpcstencil.io.snapshot_buffers import Copies
from hpcstencil.problem.problem import Problem
from hpcstencil.runtime.communicator import Communicator
from hpcstencil.runtime.threads import threads_for
from hpcstencil.simulation.adaptive_step import Control
from hpcstencil.simulation.decomposition import Plan
from hpcstencil.simulation.simulation import Simulation
from hpcstencil.simulation.time_loop import (
    attempt_by_sections,
    by_native_code,
    by_sections,
    by_stepper,
    native_attempt,
)
from hpcstencil.symbolic.expressions import Field
from hpcstencil.validation.errors import InputError


def simulate(
    problem: Problem, plan: Plan, communicator: Communicator, devices: Sequence[Any], kernel: str
) -> Simulation:
    """Compose the simulation of this process. Nothing is compiled yet. All processes call this together."""
    config = problem.config
    topology = plan.topology_of(communicator.rank)
    rules = rules_of(problem, tiled(KERNELS.get(kernel, KERNELS["shift"]), topology.tiles))
    places = problem.discretization.radius(problem.differentiated(), coordinates=True)
    machine = Machine(
        topology=topology,
        grid=config.grid,
        devices=Devices(topology, tuple(devices)),
        communicator=None if communicator.mpi is None else communicator.mpi.Clone(),
        radius=plan.radius,
        margin=tuple((plan.rounds + 1) * r + p + 1 for r, p in zip(plan.radius, places, strict=True)),
        halo_wraps=plan.rounds == 1 and kernel not in (NATIVE, PALLAS),
        constants=problem.constants(),
    )
    needs = problem.needs(problem.rates())
    listed = {name for name, value in problem.parameters.items() if np.ndim(value)} if problem.members else None
    rhs = right_hand_side(problem.trees, rules, needs)
    apart = right_hand_side(problem.apart, rules, needs) if problem.apart else None
    if listed is not None:
        rhs = of_members(rhs, listed)
        apart = None if apart is None else of_members(apart, listed)
    if kernel == PALLAS and plan.every == 0:
        raise InputError(
            'decomposition: blocks are too thin for numerics.kernel = "pallas", which takes a whole step between two '
            'exchanges; use fewer processes or devices, or numerics.kernel = "shift"'
        )
    on_gpu = devices[0].platform == "gpu"
    stepper = Stepper(machine, rhs, problem.method, problem.groups, plan.every, apart)
    shared_edges, attempt, stayed_finite = None, None, None
    copies: Callable[[Mapping[str, Pieces]], Copies] = Copies
    if kernel == NATIVE:
        cell_bytes = len(problem.fields) * rules.dtype.itemsize
        if config.decomposition.exchange == "auto" and config.time.tolerance is None and plan.every:
            shared_edges = shared_edges_for(topology, stepper.widths, cell_bytes, communicator)
        code = native(problem, threads_for(len(devices)), plan.every, shared_edges)
        stayed_finite = code.all_finite if all(isinstance(tree, Field) for tree in problem.measured.values()) else None
        alone = shared_edges is not None or not any(stepper.widths)
        if alone:
            copies = code.copies
        members = len(problem.members)
        if plan.every:
            advance = by_native_code(code.steps, machine, plan.every, stepper.widths, alone, members)
            tried = native_attempt(code.steps, machine, stepper.widths)
        else:
            advance, tried = by_sections(code, machine, members), attempt_by_sections(code, machine)
        attempt = None if config.time.tolerance is None else tried
    elif kernel == PALLAS:
        from hpcstencil.backends.pallas.step import kernels

        stepper = replace(stepper, kernel=kernels(problem, rules, interpret=not on_gpu).on)
        advance = by_stepper(stepper, together=8 if on_gpu else 1)
    else:
        advance = by_stepper(stepper, together=2 if on_gpu else 1)
    return Simulation(
        problem=problem,
        plan=plan,
        kernel=kernel,
        communicator=communicator,
        machine=machine,
        advance=advance,
        slopes=stepper.slopes(0) if problem.method.multistep else None,
        control=Control.of(problem, stepper, communicator, rules, attempt),
        extremes=Reductions(machine, communicator, rules, {}, tuple(problem.measured.values()), listed),
        diagnosed=Reductions(machine, communicator, rules, problem.needs(problem.reduced()), problem.reduced(), listed),
        shared_edges=shared_edges,
        stayed_finite=stayed_finite,
        copies=copies,
    )


def rules_of(problem: Problem, kernel: Kernel) -> Rules:
    """The rules by which the problem's trees are evaluated, with ``kernel`` for the stencils."""
    config = problem.config
    return Rules(
        discretization=problem.discretization,
        kernel=kernel,
        faces=problem.faces,
        domain=tuple(zip(config.grid.lower, config.grid.upper, strict=True)),
        dtype=np.dtype(config.numerics.precision),
    )
