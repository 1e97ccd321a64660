"""The reverse sweep: the objective at the end of a run, and its derivatives with respect to the unknowns.

The run is taken forwards by the backend of the problem. Its steps are reversed in groups, the last first. Reversing a group is
one step of another problem (`Adjoint.reversing`), which a backend computes with the same halos and the same bits for every
decomposition as any other step. It begins with the state before the group, which comes from a schedule
(`adjoint.revolve`). If no states are needed, all steps of equal size are one group.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hpcstencil.adjoint.names import END, OBJECTIVE, REMEMBERED, SAMPLED, SEED, START
from hpcstencil.adjoint.plan import first_on_tape, groups_of
from hpcstencil.adjoint.problem import EXTREME, Adjoint
from hpcstencil.adjoint.revolve import Advance, Reverse, actions
from hpcstencil.adjoint.run_steps import RunSteps, added_at
from hpcstencil.adjoint.unknowns import CellValues, NumberParameter
from hpcstencil.backends.backend import Injection, Reductions
from hpcstencil.distributed.device_grid import Body
from hpcstencil.distributed.halo import Fields
from hpcstencil.gradient.derivative_sums import IN_OBJECTIVE, largest_of, reductions_of, sums_of
from hpcstencil.gradient.extreme_cells import extreme_cells, objective_fields
from hpcstencil.gradient.forward_run import call_recorded, to_end
from hpcstencil.gradient.sample_derivatives import SampleDerivatives
from hpcstencil.gradient.samples import Samples
from hpcstencil.gradient.stage_sums import StageSums
from hpcstencil.gradient.stored_states import InMemory, OnDisk, States
from hpcstencil.gradient.sweep_hooks import NO_HOOKS, UNLIMITED, SweepHooks, SweepPosition
from hpcstencil.gradient.tape_memory import TapeMemory
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.simulation.diagnostics import Diagnostics
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.expressions import Node, Time
from hpcstencil.validation.errors import HpcstencilError, NumericsError


@dataclass(frozen=True)
class ForwardOptions:
    """What happens while forward steps are taken.

    ``hooks`` are called between calls of compiled code, and ``recorder`` records samples, if there is one. The states after the
    numbers of steps in ``rooms`` are stored in the memory there.
    """

    hooks: SweepHooks = NO_HOOKS
    recorder: Samples | None = None
    rooms: Mapping[int, Fields] = field(default_factory=dict)


NO_OPTIONS = ForwardOptions()
NO_SUMS: Mapping[str, float] = {}


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


@dataclass(frozen=True)
class Term:
    """What a state adds to the objective and its derivatives.

    ``cotangents`` are the derivatives per cell, by the fields adjoint.u and gradient.p. ``direct`` are those with respect to
    numbers outside of reductions, by name, and ``series`` those with respect to the values of time series, by key.
    """

    value: float
    cotangents: Fields
    direct: Mapping[str, float] = field(default_factory=dict)
    series: Mapping[str, float] = field(default_factory=dict)


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
    are the stored states if they are on disk, None if they are in memory.
    """

    forward: ComposedSimulation
    adjoint: Adjoint
    backward: ComposedSimulation
    run: RunSteps
    data: Fields
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
    def reduced_at(self) -> range:
        """The numbers of steps after which reductions over the grid add to the objective."""
        return added_at(self.forward.problem, self.run)

    @cached_property
    def sampled_at(self) -> range:
        """The numbers of steps after which samples of receivers add to the objective."""
        return range(0, self.steps + 1 if self.samples else 0, self.forward.problem.adds_every or 1)

    @cached_property
    def record_times(self) -> list[float]:
        """The times at which receivers record samples that add to the objective."""
        return [] if self.samples is None else self.samples.times(self.run)

    @cached_property
    def injections(self) -> Mapping[bool, Injection]:
        """What adds the derivatives with respect to samples while steps are reversed: one at a time (False), or several."""
        found = dict[bool, Injection]()
        for several, simulation in enumerate((self.backward, self.several)) if self.injected else ():
            if simulation is not None:
                assert simulation.steps.injection is not None
                found[bool(several)] = simulation.steps.injection(1 if self.adjoint.needs_states else self.steps)
        return found

    @cached_property
    def with_added(self) -> Body:
        """The function (fields, others) -> their sums, which overwrites the fields. There may be fewer others."""

        def added(fields: Fields, others: Fields) -> Fields:
            return {name: array + others[name] if name in others else array for name, array in fields.items()}

        return self.forward.device_grid.compiled(added, 0, (0,))

    @cached_property
    def copied(self) -> Body:
        """The function fields -> copies of them, which steps may overwrite."""
        copies = self.forward.device_grid.compiled(lambda fields: jax.tree.map(jnp.copy, fields), 0)
        return lambda fields: copies(fields) if fields else {}

    @cached_property
    def first_slopes(self) -> Body | None:
        """The slopes that a multistep method remembers at t = 0; None for other methods."""
        return self.forward.steps.slopes() if self.forward.problem.method.multistep else None

    @cached_property
    def spare(self) -> Spare:
        """The memory of stored states and of other fields, which is kept from one sweep to the next."""
        return Spare(self.copied, self.forward.device_grid.devices.several)

    @cached_property
    def tape(self) -> TapeMemory:
        """The memory of the tape, if the adjoint has one, which is kept like ``spare``."""
        return TapeMemory()

    @cached_property
    def number_reductions(self) -> tuple[list[NumberParameter], Reductions]:
        """The unknowns that are numbers, and the reductions of their gradients per cell, whose sums are the gradients."""
        unknowns = [one for one in self.adjoint.unknowns if isinstance(one, NumberParameter)]
        return unknowns, reductions_of(self.backward, [one.gradient_field for one in unknowns])

    @cached_property
    def array_reductions(self) -> tuple[list[CellValues], Reductions]:
        """The unknowns with a value per cell, and the reductions of their gradients."""
        unknowns = [one for one in self.adjoint.unknowns if isinstance(one, CellValues)]
        return unknowns, reductions_of(self.backward, [one.gradient_field for one in unknowns])

    @cached_property
    def sum_of_array(self) -> Reductions:
        """The sum of an array that is laid out like a field."""
        return reductions_of(self.backward, [self.any_field])

    @cached_property
    def stage_sums(self) -> Mapping[bool, StageSums]:
        """What steps that are reversed one at a time (False), or several, add to the derivatives with respect to time series;
        empty if there are none among the unknowns."""
        if not self.adjoint.stage_fields():
            return {}
        found = {False: StageSums(self.adjoint, self.backward)}
        return found if self.several is None else {**found, True: StageSums(self.adjoint, self.several, self.at_once)}

    @property
    def any_field(self) -> str:
        """The name of a field of the reverse steps."""
        return next(iter(self.adjoint.reverse_rhs))

    # ---- the sweep ---------------------------------------------------------------------------------------------------

    def __call__(self, fields: Fields, states: int, hooks: SweepHooks = NO_HOOKS) -> Result:
        """Return the objective and its gradient for a run that begins with ``fields`` at t = 0. Collective.

        ``states`` is the number of stored states. The fields are kept. The sweep begins where ``hooks`` says. Raises
        NumericsError, on all processes, if the objective or its gradient is not finite; StoppedEarly if the hooks do.
        """
        fields = self.forward.begun(fields, self.first_slopes)
        first = {name: fields[name] for name in self.changing}
        stored = InMemory(first) if self.stored is None else self.stored.begun(first, self.spare)
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
        constant = self.spare.copied({name: fields[name] for name in self.forward.problem.constant})
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
            rooms = self.rooms_for(stops[1:-1])
            last = stops[len(rooms) + 1]
            self.advance(variables, stops[0], last, stored, ForwardOptions(hooks, variables.recorder, rooms))
            stops = stops[len(rooms) + 1 :]

    def rooms_for(self, stops: Sequence[int]) -> dict[int, Fields]:
        """Return memory that nobody needs for the states at the first of the ``stops``, for as many as there is.

        There is none if compiled calls do not store states, or states are on disk.
        """
        rooms = dict[int, Fields]()
        for stop in stops if self.forward.steps.storing is not None and self.stored is None else ():
            room = self.spare.taken(self.changing)
            if not room:
                break
            rooms[stop] = room
        return rooms

    def advance(
        self, variables: SweepVariables, first: int, last: int, stored: States, options: ForwardOptions
    ) -> None:
        """Take the steps from number ``first`` to ``last``, and store the state after them; add its terms at the end."""
        recorder = options.recorder
        found = self.kept_and_taken(stored.kept(first), variables.constant, first, last, options)
        for step, state in options.rooms.items():
            stored.add(step, state, self.run.time_of(step))
        variables.constant = {name: found[name] for name in variables.constant}
        after = {name: found[name] for name in self.changing}
        if last < self.steps:
            recorded = recorder.drain() if recorder is not None and self.stored is not None else {}
            stored.add(last, after, self.run.time_of(last), recorded)
            return
        sums = {} if recorder is None else recorder.sums(self.record_times)
        added, variables.recorder = self.terms(found, self.steps, sums), None
        self.spare.add(after)
        cotangents = dict(added[0].cotangents) if added else {}
        absent = {name: 0.0 for name in self.adjoint.reverse_rhs if name not in cotangents}
        cotangents |= self.spare.filled(absent, found[self.changing[0]])
        variables.cotangents = self.with_sample(cotangents, self.steps)
        self.add_terms(variables, [replace(term, cotangents={}) for term in added[:1]] + added[1:], self.steps)

    def reverse(
        self, variables: SweepVariables, group: StepRange, start: int, stored: States, hooks: SweepHooks
    ) -> None:
        """Reverse a group of steps, the first of which has the number ``start``, and add the terms of the state before it."""
        state = Fields()
        if self.adjoint.begins_with_states:
            state = stored.removed(start) if start else self.spare.copied(stored.kept(0))
        added = self.terms({**state, **variables.constant}, start)
        if self.taped:
            self.record_tape(variables, state, range(start, start + group.count), hooks)
            state = {}
        found = Fields()
        for part in self.parts(group, hooks):
            step = start + part.first - group.first
            with hooks.call(part.count):
                found = self.reversed({**state, **variables.constant}, variables.cotangents, part, step, self.spare)
            variables.constant = {name: found[name] for name in variables.constant}
            variables.cotangents = {name: found[name] for name in variables.cotangents}
            if sums := self.stage_sums.get(self.together(part)):
                sums.add(variables.series, part, found, self.forward.problem.parameters)
                self.spare.add({name: found[name] for name in sums.fields})
            self.spare.add({name: found[name] for name in self.adjoint.operands})
            if step > start:
                hooks.moved(self.position(step, variables))
        if not self.injected:
            variables.cotangents = self.with_sample(variables.cotangents, start)
        self.add_terms(variables, added, start)
        self.spare.add({name: found[name] for name in state})
        hooks.moved(self.position(start, variables))

    def begin_tape(self, steps: range, fields: Fields) -> None:
        """Record the tape when these ``steps`` are taken. ``fields`` have its layout."""
        like = fields[self.changing[0]]
        self.tape.begin(steps, self.taped, like.shape, np.dtype(like.dtype), self.backward.plan.halo)

    def record_tape(self, variables: SweepVariables, state: Fields, steps: range, hooks: SweepHooks) -> None:
        """Record the tape of ``steps``, from the ``state`` before them, unless this has been done. The state is overwritten."""
        if not self.tape.has(steps):
            self.begin_tape(steps, state)
            found = self.kept_and_taken(state, variables.constant, steps.start, steps.stop, ForwardOptions(hooks))
            variables.constant = {name: found[name] for name in variables.constant}
            self.spare.add({name: found[name] for name in self.changing})
        self.tape.exchange(self.forward.communicator, self.forward.device_grid.topology)
        self.spare.add(state)

    def ended(self, variables: SweepVariables, first: Fields) -> Result:
        """Return the result of a sweep that has reversed all steps. ``first`` are the changing fields at t = 0."""
        value = math.fsum(value for value, _ in variables.parts)
        direct = {name: math.fsum(each.get(name, 0.0) for _, each in variables.parts) for name in self.adjoint.direct}
        cotangents = self.at_start(variables, {**first, **variables.constant})
        result = self.result(value, cotangents, direct, variables.series)
        returned = {one.gradient_field for one in self.array_reductions[0]}
        left = {name: array for name, array in cotangents.items() if name not in returned}
        self.spare.add({**variables.constant, **left})
        self.spare.trim()
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
        if self.stage_sums and not self.adjoint.needs_states:
            added = min(added, self.stage_sums[False].most)
        while left:
            count = left if self.adjoint.needs_states else min(left, hooks.most, added)
            left -= count
            yield group.part(left, count)

    def value(self, fields: Fields) -> float:
        """Return the objective for a run that begins with ``fields`` at t = 0. Collective. The fields are kept."""

        def term(fields: Fields, step: int, sums: Mapping[str, float]) -> float:
            return float(self.reduced(self.objective_fields(fields, step), step, sums)[OBJECTIVE])

        fields = self.with_tape(self.copied(self.forward.begun(fields, self.first_slopes)))
        return to_end(self.forward, self.run, fields, self.samples, term)[1]

    def taken(self, fields: Fields, first: int, last: int, options: ForwardOptions = NO_OPTIONS) -> Fields:
        """Return the fields after the steps from ``first`` to ``last``, and the tape. The given fields are overwritten."""
        fields = self.with_tape(fields)
        while first < last:
            fields, first = self.called(partial(self.forward.advance, fields), first, last, options)
        return fields

    def kept_and_taken(self, state: Fields, constant: Fields, first: int, last: int, options: ForwardOptions) -> Fields:
        """Return the fields after the steps from ``first`` to ``last``, without the tape. ``state``, the changing fields before
        them, is kept."""
        into = self.forward.steps.into
        if into is None or first == last:
            fields = self.taken({**self.spare.copied(state), **constant}, first, last, options)
        else:
            given = self.with_tape({**state, **constant})
            room = self.spare.taken([*state, *self.taped])
            fields, first = self.called(
                partial(into, given, room, self.forward.problem.parameters), first, last, options
            )
            self.spare.add({name: given[name] for name in self.taped})
            fields = self.taken(fields, first, last, options)
        self.spare.add({name: fields[name] for name in self.taped})
        return {name: array for name, array in fields.items() if name not in self.taped}

    def with_tape(self, fields: Fields) -> Fields:
        """The fields with those of the tape, whose values before a step do not matter."""
        missing = [name for name in self.taped if name not in fields]
        return {**fields, **self.spare.with_any_values(missing, fields[self.changing[0]])} if missing else fields

    def called(
        self, call: Callable[[StepRange], Fields], first: int, last: int, options: ForwardOptions
    ) -> tuple[Fields, int]:
        """Take steps from number ``first`` on, up to ``last`` at most, by one ``call``, see `call_recorded`."""
        hooks = options.hooks

        def hooked(steps: StepRange) -> Fields:
            with hooks.call(steps.count), self.storing(first, steps, options.rooms):
                return jax.block_until_ready(call(steps))

        found = call_recorded(hooked, self.run, first, min(last, first + hooks.most), options.recorder)
        hooks.check()
        return found

    def storing(self, first: int, steps: StepRange, rooms: Mapping[int, Fields]) -> AbstractContextManager[None]:
        """A context in which one call, which takes ``steps`` from number ``first`` on, stores the states that are due in it, or
        the tape."""
        last = first + steps.count
        due: dict[int, Mapping[str, Any]] = {n: room for n, room in rooms.items() if first < n <= last}
        for n, values in self.tape.due(first, last).items():
            due[n + 1] = {**due.get(n + 1, {}), **values}
        due = {n - first + steps.first: arrays for n, arrays in due.items()}
        if not due or (self.forward.steps.storing is None and not self.taped):
            return nullcontext()
        assert self.forward.steps.storing is not None
        return self.forward.steps.storing(due)

    def reversed(self, fields: Fields, cotangents: Fields, group: StepRange, first: int, spare: Spare) -> Fields:
        """Return the fields of `Adjoint.reversing` before a group of steps, the first of which has the number ``first``.

        ``fields`` are those of the equation before the group, and ``cotangents`` the derivatives after it. All are overwritten,
        or added to the ``spare`` memory.
        """
        several = self.together(group)
        backward, steps = self.backward, group
        if several:
            assert self.several is not None
            backward, steps = self.several, group._replace(count=1)
        adding: AbstractContextManager[None] = nullcontext()
        if self.injected:
            assert self.samples is not None
            adding = self.samples.adding(self.injections[several], group.first, first, first + group.count)
        recording: AbstractContextManager[None] = nullcontext()
        if sums := self.stage_sums.get(several):
            recording, like = sums.recording(steps), next(iter(cotangents.values()))
            cotangents = {**cotangents, **spare.with_any_values(sums.fields, like)}
        replaying: AbstractContextManager[None] = nullcontext()
        if self.taped:
            assert backward.steps.replaying is not None
            last = first + group.count - 1
            replaying = backward.steps.replaying({group.first + n: self.tape.at(last - n) for n in range(group.count)})
        if operands := self.adjoint.operands:  # their values before a step do not matter
            cotangents = {**cotangents, **spare.with_any_values(operands, cotangents[self.any_field])}
        parameters, into = self.forward.problem.parameters, backward.steps.into
        with adding, recording, replaying:
            if into is None or not self.adjoint.needs_states:
                return jax.block_until_ready(backward.steps.advance({**fields, **cotangents}, parameters, steps))
            room = spare.taken(cotangents)
            found = jax.block_until_ready(into({**fields, **cotangents}, room, parameters, steps))
        spare.add(cotangents)
        return found

    def together(self, group: StepRange) -> bool:
        """Whether a group of steps is reversed as one step of ``several``."""
        return self.adjoint.needs_states and group.count > 1

    def reduced(self, fields: Fields, step: int, sums: Mapping[str, float]) -> dict[str, Any]:
        """Return the objective for these fields after a number of steps, and each of its reductions, by name. Collective.

        The fields are those of `objective_fields`. ``sums`` are its sums over receivers, by the names of their nodes.
        """
        trees, parameters = self.backward.problem.diagnostics, {**self.forward.problem.parameters, **sums}
        return Diagnostics(trees, self.backward.diagnosed, parameters).evaluate(fields, self.run.time_of(step))

    def objective_fields(self, fields: Fields, step: int) -> Fields:
        """The fields after a number of steps with all others that the objective reads. Collective."""
        return objective_fields(self.forward, fields, self.data, self.run.time_of(step))

    def terms(self, fields: Fields, step: int, sums: Mapping[str, float] = NO_SUMS) -> list[Term]:
        """Return what the fields after a number of steps add to the objective and its derivatives. Collective.

        The fields are kept. What samples add with constant weights is left to `with_sample`. Raises NumericsError, on
        all processes, if a value is not finite.
        """
        found = [self.reduced_term(fields, step, sums)] if step in self.reduced_at else []
        if step in self.sampled_at and not self.adjoint.injected:
            found.append(self.sampled_term(fields, step))
        return found

    def add_terms(self, variables: SweepVariables, terms: Sequence[Term], step: int) -> None:
        """Add terms after a number of steps, and their derivatives."""
        for term in terms:
            if term.cotangents:
                variables.cotangents = self.with_added(variables.cotangents, term.cotangents)
            for key, value in term.series.items():
                time = np.array([self.run.time_of(step)])
                self.adjoint.hats[key].add(variables.series[key], time, np.array([value]))
        variables.parts += [(term.value, term.direct) for term in terms]

    def with_sample(self, cotangents: Fields, step: int) -> Fields:
        """Return the derivatives with those with respect to samples after a number of steps, if these have constant weights."""
        if self.samples is None or step not in self.sampled_at:
            return cotangents
        added = {name: self.samples.added(name, cotangents[name], step) for name in self.adjoint.injected}
        return {**cotangents, **added}

    def finite(self, value: float, time: float) -> float:
        """Return a term of the objective. Raises NumericsError unless it is finite."""
        if not math.isfinite(value):
            raise NumericsError(
                f"objective: expected a finite value, but got {value} at t = {time:g}; take shorter steps, or change it"
            )
        return value

    def sampled_term(self, fields: Fields, step: int) -> Term:
        """The derivatives of the samples of receivers in `terms`."""
        assert self.samples is not None
        parameters, time = self.forward.problem.parameters, self.run.time_of(step)
        trees, given = self.backward.problem.derived.get(SAMPLED, {}), {**fields, **self.samples.seeds(step)}
        of_cells = self.backward.derived[SAMPLED](given, parameters, time) if trees else ()
        found, series = self.without_series(dict(zip(trees, of_cells, strict=True)))
        return Term(0.0, found, series=series)

    def reduced_term(self, fields: Fields, step: int, sums: Mapping[str, float]) -> Term:
        """The term of reductions over the grid in `terms`, and of ``sums`` over receivers, by the names of their nodes."""
        parameters, time = {**self.forward.problem.parameters, **sums}, self.run.time_of(step)
        problem, given = self.backward.problem, self.objective_fields(fields, step)
        found = self.reduced(given, step, sums)
        value = self.finite(float(found[OBJECTIVE]), time)
        known: dict[Node, Any] = {**numpy_evaluate.by_node(parameters), Time(): time}
        known |= {part: found[f"{OBJECTIVE} {n}"] for n, part in enumerate(self.adjoint.reductions)}
        grid, extreme = problem.config.grid, dict[str, float]()
        weight_of = {"integral": grid.cell_volume, "mean": 1.0 / grid.cells, **dict.fromkeys(EXTREME, 1.0)}
        seeds = dict[str, float]()
        for n, (part, slope) in enumerate(zip(self.adjoint.reductions, self.adjoint.slopes, strict=True)):
            slopes = extreme if part.kind in EXTREME else seeds
            slopes[SEED + str(n)] = float(numpy_evaluate.evaluate(slope, values=known)) * weight_of[part.kind]
        direct = {
            name: float(numpy_evaluate.evaluate(tree, values=known)) for name, tree in self.adjoint.direct.items()
        }
        if self.samples is not None:
            weights = [float(numpy_evaluate.evaluate(slope, values=known)) for slope in self.adjoint.sum_slopes]
            for name, inside in self.samples.weigh(weights, self.record_times).items():
                direct[name] += inside
        trees, of_cells = problem.derived[END], list[jax.Array]()
        if trees:
            filled = self.spare.filled(seeds, fields[self.changing[0]])
            if extreme:
                filled |= self.at_extrema(extreme, given, time)
            of_cells = self.backward.derived[END]({**given, **filled}, parameters, time)
            self.spare.add(filled)
        cotangents, series = self.without_series(dict(zip(trees, of_cells, strict=True)))
        of_series = {
            key: float(numpy_evaluate.evaluate(tree, values=known)) for key, tree in self.adjoint.direct_series.items()
        }
        own = {one.key: direct[one.name] for one in self.number_reductions[0]} | of_series
        for key, derivative in own.items():
            if not math.isfinite(derivative):
                raise NumericsError(
                    f"gradient: expected a finite derivative of the objective with respect to {key}, but got {derivative} at "
                    f"t = {time:g}; {IN_OBJECTIVE}"
                )
        series |= {key: series.get(key, 0.0) + derivative for key, derivative in of_series.items()}
        return Term(value, cotangents, direct, series)

    def at_extrema(self, slopes: Mapping[str, float], fields: Fields, time: float) -> Fields:
        """Return the derivatives with respect to the cells of minima and maxima, by the names of their fields SEED. Collective.

        They are those with respect to the extrema, ``slopes``, in the cells that have this value, divided equally among these.
        """
        found = extreme_cells(self.backward, fields, self.forward.problem.parameters, time)
        counts = self.forward.communicator.total(np.array([here.sum() for here in found.values()]))
        shares = {name: slopes[name] / max(int(count), 1) for name, count in zip(found, counts, strict=True)}
        return self.forward.put(
            {name: (here * shares[name]).astype(self.forward.dtype) for name, here in found.items()}
        )

    def without_series(self, found: Fields) -> tuple[Fields, dict[str, float]]:
        """Return the derivatives per cell by field, and the sums of those with respect to the values of series, by key.

        Collective. Raises NumericsError, on all processes, if one of the latter is not finite.
        """
        key_of = {hats.prefix: key for key, hats in self.adjoint.hats.items()}
        of_series = {key_of[name]: array for name, array in found.items() if name in key_of}
        parameters = self.forward.problem.parameters
        sums = {
            key: float(sums_of([key], self.sum_of_array, {self.any_field: array}, parameters)[0])
            for key, array in of_series.items()
        }
        return {name: array for name, array in found.items() if name not in key_of}, sums

    def at_start(self, variables: SweepVariables, fields: Fields) -> Fields:
        """The derivatives at t = 0, after adding the contributions of a two-step method's first slopes and of parameters in
        initial expressions. ``fields`` are those of the problem at t = 0. Collective."""
        problem, cotangents = self.backward.problem, variables.cotangents
        for key in (REMEMBERED, START):
            if key in problem.derived:
                of_cells = self.backward.derived[key]({**cotangents, **fields}, problem.parameters, 0.0)
                found, series = self.without_series(dict(zip(problem.derived[key], of_cells, strict=True)))
                self.add_terms(variables, [Term(0.0, {}, series=series)], 0)
                cotangents = {**cotangents, **found}
        return cotangents

    def result(
        self, value: float, cotangents: Fields, direct: Mapping[str, float], series: Mapping[str, np.ndarray]
    ) -> Result:
        """Return the result of a sweep with these derivatives at t = 0, by field of the adjoint problem, and ``series``."""
        parameters = self.forward.problem.parameters
        (of_numbers, reductions), (of_fields, others) = self.number_reductions, self.array_reductions
        names = [*(one.gradient_field for one in of_numbers), *(one.gradient_field for one in of_fields)]
        fields = {name: cotangents[name] for name in names}
        totals = sums_of([one.key for one in of_numbers], reductions, fields, parameters)
        numbers = {one.key: float(sum_) + direct[one.name] for one, sum_ in zip(of_numbers, totals, strict=True)}
        largest_of([one.key for one in of_fields], others, fields, parameters)
        return Result(value, numbers, {one.key: fields[one.gradient_field] for one in of_fields}, series)


