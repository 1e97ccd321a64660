"""Probes as a stream: the values at receivers, recorded after every few steps and held until the next snapshot."""

from __future__ import annotations

import math

import numpy as np

from hpcstencil.distributed.halo import Fields
from hpcstencil.distributed.windows import Parameters
from hpcstencil.io.dataset_names import PROBES, VALUES
from hpcstencil.io.time_series import Rows, RowsOf
from hpcstencil.numerics.schedule import Clock, Leap
from hpcstencil.simulation.receiver_recorder import ReceiverRecorder, gathered
from hpcstencil.simulation.state import State
from hpcstencil.simulation.streams.output import Output
from hpcstencil.simulation.streams.stream import Stream


class Probes(Stream):
    """The receivers of all tables of [probes].

    A row of a table has the step and the time of a state, and the values at its receivers. A continued run omits the rows
    that its file already has.
    """

    def __init__(self, output: Output) -> None:
        simulation = output.simulation
        problem = simulation.problem
        self.output, self.simulation = output, simulation
        self.receivers, self.copies = problem.receivers, problem.copies
        self.every = math.gcd(*(each.every for each in self.receivers.values()))
        # A step that is tried may be rejected: nothing is recorded while it is computed.
        in_calls = simulation.control is None
        self.recorder = ReceiverRecorder(simulation, self.receivers, self.every, self.copies, in_calls)
        self.recorded: list[tuple[int, float]] = []  # step and time of each record in the buffer
        self.rows: dict[str, list[Rows]] = {name: [] for name in self.receivers}  # of this process's receivers
        output.sources.append(self)

    def steps_to_event(self, clock: Clock) -> int | None:
        return self.recorder.steps_left(clock.step)

    def is_due(self, clock: Clock) -> bool:
        if self.recorder.while_stepping:
            return bool(self.leap.multiples(self.every))
        return clock.step % self.every == 0

    def acts_in(self, leap: Leap) -> bool:
        return bool(leap.multiples(self.every))

    def begin(self, state: State) -> None:
        self.recorder.begin(dict(state.fields))
        if state.clock.step % self.every == 0:
            self._record(state)

    def before(self, state: State, leap: Leap) -> None:
        self.leap = leap
        self.recorder.expect(state.clock.step, leap.steps.first, leap.multiples(self.every), leap.time_of)

    def poll(self) -> None:
        """The call has ended: another simulation may run the same program before the next one."""
        self.recorder.expect_nothing()

    def write(self, state: State) -> None:
        if not self.recorder.while_stepping:
            return self._record(state)
        steps = self.leap.multiples(self.every)
        self._note(steps)
        with self.output.stopwatch.during("probes"):
            self.recorder.after_call(len(steps), self.leap.after.step in steps, *self._state(state))
        self._interpolate_if_full()

    def salvage(self) -> int | None:
        if not self.recorder.while_stepping:
            return None
        steps = self.leap.multiples(self.every, self.recorder.with_last)
        finite = self.recorder.keep_finite(len(steps))
        self._note(steps[:finite])
        self._interpolate_if_full()
        return steps[finite] if finite < len(steps) else None

    def _note(self, steps: range) -> None:
        self.recorded += [(step, self.leap.time_of(step)) for step in steps]

    def _record(self, state: State) -> None:
        """Record the cells of this state in the next row of the buffer."""
        with self.output.stopwatch.during("probes"):
            self.recorder.record(*self._state(state))
        self.recorded.append((state.clock.step, state.clock.time))
        self._interpolate_if_full()

    def _state(self, state: State) -> tuple[Fields, Parameters, float]:
        return dict(state.fields), self.simulation.problem.parameters, state.clock.time

    def _interpolate_if_full(self) -> None:
        if self.recorder.is_full:
            self._interpolate()

    def _interpolate(self) -> None:
        """Interpolate the records in the buffer, and append the values to the rows. Collective."""
        with self.output.stopwatch.during("probes"):
            count, members = len(self.recorded), self.simulation.problem.layout.members
            values = [found.reshape(count, *members, found.shape[-1]) for found in self.recorder.interpolate()]
            steps, times = np.array([step for step, _ in self.recorded]), np.array([time for _, time in self.recorded])
            self.recorded = []
            for (name, each), found in zip(self.receivers.items(), values, strict=True):
                new = (steps % each.every == 0) & (steps > self.output.file.last_row(group_of(name)))
                self.rows[name].append((steps[new], times[new], {VALUES: found if new.all() else found[new]}))

    @property
    def held(self) -> int:
        itemsize = self.simulation.dtype.itemsize * self.copies
        sizes = {name: itemsize * len(each.places) for name, each in self.receivers.items()}
        rows = sum(len(steps) * (16 + sizes[name]) for name, rows in self.rows.items() for steps, _, _ in rows)
        return rows + 16 * len(self.recorded)

    def drain(self) -> RowsOf:
        if self.recorded:
            self._interpolate()
        with self.output.stopwatch.during("probes"):
            found = {group_of(name): self._gathered(name, rows) for name, rows in self.rows.items() if rows}
        self.rows = {name: [] for name in self.receivers}
        return found

    def _gathered(self, name: str, rows: list[Rows]) -> Rows:
        """Gather the ``rows`` of this process's receivers in one table of [probes] on rank 0. All processes call this together.

        Returns (steps, times, values), with values of shape (rows, receivers), in an ensemble (rows, members, receivers), in
        the run's dtype, and receivers in the order of the input. On other ranks the values are zeros of the same shape.
        """
        steps, times = (np.concatenate([row[n] for row in rows]) for n in (0, 1))
        own = np.concatenate([row[2][VALUES] for row in rows])
        flat = own.reshape(math.prod(own.shape[:-1]), own.shape[-1])
        found = gathered(self.simulation, self.receivers[name], flat)
        return steps, times, {VALUES: found.reshape(*own.shape[:-1], found.shape[-1])}


def probes_of(output: Output) -> list[Probes]:
    """Return one stream for all tables of [probes] of the run that writes ``output``; an empty list without such tables."""
    return [Probes(output)] if output.simulation.problem.receivers else []


def group_of(name: str) -> str:
    """The group in the output file of a table of [probes]."""
    return f"{PROBES}/{name}"
