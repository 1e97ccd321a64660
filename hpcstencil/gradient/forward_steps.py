"""The steps between two stored states, taken forwards: they store states and the tape, and record samples, on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax

from hpcstencil.adjoint.run_steps import RunSteps
from hpcstencil.distributed.halo import Fields
from hpcstencil.gradient.forward_run import call_recorded
from hpcstencil.gradient.samples import Samples
from hpcstencil.gradient.spare_arrays import SpareArrays
from hpcstencil.gradient.sweep_hooks import NO_HOOKS, SweepHooks
from hpcstencil.gradient.tape_memory import TapeMemory
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.simulation.simulation import ComposedSimulation


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


@dataclass(frozen=True)
class ForwardSteps:
    """The steps of a ``run`` of the problem of ``forward``, as a reverse sweep takes them.

    ``changing`` are the names of the fields that the steps change, ``taped`` those of the values of the ``tape``, if there is
    one. New fields take memory of ``spare``.
    """

    forward: ComposedSimulation
    run: RunSteps
    changing: tuple[str, ...]
    taped: tuple[str, ...]
    tape: TapeMemory
    spare: SpareArrays

    def rooms_for(self, stops: Sequence[int]) -> dict[int, Fields]:
        """Return spare memory in which calls can store states: an entry for each of the first ``stops``, until the memory is
        used up. There are no entries if compiled calls do not store states."""
        rooms = dict[int, Fields]()
        for stop in stops if self.forward.steps.storing is not None else ():
            room = self.spare.taken(self.changing)
            if not room:
                break
            rooms[stop] = room
        return rooms

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
