"""The loop of a run from event to event: steps, and the streams that are due after them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hpcstencil.numerics.schedule import Leap
from hpcstencil.runtime import signals
from hpcstencil.runtime.communicator import Communicator
from hpcstencil.runtime.progress import Progress
from hpcstencil.runtime.stopwatch import Stopwatch
from hpcstencil.runtime.walltime import Walltime
from hpcstencil.simulation.state import State
from hpcstencil.simulation.stepping import Stepping
from hpcstencil.simulation.streams.stream import Stream
from hpcstencil.validation.errors import StoppedEarly

AT_WALLTIME = 1000  # greater than all signal numbers


@dataclass(frozen=True)
class StopRequests:
    """The requests that stop a run before its end: a signal noted in ``request`` on any process, or rank 0's ``walltime``, of
    which ``checkpoint_seconds`` must be left."""

    request: signals.Request
    walltime: Walltime
    checkpoint_seconds: Callable[[], float]
    communicator: Communicator

    def reason(self) -> str:
        """Why the run has to stop now, in words; "" if it has not. All processes call this together and get the same
        answer."""
        number = self.request.number
        if self.communicator.rank == 0 and number == 0 and self.walltime.is_near(self.checkpoint_seconds()):
            number = AT_WALLTIME
        number = int(self.communicator.maximum(np.array([number]))[0])
        if number == 0:
            return ""
        return "the walltime" if number == AT_WALLTIME else signal.Signals(number).name


@dataclass(frozen=True)
class Run:
    """A run under way: its stepping, and the streams that get its state, in the order in which they write."""

    stepping: Stepping
    streams: Sequence[Stream]
    progress: Progress
    stopwatch: Stopwatch

    def to_the_end(self, stops: StopRequests) -> None:
        """Go from event to event until the end.

        Raises NumericsError if the solution blows up, StoppedEarly after a signal or at the walltime.
        """
        while not self.stepping.finished:
            self.check_not_stopped(stops)
            self.advance()

    def advance(self, limit: int | None = None) -> int:
        """Take the next steps, up to the next event and at most ``limit``, and let the streams write that are due;
        returns the number of steps. Raises NumericsError if the solution blows up."""
        stepping = self.stepping
        steps = stepping.advance(self.announce, self.steps_to_event(limit), self.time_of_event())
        clock = stepping.clock
        stepping.simulation.communicator.watch.step(clock.step)
        for stream in self.streams:
            stream.poll()
        with self.stopwatch.during("checks"):
            stepping.finite.after_steps(stepping.state)
        self.write_due()
        self.progress.advance(steps, clock.step, clock.time)
        return steps

    def begin(self) -> None:
        """Let the streams take the first state."""
        for stream in self.streams:
            stream.begin(self.stepping.state)

    def write_due(self) -> None:
        """Let each stream write that is due at this state."""
        for stream in self.streams:
            if stream.is_due(self.stepping.clock):
                stream.write(self.stepping.state)

    def announce(self, state: State, leap: Leap) -> None:
        """Tell the streams which steps the next compiled call takes from ``state``, the last stream first: one that makes
        others flush comes after them, and they prepare the call after that."""
        for stream in reversed(self.streams):
            stream.before(state, leap)

    def steps_to_event(self, limit: int | None = None) -> int | None:
        """Steps until the next event of a stream that counts steps, and at most ``limit``; None if there is neither."""
        waits = [limit, *(stream.steps_to_event(self.stepping.clock) for stream in self.streams)]
        return min((wait for wait in waits if wait is not None), default=None)

    def time_of_event(self) -> float | None:
        """The time of the next event of a stream that waits for a time; None if there is none."""
        times = [stream.time_of_event(self.stepping.clock) for stream in self.streams]
        return min((time for time in times if time is not None), default=None)

    def check_not_stopped(self, stops: StopRequests) -> None:
        """Raise StoppedEarly, on all processes, if the run has to stop, after the streams have left what a resumed run
        needs."""
        with self.stopwatch.during("waiting for processes"):
            reason = stops.reason()
        if reason:
            for stream in self.streams:
                stream.stop(self.stepping.state)
            clock = self.stepping.clock
            raise StoppedEarly(
                f"stopped by {reason} at step {clock.step}, t = {clock.time:g}, with a checkpoint; run the "
                f"same command with --resume to continue"
            )

    def flush(self) -> None:
        """Let the streams of a run that ends early put into files what they hold."""
        for stream in self.streams:
            stream.flush()

    def close(self, complete: bool) -> None:
        """Let the streams of a run that is ``complete`` or not close their files."""
        for stream in self.streams:
            stream.close(complete)

    def finish(self) -> None:
        """Let the streams know that the run has reached its end."""
        for stream in self.streams:
            stream.finish(self.stepping.state)
