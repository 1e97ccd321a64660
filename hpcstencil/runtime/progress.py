"""The progress of a run on standard error: a bar on a terminal, otherwise a line from time to time."""

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
    """A display of the progress in simulated time from ``start`` to ``end``; silent unless ``shown``.

    ``cells`` is the number of cells that a step advances, from which the speed is computed. Use it as a context manager,
    which closes the bar at its end.
    """

    def __init__(self, start: float, end: float, cells: int, shown: bool) -> None:
        self.cells, self.end, self.shown = cells, end, shown
        self.began = self.told = time.monotonic()
        self.wait = FIRST_WAIT
        self.steps = 0
        self.bar: Any = None
        if shown and sys.stderr.isatty():
            self.bar = tqdm(total=end, initial=start, bar_format=BAR, file=sys.stderr, mininterval=0.2)
        self.start = start

    def advance(self, steps: int, step: int, t: float) -> None:
        """Count ``steps`` more steps, and show that the run has reached step number ``step`` and time ``t``."""
        if not self.shown:
            return
        self.steps += steps
        now = time.monotonic()
        speed = self.cells * self.steps / max(now - self.began, 1e-9)
        text = f"step {step}  t = {t:.5g} of {self.end:g}  {speed / 1e6:.4g} Mcell/s"
        if self.bar is not None:
            self.bar.set_description_str(text, refresh=False)
            self.bar.update(t - self.bar.n)
        elif now - self.told >= self.wait:
            self.told, self.wait = now, min(2 * self.wait, LONGEST_WAIT)
            left = (now - self.began) * (self.end - t) / max(t - self.start, 1e-300)
            print(f"{text}  {left:.0f} s left", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()
