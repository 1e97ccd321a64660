"""The reverse sweep: the objective at the end of a run, and its derivatives with respect to the unknowns.

The run is taken forwards by the backend of the problem. Its steps are reversed in groups, the last first. Reversing a group is
one step of another problem (`Adjoint.reversing`), which a backend computes with the same halos and the same bits for every
decomposition as any other step. It begins with the state before the group, which comes from a schedule
(`adjoint.revolve`). If no states are needed, all steps of equal size are one group.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import numpy as np

from hpcstencil.adjoint.names import REMEMBERED, START
from hpcstencil.adjoint.plan import first_on_tape, groups_of
from hpcstencil.adjoint.problem import Adjoint
from hpcstencil.adjoint.revolve import Advance, Reverse, actions
from hpcstencil.adjoint.run_steps import RunSteps
from hpcstencil.distributed.halo import Fields
from hpcstencil.gradient.compiled_parts import CompiledParts
from hpcstencil.gradient.derivative_sums import largest_of, sums_of
from hpcstencil.gradient.forward_run import to_end
from hpcstencil.gradient.forward_steps import ForwardOptions, ForwardSteps
from hpcstencil.gradient.objective_terms import ObjectiveTerms, Term
from hpcstencil.gradient.sample_derivatives import SampleDerivatives
from hpcstencil.gradient.samples import Samples
from hpcstencil.gradient.stored_states import InMemory, OnDisk, States
from hpcstencil.gradient.sweep_hooks import NO_HOOKS, UNLIMITED, SweepHooks, SweepPosition
from hpcstencil.gradient.tape_memory import half_of
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.problem.parameter_files import Blocks
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.validation.errors import HpcstencilError, NumericsError


@dataclass(frozen=True)
class Result:
    """The objective and its gradient.

    ``numbers`` are the derivatives with respect to numbers, equal on all processes, and ``arrays`` those with respect to the
    value in each cell, laid out on the devices like a field, both by the entry of gradient.of. ``series`` are those with
    respect to the samples of time series, float64 of shape (samples,), equal on all processes.
    """

    value: float
    numbers: Mapping[str, float]
    arrays: Mapping[str, jax.Array]
    series: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass
class SweepVariables:
    """What changes during a sweep.

    ``constant`` are the fields that no step changes. ``cotangents``, ``parts`` and ``series`` are those of `SweepPosition`, and
    ``recorder`` records samples while the run is taken forwards; None after that.
    """

    constant: Fields
    cotangents: Fields
    parts: list[tuple[float, Mapping[str, float]]]
    series: dict[str, np.ndarray]
    recorder: Samples | None


@dataclass(frozen=True)
class ReverseSweep:
    """A problem and its adjoint on this process: ``forward`` takes steps, and each step of ``backward`` reverses one.

    A step of ``several``, if there is one, reverses ``at_once`` steps. All have the same blocks. ``run`` are the steps of the
    run, ``data`` the fields of the objective's data on the devices, and ``samples`` the receivers that it sums over, if there
    are any. If ``injected``, backward steps add the derivatives with respect to samples themselves (`plan.injects`). ``stored``
    are the stored states if they are on disk, None if they are in memory. ``compiled`` is shared with sweeps of the same trees.
    """

    forward: ComposedSimulation
    adjoint: Adjoint
    backward: ComposedSimulation
    run: RunSteps
    data: Fields
    compiled: CompiledParts
    several: ComposedSimulation | None = None
    at_once: int = 1
    samples: SampleDerivatives | None = None
    injected: bool = False
    stored: OnDisk | None = None

    @property
    def steps(self) -> int:
        """The number of steps of the run."""
        return self.run.total

    @cached_property
    def groups(self) -> list[StepRange]:
        """The steps of the run in groups, each of which is reversed together."""
        return [*groups_of(self.run, self.adjoint, self.at_once, self.injected)]

    @cached_property
    def changing(self) -> tuple[str, ...]:
        """The names of the fields that the steps change, without the tape."""
        return self.adjoint.forward.changing

    @cached_property
    def taped(self) -> tuple[str, ...]:
        """The names of the values of the tape, if there is one."""
        return self.adjoint.problem.replayed

    @cached_property
    def terms(self) -> ObjectiveTerms:
        """What states add to the objective and its derivatives."""
        given = self.forward, self.adjoint, self.backward, self.run, self.data, self.samples
        return ObjectiveTerms(*given, self.compiled.sum_of_array, self.compiled.spare)

    @cached_property
    def forward_steps(self) -> ForwardSteps:
        """The steps of the run."""
        return ForwardSteps(self.forward, self.run, self.changing, self.taped, self.compiled.tape, self.compiled.spare)

    def with_values(self, numbers: Mapping[str, Any], held: Mapping[str, Blocks]) -> ReverseSweep:
        """The sweep with other ``numbers`` and time series by name, and arrays, ``held``, by dotted key."""

        def moved(simulation: ComposedSimulation) -> ComposedSimulation:
            problem = simulation.problem
            parameters = {**problem.parameters, **numbers}
            return simulation.with_problem(replace(problem, parameters=parameters, held={**problem.held, **held}))

        several = None if self.several is None else moved(self.several)
        return replace(self, forward=moved(self.forward), backward=moved(self.backward), several=several)

    # ---- the sweep ---------------------------------------------------------------------------------------------------

    def __call__(self, fields: Fields, states: int, hooks: SweepHooks = NO_HOOKS) -> Result:
        """Return the objective and its gradient for a run that begins with ``fields`` at t = 0. Collective.

        ``states`` is the number of stored states. The fields are kept. The sweep begins where ``hooks`` says. Raises
        NumericsError, on all processes, if the objective or its gradient is not finite; StoppedEarly if the hooks do.
        """
        fields = self.forward.begun(fields, self.compiled.first_slopes)
        first = {name: fields[name] for name in self.changing}
        stored = InMemory(first) if self.stored is None else self.stored.begun(first, self.compiled.spare)
        try:
            result = self.swept(fields, stored, states, hooks)
        except HpcstencilError as error:
            if isinstance(error, NumericsError) or (hooks is NO_HOOKS and error.shared):
                stored.clear()
            raise
        except KeyboardInterrupt:  # which a program handles itself; other processes may not have it
            if hooks is NO_HOOKS and self.forward.communicator.size == 1:
                stored.clear()
            raise
        stored.clear()
        return result

    def swept(self, fields: Fields, stored: States, states: int, hooks: SweepHooks) -> Result:
        """Return the result of a sweep with these ``stored`` states, as `__call__`."""
        at = hooks.start or SweepPosition(self.steps)
        series = {key: np.zeros(len(hats.series.values)) for key, hats in self.adjoint.hats.items()}
        series |= {key: values.copy() for key, values in at.series.items()}
        constant = self.compiled.spare.copied({name: fields[name] for name in self.forward.problem.constant})
        recorder = self.begin_samples(fields, stored, at)
        variables = SweepVariables(constant, dict(at.cotangents), list(at.parts), series, recorder)
        groups = self.groups_to(at.step, stored.steps)
        starts = [0, *itertools.accumulate(group.count for group in groups)]
        if self.taped:  # a sweep that continues does not take the run to its end
            first = first_on_tape(starts, self.at_once) if starts[-1] == self.steps else self.steps
            self.begin_tape(range(first, self.steps), fields)
        for action in self.actions(starts, stored.steps, states):
            if isinstance(action, Reverse):
                self.reverse(variables, groups[action.step], starts[action.step], stored, hooks)
            else:
                self.advance_through([starts[group] for group in action], variables, stored, hooks)
        return self.ended(variables, stored.kept(0))

    def advance_through(
        self, stops: Sequence[int], variables: SweepVariables, stored: States, hooks: SweepHooks
    ) -> None:
        """Take the steps from the first of the ``stops``, whose state is stored, to the last one, and store the others.

        The state at the end of the run is not stored.
        """
        while len(stops) > 1:
            rooms = self.forward_steps.rooms_for(stops[1:-1]) if self.stored is None else {}
            last = stops[len(rooms) + 1]
            self.advance(variables, stops[0], last, stored, ForwardOptions(hooks, variables.recorder, rooms))
            stops = stops[len(rooms) + 1 :]

    def advance(
        self, variables: SweepVariables, first: int, last: int, stored: States, options: ForwardOptions
    ) -> None:
        """Take the steps from number ``first`` to ``last``, and store the state after them; add its terms at the end."""
        recorder = options.recorder
        found = self.forward_steps.kept_and_taken(stored.kept(first), variables.constant, first, last, options)
        for step, state in options.rooms.items():
            stored.add(step, state, self.run.time_of(step))
        variables.constant = {name: found[name] for name in variables.constant}
        after = {name: found[name] for name in self.changing}
        if last < self.steps:
            recorded = recorder.drain() if recorder is not None and self.stored is not None else {}
            stored.add(last, after, self.run.time_of(last), recorded)
            return
        sums = {} if recorder is None else recorder.sums(self.terms.record_times)
        added, variables.recorder = self.terms.at(found, self.steps, sums), None
        self.compiled.spare.add(after)
        cotangents = dict(added[0].cotangents) if added else {}
        absent = {name: 0.0 for name in self.adjoint.reverse_rhs if name not in cotangents}
        cotangents |= self.compiled.spare.filled(absent, found[self.changing[0]])
        variables.cotangents = self.with_sample(cotangents, self.steps)
        self.add_terms(variables, [replace(term, cotangents={}) for term in added[:1]] + added[1:], self.steps)

    def reverse(
        self, variables: SweepVariables, group: StepRange, start: int, stored: States, hooks: SweepHooks
    ) -> None:
        """Reverse a group of steps, the first of which has the number ``start``, and add the terms of the state before it."""
        state = Fields()
        if self.adjoint.begins_with_states:
            state = stored.removed(start) if start else self.compiled.spare.copied(stored.kept(0))
        added = self.terms.at({**state, **variables.constant}, start)
        if self.taped:
            self.record_tape(variables, state, range(start, start + group.count), hooks)
            state = {}
        found = Fields()
        for part in self.parts(group, hooks):
            step = start + part.first - group.first
            with hooks.call(part.count):
                found = self.reversed({**state, **variables.constant}, variables.cotangents, part, step)
            variables.constant = {name: found[name] for name in variables.constant}
            variables.cotangents = {name: found[name] for name in variables.cotangents}
            if sums := self.compiled.stage_sums.get(self.together(part)):
                sums.add(variables.series, part, found, self.forward.problem.parameters)
                self.compiled.spare.add({name: found[name] for name in sums.fields})
            self.compiled.spare.add({name: found[name] for name in self.adjoint.operands})
            if step > start:
                hooks.moved(self.position(step, variables))
        if not self.injected:
            variables.cotangents = self.with_sample(variables.cotangents, start)
        self.add_terms(variables, added, start)
        self.compiled.spare.add({name: found[name] for name in state})
        hooks.moved(self.position(start, variables))

    def begin_tape(self, steps: range, fields: Fields) -> None:
        """Record the tape when these ``steps`` are taken. ``fields`` have its layout."""
        like = fields[self.changing[0]]
        full = np.dtype(like.dtype)
        dtype = half_of(full) if self.adjoint.problem.replayed_in_half else full
        self.compiled.tape.begin(steps, self.taped, like.shape, dtype, self.backward.plan.halo)

    def record_tape(self, variables: SweepVariables, state: Fields, steps: range, hooks: SweepHooks) -> None:
        """Record the tape of ``steps``, from the ``state`` before them, unless this has been done. The state is overwritten."""
        if not self.compiled.tape.has(steps):
            self.begin_tape(steps, state)
            found = self.forward_steps.kept_and_taken(
                state, variables.constant, steps.start, steps.stop, ForwardOptions(hooks)
            )
            variables.constant = {name: found[name] for name in variables.constant}
            self.compiled.spare.add({name: found[name] for name in self.changing})
        self.compiled.tape.exchange(self.forward.communicator, self.forward.device_grid.topology)
        self.compiled.spare.add(state)

    def ended(self, variables: SweepVariables, first: Fields) -> Result:
        """Return the result of a sweep that has reversed all steps. ``first`` are the changing fields at t = 0."""
        value = math.fsum(value for value, _ in variables.parts)
        direct = {name: math.fsum(each.get(name, 0.0) for _, each in variables.parts) for name in self.adjoint.direct}
        cotangents = self.at_start(variables, {**first, **variables.constant})
        result = self.result(value, cotangents, direct, variables.series)
        returned = {one.gradient_field for one in self.compiled.array_reductions[0]}
        left = {name: array for name, array in cotangents.items() if name not in returned}
        self.compiled.spare.add({**variables.constant, **left})
        self.compiled.spare.trim()
        return result

    def position(self, step: int, variables: SweepVariables) -> SweepPosition:
        """The position from which all steps have been reversed."""
        slopes = None if self.samples is None else self.samples.slopes
        return SweepPosition(step, variables.cotangents, variables.parts, variables.series, slopes)

    def begin_samples(self, fields: Fields, stored: States, at: SweepPosition) -> Samples | None:
        """Return the receivers if they are to record while the run is taken forwards; None in a sweep that continues.

        ``fields`` are those at t = 0. A run that was interrupted goes on from its last stored state.
        """
        if self.samples is None:
            return None
        parameters = self.forward.problem.parameters
        if at.step < self.steps:
            self.samples.begin(fields, parameters)
            self.samples.slopes = at.slopes
            return None
        recorded, count = list[Mapping[str, np.ndarray]](), 0
        for step in stored.steps[1:]:
            samples = stored.recorded(step)
            count += max(map(len, samples.values()), default=0)
            if count != step // self.samples.every + 1:  # the state is one that the sweep stored again in reverse
                stored.drop(step)
                break
            recorded += [samples] if samples else []
        self.samples.begin(fields, parameters, recorded)
        return self.samples

    def groups_to(self, step: int, begin: Sequence[int]) -> list[StepRange]:
        """The groups of the steps before number ``step``; a group begins at each number in ``begin``."""
        if step == self.steps and len(begin) == 1:
            return self.groups
        found, done = [], 0
        for group in groups_of(self.run, self.adjoint, self.at_once, self.injected, {*begin, step}):
            if done >= step:
                break
            found.append(group)
            done += group.count
        return found

    def actions(self, starts: Sequence[int], stored: Sequence[int], states: int) -> Iterator[list[int] | Reverse]:
        """The actions that reverse groups of steps with these ``starts``, from the states that are ``stored``.

        A list has the first group of steps that are taken together, the groups before which states are stored meanwhile, and
        the group that comes next.
        """
        count, reached = len(starts) - 1, starts[-1] < self.steps
        if self.adjoint.begins_with_states:
            return together(actions(count, states, [starts.index(step) for step in stored], reached))
        return together(without_states(count, reached))

    def parts(self, group: StepRange, hooks: SweepHooks) -> Iterator[StepRange]:
        """The parts in which a group is reversed, the last one first: one, unless no states are needed."""
        left, added = group.count, self.samples.most_added if self.samples is not None and self.injected else UNLIMITED
        if self.compiled.stage_sums and not self.adjoint.needs_states:
            added = min(added, self.compiled.stage_sums[False].most)
        while left:
            count = left if self.adjoint.needs_states else min(left, hooks.most, added)
            left -= count
            yield group.part(left, count)

    def value(self, fields: Fields) -> float:
        """Return the objective for a run that begins with ``fields`` at t = 0. Collective. The fields are kept."""
        fields = self.forward_steps.with_tape(
            self.compiled.copied(self.forward.begun(fields, self.compiled.first_slopes))
        )
        return to_end(self.forward, self.run, fields, self.samples, self.terms.value)[1]

    def reversed(self, fields: Fields, cotangents: Fields, group: StepRange, first: int) -> Fields:
        """Return the fields of `Adjoint.reversing` before a group of steps, the first of which has the number ``first``.

        ``fields`` are those of the equation before the group, and ``cotangents`` the derivatives after it. All are overwritten,
        or added to ``spare``.
        """
        several = self.together(group)
        backward, steps = self.backward, group
        if several:
            assert self.several is not None
            backward, steps = self.several, group._replace(count=1)
        adding: AbstractContextManager[None] = nullcontext()
        if self.injected:
            assert self.samples is not None
            adding = self.samples.adding(self.compiled.injections[several], group.first, first, first + group.count)
        recording: AbstractContextManager[None] = nullcontext()
        if sums := self.compiled.stage_sums.get(several):
            recording, like = sums.recording(steps), next(iter(cotangents.values()))
            cotangents = {**cotangents, **self.compiled.spare.with_any_values(sums.fields, like)}
        replaying: AbstractContextManager[None] = nullcontext()
        if self.taped:
            assert backward.steps.replaying is not None
            last = first + group.count - 1
            replaying = backward.steps.replaying(
                {group.first + n: self.compiled.tape.at(last - n) for n in range(group.count)}
            )
        if operands := self.adjoint.operands:  # their values before a step do not matter
            cotangents = {
                **cotangents,
                **self.compiled.spare.with_any_values(operands, cotangents[self.adjoint.any_field]),
            }
        parameters, into = self.forward.problem.parameters, backward.steps.into
        with adding, recording, replaying:
            if into is None or not self.adjoint.needs_states:
                return jax.block_until_ready(backward.steps.advance({**fields, **cotangents}, parameters, steps))
            room = self.compiled.spare.taken(cotangents)
            found = jax.block_until_ready(into({**fields, **cotangents}, room, parameters, steps))
        for given in (room, cotangents):  # a derivative that no step changes stays where it is
            self.compiled.spare.add({name: array for name, array in given.items() if not array.is_deleted()})
        return found

    def together(self, group: StepRange) -> bool:
        """Whether a group of steps is reversed as one step of ``several``."""
        return self.adjoint.needs_states and group.count > 1

    def add_terms(self, variables: SweepVariables, terms: Sequence[Term], step: int) -> None:
        """Add terms after a number of steps, and their derivatives."""
        for term in terms:
            if term.cotangents:
                variables.cotangents = self.compiled.with_added(variables.cotangents, term.cotangents)
            for key, value in term.series.items():
                time = np.array([self.run.time_of(step)])
                self.adjoint.hats[key].add(variables.series[key], time, np.array([value]))
        variables.parts += [(term.value, term.direct) for term in terms]

    def with_sample(self, cotangents: Fields, step: int) -> Fields:
        """Return the derivatives with those with respect to samples after a number of steps, if these have constant weights."""
        if self.samples is None or step not in self.terms.sampled_at:
            return cotangents
        added = {name: self.samples.added(name, cotangents[name], step) for name in self.adjoint.injected}
        return {**cotangents, **added}

    def at_start(self, variables: SweepVariables, fields: Fields) -> Fields:
        """The derivatives at t = 0, after adding the contributions of a two-step method's first slopes and of parameters in
        initial expressions. ``fields`` are those of the problem at t = 0. Collective."""
        problem, cotangents = self.backward.problem, variables.cotangents
        for key in (REMEMBERED, START):
            if key in problem.derived:
                of_cells = self.backward.derived[key]({**cotangents, **fields}, problem.parameters, 0.0)
                found, series = self.terms.without_series(dict(zip(problem.derived[key], of_cells, strict=True)))
                self.add_terms(variables, [Term(0.0, {}, series=series)], 0)
                cotangents = {**cotangents, **found}
        return cotangents

    def result(
        self, value: float, cotangents: Fields, direct: Mapping[str, float], series: Mapping[str, np.ndarray]
    ) -> Result:
        """Return the result of a sweep with these derivatives at t = 0, by field of the adjoint problem, and ``series``."""
        parameters = self.forward.problem.parameters
        (of_numbers, reductions), (of_fields, others) = self.compiled.number_reductions, self.compiled.array_reductions
        names = [*(one.gradient_field for one in of_numbers), *(one.gradient_field for one in of_fields)]
        fields = {name: cotangents[name] for name in names}
        totals = sums_of([one.key for one in of_numbers], reductions, fields, parameters)
        numbers = {one.key: float(sum_) + direct[one.name] for one, sum_ in zip(of_numbers, totals, strict=True)}
        largest_of([one.key for one in of_fields], others, fields, parameters)
        return Result(value, numbers, {one.key: fields[one.gradient_field] for one in of_fields}, series)


def together(actions: Iterable[Advance | Reverse]) -> Iterator[list[int] | Reverse]:
    """The ``actions``, where those that take steps one after the other are one list, see `ReverseSweep.actions`."""
    groups = list[int]()
    for action in actions:
        if isinstance(action, Advance) and groups and groups[-1] == action.first:
            groups.append(action.last)
            continue
        if groups:
            yield groups
        groups = [action.first, action.last] if isinstance(action, Advance) else []
        if isinstance(action, Reverse):
            yield action


def without_states(groups: int, reached: bool) -> Iterator[Advance | Reverse]:
    """The actions that reverse some groups of steps where this needs no states; the end may have been ``reached`` before."""
    if not reached:
        yield Advance(0, groups)
    yield from map(Reverse, reversed(range(groups)))
