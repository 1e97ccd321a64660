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
from hpcstencil.simulation.simulation import ComposedSimulation
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

# Equations with a tolerance. The first suddenly gets a source, so that steps are rejected.
TOLERANT: dict[str, dict[str, Any]] = {
    "sudden": {
        "grid": {"shape": [4]},
        "equation": {"name": "custom", "rhs": {"u": "100*exp(-(30*(t - 0.1))**2) - u"}},
        "initial": {"u": "1"},
        "numerics": {"integrator": "dopri5", "precision": "float64"},
        "time": {"end": 1.5, "tolerance": 1e-6},
        "output": {"every": 0.3},
    },
    "gray_scott": {
        "grid": {"shape": [37, 26]},
        "equation": {"name": "gray_scott", "D_u": 0.2, "D_v": 0.1},
        "initial": {"u": "1 - 0.5*sin(x/5)**2", "v": "0.25*sin(y/5)**2"},
        "boundary": {"x": {"neumann": 0.1}},
        "numerics": {"integrator": "bs3"},
        "time": {"end": 500.0, "tolerance": 1e-6},
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


def computed_anew(simulation: ComposedSimulation, state: State) -> tuple[list[float], list[float]]:
    """(minima, maxima) of the measured quantities of a state, from its fields alone."""
    copied = {name: jax.device_put(np.array(array), array.sharding) for name, array in state.fields.items()}
    low, high, _ = simulation.extremes.extremes(copied, simulation.problem.parameters, state.clock.time)
    return low.tolist(), high.tolist()
