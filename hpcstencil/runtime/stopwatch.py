"""Wall time by activity. Exactly one activity is in progress at any moment, so the shares add up to the total."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# In the order of the summary. The time of a nested activity does not count for the outer one.
ACTIVITIES = (
    "starting up",
    "setting up",
    "compiling",
    "computing",
    "step size",
    "checks",
    "diagnostics",
    "probes",
    "output",
    "waiting for the disk",
    "checkpoints",
    "waiting for processes",
    "other",
)


class Stopwatch:
    """A stopwatch that adds up the ``seconds`` of each of the ACTIVITIES.

    It starts at the time ``began`` of the clock ``now``; by default the clock is time.monotonic and the start is the present.
    Time outside all activities counts as "other".
    """

    def __init__(self, began: float | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self.now = now
        self.last = now() if began is None else began
        self.under_way = ["other"]
        self.seconds = dict.fromkeys(ACTIVITIES, 0.0)

    @contextmanager
    def during(self, activity: str) -> Iterator[None]:
        """Count the time inside the context for ``activity``, one of ACTIVITIES.

        Contexts may be nested; time counts for the innermost one.
        """
        self.lap()
        self.under_way.append(activity)
        try:
            yield
        finally:
            self.lap()
            self.under_way.pop()

    def lap(self, activity: str = "") -> None:
        """Count the time since the last lap for the current activity, or for ``activity`` if it is given."""
        now = self.now()
        self.seconds[activity or self.under_way[-1]] += now - self.last
        self.last = now

    @property
    def wall(self) -> float:
        """The total of all activities in seconds, up to the last lap."""
        return sum(self.seconds.values())
