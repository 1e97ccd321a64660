"""The speed of the steps of a problem on this machine, as a run or `hpcstencil bench` measured it last."""

from __future__ import annotations

from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.problem import Problem
from hpcstencil.simulation.measurement_cache import key, recall, remember
from hpcstencil.simulation.summary import Summary

SHOWS = 1.0  # seconds of computing; the speed of shorter runs says little


def step_speed(problem: Problem, kernel: str, topology: Topology) -> float | None:
    """Return the cell updates per second of a kernel on as many processes and devices; None if they were never measured.

    They were measured on some grid, perhaps on another one than that of the problem.
    """
    speed = recall(_key(problem, kernel, topology))
    return speed if isinstance(speed, float) and speed > 0 else None


def remember_step_speed(problem: Problem, kernel: str, topology: Topology, speed: float) -> None:
    """Store the cell updates per second of a kernel on these processes and devices."""
    remember(_key(problem, kernel, topology), speed)


def remember_speed_of(summary: Summary, problem: Problem, kernel: str, topology: Topology) -> None:
    """Store the speed of a run, unless it was short."""
    if summary.seconds["computing"] >= SHOWS:
        remember_step_speed(problem, kernel, topology, summary.cells_per_second)


def _key(problem: Problem, kernel: str, topology: Topology) -> str:
    return key(problem, f"speed:{kernel}:{topology.size}x{topology.device_count}")
