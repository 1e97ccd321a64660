"""Composition of the reverse sweep of a simulation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hpcstencil.adjoint.members import Held
from hpcstencil.adjoint.plan import SweepPlan, injects, plan_of, steps_at_once, with_tape_if_faster
from hpcstencil.adjoint.problem import Adjoint
from hpcstencil.adjoint.run_steps import steps_of
from hpcstencil.adjoint.tape import recording
from hpcstencil.config.settings import Config
from hpcstencil.distributed.halo import Fields
from hpcstencil.gradient.compiled_parts import CompiledParts
from hpcstencil.gradient.recording import record_steps
from hpcstencil.gradient.reverse_sweep import ReverseSweep
from hpcstencil.gradient.sample_derivatives import SampleDerivatives
from hpcstencil.gradient.stored_states import WHAT, OnDisk, beside
from hpcstencil.problem.problem import Problem
from hpcstencil.runtime.communicator import Communicator, agree
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.symbolic.expressions import data_field
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import at


def sweep_of(
    forward: ComposedSimulation,
    adjoint: Adjoint,
    compose: Callable[[Decomposed], ComposedSimulation],
    held: Held,
    tape: bool = True,
) -> ReverseSweep:
    """Compose the reverse sweep of a simulation. Collective.

    ``compose`` composes the adjoint problem on the blocks of the simulation. ``held`` are data of the objective from Python,
    by dotted key. With ``tape``, the sweep has a tape if `plan.with_tape_if_faster` says so. If the steps follow the solution,
    the sweep has none before `planned`. Raises InputError, on all processes, if the blocks are too small for the adjoint, if
    the data do not fit, or as `plan.with_tape_if_faster`.
    """
    communicator, topology = forward.communicator, forward.plan.topology
    devices = len(forward.device_grid.devices.devices)

    def composed(problem: Problem) -> ComposedSimulation:
        return compose(agree(communicator, lambda: Decomposed.of(problem, communicator.size, devices)))

    backward, with_tape, kernel = None, adjoint, forward.kernel
    if tape:
        with_tape = agree(communicator, lambda: with_tape_if_faster(adjoint, topology, kernel))
    if with_tape.tape is not None:
        recorder, reader = composed(recording(with_tape, forward.problem)), composed(with_tape.reversing(topology))
        if recorder.steps.storing is not None and reader.plan.steps_per_exchange:
            adjoint, forward, backward = with_tape, recorder, reader
        elif with_tape.problem.replayed_in_half:
            raise InputError(
                'gradient.tape_precision: expected "full", because steps of this size cannot store a tape; remove the key'
            )
    injected = injects(adjoint, topology, forward.kernel)
    at_once = steps_at_once(adjoint, topology, forward.kernel, injected)
    data = forward.put(agree(communicator, lambda: data_of(forward, held)))
    together = adjoint.needs_states and at_once > 1
    several = composed(adjoint.reversing(topology, at_once)) if together else None
    backward = backward or composed(adjoint.reversing(topology))
    samples, run = samples_of(forward, backward, adjoint, held), steps_of(forward.problem)
    compiled = CompiledParts(forward, adjoint, backward, several, at_once, injected, run.total)
    made = ReverseSweep(forward, adjoint, backward, run, data, compiled, several, at_once, samples, injected)
    return stored_by(made, forward.problem.config)


def stored_by(sweep: ReverseSweep, config: Config) -> ReverseSweep:
    """The sweep with states stored as `gradient.storage` of the input says: on disk beside NAME.gradient.h5 for an output
    NAME.h5."""
    if config.gradient.storage == "memory":
        return sweep
    path = config.output.path.absolute()
    return replace(
        sweep, stored=OnDisk(beside(path.with_name(f"{path.stem}.gradient.h5")), sweep.forward, {"of": WHAT})
    )


def planned(
    sweep: ReverseSweep, fields: Fields, check: Callable[[], None] = lambda: None
) -> tuple[ReverseSweep, SweepPlan]:
    """Plan the sweep of a run. Collective.

    If the steps follow the solution and the sweep has none yet, the run is taken once to record them, from ``fields``, which
    are kept. ``check`` is called again and again meanwhile. Raises InputError, on all processes, if the memory for stored
    states is too small.
    """
    forward, adjoint = sweep.forward, sweep.adjoint
    if forward.problem.step_follows_solution and not sweep.run.ranges:
        sweep = replace(sweep, run=record_steps(forward, sweep.compiled.copied(fields), check))
    plan = agree(
        forward.communicator,
        lambda: plan_of(adjoint, forward.plan.topology, sweep.at_once, sweep.injected, sweep.run),
    )
    return sweep, plan


def samples_of(
    forward: ComposedSimulation, backward: ComposedSimulation, adjoint: Adjoint, held: Held
) -> SampleDerivatives | None:
    """The receivers that the objective sums over; None if there are none. Collective. Raises as `observed_of`."""
    observed = observed_of(forward.problem, forward.communicator, held)
    return None if forward.problem.misfit is None else SampleDerivatives(forward, backward, adjoint, observed)


def observed_of(problem: Problem, communicator: Communicator, held: Held) -> dict[str, np.ndarray]:
    """The data for the receivers that the objective sums over, as in `Problem.observed`, on rank 0; none on others. Collective.

    ``held`` are data from Python, by dotted key. Raises InputError, on all processes, if they do not fit.
    """
    if problem.misfit is None:
        return {}
    times = steps_of(problem).times
    return agree(communicator, lambda: problem.observed(held, times) if communicator.rank == 0 else {})


def data_of(forward: ComposedSimulation, held: Held) -> dict[str, np.ndarray]:
    """This process's blocks of the objective's data on the grid, by field. ``held`` are those from Python, by dotted key.

    Raises InputError, on this process alone.
    """
    problem, blocks = forward.problem, dict[str, np.ndarray]()
    for name, block in problem.data_on_grid(forward.ranges, held).items():
        if not np.isfinite(block).all():
            key = at("objective", "data", name)
            raise InputError(f"{key}: expected finite numbers, but some are not; correct them")
        blocks[data_field(name).name] = np.ascontiguousarray(block, forward.dtype)
    return blocks
