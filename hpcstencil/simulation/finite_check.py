"""The extrema of the measured quantities of a run, and the check, made by all processes together, that they are finite."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np

from hpcstencil.backends.backend import Recorder
from hpcstencil.equations import HasPositiveFields
from hpcstencil.numerics.integrators import MEMORY
from hpcstencil.numerics.schedule import Leap
from hpcstencil.problem.problem import Problem
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.simulation.state import State
from hpcstencil.symbolic.expressions import Field
from hpcstencil.validation.errors import InputError, NumericsError

Extremes = tuple[np.ndarray, np.ndarray, np.ndarray]  # minimum, maximum, number of cells that are not finite


class FiniteCheck:
    """The check that the measured quantities of a run are finite.

    ``first_step`` is the step at which the run begins. ``path`` is its output, None without output, for error messages.
    """

    def __init__(self, simulation: ComposedSimulation, path: Path | None, first_step: int) -> None:
        self.simulation, self.path, self.first_step = simulation, path, first_step
        self.recorder = recorder_of_extremes(simulation)
        self.known: tuple[weakref.ref[State], Extremes] | None = None  # the extremes of a state
        self.last_finite = first_step  # the last step after which all values were finite

    @contextmanager
    def recording(self, leap: Leap) -> Iterator[None]:
        """A context in which a compiled call takes the steps of ``leap``, and finds the extremes of the state after them.

        `reached` must follow.
        """
        if self.recorder is None:
            yield
            return
        self.expect(leap)
        try:
            yield
        finally:
            self.recorder.expect_nothing()  # another simulation may run the same program before the next call

    def expect(self, leap: Leap) -> None:
        """Let a compiled call find the extremes of the state after the steps of ``leap``. There must be a recorder."""
        assert self.recorder is not None
        after, steps = leap.after, leap.steps
        self.recorder.expect(after.step, 1, after.step - steps.first - steps.count, [after.time])

    def taken(self) -> Extremes:
        """Return what a compiled call has found. Collective. There must be a recorder."""
        assert self.recorder is not None
        (found,) = self.recorder.taken(1)
        return found.low, found.high, found.broken

    def reached(self, state: State) -> None:
        """Take what the last call has found, which has ended with this ``state``. Collective."""
        if self.recorder is not None:
            self.known = weakref.ref(state), self.taken()

    def after_steps(self, state: State) -> None:
        """Check the ``state`` after some steps. Collective. Raises the same errors as `extremes`.

        Nothing is computed if the backends of all processes already know that all values are finite.
        """
        if self._known(state) is None:
            unknown = int(not self.simulation.steps.stayed_finite())
            if not self.simulation.communicator.total(np.array([unknown]))[0]:
                self.last_finite = state.clock.step
                return
        self.extremes(state)

    def _known(self, state: State) -> Extremes | None:
        """Return the extremes of a ``state`` if they were found before."""
        return self.known[1] if self.known and self.known[0]() is state else None

    def extremes(self, state: State) -> tuple[np.ndarray, np.ndarray]:
        """Return the minimum and the maximum of every measured quantity over the whole grid. Collective.

        Both are float64 arrays of shape (quantities,), or (quantities, members) in an ensemble. If a value is not finite, all
        processes raise NumericsError, or InputError at the first state of the run.
        """
        simulation, problem = self.simulation, self.simulation.problem
        found = self._known(state)
        if found is None:
            found = simulation.extremes.extremes(dict(state.fields), problem.parameters, state.clock.time)
            self.known = weakref.ref(state), found
        low, high, broken = found
        self.refuse_broken(state, low, broken)
        self.last_finite = state.clock.step
        return low, high

    def refuse_broken(self, state: State, low: np.ndarray, broken: np.ndarray) -> None:
        """Raise the errors of `extremes` if some measured quantity is ``broken`` in some cells; ``low`` are its minima."""
        if not broken.any():
            return
        problem = self.simulation.problem
        for name, counts in zip(problem.measured, broken, strict=True):
            if not (count := int(counts.sum())):
                continue
            where, precision = f"not finite in {count} of {problem.cells} cells", problem.config.numerics.precision
            if name in state.fields:
                where += f", the first at {first_not_finite(self.simulation, state.fields[name])}"
            if state.clock.step == self.first_step:
                refuse_not_positive(problem, low)
                if name in problem.shown:
                    raise InputError(
                        f"initial.{name}: the initial state is {where} (or beyond {precision}); correct it"
                    )
                slope = name.endswith(MEMORY)
                what = f"the time derivative of '{name.removesuffix(MEMORY)}'" if slope else f"'{name}'"
                raise InputError(
                    f"initial: expected an initial state for which {what} is finite, but it is {where}, perhaps as the root "
                    "of a negative number or a quotient by 0; correct the initial state, or the boundary conditions"
                )
            what = f"field '{name}'" if name in state.fields else f"'{name}'"
            kept = "" if self.path is None else f". {self.path} keeps the snapshots before"
            raise NumericsError(
                f"{what} is {where} at step {state.clock.step}, t = {state.clock.time:g}, after all values were finite at step "
                f"{self.last_finite}: the run is unstable, or its equation divides by 0 or takes a root or logarithm of a "
                f"negative number there; try a smaller time.{problem.config.time.given}, or correct it{kept}"
            )


def refuse_not_positive(problem: Problem, low: np.ndarray) -> None:
    """Raise InputError if a field of the initial state by which the equation divides is not positive in all cells.

    ``low`` are the minima of `Problem.measured`, of shape (quantities,) or (quantities, members). With a mask nothing is
    refused, because it is not known which cells are solid.
    """
    positive = problem.equation.positive if isinstance(problem.equation, HasPositiveFields) else ()
    for name, found in zip(problem.measured, low, strict=True):
        if name in positive and problem.mask is None and found.min() <= 0:
            raise InputError(
                f"initial.{name}: expected values above 0 in all cells, since the equation divides by {name}, but the least is "
                f'{found.min():g}; give for example initial.{name} = "1.0"'
            )


def recorder_of_extremes(simulation: ComposedSimulation) -> Recorder | None:
    """Return what records the extremes of the measured quantities after the last step of a call; None if nothing can.

    Also None if they are rarely needed: if they do not determine the size of the next step, and backends that check the values
    they store know whether all quantities are finite.
    """
    problem = simulation.problem
    if not problem.step_follows_solution and all(isinstance(tree, Field) for tree in problem.measured.values()):
        return None
    recorder = simulation.extremes.recorder(1, with_sums=False)
    return recorder if recorder is not None and recorder.with_last else None


def first_not_finite(simulation: ComposedSimulation, array: jax.Array) -> str:
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
