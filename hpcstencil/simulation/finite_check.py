"""The check, made by all processes together, that all values of a run are finite."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np

from hpcstencil.simulation.simulation import Simulation
from hpcstencil.simulation.state import State
from hpcstencil.validation.errors import InputError, NumericsError


class FiniteCheck:
    """The check that the measured quantities of a run are finite.

    ``first_step`` is the step at which the run begins. ``path`` is its output, None without output, for error messages.
    """

    def __init__(self, simulation: Simulation, path: Path | None, first_step: int) -> None:
        self.simulation, self.path, self.first_step = simulation, path, first_step

    def after_steps(self, state: State) -> None:
        """Check the ``state`` after some steps. Collective. Raises the same errors as `extremes`.

        Nothing is computed if the backends of all processes already know that all values are finite.
        """
        unknown = int(not self.simulation.steps.stayed_finite())
        if self.simulation.communicator.total(np.array([unknown]))[0]:
            self.extremes(state)

    def extremes(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        """Return the minimum and the maximum of every measured quantity over the whole grid. Collective.

        Both are float64 arrays of shape (quantities,), or (quantities, members) in an ensemble. If a value is not finite, all
        processes raise NumericsError, or InputError at the first state of the run.
        """
        simulation, problem = self.simulation, self.simulation.problem
        low, high, broken = simulation.extremes.extremes(dict(state.fields), problem.parameters, state.clock.time)
        for name, counts in zip(problem.measured, broken, strict=True):
            if count := int(counts.sum()):
                where = f"not finite in {count} of {problem.cells} cells"
                if name in state.fields:
                    where += f", the first at {first_not_finite(simulation, state.fields[name])}"
                if state.clock.step == self.first_step:
                    precision = problem.config.numerics.precision
                    raise InputError(
                        f"initial.{name}: the initial state is {where} (or beyond {precision}); correct the expression"
                    )
                what = f"field '{name}'" if name in state.fields else f"'{name}'"
                kept = "" if self.path is None else f". {self.path} keeps the snapshots before"
                raise NumericsError(
                    f"{what} is {where} at step {state.clock.step}, t = {state.clock.time:g}: the run is unstable, or its "
                    f"equation divides by 0 or takes a root or logarithm of a negative number there; try a smaller "
                    f"time.{problem.config.time.given}, or correct it{kept}"
                )
        return low, high


def first_not_finite(simulation: Simulation, array: jax.Array) -> str:
    """Describe the first cell, in index order, with a non-finite value, by its global index and coordinates. Collective.

    There must be such a cell.
    """
    problem, grid = simulation.problem, simulation.problem.config.grid
    starts = [start for start, _ in simulation.ranges]
    here = np.argwhere(~np.isfinite(simulation.block(array)))
    mine = None
    if len(here):
        mine = tuple(int(i) + start for i, start in zip(here[0], [*starts, 0], strict=False))
    cells = simulation.communicator.gather(mine)
    first = None if cells is None else min(cell for cell in cells if cell is not None)
    cell = simulation.communicator.broadcast(first)
    assert cell is not None
    place = ", ".join(
        f"{name} = {grid.centres(a, i, i + 1)[0]:.6g}" for a, (name, i) in enumerate(zip(grid.axes, cell, strict=False))
    )
    *inner, member = cell if problem.members else (*cell, None)
    return f"cell {inner} ({place})" + ("" if member is None else f" of member {member}")
