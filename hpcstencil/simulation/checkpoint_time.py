"""The expected duration of writing a checkpoint, from the speed of the last one on this machine."""

from __future__ import annotations

from hpcstencil.problem.problem import Problem
from hpcstencil.simulation.measurement_cache import recall, remember

WRITING = "checkpoint:bytes per second"
WRITING_UNMEASURED = 1e8  # bytes/s, assumed where no checkpoint has been written yet
WRITING_OVERHEAD = 0.1  # seconds for an empty checkpoint
WRITING_SHOWS = 10**7  # smallest checkpoint, in bytes, from which the speed is measured


def seconds_to_checkpoint(problem: Problem) -> float:
    """Return the seconds that a checkpoint of the problem is expected to take.

    They follow from the speed of the last checkpoint on this machine, or from a default speed if there was none.
    """
    speed = recall(WRITING)
    return WRITING_OVERHEAD + state_bytes(problem) / (speed if isinstance(speed, float) else WRITING_UNMEASURED)


def remember_checkpoint(problem: Problem, elapsed: float) -> None:
    """Store the speed of a checkpoint that took ``elapsed`` seconds, if it was large enough for a meaningful speed."""
    size = state_bytes(problem)
    if size >= WRITING_SHOWS and elapsed > WRITING_OVERHEAD:
        remember(WRITING, size / (elapsed - WRITING_OVERHEAD))


def state_bytes(problem: Problem) -> int:
    """Return the size in bytes of all fields over the whole grid, including those of all members."""
    itemsize = 4 if problem.config.numerics.precision == "float32" else 8
    return len(problem.fields) * problem.cells * itemsize
