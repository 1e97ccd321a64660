"""The interface of streams: actions that a run performs on its state at given steps, such as writing output.

At every event, the event loop calls the methods of all streams in order, `before` in reverse order::

    begin                  once, before the first step
    before                 before each compiled call, with the first steps that it takes
    acts_in                whether a call must end before further steps, if steps follow the solution
    poll, is_due -> write  after each compiled call
    stop                   when the run stops early, by a signal or near the time limit; `flush` follows
    salvage                when the solution is not finite after a call; `flush` follows
    finish                 when the run has reached its end
    flush, memory          before a checkpoint; `flush` also when the run ends early
    close                  last

All methods are collective, and `is_due` returns the same on all processes.
"""

from __future__ import annotations

from collections.abc import Mapping

from hpcstencil.checkpoint.checkpoint import Part
from hpcstencil.numerics.schedule import Clock, Leap
from hpcstencil.simulation.state import State

Memory = tuple[Mapping[str, Part], Mapping[str, float]]  # (arrays, numbers) by their names in a checkpoint


class CallbackFailed(Exception):
    """A user's callback has raised ``error`` on all processes. The run ends as if it were stopped, with a checkpoint."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"a callback raised {type(error).__name__}: {error}")
        self.error = error


class Stream:
    """The base class of streams, which does nothing.

    A subclass defines when it is due, by ``every_steps`` or `is_due`, and its action in `write`; the other methods are
    optional. ``every_steps`` is a period in steps at which compiled calls must end, in addition to those of the schedule, or
    None. A stream that needs calls to end at other steps or times overrides `steps_to_event` or `time_of_event`.
    """

    every_steps: int | None = None

    def steps_to_event(self, clock: Clock) -> int | None:
        """Return the steps from ``clock`` after which a compiled call must end, at least 1; None if there is no limit."""
        return None if self.every_steps is None else self.every_steps - clock.step % self.every_steps

    def time_of_event(self, clock: Clock) -> float | None:
        """Return a time after ``clock`` such that a compiled call must end at the first step at or past it; else None.

        No step is shortened for it.
        """

    def is_due(self, clock: Clock) -> bool:
        """Return whether `write` is to be called with the state at ``clock``."""
        return self.every_steps is not None and clock.step % self.every_steps == 0

    def acts_in(self, leap: Leap) -> bool:
        """Return whether the stream acts on a state that these steps reach: the last one, or one that the call records.

        Steps that follow the solution are taken many in a call while no stream does (`FurtherSteps`); only the first ones are
        passed to `before`. A stream that records in calls, or is due at a wall-clock time, overrides this.
        """
        return self.is_due(leap.after)

    def write(self, state: State) -> None:
        """Act on this state.

        The fields are device arrays that the next steps overwrite, so copy what is needed later. `Simulation.block` returns
        this process's cells of one field.
        """

    def begin(self, state: State) -> None:
        """Act on the first state of the run if that is due."""
        if self.is_due(state.clock):
            self.write(state)

    def before(self, state: State, leap: Leap) -> None:
        """Prepare for the next compiled call, which takes these steps from ``state``."""

    def poll(self) -> None:
        """Raise the error of a background write that has failed. Does not wait for writes in progress."""

    def salvage(self) -> int | None:
        """Hold what the last compiled call has recorded before the solution stopped being finite; the run ends.

        Return the step of the first record of this call that is not finite; None without such a record.
        """
        return None

    def flush(self) -> None:
        """Write all data that the stream holds, because a run that continues from the next checkpoint does not repeat it."""

    def memory(self) -> Memory:
        """Return the arrays and numbers that the stream needs if a run continues from a checkpoint written now."""
        return {}, {}

    def stop(self, state: State) -> None:
        """Act on the last state of a run that stops early, by a signal or at its time limit."""

    def finish(self, state: State) -> None:
        """Act on the final state of a run that has reached its end."""
        self.flush()

    def close(self, complete: bool) -> None:
        """Close the files of the stream; ``complete`` says whether the run has reached its end."""
