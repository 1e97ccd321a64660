"""The plan of a reverse sweep: how many states are stored, and how many steps are taken."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import numpy as np

from hpcstencil.adjoint.checkpointing import steps_taken
from hpcstencil.adjoint.problem import Adjoint
from hpcstencil.numerics.topology import Topology
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import shown

PASSES = 12  # most evaluations of right-hand sides in a group of steps that native code reverses together
MOST = 4  # most steps of such a group


@dataclass(frozen=True)
class SweepPlan:
    """The number of ``steps`` of a run, of which ``at_once`` are reversed together, the number of stored ``states``, and the bytes
    of a state on each process. ``states`` is 0 if none are needed."""

    steps: int
    at_once: int
    states: int
    bytes_per_state: int

    @property
    def taken(self) -> int:
        """The number of steps that are taken forwards before the reverse steps, those that are taken again included."""
        if not self.states:
            return self.steps
        whole, rest = divmod(self.steps, self.at_once)
        return min(self.at_once * steps_taken(whole + rest, self.states), self.steps * (self.steps + 1) // 2)


def steps_at_once(adjoint: Adjoint, topology: Topology, kernel: str) -> int:
    """The number of steps that the ``kernel`` reverses together.

    Native code computes the states between them from the first one, in its caches. Their times are rounded in another way than
    in the run, so it is 1 if anything depends on the time, to keep the bits for every number of stored states.
    """
    if "K" in os.environ:
        return int(os.environ["K"])
    if kernel != "native" or not adjoint.needs_states or adjoint.follows_time:
        return 1
    return 1


def plan_of(adjoint: Adjoint, topology: Topology, at_once: int) -> SweepPlan:
    """The plan for the blocks of ``topology``, from [gradient]. Without a limit there, every state that is needed is stored.

    The steps of the problem must have a given size. Raises InputError if the memory that is given has no room for a state.
    """
    problem = adjoint.forward
    steps, gradient = problem.schedule().total_steps, problem.config.gradient
    assert steps is not None
    itemsize = np.dtype(problem.config.numerics.precision).itemsize
    size = len(problem.trees) * math.prod(topology.capacity()) * topology.device_count * itemsize
    if not adjoint.needs_states:
        return SweepPlan(steps, 1, 0, size)
    groups = sum(divmod(steps, at_once))
    states = gradient.checkpoints or groups
    if gradient.memory is not None:
        assert gradient.bytes is not None
        states = gradient.bytes // size
        if not states:
            raise InputError(
                f"gradient.memory: expected room for at least one state of {size} bytes, but got {shown(gradient.memory)}; "
                "give more, or take more processes"
            )
    return SweepPlan(steps, at_once, min(states, groups), size)
