"""The loop of a run from event to event: it takes steps, then lets the streams that are due act."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hpcstencil.numerics.schedule import Leap
from hpcstencil.runtime import signals
from hpcstencil.runtime.communicator import Communicator
from hpcstencil.runtime.progress import StepProgress
from hpcstencil.runtime.stopwatch import Stopwatch
from hpcstencil.runtime.walltime import Walltime
from hpcstencil.simulation.state import State
from hpcstencil.simulation.stepping import Stepping
from hpcstencil.simulation.streams.stream import Stream
from hpcstencil.validation.errors import RESUME, NumericsError, StoppedEarly

AT_WALLTIME = 1000  # greater than all signal numbers


@dataclass(frozen=True)
class StopRequests:
    """The conditions that stop a run before its end.

    They are a signal recorded in ``request`` on any process, and rank 0's ``walltime``, before which ``checkpoint_seconds()``
    must remain for a checkpoint.
    """

    request: signals.Request
    walltime: Walltime
    checkpoint_seconds: Callable[[], float]
    communicator: Communicator

    def reason(self) -> str:
        """Return why the run must stop now, in words; "" if it need not. Collective, with the same result everywhere."""
        number = self.request.number
        if self.communicator.rank == 0 and number == 0 and self.walltime.is_near(self.checkpoint_seconds()):
            number = AT_WALLTIME
        number = int(self.communicator.maximum(np.array([number]))[0])
        if number == 0:
            return ""
        return "the walltime" if number == AT_WALLTIME else signal.Signals(number).name


@dataclass(frozen=True)
class Run:
    """A run in progress: its stepping, and the streams that receive its state, in the order in which they act."""

    stepping: Stepping
    streams: Sequence[Stream]
    progress: StepProgress
    stopwatch: Stopwatch

    def to_the_end(self, stops: StopRequests) -> None:
        """Go from event to event until the end.

        Raises NumericsError if the solution blows up, StoppedEarly after a signal or at the walltime.
        """
        while not self.stepping.finished:
            self.check_not_stopped(stops)
            self.advance()

    def advance(self, limit: int | None = None) -> int:
        """Take steps up to the next event, at most ``limit``; let the streams that are due act; return the number of steps.

        Raises NumericsError if the solution blows up.
        """
        stepping = self.stepping
        steps = stepping.advance(self.announce, self.steps_to_event(limit), self.time_of_event(), self.is_quiet)
        clock = stepping.clock
        stepping.simulation.communicator.watch.step(clock.step)
        for stream in self.streams:
            stream.poll()
        self.check_finite()
        self.write_due()
        self.progress.advance(steps, clock.step, clock.time)
        return steps

    def check_finite(self) -> None:
        """Raise NumericsError, on all processes, if the solution is not finite. Streams keep what they recorded before."""
        try:
            with self.stopwatch.during("checks"):
                self.stepping.finite.after_steps(self.stepping.state)
        except NumericsError as error:
            found = [step for stream in self.streams if (step := stream.salvage()) is not None]
            if not found:
                raise
            raise NumericsError(f"{error}; the first record that is not finite is that of step {min(found)}") from None

    def begin(self) -> None:
        """Pass the first state to all streams."""
        for stream in self.streams:
            stream.begin(self.stepping.state)

    def write_due(self) -> None:
        """Pass the current state to each stream that is due."""
        for stream in self.streams:
            if stream.is_due(self.stepping.clock):
                stream.write(self.stepping.state)

    def announce(self, state: State, leap: Leap) -> None:
        """Announce to all streams the steps that the next compiled call takes from ``state``, the last stream first.

        A stream that makes others flush comes after them, and they prepare the call after the flush.
        """
        for stream in reversed(self.streams):
            stream.before(state, leap)

    def is_quiet(self, leap: Leap) -> bool:
        """Return whether no stream acts on a state that the steps of ``leap`` reach."""
        return not any(stream.acts_in(leap) for stream in self.streams)

    def steps_to_event(self, limit: int | None = None) -> int | None:
        """Return the steps until the next event of a stream that counts steps, at most ``limit``; None without either."""
        waits = [limit, *(stream.steps_to_event(self.stepping.clock) for stream in self.streams)]
        return min((wait for wait in waits if wait is not None), default=None)

    def time_of_event(self) -> float | None:
        """Return the time of the next event of a stream that waits for a time; None if there is none."""
        times = [stream.time_of_event(self.stepping.clock) for stream in self.streams]
        return min((time for time in times if time is not None), default=None)

    def check_not_stopped(self, stops: StopRequests) -> None:
        """Raise StoppedEarly, on all processes, if the run must stop.

        Before that, the streams save what a resumed run needs.
        """
        with self.stopwatch.during("waiting for processes"):
            reason = stops.reason()
        if reason:
            self.stop()
            clock = self.stepping.clock
            raise StoppedEarly(
                f"stopped by {reason} at step {clock.step}, t = {clock.time:g}, with a checkpoint", RESUME
            )

    def stop(self) -> None:
        """Let all streams save what a resumed run needs, because the run stops early at its current state."""
        for stream in self.streams:
            stream.stop(self.stepping.state)

    def flush(self) -> None:
        """Let all streams write the data that they hold, for a run that ends early."""
        for stream in self.streams:
            stream.flush()

    def close(self, complete: bool) -> None:
        """Let all streams close their files; ``complete`` says whether the run has reached its end."""
        for stream in self.streams:
            stream.close(complete)

    def finish(self) -> None:
        """Notify all streams that the run has reached its end."""
        for stream in self.streams:
            stream.finish(self.stepping.state)
