"""The speed of the steps of a problem on this machine, as a run or `hpcstencil bench` measured it last."""

from __future__ import annotations

from hpcstencil.problem.problem import Problem
from hpcstencil.simulation.measurement_cache import key, recall, remember
from hpcstencil.simulation.summary import Summary

SHOWS = 1.0  # seconds of computing; the speed of shorter runs says little


def step_speed(problem: Problem, processes: int) -> float | None:
    """Return the cell updates per second on this number of processes; None if they were never measured.

    They were measured on some grid, perhaps on another one than that of the problem.
    """
    speed = recall(key(problem, f"speed:{processes}"))
    return speed if isinstance(speed, float) and speed > 0 else None


def remember_step_speed(problem: Problem, processes: int, speed: float) -> None:
    """Store the cell updates per second on this number of processes."""
    remember(key(problem, f"speed:{processes}"), speed)


def remember_speed_of(summary: Summary, problem: Problem, processes: int) -> None:
    """Store the speed of a run, unless it was short."""
    if summary.seconds["computing"] >= SHOWS:
        remember_step_speed(problem, processes, summary.cells_per_second)
