"""Runs whose step follows the solution, for tests: their inputs, and what a run measures after each call."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from support import problem_of, simulation_of

from hpcstencil.numerics.schedule import Clock
from hpcstencil.runtime.communicator import Communicator
from hpcstencil.runtime.stopwatch import Stopwatch
from hpcstencil.simulation.finite_check import FiniteCheck
from hpcstencil.simulation.simulation import Simulation
from hpcstencil.simulation.state import State
from hpcstencil.simulation.stepping import Stepping

BUMP = "exp(-8*((x - 0.6)**2 + (y - 0.4)**2))"
# Equations whose rates depend on fields, and on functions of several fields.
FOLLOWING: dict[str, dict[str, Any]] = {
    "burgers": {
        "grid": {"shape": [37, 26], "upper": [1.0, 0.7]},
        "equation": {"name": "burgers", "nu": 0.01},
        "initial": {"u": BUMP, "v": f"-0.5*{BUMP}"},
        "numerics": {"precision": "float64"},
        "time": {"end": 1.0, "cfl": 0.4},
    },
    "euler": {
        "grid": {"shape": [31, 22], "upper": [1.0, 0.7]},
        "equation": {"name": "euler"},
        "initial": {"rho": "1.0", "E": f"0.25 + 10*{BUMP}"},
        "boundary": {"x": {"neumann": 0.0}, "mx": {"x": {"dirichlet": 0.0}}},
        "numerics": {"integrator": "ssprk2"},
        "time": {"end": 1.0, "cfl": 0.4, "dt_every": 3},
    },
    "shallow_water": {
        "grid": {"shape": [26, 33], "upper": [1.0, 1.3]},
        "equation": {"name": "shallow_water", "g": 9.81},
        "initial": {"h": f"1 + 0.3*{BUMP}"},
        "numerics": {"integrator": "ssprk3"},
        "time": {"end": 1.0, "cfl": 0.2},
    },
}


def stepping_of(
    tables: Mapping[str, Any], kernel: str = "native", communicator: Communicator | None = None, devices: int = 1
) -> Stepping:
    """A run of an input at its beginning."""
    simulation = simulation_of(problem_of(**tables), communicator, devices, kernel)
    state = State(Clock(), simulation.initial_fields())
    return Stepping(simulation, simulation.problem.schedule(), state, FiniteCheck(simulation, None, 0), Stopwatch())


def measured(stepping: Stepping, calls: int) -> list[tuple[float, list[float], list[float]]]:
    """(time, minima, maxima) of the measured quantities after each of some calls."""
    found = []
    for _ in range(calls):
        stepping.advance(lambda *_: None)
        low, high = stepping.finite.extremes(stepping.state)
        found.append((stepping.clock.time, low.tolist(), high.tolist()))
    return found


def computed_anew(simulation: Simulation, state: State) -> tuple[list[float], list[float]]:
    """(minima, maxima) of the measured quantities of a state, from its fields alone."""
    copied = {name: jax.device_put(np.array(array), array.sharding) for name, array in state.fields.items()}
    low, high, _ = simulation.extremes.extremes(copied, simulation.problem.parameters, state.clock.time)
    return low.tolist(), high.tolist()
