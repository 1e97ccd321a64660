"""The start of a run, for the command and for Python: composition, first state, checks and compilation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcstencil.checkpoint.checkpoint import read_checkpoint
from hpcstencil.numerics.schedule import Clock
from hpcstencil.runtime.communicator import Communicator, agree
from hpcstencil.runtime.progress import say
from hpcstencil.runtime.stopwatch import Stopwatch
from hpcstencil.simulation.backend_choice import prepare
from hpcstencil.simulation.compose import compose
from hpcstencil.simulation.file_blocks import from_checkpoint
from hpcstencil.simulation.finite_check import FiniteCheck, refuse_not_positive
from hpcstencil.simulation.initial_state import initial_blocks, last_snapshot
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.simulation.receiver_recorder import part_of, weights_of
from hpcstencil.simulation.restart import Source
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.simulation.solid_cells import check_fluid_left
from hpcstencil.simulation.state import State, join
from hpcstencil.simulation.stepping import Stepping


def composed(
    decomposed: Decomposed, devices: Sequence[Any], communicator: Communicator, before: str = ""
) -> ComposedSimulation:
    """Compose the simulation of a problem on these devices. Collective.

    Prints a warning if the preferred kernel cannot be used, or if the kernel differs from ``before``, the kernel of the run
    that is continued ("" if there is none). Raises the same errors as `backend_choice.chosen`.
    """
    prepared = prepare(decomposed, devices, communicator, before)
    choice = prepared.choice
    if choice.cannot_be:
        say(f"warning: {choice.why}; kernel {choice.kernel} is used, which is slower and rounds differently")
    elif before not in ("", choice.kernel):
        say(f"warning: kernel {choice.kernel}, {choice.why}, rounds differently from {before}, which was used so far")
    return compose(prepared, communicator, devices)


def initial_state(simulation: ComposedSimulation) -> State:
    """Return the state at t = 0, on the devices. Collective. Raises InputError on all processes, see `initial_blocks`."""
    return replace(initial_clocks(simulation), fields=simulation.initial_fields())


def initial_clocks(simulation: ComposedSimulation) -> State:
    """Return a state at t = 0 without fields."""
    problem = simulation.problem
    return State(Clock(), {}, (Clock(),) * (problem.copies if problem.own_steps else 0))


def first_state(simulation: ComposedSimulation, source: Source, output: Path | None) -> State:
    """Return the state with which a run begins, on the devices: at t = 0, or where it continues by its ``source``.

    Collective. ``output`` is the run's own file, from whose last snapshot it may continue. Raises InputError, on all
    processes, if a file does not fit.
    """
    if not source.history:
        return initial_state(simulation)
    communicator, problem, ranges = simulation.communicator, simulation.problem, simulation.ranges
    arrays: dict[str, np.ndarray] = {}
    scalars = source.clock
    if source.checkpoint is not None:
        arrays, scalars, _ = read_checkpoint(source.checkpoint, ranges, communicator, problem.changing)
    assert scalars is not None

    def continued() -> dict[str, np.ndarray]:
        """Return this process's blocks: changing fields from the checkpoint or last snapshot, others as at t = 0."""
        if source.checkpoint is None:
            assert output is not None
            blocks = last_snapshot(problem, ranges, output)
        else:
            blocks = {name: from_checkpoint(simulation, block) for name, block in arrays.items()}
        return blocks | initial_blocks(problem, ranges, problem.constant)

    blocks = agree(communicator, continued)
    template = replace(initial_clocks(simulation), fields=dict.fromkeys(problem.fields, 0))
    return join(template, simulation.put(blocks), scalars)


def at_start(simulation: ComposedSimulation, source: Source, output: Path | None, stopwatch: Stopwatch) -> Stepping:
    """Return the stepping of a run at its first state, after checks of this state. Collective.

    The state must have finite values and some fluid cells, and must allow a stable step. ``output`` is the file of the run,
    None if it has none. Raises InputError, on all processes, if the state cannot be read or fails a check.
    """
    state = first_state(simulation, source, output)
    check_fluid_left(simulation, dict(state.fields))
    if simulation.problem.receivers and simulation.problem.mask is not None:
        receivers = simulation.problem.receivers
        part = part_of(simulation, receivers)
        weights_of(simulation, receivers, part, dict(state.fields))  # refuses receivers among solid cells
    schedule, clock = simulation.problem.schedule().going_on(state.clock, source.anew)
    members = tuple(schedule.going_on(each, source.anew)[1] for each in state.members)
    state = replace(state, clock=clock, members=members)
    finite = FiniteCheck(simulation, output, clock.step)
    stepping = Stepping(simulation, schedule, state, finite, stopwatch)
    with stopwatch.during("checks"):
        least, _ = finite.extremes(stepping.state)
    if output is not None and not source.history:  # fields of a Python simulation may be assigned later
        refuse_not_positive(simulation.problem, least)
    if simulation.control is None:
        stepping.step_sizes()  # refuses bad steps before anything is written
    return stepping


def compile_steps(stepping: Stepping, limit: int | None = None) -> None:
    """Compile the steps of a run, and estimate the size of the first one if steps are adaptive. Collective.

    The first call takes at most ``limit`` steps. The fields keep their values.
    """
    stepping.compile(limit)
    if stepping.simulation.control is not None:
        stepping.begin_control(stepping.simulation.control)
