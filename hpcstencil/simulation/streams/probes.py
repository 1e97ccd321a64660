"""Probes as a stream: the values at receivers, taken every few steps and held until the next snapshot.

The cells around receivers are recorded, by native code within its calls, into a buffer. When that is full, or rows are to be
written, cells next to other blocks are exchanged, and each process interpolates at its own receivers.
"""

from __future__ import annotations

import math

import numpy as np

from hpcstencil.distributed.cell_samples import CellSamples
from hpcstencil.distributed.halo import Fields
from hpcstencil.distributed.receiver_cells import ReceiverCells, ranks_of, receiver_cells
from hpcstencil.io.dataset_names import PROBES, VALUES
from hpcstencil.io.time_series import Rows, RowsOf
from hpcstencil.numerics.schedule import Clock, Leap, Schedule
from hpcstencil.runtime.communicator import agree
from hpcstencil.simulation.simulation import Simulation
from hpcstencil.simulation.solid_cells import solid_block
from hpcstencil.simulation.state import State
from hpcstencil.simulation.streams.output import Output
from hpcstencil.simulation.streams.stream import Stream
from hpcstencil.validation.errors import InputError

BUFFER = 16 * 2**20  # bytes of cells that are recorded before they are interpolated
MOST_RECORDS = 1000


