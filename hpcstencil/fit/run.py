"""A fit from its start, or a checkpoint, to its end: iterations, their progress, their checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hpcstencil.adjoint.limits import Limits
from hpcstencil.adjoint.plan import SweepPlan
from hpcstencil.checkpoint.paths import checkpoint_pattern, remove_stale
from hpcstencil.config.settings import FitConfig
from hpcstencil.fit import checkpoints
from hpcstencil.fit.lbfgs import State, Vector, first_state, next_state
from hpcstencil.fit.smoothing import SmoothingInTime, smoothings_of
from hpcstencil.fit.space import Vectors
from hpcstencil.fit.unknowns import Evaluation, box_of, of_components, start_of
from hpcstencil.gradient.checkpoint_identity import digests_of
from hpcstencil.gradient.members import Members
from hpcstencil.runtime.communicator import T
from hpcstencil.runtime.progress import say
from hpcstencil.simulation.event_loop import StopRequests
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.validation.errors import RESUME, StoppedEarly


@dataclass
class Duration:
    """The duration of the longest evaluation so far, in seconds: the time that stopping may take."""

    seconds: float = 0.0


@dataclass(frozen=True)
class Fitted:
    """The last state of a fit, and the reason for its end in words."""

    state: State
    why: str


class FitRun:
    """A fit of the unknowns of a run, or of all members of an ensemble, that writes ``output``. Methods are collective.

    A checkpoint beside ``output`` is written after each iteration. ``plans`` are those of the sweeps, and ``limits`` are by
    unknown. ``compose`` composes other problems on the blocks of the simulation. Progress is shown unless ``quiet``. Raises
    InputError, on all processes, if a bound does not fit.
    """

    def __init__(
        self,
        members: Members,
        plans: Sequence[SweepPlan],
        limits: Mapping[str, Limits],
        output: Path,
        compose: Callable[[Decomposed], ComposedSimulation],
        stops: StopRequests,
        longest: Duration,
        quiet: bool,
    ) -> None:
        forward, config = members.forward, members.config
        self.members, self.output, self.stops, self.longest, self.quiet = members, output, stops, longest, quiet
        self.communicator, self.fit = forward.communicator, config.fit or FitConfig()
        self.start, limits = start_of(members), of_components(limits, members)
        self.box = box_of(members, self.start, limits)
        precision, series = float(np.finfo(forward.dtype).eps), members.series
        lengths = {key: one.smoothing for key, one in limits.items() if one.smoothing}
        of_fields = smoothings_of(forward, {key: x for key, x in lengths.items() if key not in series}, compose)
        in_time = {key: SmoothingInTime(lengths[key] / one.dt) for key, one in series.items() if key in lengths}
        self.space = Vectors(self.communicator, config.grid.cells, precision, {**of_fields, **in_time}, series)
        self.evaluation = Evaluation(members, self.box, [plan.states for plan in plans])
        self.digests = digests_of(members)
        self.since, self.done = time.monotonic(), 0  # the time and the number of the last iteration

    def run(self, resumed: Path | None) -> Fitted:
        """Iterate from the start, or from the checkpoint ``resumed``, to the end.

        Raises InputError if the checkpoint does not fit, NumericsError if the objective is not finite at the start,
        StoppedEarly after a signal or at the walltime.
        """
        self.communicator.watch.checkpoints(checkpoint_pattern(self.output))
        if resumed is None:
            remove_stale(self.output, self.communicator, after=-1)
            state = first_state(self.space, self.box, self._unless_stopped(self.evaluation.at)(self.start))
            self._store(state)
        else:
            state = checkpoints.read(resumed, self.members, self.start, self.digests)
            self.done = len(state.rows) - 1
            if not self.quiet:
                say(f"continuing from {resumed.name}")
        while not (why := _ended(state, self.fit)):
            after = next_state(self.space, self.box, self._unless_stopped(self.evaluation), state, self.fit.history)
            if after is None:
                return Fitted(state, "no lower objective was found along the gradient; this may be a local minimum")
            state = after
            self._store(state)
        return Fitted(state, why)

    def _unless_stopped(self, at: Callable[[Vector], T]) -> Callable[[Vector], T]:
        """The same evaluation, which raises StoppedEarly if the fit must stop."""

        def evaluate(unknowns: Vector) -> T:
            if reason := self.stops.reason():
                raise StoppedEarly(f"stopped by {reason} after {self.done} iterations", RESUME)
            began = time.monotonic()
            point = at(unknowns)
            self.longest.seconds = max(self.longest.seconds, time.monotonic() - began)
            return point

        return evaluate

    def _store(self, state: State) -> None:
        """Write a checkpoint of a state, and show the state."""
        checkpoints.write(self.output, self.members, state, self.digests)
        self.done = len(state.rows) - 1
        self.communicator.watch.step(self.done)
        now = time.monotonic()
        seconds, self.since = now - self.since, now
        if not self.quiet:
            _tell(state, seconds)


def _ended(state: State, fit: FitConfig) -> str:
    """Why a fit ends in this state, in words; "" if it does not."""
    first, last = state.rows[0].norm, state.rows[-1].norm
    if not first:
        return (
            "the gradient is 0 at the start, so the fit cannot go on: the objective has an extremum there, or depends on the "
            "unknowns only by conditions, whose derivatives are 0"
        )
    if last <= fit.tolerance * first:
        return f"converged: the gradient norm is at most {fit.tolerance:g} of that at the start"
    if len(state.rows) > fit.steps:
        return f"not converged after {fit.steps} iterations; set a larger fit.steps and use --resume to continue"
    return ""


def _tell(state: State, seconds: float) -> None:
    row = state.rows[-1]
    times = f"{row.evaluations} evaluation{'s' * (row.evaluations != 1)}"
    say(
        f"iteration {len(state.rows) - 1}  objective {row.objective:.6g}  gradient {row.norm:.3g}  step {row.length:.3g}  "
        f"{times}  {seconds:.2g} s"
    )
