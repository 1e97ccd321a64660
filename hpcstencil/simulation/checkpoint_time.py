"""The expected time of a checkpoint, from the speed of the last one on this machine."""

from __future__ import annotations

from hpcstencil.problem.problem import Problem
from hpcstencil.simulation.measurement_cache import recall, remember

WRITING = "checkpoint:bytes per second"
WRITING_UNMEASURED = 1e8  # bytes/s, assumed where no checkpoint has been written yet
WRITING_OVERHEAD = 0.1  # seconds of an empty checkpoint
WRITING_SHOWS = 10**7  # bytes from which on a checkpoint measures the speed


def seconds_to_checkpoint(problem: Problem) -> float:
    """The time in seconds that a checkpoint of the problem is expected to take, from the speed of the last one on this
    machine, or a default speed if there was none."""
    speed = recall(WRITING)
    return WRITING_OVERHEAD + state_bytes(problem) / (speed if isinstance(speed, float) else WRITING_UNMEASURED)


def remember_checkpoint(problem: Problem, elapsed: float) -> None:
    """Store the speed of a checkpoint that took ``elapsed`` seconds, if it was large enough for the speed to be
    meaningful."""
    size = state_bytes(problem)
    if size >= WRITING_SHOWS and elapsed > WRITING_OVERHEAD:
        remember(WRITING, size / (elapsed - WRITING_OVERHEAD))


def state_bytes(problem: Problem) -> int:
    """Bytes of all fields over the whole grid, those of all members included."""
    itemsize = 4 if problem.config.numerics.precision == "float32" else 8
    return len(problem.fields) * problem.cells * itemsize