class Probes(Stream):
    """The receivers of all tables of [probes]. A row of a table has the step and the time of a state, and the values at
    its receivers; a continued run leaves out the rows that its file has."""

    def __init__(self, output: Output, schedule: Schedule) -> None:
        simulation = output.simulation
        self.output, self.simulation, self.receivers = output, simulation, simulation.problem.receivers
        self.every = math.gcd(*(each.every for each in self.receivers.values()))
        if not self.every:
            return
        self.part = parts_of(simulation)
        records = min(MOST_RECORDS, BUFFER // max(1, self.part.size * simulation.dtype.itemsize)) or 1
        values = np.zeros((-simulation.communicator.maximum(np.array([-records]))[0], self.part.size), simulation.dtype)
        recorder = CellSamples if simulation.control is not None else simulation.steps.cell_samples
        self.samples = recorder(self.part.cells, values, simulation.device_grid.devices)
        self.taken: list[tuple[int, float]] = []  # step and time of each record in the buffer
        self.rows: dict[str, list[Rows]] = {name: [] for name in self.receivers}  # of this process's receivers
        self.fluid: list[np.ndarray] | None = None
        output.sources.append(self)

    def steps_to_event(self, clock: Clock) -> int | None:
        if not self.every:
            return None
        room = len(self.samples.values) - len(self.taken) if self.samples.while_stepping else 1
        return room * self.every - clock.step % self.every

    def is_due(self, clock: Clock) -> bool:
        if not self.every:
            return False
        recorded = self.samples.while_stepping and self.coming[0].clock.step // self.every < clock.step // self.every
        return recorded or clock.step % self.every == 0

    def begin(self, state: State) -> None:
        if self.every:
            self.fluid = fluid_at(self.simulation, self.part, dict(state.fields))
            if state.clock.step % self.every == 0:
                self._record(state)

    def before(self, state: State, leap: Leap) -> None:
        if self.every and self.samples.while_stepping:
            self.coming = state, leap
            first = state.clock.step // self.every + 1 - len(self.taken)
            self.samples.expect(self.every, first, state.clock.step - leap.steps.first)

    def poll(self) -> None:
        """The call has ended: another simulation may run the same program before the next one."""
        if self.every:
            self.samples.expect_nothing()

    def write(self, state: State) -> None:
        if not self.samples.while_stepping:
            return self._record(state)
        before, (these, after) = self.coming[0].clock.step, (self.coming[1].steps, self.coming[1].after)
        for number in range(before // self.every + 1, after.step // self.every + 1):
            step = number * self.every
            time = after.time if step == after.step else these.base_time + (these.first + step - before) * these.dt
            self.taken.append((step, time))
        self._interpolate_if_full()

    def _record(self, state: State) -> None:
        """Record the cells of this state now."""
        with self.output.stopwatch.during("probes"):
            self.samples.record(len(self.taken), dict(state.fields))
        self.taken.append((state.clock.step, state.clock.time))
        self._interpolate_if_full()

    def _interpolate_if_full(self) -> None:
        if len(self.taken) == len(self.samples.values):
            self._interpolate()

    def _interpolate(self) -> None:
        """Turn the records in the buffer into rows."""
        with self.output.stopwatch.during("probes"):
            values = interpolated(self.simulation, self.part, self.samples.values[: len(self.taken)])
            steps, times = np.array([step for step, _ in self.taken]), np.array([time for _, time in self.taken])
            self.taken = []
            for number, (name, each) in enumerate(self.receivers.items()):
                new = np.flatnonzero(
                    (np.mod(steps, each.every) == 0) & (steps > self.output.file.last_row(group_of(name)))
                )
                found = values[number][new]
                if self.fluid is not None:
                    found = found / self.fluid[number]
                row = steps[new].tolist(), times[new].tolist(), {VALUES: found.astype(self.simulation.dtype)}
                self.rows[name].append(row)

    @property
    def held(self) -> int:
        itemsize = self.simulation.dtype.itemsize
        return sum(
            len(steps) * (16 + itemsize * len(self.receivers[name].places))
            for name, rows in self.rows.items() for steps, _, _ in rows
        )  # fmt: skip

    def drain(self) -> RowsOf:
        if self.taken:
            self._interpolate()
        with self.output.stopwatch.during("probes"):
            found = {group_of(name): self._gathered(name, rows) for name, rows in self.rows.items() if rows}
        self.rows = {name: [] for name in self.receivers}
        return found

    def _gathered(self, name: str, rows: list[Rows]) -> Rows:
        """The rows of a table with the values of all receivers, on rank 0."""
        steps = [step for row in rows for step in row[0]]
        times = [time for row in rows for time in row[1]]
        receivers, topology = self.receivers[name], self.simulation.device_grid.topology
        parts = self.simulation.communicator.gather(np.concatenate([row[2][VALUES] for row in rows]))
        values = np.broadcast_to(self.simulation.dtype.type(0), (len(steps), len(receivers.places)))
        if parts is not None:
            values, owners = values.copy(), ranks_of(receivers.cells[0], topology)
            for rank, part in enumerate(parts):
                values[:, owners == rank] = part
        return steps, times, {VALUES: values}


def group_of(name: str) -> str:
    """The group in the output file of a table of [probes]."""
    return f"{PROBES}/{name}"


def parts_of(simulation: Simulation) -> ReceiverCells:
    """This process's part of all receivers."""
    return receiver_cells(list(simulation.problem.receivers.values()), simulation.device_grid.topology)


def interpolated(simulation: Simulation, part: ReceiverCells, values: np.ndarray) -> list[np.ndarray]:
    """The values at this process's receivers of each table, float64 (records, receivers), from its records ``values``.
    All processes call this together."""
    if simulation.communicator.size > 1:
        part.exchange(values, simulation.communicator.mpi)
    return part.at_receivers(values)


def fluid_at(simulation: Simulation, part: ReceiverCells, fields: Fields) -> list[np.ndarray] | None:
    """The part of the weights of each receiver that is in the fluid, by which values are divided, as in `at`: float64
    (own receivers,) for each table; None without a mask. All processes call this together. Raises InputError, on all of
    them, for a receiver among solid cells."""
    if simulation.problem.mask is None:
        return None
    solid, record = solid_block(simulation, dict(fields)), np.zeros((1, part.size), simulation.dtype)
    for each in part.cells.values():
        record[0, each.slot] = 1 - solid[tuple(each.index.T)]
    fluid = [values[0] for values in interpolated(simulation, part, record)]

    def check() -> None:
        for (name, each), own, found in zip(simulation.problem.receivers.items(), part.own, fluid, strict=True):
            lost = np.flatnonzero(np.abs(found) < 1e-6)
            if len(lost):
                place = ", ".join(f"{x:g}" for x in each.places[own[lost[0]]])
                raise InputError(
                    f"probes.{name}: expected receivers in the fluid, but got number {own[lost[0]]} at {place}, among solid "
                    "cells; move it"
                )

    agree(simulation.communicator, check)
    return fluid
