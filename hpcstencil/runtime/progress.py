"""The progress of a run or a gradient on standard error: a bar on a terminal, otherwise a line from time to time."""

from __future__ import annotations

import sys
import time
from typing import Any, Self

from tqdm import tqdm

from hpcstencil.runtime.launcher import environment_rank
from hpcstencil.validation.printable import printable_lines

FIRST_WAIT, LONGEST_WAIT = 2.0, 60.0  # seconds between plain lines; each wait is twice as long as the last
BAR = "{percentage:3.0f}%|{bar:24}| {desc} [{elapsed}<{remaining}]"


def say(text: str) -> None:
    """Print a line on standard error, on rank 0 only. Control characters in ``text`` are made visible."""
    if environment_rank() == 0:
        print(f"hpcstencil: {printable_lines(text)}", file=sys.stderr, flush=True)


class Progress:
    """A display of the progress of something from ``start`` to ``end``; silent unless ``shown``.

    Use it as a context manager, which closes the bar at its end.
    """

    def __init__(self, start: float, end: float, shown: bool) -> None:
        self.start, self.end, self.shown = start, end, shown
        self.began = self.shown_at = time.monotonic()
        self.wait = FIRST_WAIT
        self.bar: Any = None
        if shown and sys.stderr.isatty():
            self.bar = tqdm(total=end, initial=start, bar_format=BAR, file=sys.stderr, mininterval=0.2)

    def show(self, at: float, text: str) -> None:
        """Show a ``text``, and that ``at`` is reached."""
        if not self.shown:
            return
        now = time.monotonic()
        if self.bar is not None:
            self.bar.set_description_str(text, refresh=False)
            self.bar.update(at - self.bar.n)
        elif now - self.shown_at >= self.wait:
            self.shown_at, self.wait = now, min(2 * self.wait, LONGEST_WAIT)
            left = (now - self.began) * (self.end - at) / max(at - self.start, 1e-300)
            print(f"{text}  {left:.0f} s left", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()


class StepProgress(Progress):
    """The progress of a run in simulated time from ``start`` to ``end``.

    ``cells`` is the number of cells that a step advances, from which the speed is computed.
    """

    def __init__(self, start: float, end: float, cells: int, shown: bool) -> None:
        super().__init__(start, end, shown)
        self.cells, self.steps = cells, 0

    def advance(self, steps: int, step: int, t: float) -> None:
        """Count ``steps`` more steps, and show that the run has reached step number ``step`` and time ``t``."""
        if not self.shown:
            return
        self.steps += steps
        speed = self.cells * self.steps / max(time.monotonic() - self.began, 1e-9)
        self.show(t, f"step {step}  t = {t:.5g} of {self.end:g}  {speed / 1e6:.4g} Mcell/s")
