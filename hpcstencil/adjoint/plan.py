"""The plan of a reverse sweep: how many states are stored, and how many steps are taken."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hpcstencil.adjoint.checkpointing import Advance, actions, steps_taken
from hpcstencil.adjoint.problem import Adjoint
from hpcstencil.adjoint.run_steps import RunSteps
from hpcstencil.adjoint.stages import separate
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.decomposition import most_steps
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import shown

MOST = 8  # most stages of steps that native code reverses together; more need more memory than its caches have


@dataclass(frozen=True)
class SweepPlan:
    """The steps of a run in ``groups`` that are reversed together, the number of stored ``states``, and the bytes of a state on
    each process. ``states`` is 0 if none are needed. ``bytes_beside`` is the memory of a process for all other fields of the
    sweep: those of the equation, of the reverse steps, and of native code."""

    groups: tuple[int, ...]
    states: int
    bytes_per_state: int
    bytes_beside: int

    @property
    def bytes(self) -> int:
        """The memory of each process for all fields."""
        return self.states * self.bytes_per_state + self.bytes_beside

    @property
    def steps(self) -> int:
        """The number of steps of the run."""
        return sum(self.groups)

    @property
    def taken(self) -> int:
        """The number of steps that are taken forwards, those that are taken again included, without those that are taken again
        inside of the reversal of a group."""
        if not self.states:
            return self.steps
        if len(set(self.groups)) == 1:
            return self.groups[0] * steps_taken(len(self.groups), self.states)
        starts = [0, *itertools.accumulate(self.groups)]
        plan = actions(len(self.groups), self.states)
        return sum(starts[each.last] - starts[each.first] for each in plan if isinstance(each, Advance))


def steps_at_once(adjoint: Adjoint, topology: Topology, kernel: str) -> int:
    """The number of steps that the ``kernel`` reverses together.

    Native code computes the states between them from the first one, in its caches. Their times are rounded in another way than
    in the run, so it is 1 if anything depends on the time, to keep the bits for every number of stored states.
    """
    method = adjoint.forward.method
    if kernel != "native" or not adjoint.needs_states or adjoint.follows_time:
        return 1
    most = MOST // (1 if separate(method) else len(method.stages)) // (2 if topology.ndim == 3 else 1)
    return max((n for n in range(1, most + 1) if most_steps(adjoint.reversing(topology, n), topology)), default=1)


def groups_of(steps: RunSteps, adjoint: Adjoint, at_once: int) -> Iterator[StepRange]:
    """Yield the steps of a run in groups: ``at_once`` steps, or one where fewer are left of equal size.

    If neither states nor times are needed, all steps of equal size are a group. If the objective is a sum over steps, a group
    begins at each state that adds to it.
    """
    every = adjoint.forward.adds_every or steps.total
    parts = (steps.between(first, first + every) for first in range(0, steps.total, every))
    for equal in itertools.chain.from_iterable(parts):
        done = 0
        while done < equal.count:
            left = equal.count - done
            size = at_once if adjoint.needs_states else 1 if adjoint.follows_time else left
            count = size if size <= left else 1
            yield equal.part(done, count)
            done += count


def plan_of(adjoint: Adjoint, topology: Topology, at_once: int, run: RunSteps) -> SweepPlan:
    """The plan for the steps of a ``run`` on the blocks of ``topology``, from [gradient].

    Without a limit there, every state that is needed is stored.

    Raises InputError if the memory that is given has no room for a state.
    """
    problem, gradient = adjoint.forward, adjoint.forward.config.gradient
    groups = tuple(group.count for group in groups_of(run, adjoint, at_once))
    itemsize = np.dtype(problem.config.numerics.precision).itemsize
    size = len(problem.trees) * math.prod(topology.capacity()) * topology.device_count * itemsize
    one = size // len(problem.trees)
    constant = len(problem.fields) - len(problem.trees)
    # The fields that the run begins with, those at its end, and the terms of the objective; the fields of the reverse steps,
    # twice; parameters, and copies of them; and what native code keeps of the fields of both problems, with about half as
    # much again for the ghost cells of the steps of a sweep.
    reverse, reductions = len(adjoint.rates), len(adjoint.reductions)
    beside = 2 * size + (reductions + 2 * reverse + 4 * constant) * one + size + (size + reverse * one) // 2
    if not adjoint.needs_states:
        return SweepPlan(groups, 0, size, beside)
    states = gradient.checkpoints or len(groups)
    if gradient.memory is not None:
        assert gradient.bytes is not None
        states = gradient.bytes // size
        if not states:
            raise InputError(
                f"gradient.memory: expected room for at least one state of {size} bytes, but got {shown(gradient.memory)}; "
                "give more, or take more processes"
            )
    return SweepPlan(groups, min(states, len(groups)), size, beside)