@partial(jax.jit, donate_argnums=0, keep_unused=True)
def _copied_into(room: Fields, fields: Fields) -> Fields:
    return jax.tree.map(jnp.copy, fields)


@partial(jax.jit, donate_argnums=0, keep_unused=True)
def _filled_into(room: Fields, values: Mapping[str, float]) -> Fields:
    return {name: jnp.full_like(array, values[name]) for name, array in room.items()}


class Spare:
    """Arrays that nobody needs any more, whose memory other fields take. New memory is slow, since it comes page by page.

    All have the shape of a field. With ``several`` devices in this process there are none.
    """

    def __init__(self, copied: Body, several: bool) -> None:
        self.copies, self.several = copied, several
        self.held: list[jax.Array] = []
        self.unused = 0  # the fewest arrays held since the last `trim`

    def add(self, fields: Fields) -> None:
        """Add fields that nobody needs any more."""
        self.held += () if self.several else fields.values()

    def taken(self, names: Collection[str]) -> Fields:
        """Remove and return arrays under these names; none if there are not enough."""
        found = {name: self.held.pop() for name in names} if len(names) <= len(self.held) else {}
        self.unused = min(self.unused, len(self.held))
        return found

    def trim(self) -> None:
        """Drop the arrays that nobody has taken since the last call."""
        del self.held[: self.unused]
        self.unused = len(self.held)

    def copied(self, fields: Fields) -> Fields:
        """Return copies of the fields, in memory that nobody needs any more if there is any."""
        room = self.taken(fields)
        return _copied_into(room, fields) if room else self.copies(fields)

    def with_any_values(self, names: Collection[str], like: jax.Array) -> Fields:
        """Return fields that are only written, by name, on the devices of the field ``like``."""
        return self.taken(names) or self.filled(dict.fromkeys(names, 0.0), like)

    def filled(self, values: Mapping[str, float], like: jax.Array) -> Fields:
        """Return fields with the same value in all cells, by name, on the devices of the field ``like``."""
        room = self.taken(values)
        return _filled_into(room, values) if room else {name: jnp.full_like(like, values[name]) for name in values}


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
