"""Smoothing of a field or a time series: the preconditioner of a fit, for unknowns that are known to be smooth.

S = (1 + dt ∇²)^n takes n steps of the heat equation, without flux through boundaries, up to t = L²/2. That convolves with a
Gaussian of standard deviation L. With dt = 1 / (4 Σ 1/dx²) no eigenvalue of S is negative, and S is symmetric, as L-BFGS needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hpcstencil.config.reader import from_mapping
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.problem.build import build
from hpcstencil.problem.problem import Problem
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.simulation.simulation import ComposedSimulation

SMOOTHED = "u"
Smoother = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class SmoothingInTime:
    """Smoothing of a time series over ``length``, in units of the time between two samples: the same in one dimension."""

    length: float

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        """Return the smoothed samples, in their dtype; the given ones are kept."""
        total = 0.5 * self.length**2
        steps = max(1, math.ceil(4.0 * total))
        found = samples.astype(np.float64)
        for _ in range(steps):
            flux = np.diff(found, prepend=found[:1], append=found[-1:])
            found = found + (total / steps) * np.diff(flux)
        return found.astype(samples.dtype)


@dataclass(frozen=True)
class Smoothing:
    """Smoothing over ``length``, by the steps of ``heat``, a simulation of `heat_problem`."""

    heat: ComposedSimulation
    length: float

    @property
    def steps(self) -> int:
        """The number of steps."""
        grid = self.heat.problem.config.grid
        return max(1, math.ceil(0.5 * self.length**2 / _longest_step(grid.spacing)))

    def __call__(self, block: np.ndarray) -> np.ndarray:
        """Return this process's block of the smoothed field. Collective. The given block is kept."""
        heat = self.heat
        dt = 0.5 * self.length**2 / self.steps
        after = heat.advance(heat.put({SMOOTHED: np.array(block)}), StepRange(0.0, 0, dt, self.steps))
        return np.array(heat.block(after[SMOOTHED]))


def heat_problem(problem: Problem, kernel: str) -> Problem:
    """The heat equation on the grid of a problem, without flux through boundaries, in the same precision."""
    config = problem.config
    periodic = zip(config.grid.axes, config.boundary.periodic, strict=True)
    tables = {
        "grid": vars(config.grid),
        "equation": {"name": "custom", "rhs": {SMOOTHED: "laplacian(u)"}},
        "boundary": {axis: "periodic" if around else {"neumann": 0.0} for axis, around in periodic},
        "numerics": {
            "integrator": "euler",
            "precision": config.numerics.precision,
            "kernel": kernel,
        },
        "time": {"end": 1.0, "dt": _longest_step(config.grid.spacing)},
    }
    return build(from_mapping(tables, Path.cwd()))


def smoothings_of(
    simulation: ComposedSimulation, lengths: Mapping[str, float], compose: Callable[[Decomposed], ComposedSimulation]
) -> dict[str, Smoothing]:
    """Compose smoothing over these lengths, by name, on the blocks of a simulation. Collective."""
    if not lengths:
        return {}
    topology, problem = simulation.plan.topology, heat_problem(simulation.problem, simulation.kernel)
    blocks = replace(problem.config.decomposition, processes=topology.processes, devices=topology.devices)
    problem = replace(problem, config=replace(problem.config, decomposition=blocks))
    heat = compose(Decomposed.of(problem, simulation.communicator.size, topology.device_count))
    return {name: Smoothing(heat, length) for name, length in lengths.items()}


def _longest_step(spacing: tuple[float, ...]) -> float:
    return 1.0 / (4.0 * sum(1.0 / dx**2 for dx in spacing))
