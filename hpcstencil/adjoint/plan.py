"""The plan of a reverse sweep: how many states are stored, and how many steps are taken."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hpcstencil.adjoint.checkpointing import steps_taken
from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.problem import Problem
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import shown


@dataclass(frozen=True)
class SweepPlan:
    """The number of ``steps`` of a run, the number of stored ``states``, and the bytes of a state on each process."""

    steps: int
    states: int
    bytes_per_state: int

    @property
    def taken(self) -> int:
        """The number of steps that are taken forwards, those that are taken again included."""
        return steps_taken(self.steps, self.states)


def plan_of(problem: Problem, topology: Topology) -> SweepPlan:
    """The plan for the blocks of ``topology``, from [gradient]. Without a limit there, every state is stored.

    The steps of the problem must have a given size. Raises InputError if the memory that is given has no room for a state.
    """
    steps, gradient = problem.schedule().total_steps, problem.config.gradient
    assert steps is not None
    itemsize = np.dtype(problem.config.numerics.precision).itemsize
    size = len(problem.trees) * math.prod(topology.capacity()) * topology.device_count * itemsize
    states = gradient.checkpoints or steps
    if gradient.memory is not None:
        assert gradient.bytes is not None
        states = gradient.bytes // size
        if not states:
            raise InputError(
                f"gradient.memory: expected room for at least one state of {size} bytes, but got {shown(gradient.memory)}; "
                "give more, or take more processes"
            )
    return SweepPlan(steps, min(states, steps), size)
