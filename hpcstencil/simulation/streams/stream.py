"""The protocol of streams: something that a run does with its state at given steps.

The event loop knows nothing else of what is written. It goes over a list of streams, in order (`before`: in reverse
order), at every event::

    begin                  once, before the first step
    before                 before each compiled call that is known to end at a step
    poll, is_due -> write  after each compiled call
    stop                   a signal came, or the time limit is near; `flush` follows
    finish                 the run has reached its end
    flush, memory          before a checkpoint; `flush` also when the run ends early
    close                  the last call

All processes call every method together, and `is_due` gives the same answer on all.
"""

from __future__ import annotations

from collections.abc import Mapping

from hpcstencil.checkpoint.checkpoint import Part
from hpcstencil.numerics.schedule import Clock, Leap
from hpcstencil.simulation.state import State

Memory = tuple[Mapping[str, Part], Mapping[str, float]]  # arrays and numbers by their name in a checkpoint


class Stream:
    """A stream that does nothing. A further one says when it is due, in ``every_steps`` or `is_due`, and what it does
    with the state in `write`; the other methods are for those that need them.

    ``every_steps`` is a period in steps at which compiled calls must end, beside those of the schedule; None if the
    stream needs no events of its own. A stream that is due at other steps or times says so in `steps_to_event` or
    `time_of_event`.
    """

    every_steps: int | None = None

    def steps_to_event(self, clock: Clock) -> int | None:
        """Steps from ``clock`` after which a compiled call must end, at least 1; None if there is no such step."""
        return None if self.every_steps is None else self.every_steps - clock.step % self.every_steps

    def time_of_event(self, clock: Clock) -> float | None:
        """A time after ``clock``: a compiled call must end at the first step at or past it. None if there is no such
        time. No step is shortened for it."""

    def is_due(self, clock: Clock) -> bool:
        """Whether `write` is to be called with the state at ``clock``."""
        return self.every_steps is not None and clock.step % self.every_steps == 0

    def write(self, state: State) -> None:
        """Take what the stream needs of this state. The fields are arrays on the devices, whose memory the next steps
        reuse; `Simulation.block` gives this process's cells of one."""

    def begin(self, state: State) -> None:
        """Take what is due at the first state of the run."""
        if self.is_due(state.clock):
            self.write(state)

    def before(self, state: State, leap: Leap) -> None:
        """The next compiled call takes these steps from ``state``."""

    def poll(self) -> None:
        """Raise the error of a write in the background that has failed. Does not wait for writes under way."""

    def flush(self) -> None:
        """Put into files what is held back: a run that continues from the next checkpoint does not repeat it."""

    def memory(self) -> Memory:
        """The arrays and numbers that the stream needs if a run continues from a checkpoint written now."""
        return {}, {}

    def stop(self, state: State) -> None:
        """The run stops before its end at this state, at somebody's request."""

    def finish(self, state: State) -> None:
        """The run has reached its end with this state."""
        self.flush()

    def close(self, complete: bool) -> None:
        """Close what the stream has open; the run is ``complete`` or not."""
