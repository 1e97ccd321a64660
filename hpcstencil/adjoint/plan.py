"""The plan of a reverse sweep: a tape, or how many states are stored, and how many steps are taken."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hpcstencil.adjoint.problem import Adjoint
from hpcstencil.adjoint.revolve import Advance, actions, steps_taken
from hpcstencil.adjoint.run_steps import RunSteps, steps_of
from hpcstencil.adjoint.stages import separate
from hpcstencil.adjoint.tape import recording, with_tape
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.decomposition import most_steps
from hpcstencil.symbolic.differentiate import ZERO
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import shown

MOVING = 4  # states in memory if they are stored on disk: one that steps begin with, and three while one is read
BESIDE_ARRAYS = 2**14  # bytes of the file of a state beside its arrays, mostly less: tables of HDF5 and attributes
FEWEST = 32  # steps on the tape at once; calls of fewer spend much of their time on loading and storing fields
MOST_TAPE = 2_000_000_000  # bytes of a tape or of states on each process, if the input gives no memory
STAGES_TOGETHER = {1: 16, 2: 16, 3: 4}  # most stages to reverse together, by number of axes: more do not fit the caches
MOST_OPERATIONS = 700  # most operations in these stages: more also take long to compile (measured by hand)


@dataclass(frozen=True)
class SweepPlan:
    """The steps of a run in ``groups`` that are reversed together, the number of stored ``states``, and the bytes of a state on
    each process. ``states`` is 0 if none are needed. ``bytes_beside`` is the memory of a process for all other fields of the
    sweep: those of the equation, of the reverse steps, and of native code. States that are stored ``on_disk`` take
    ``file_bytes`` each there, all processes together, except the first one, which stays in memory, and ``recorded_bytes`` for
    the samples of receivers. If there is a tape, ``tape_bytes`` is its memory on each process, and ``taken_for_tape`` is the
    number of steps that are taken once more to record it."""

    groups: tuple[int, ...]
    states: int
    bytes_per_state: int
    bytes_beside: int
    on_disk: bool = False
    file_bytes: int = 0
    recorded_bytes: int = 0
    tape_bytes: int = 0
    taken_for_tape: int = 0

    @property
    def bytes(self) -> int:
        """The memory of each process for all fields."""
        held = min(self.states, MOVING) if self.on_disk else self.states
        return held * self.bytes_per_state + self.bytes_beside + self.tape_bytes

    @property
    def bytes_on_disk(self) -> int:
        """The largest size of all states on disk."""
        return max(self.states - 1, 0) * self.file_bytes + self.recorded_bytes if self.on_disk else 0

    @property
    def stored(self) -> str:
        """The number of stored states in words."""
        return f"{self.states or 'no'} stored state{'s' * (self.states != 1)}"

    @property
    def steps(self) -> int:
        """The number of steps of the run."""
        return sum(self.groups)

    @property
    def taken(self) -> int:
        """All forward steps, including recomputed ones, except those recomputed while a group is reversed."""
        if not self.states:
            return self.steps
        if len(set(self.groups)) == 1:
            return self.taken_for_tape + self.groups[0] * steps_taken(len(self.groups), self.states)
        starts = [0, *itertools.accumulate(self.groups)]
        advances = (each for each in actions(len(self.groups), self.states) if isinstance(each, Advance))
        return self.taken_for_tape + sum(starts[each.last] - starts[each.first] for each in advances)


def with_tape_if_faster(adjoint: Adjoint, topology: Topology, kernel: str) -> Adjoint:
    """The adjoint with a tape if it has one, the ``kernel`` can record it, and that makes the sweep faster; else as it is.

    A tape saves about two forward steps per step of the run. But it leaves less memory for states, so more steps may be taken
    again. It is used if these are at most one per step of the run, or if the input asks for one in half precision. It is not
    used with several devices per process, with states on disk, or if the steps follow the solution.

    Raises InputError if the input asks for a tape in half precision and there is none.
    """
    problem = adjoint.forward
    asked = problem.config.gradient.tape_precision == "half"
    found, why = None, _forbids_tape(adjoint, topology, kernel)
    if not why:
        found = with_tape(adjoint)
        why = _without_tape(found, topology)
    if found is None or why:
        if asked:
            raise InputError(
                f'gradient.tape_precision: expected "full", because this gradient has no tape: {why}; change that, or remove '
                "the key"
            )
        return adjoint
    if asked:
        return found
    run, injected = steps_of(problem), injects(adjoint, topology, kernel)
    with_tape_taken = plan_of(found, topology, steps_on_tape(found, topology), injected, run).taken
    at_once = steps_at_once(adjoint, topology, kernel, injected)
    return found if with_tape_taken <= plan_of(adjoint, topology, at_once, injected, run).taken + run.total else adjoint


def _forbids_tape(adjoint: Adjoint, topology: Topology, kernel: str) -> str:
    """Why an adjoint has no tape by this ``kernel`` on these blocks, whatever its trees; empty if nothing forbids it."""
    problem = adjoint.forward
    if not adjoint.needs_states:
        return "its reverse steps read nothing of the run"
    if kernel != "native":
        return f"its kernel is {kernel}, and only the native kernel records one"
    if problem.config.gradient.storage == "disk":
        return 'its states are on disk (gradient.storage = "disk")'
    if topology.device_count > 1:
        return "its processes have several devices each (decomposition.devices)"
    if problem.step_follows_solution:
        return "its time steps follow the solution (time.cfl or time.tolerance)"
    return ""


def _without_tape(adjoint: Adjoint | None, topology: Topology) -> str:
    """Why there is no tape on these blocks for this adjoint, None if it has none; empty if there is one."""
    if adjoint is None:
        return "its reverse steps read more of the run than it is worth to store"
    if not all(
        most_steps(each, topology) for each in (recording(adjoint, adjoint.forward), adjoint.reversing(topology))
    ):
        return "the blocks of its processes are too small"
    if not steps_on_tape(adjoint, topology):
        return "there is too little memory for one (gradient.memory, gradient.checkpoints)"
    return ""


def steps_on_tape(adjoint: Adjoint, topology: Topology) -> int:
    """The number of steps whose values are on the tape at once, so that the fewest steps are taken again.

    States and tape share `memory_of`. The result is 0 if there is too little for `FEWEST` steps, or all if a run has less.
    """
    steps, memory = steps_of(adjoint.forward).total, memory_of(adjoint, topology)
    state, step = state_bytes(adjoint, topology), tape_bytes(adjoint, topology, 1)
    best, least = 0, math.inf
    for size in sorted({-(-steps // groups) for groups in range(1, max(1, steps // FEWEST) + 1)}):
        groups, states = -(-steps // size), (memory - size * step) // state
        if states > 0 and (taken := size * (steps_taken(groups, min(groups, states)) - 1)) < least:
            best, least = size, taken
    return best


def memory_of(adjoint: Adjoint, topology: Topology) -> int:
    """The memory of each process for states and tape: that of the input, or that of its checkpoints.

    Without either, it is `MOST_TAPE`, or that of a state for every `STAGES_TOGETHER` steps if that is more.
    """
    gradient, state = adjoint.forward.config.gradient, state_bytes(adjoint, topology)
    if gradient.checkpoints is not None:
        return gradient.checkpoints * state
    groups = steps_of(adjoint.forward).total // STAGES_TOGETHER[topology.ndim]
    return max(MOST_TAPE, groups * state) if gradient.bytes is None else gradient.bytes


def first_on_tape(starts: Sequence[int], at_once: int) -> int:
    """The number of the first step whose values are recorded when the run is taken for the first time.

    Groups begin at ``starts``, the last of which is the end of the run. The tape has room for ``at_once`` steps.
    """
    return next(start for start in starts if starts[-1] - start <= at_once)


def array_bytes(adjoint: Adjoint, topology: Topology) -> int:
    """The memory of each process for an array on these blocks."""
    itemsize = np.dtype(adjoint.forward.config.numerics.precision).itemsize
    return math.prod(topology.capacity()) * topology.device_count * itemsize


def state_bytes(adjoint: Adjoint, topology: Topology) -> int:
    """The memory of each process for a state of the equation on these blocks."""
    return len(adjoint.forward.changing) * array_bytes(adjoint, topology)


def tape_bytes(adjoint: Adjoint, topology: Topology, steps: int) -> int:
    """The memory of each process for the tape of some ``steps`` on these blocks; 0 without one."""
    problem = adjoint.problem
    return steps * len(problem.replayed) * array_bytes(adjoint, topology) // (1 + problem.replayed_in_half)


def injects(adjoint: Adjoint, topology: Topology, kernel: str) -> bool:
    """Whether the ``kernel`` adds the derivatives with respect to samples while it reverses steps."""
    return (
        kernel == "native"
        and bool(adjoint.injected)
        and all(adjoint.reverse_rhs[name] != ZERO for name in adjoint.injected)
        and topology.device_count == 1
        and most_steps(adjoint.reversing(topology), topology) > 0
    )


def steps_at_once(adjoint: Adjoint, topology: Topology, kernel: str, injected: bool) -> int:
    """The number of steps that the ``kernel`` reverses together. ``injected`` is `injects`.

    Native code computes the states between them from the first one, in its caches; or their values are on the tape at once.
    """
    method = adjoint.forward.method
    if adjoint.tape is not None:
        return steps_on_tape(adjoint, topology)
    if kernel != "native" or not adjoint.needs_states or method.multistep:
        return 1
    if adjoint.conditions_follow_time:  # native code computes the ghost cells of an array at one time
        return 1
    most = min(STAGES_TOGETHER[topology.ndim], MOST_OPERATIONS // adjoint.operations) // _stages_of_step(adjoint)
    counts = [n for n in range(1, most + 1) if most_steps(adjoint.reversing(topology, n), topology)]
    steps = _added_every(adjoint, injected) or steps_of(adjoint.forward).total
    # the fewest groups, as `groups_of` makes them; among equals, the fewest groups of a single step
    return min(counts or [1], key=lambda n: (steps // n + steps % n, steps % n, -n))


def _stages_of_step(adjoint: Adjoint) -> int:
    """The stages of a step that count for `STAGES_TOGETHER`: all but those that move only memories of absorbing layers."""
    problem = adjoint.forward
    if separate(problem.method):
        return 1
    groups = {group for name, group in problem.groups.items() if name not in problem.begin_at_zero}
    return sum(stage.group is None or stage.group in groups for stage in problem.method.stages)


def _added_every(adjoint: Adjoint, injected: bool) -> int | None:
    """The number of steps after which something is added between calls; None if that is at the end of the run only."""
    return None if injected else adjoint.forward.adds_every


def groups_of(
    steps: RunSteps, adjoint: Adjoint, at_once: int, injected: bool, begin: Collection[int] = ()
) -> Iterator[StepRange]:
    """Yield the steps of a run in groups of ``at_once`` steps of equal size.

    If fewer steps of equal size are left, each of them is a group, or all of them together are one if there is a tape.

    If neither states nor times are needed, all steps of equal size are a group. If the objective is a sum over steps, a group
    begins at each state that adds to it, unless what it adds is ``injected`` (`injects`). Groups also begin at the numbers of
    steps in ``begin``, where a sweep continues.
    """
    every = _added_every(adjoint, injected) or steps.total
    firsts = sorted({*range(0, steps.total, every), *begin, steps.total})
    parts = (steps.between(first, last) for first, last in itertools.pairwise(firsts))
    for equal in itertools.chain.from_iterable(parts):
        done = 0
        while done < equal.count:
            left = equal.count - done
            size = at_once if adjoint.begins_with_states else 1 if adjoint.follows_time else left
            count = size if size <= left else 1 if adjoint.tape is None else left
            yield equal.part(done, count)
            done += count


def _states_without_limit(adjoint: Adjoint, topology: Topology, groups: int, steps: int) -> int:
    """The number of states to store if the input sets no limit: one for each of the ``groups`` of all ``steps``.

    If `MOST_OPERATIONS` forbids groups of `STAGES_TOGETHER`, states beyond `MOST_TAPE` are stored for groups of that size only.
    """
    if adjoint.conditions_follow_time or adjoint.operations * STAGES_TOGETHER[topology.ndim] <= MOST_OPERATIONS:
        return groups
    larger = max(1, STAGES_TOGETHER[topology.ndim] // _stages_of_step(adjoint))
    return min(groups, max(-(-steps // larger), MOST_TAPE // state_bytes(adjoint, topology)))


def plan_of(adjoint: Adjoint, topology: Topology, at_once: int, injected: bool, run: RunSteps) -> SweepPlan:
    """The plan for the steps of a ``run`` on the blocks of ``topology``, from [gradient].

    ``at_once`` and ``injected`` are `steps_at_once` and `injects`.

    Raises InputError if the memory that is given has no room for a state.
    """
    problem, gradient = adjoint.forward, adjoint.forward.config.gradient
    groups = tuple(group.count for group in groups_of(run, adjoint, at_once, injected))
    size, one = state_bytes(adjoint, topology), array_bytes(adjoint, topology)
    constant = len(problem.constant)
    # The fields that the run begins with, those at its end, and the terms of the objective; the fields of the reverse steps,
    # twice; parameters, and copies of them; and what native code keeps of the fields of both problems, with about half as
    # much again for the ghost cells of the steps of a sweep.
    together = at_once if adjoint.tape is None else 1
    reverse = len(adjoint.reverse_rhs) + len(adjoint.operands) + len(adjoint.stage_fields(together))
    reductions = len(adjoint.reductions)
    beside = 2 * size + (reductions + 2 * reverse + 4 * constant) * one + size + (size + reverse * one) // 2
    recorded = 0
    if problem.misfit is not None:  # the samples of all receivers, their data, and the derivatives with respect to them
        assert problem.adds_every is not None
        of_one = (run.total // problem.adds_every + 1) * 8
        size_of = {table: of_one * len(each.places) for table, each in problem.summed_receivers.items()}
        recorded = sum(size_of.values())
        beside += 2 * recorded + sum(size_of[table] for table in problem.misfit.data.values())
    if not adjoint.begins_with_states:
        return SweepPlan(groups, 0, size, beside)
    starts = [0, *itertools.accumulate(groups)]
    tape, again = tape_bytes(adjoint, topology, at_once), first_on_tape(starts, at_once) if adjoint.tape else 0
    states = gradient.checkpoints or _states_without_limit(adjoint, topology, len(groups), run.total)
    if gradient.memory is not None or adjoint.tape is not None:
        states = (memory_of(adjoint, topology) - tape) // size
        if not states:
            raise InputError(
                f"gradient.memory: expected room for at least one state of {size} bytes, but got {shown(gradient.memory)}; "
                "give more, or take more processes"
            )
    on_disk = gradient.storage == "disk"
    itemsize = np.dtype(problem.config.numerics.precision).itemsize
    file_bytes = len(problem.changing) * problem.cells * itemsize + BESIDE_ARRAYS
    return SweepPlan(groups, min(states, len(groups)), size, beside, on_disk, file_bytes, recorded, tape, again)
