"""What the tests share: an input as a mapping, and a simulation of it on any decomposition, in this process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hpcstencil.config import from_mapping
from hpcstencil.decomposition import plan
from hpcstencil.formulation import build
from hpcstencil.parallel import Communicator, OneProcess
from hpcstencil.positions import home
from hpcstencil.problem import Problem
from hpcstencil.schedule import Clock
from hpcstencil.simulation import Simulation, simulate

jax.config.update("jax_enable_x64", True)


def problem_of(**tables: Any) -> Problem:
    """The problem of an input given as tables."""
    return build(from_mapping({"time": {"end": 1.0, "dt": 1e-3}, **tables}, Path(".")))


def simulation_of(
    problem: Problem, communicator: Communicator | None = None, devices: int = 1, kernel: str = "shift"
) -> Simulation:
    """The problem on ``devices`` local devices of each process (default: this process alone)."""
    communicator = communicator or OneProcess()
    chosen = plan(problem, communicator.size, devices)
    return simulate(problem, chosen, communicator, jax.local_devices()[:devices], kernel)


def random_block(problem: Problem, simulation: Simulation, seed: int = 1) -> dict[str, np.ndarray]:
    """This process's block of random global fields."""
    rng = np.random.default_rng(seed)
    index = tuple(slice(*r) for r in simulation.ranges)
    members = (len(problem.members),) if problem.members else ()
    shape, dtype = (*problem.config.grid.shape, *members), simulation.dtype
    return {name: np.ascontiguousarray(rng.random(shape).astype(dtype)[index]) for name in problem.fields}


def stepped(problem: Problem, simulation: Simulation, steps: int, dt: float, seed: int = 1) -> dict[str, np.ndarray]:
    """This process's blocks after ``steps`` steps from random fields, or from those that the input gives."""
    given = problem.config.initial.expressions
    fields = simulation.initial_fields() if given else simulation.put(random_block(problem, simulation, seed))
    fields = simulation.advance(fields, problem.parameters, 0.0, 0, dt, steps)
    return simulation.get(fields, problem.fields)


def integrate(problem: Problem, kernel: str = "shift") -> dict[str, np.ndarray]:
    """The fields at the end of a problem, from its initial state, on one device."""
    return integrated(problem, simulation_of(problem, kernel=kernel))[0]


def integrated(problem: Problem, simulation: Simulation) -> tuple[dict[str, np.ndarray], Clock]:
    """This process's blocks and the clock at the end of a problem."""
    schedule, clock, fields = problem.schedule(), Clock(), simulation.initial_fields()
    while not schedule.finished(clock):
        if simulation.control is not None:
            fields, clock = simulation.control.step(fields, clock)
            continue
        leap = schedule.leap(clock, problem.config.time.dt or problem.dt({}), 10**9)
        fields = simulation.advance(fields, problem.parameters, leap.base_time, leap.first, leap.dt, leap.steps)
        clock = leap.after
    return simulation.get(fields, problem.fields), clock


def coordinates(problem: Problem, name: str = "") -> list[np.ndarray]:
    """Where a field lives, cell centres for any, per axis and shaped to broadcast."""
    grid = problem.config.grid
    position = home(name, problem.positions, grid.ndim)
    places = [grid.centres(a) - half * grid.spacing[a] / 2 for a, half in enumerate(position)]
    return np.meshgrid(*places, indexing="ij", sparse=True)


def with_table(tables: Mapping[str, Any], name: str, **values: Any) -> dict[str, Any]:
    """The tables with some keys of one table replaced."""
    return {**tables, name: {**tables.get(name, {}), **values}}
