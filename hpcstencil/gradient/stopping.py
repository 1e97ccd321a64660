"""Sweeps that stop on request, and do not continue later."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hpcstencil.gradient.course import Course, Reached
from hpcstencil.runtime import signals
from hpcstencil.runtime.stopwatch import Stopwatch
from hpcstencil.runtime.walltime import Walltime
from hpcstencil.simulation.event_loop import StopRequests
from hpcstencil.simulation.simulation import Simulation
from hpcstencil.simulation.stepping import Pace
from hpcstencil.validation.errors import StoppedEarly


class Stopping(Course):
    """The course of the sweeps of an ensemble. Collective.

    They stop by the signal in ``request``, and at the walltime, counted from the time ``started`` of time.monotonic. Nothing is
    kept then.
    """

    def __init__(self, simulation: Simulation, request: signals.Request, started: float) -> None:
        communicator, cells = simulation.communicator, math.prod(simulation.plan.topology.capacity())
        walltime = Walltime(simulation.problem.config.checkpoint.walltime, communicator, started)
        self.pace, self.longest, self.calls = (
            Pace(simulation.steps.first_cells // cells, communicator, Stopwatch()),
            0.0,
            0,
        )
        self.stops, self.watch = StopRequests(request, walltime, lambda: self.longest, communicator), communicator.watch

    @property
    def most(self) -> int:
        return self.pace.steps

    @contextmanager
    def call(self, steps: int) -> Iterator[None]:
        start = time.monotonic()
        yield
        elapsed = time.monotonic() - start
        self.longest, self.calls = max(self.longest, elapsed), self.calls + 1
        self.pace.took(steps, elapsed)
        self.watch.step(self.calls)

    def recording(self) -> None:
        """Raise StoppedEarly, on all processes, if the run must stop while its steps are recorded. Collective."""
        self.check()

    def check(self) -> None:
        if reason := self.stops.reason():
            raise StoppedEarly(
                f"stopped by {reason}: nothing was written, since gradients of ensembles do not continue yet; run the same "
                "command again"
            )

    def moved(self, reached: Reached) -> None:
        self.check()
