"""The objective and gradient of an ensemble: sums over its members.

The members are swept one after the other, each as if it were alone, with the same compiled code. So each has the same bits as a
single run, the sum has the same bits for every decomposition, and the memory is that of one run. A single run is the only
member of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hpcstencil.adjoint.members import data_of_member, of_member
from hpcstencil.adjoint.plan import SweepPlan
from hpcstencil.adjoint.problem import Adjoint
from hpcstencil.adjoint.run_steps import steps_of
from hpcstencil.adjoint.tape import recording
from hpcstencil.adjoint.unknowns import NumberParameter, SeriesParameter, Unknown
from hpcstencil.config.settings import Config
from hpcstencil.distributed.halo import Fields
from hpcstencil.gradient.compose import data_of, observed_of, planned, sweep_of
from hpcstencil.gradient.reverse_sweep import Result, ReverseSweep
from hpcstencil.io.array_file import ArrayInMemory
from hpcstencil.problem.problem import Problem
from hpcstencil.runtime.communicator import T, agree
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.validation.errors import NumericsError
from hpcstencil.validation.messages import bytes_text


@dataclass(frozen=True)
class Total:
    """The objective, summed over the members, and its gradient by the entry of gradient.of.

    ``numbers`` are the derivatives with respect to numbers, equal on all processes, and ``blocks`` this process's blocks of
    those with respect to the value in each cell. Those in which the members differ have the members as their first axis.
    ``series`` are those with respect to the samples of time series, float64 of shape (samples,), equal on all processes.
    """

    value: float
    numbers: Mapping[str, Any]
    blocks: Mapping[str, np.ndarray]
    series: Mapping[str, np.ndarray] = field(default_factory=dict)

    def of(self, one: Unknown) -> Any:
        """The gradient with respect to an unknown."""
        match one:
            case NumberParameter():
                return self.numbers[one.key]
            case SeriesParameter():
                return self.series[one.key]
        return self.blocks[one.key]


@dataclass
class Results:
    """The results of the first members of an ensemble, which are added up: objectives, derivatives with respect to numbers by
    key, this process's blocks of the arrays in which the members differ, by key, the sums of all other arrays, and derivatives
    with respect to time series by key."""

    values: list[float] = field(default_factory=list)
    numbers: dict[str, list[float]] = field(default_factory=dict)
    blocks: dict[str, list[np.ndarray]] = field(default_factory=dict)
    sums: Fields = field(default_factory=dict)
    series: dict[str, list[np.ndarray]] = field(default_factory=dict)

    def add(self, sweep: ReverseSweep, result: Result, own: frozenset[str]) -> None:
        """Add the ``result`` of the next member, which this ``sweep`` has computed."""
        self.values.append(result.value)
        for key, value in result.numbers.items():
            self.numbers.setdefault(key, []).append(value)
        for key, samples in result.series.items():
            self.series.setdefault(key, []).append(samples)
        for key in own & result.arrays.keys():
            self.blocks.setdefault(key, []).append(np.array(sweep.forward.block(result.arrays[key])))
        arrays = {key: array for key, array in result.arrays.items() if key not in own}
        self.sums = sweep.compiled.with_added(self.sums, arrays) if self.sums else arrays


@dataclass(frozen=True)
class Members:
    """The reverse sweeps of the members of an ensemble, in order, on this process; or that of a single run.

    ``config`` is the input. ``own`` are the entries of gradient.of in which the members differ, and ``count`` is the number of
    members, 0 for a single run.
    """

    config: Config
    sweeps: tuple[ReverseSweep, ...]
    own: frozenset[str] = frozenset()
    count: int = 0

    @property
    def forward(self) -> ComposedSimulation:
        """The simulation of the first member."""
        return self.sweeps[0].forward

    @property
    def unknowns(self) -> tuple[Unknown, ...]:
        """The entries of gradient.of."""
        return self.sweeps[0].adjoint.unknowns

    @property
    def series(self) -> dict[str, SeriesParameter]:
        """The entries that are time series, by key."""
        return {one.key: one for one in self.unknowns if isinstance(one, SeriesParameter)}

    def planned(
        self, begin: Callable[[int], Fields], check: Callable[[], None] = lambda: None
    ) -> tuple[Members, tuple[SweepPlan, ...]]:
        """Plan the sweep of each member, see `compose.planned`. Collective.

        ``begin`` returns the fields of the member with a number at t = 0.
        """
        found, following = [], self.forward.problem.step_follows_solution
        for number, sweep in enumerate(self.sweeps):
            made, plan = planned(sweep, begin(number) if following else {}, check)
            found.append((made, plan))
        return replace(self, sweeps=tuple(made for made, _ in found)), tuple(plan for _, plan in found)

    def total(self, of: Callable[[int, ReverseSweep], Result], done: Results | None = None) -> Total:
        """Add up the results of all members, by number, in order. Collective.

        ``done`` are those of the first members, to which the others are added. Raises NumericsError, on all processes, if the
        result of one is not finite.
        """
        found = Results() if done is None else done
        for number in range(len(found.values), len(self.sweeps)):
            found.add(self.sweeps[number], self.at(number, of), self.own)
        return Total(
            math.fsum(found.values),
            {key: np.array(each) if key in self.own else math.fsum(each) for key, each in found.numbers.items()},
            {key: np.array(self.forward.block(array)) for key, array in found.sums.items()}
            | {key: np.stack(each) for key, each in found.blocks.items()},
            {key: np.array([*map(math.fsum, zip(*each, strict=True))]) for key, each in found.series.items()},
        )

    def value(self, of: Callable[[int, ReverseSweep], float]) -> float:
        """Add up the objectives of all members, by number. Collective. Raises as `total`."""
        return math.fsum(self.at(number, of) for number in range(len(self.sweeps)))

    def at(self, number: int, of: Callable[[int, ReverseSweep], T]) -> T:
        """Return the result of ``of`` for the member with this number. A NumericsError names the member."""
        try:
            return of(number, self.sweeps[number])
        except NumericsError as error:
            if not self.count:
                raise
            raise NumericsError(f"member {number}: {error}") from None


def members_of(
    problem: Problem,
    forward: ComposedSimulation,
    adjoint: Adjoint,
    compose: Callable[[Decomposed], ComposedSimulation],
    held: Mapping[str, ArrayInMemory],
    own: frozenset[str],
    expressed: Sequence[str],
    tape: bool = True,
) -> Members:
    """Compose the reverse sweeps of a problem. Collective.

    ``forward`` and ``adjoint`` are those of the first member, or of the single run, and ``expressed`` the fields as in
    `adjoint_of`. The other arguments are as in `sweep_of` and `Members`. Raises the errors of `sweep_of`.
    """
    first = sweep_of(forward, adjoint, compose, data_of_member(problem, held, 0), tape)
    others = [
        _like(first, member, compose, data_of_member(problem, held, number), expressed)
        for number, member in enumerate(problem.members)
        if number
    ]
    return Members(problem.config, (first, *others), own, len(problem.members))


def _like(
    first: ReverseSweep,
    member: Problem,
    compose: Callable[[Decomposed], ComposedSimulation],
    held: Any,
    expressed: Sequence[str],
) -> ReverseSweep:
    """The sweep of a ``member``, with the data ``held`` for it, which shares the compiled code of the first one. Collective."""
    communicator, topology = first.forward.communicator, first.forward.plan.topology
    devices = len(first.forward.device_grid.devices.devices)
    adjoint = agree(communicator, lambda: of_member(first.adjoint, member, expressed))
    forward = first.forward.with_problem(member if adjoint.tape is None else recording(adjoint, member))
    problem = adjoint.reversing(topology)
    if problem.derived == first.backward.problem.derived:
        backward = first.backward.with_problem(problem)
    else:  # initial expressions with unknown parameters differ
        backward = compose(agree(communicator, lambda: Decomposed.of(problem, communicator.size, devices)))
    several = None
    if first.several is not None:
        several = first.several.with_problem(adjoint.reversing(topology, first.at_once))
    samples = first.samples
    if samples is not None:
        samples = samples.of_member(forward, observed_of(member, communicator, held))
    data = forward.put(agree(communicator, lambda: data_of(forward, held)))
    return replace(
        first,
        forward=forward,
        adjoint=adjoint,
        backward=backward,
        run=steps_of(member),
        data=data,
        several=several,
        samples=samples,
    )


def in_words(plans: Sequence[SweepPlan]) -> str:
    """The plans of all members in words."""
    first, count = plans[0], len(plans)
    of = "" if count == 1 else f"{count} members one after the other: "
    steps, taken = (sum(getattr(plan, name) for plan in plans) for name in ("steps", "taken"))
    tape = f", a tape of {bytes_text(first.tape_bytes)} per process" if first.tape_bytes else ""
    return f"{of}{steps} steps, {first.stored}{tape}, {taken} steps taken forwards in all"


def listed(numbers: Any) -> str:
    """A number, or one per member of an ensemble, as text."""
    return ", ".join(f"{number:.10g}" for number in np.atleast_1d(numbers))
