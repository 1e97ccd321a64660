"""Probes as a stream: the values at receivers, taken every few steps and held until the next snapshot.

The cells around receivers are recorded, by native code within its calls, into a buffer. When that is full, or rows are to be
written, cells next to other blocks are exchanged, and each process interpolates at its own receivers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from hpcstencil.distributed.cell_samples import CellSamples
from hpcstencil.distributed.halo import Fields
from hpcstencil.distributed.receiver_cells import ReceiverCells, ranks_of, receiver_cells
from hpcstencil.distributed.windows import Parameters
from hpcstencil.io.dataset_names import PROBES, VALUES
from hpcstencil.io.time_series import Rows, RowsOf
from hpcstencil.numerics.schedule import Clock, Leap
from hpcstencil.problem.receivers import LEAST_FLUID, PROBED, Receivers, among_solids
from hpcstencil.runtime.communicator import agree
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.simulation.solid_cells import solid_block
from hpcstencil.simulation.state import State
from hpcstencil.simulation.streams.output import Output
from hpcstencil.simulation.streams.stream import Stream
from hpcstencil.validation.errors import InputError

BUFFER = 64 * 2**20  # bytes of cells that are recorded before values are interpolated, at most
MOST_RECORDS = 1000


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
        self.part = parts_of(simulation, self.receivers)
        fitting = BUFFER // max(1, self.part.size * simulation.dtype.itemsize * self.copies)
        fewest = -simulation.communicator.maximum(np.array([-fitting]))[0]
        self.records = max(1, min(MOST_RECORDS, int(fewest)))
        values = np.zeros((self.records * self.copies, self.part.size), simulation.dtype)
        # A step that is tried may be rejected: nothing is recorded while it is computed.
        made = simulation.steps.cell_samples if simulation.control is None else CellSamples
        self.samples = made(self.part.cells, values, self.part.width, simulation.device_grid.devices, self.copies)
        self.weights: list[np.ndarray] = []
        self.taken: list[tuple[int, float]] = []  # step and time of each record in the buffer
        self.rows: dict[str, list[Rows]] = {name: [] for name in self.receivers}  # of this process's receivers
        output.sources.append(self)

    def steps_to_event(self, clock: Clock) -> int | None:
        room = self.records - len(self.taken) if self.samples.while_stepping else 1
        return room * self.every - clock.step % self.every

    def is_due(self, clock: Clock) -> bool:
        if self.samples.while_stepping:
            return bool(self.leap.multiples(self.every))
        return clock.step % self.every == 0

    def acts_in(self, leap: Leap) -> bool:
        return bool(leap.multiples(self.every))

    def begin(self, state: State) -> None:
        self.weights = weights_of(self.simulation, self.receivers, self.part, dict(state.fields))
        if state.clock.step % self.every == 0:
            self._record(state)

    def before(self, state: State, leap: Leap) -> None:
        self.leap = leap
        first = state.clock.step // self.every + 1 - len(self.taken)
        steps = () if self.samples.with_last else leap.multiples(self.every)
        times = {n: leap.time_of(step) for n, step in enumerate(steps, len(self.taken))}
        self.samples.expect(self.every, first, state.clock.step - leap.steps.first, times)

    def poll(self) -> None:
        """The call has ended: another simulation may run the same program before the next one."""
        self.samples.expect_nothing()

    def write(self, state: State) -> None:
        if not self.samples.while_stepping:
            return self._record(state)
        steps = self.leap.multiples(self.every)
        self.taken += [(step, self.leap.time_of(step)) for step in steps]
        if len(steps) > len(self._recorded()):
            with self.output.stopwatch.during("probes"):
                self.samples.record(len(self.taken) - 1, self._expressions(state))
        self._interpolate_if_full()

    def _recorded(self) -> range:
        """Return the steps whose states the last call has recorded."""
        return self.leap.multiples(self.every, self.samples.with_last)

    def salvage(self) -> int | None:
        if not self.samples.while_stepping:
            return None
        steps, before = self._recorded(), len(self.taken)
        rows = self.samples.values.reshape(self.records, -1)  # with those of all members
        recorded = rows[before : before + len(steps)]
        broken = np.flatnonzero(~np.isfinite(recorded).all(axis=1))
        mine = int(broken[0]) if len(broken) else len(steps)
        finite = -int(self.simulation.communicator.maximum(np.array([-mine]))[0])  # on all processes
        self.taken += [(step, self.leap.time_of(step)) for step in steps[:finite]]
        self._interpolate_if_full()
        return steps[finite] if finite < len(steps) else None

    def _record(self, state: State) -> None:
        """Record the cells of this state in the next row of the buffer."""
        with self.output.stopwatch.during("probes"):
            self.samples.record(len(self.taken), {**state.fields, **self._expressions(state)})
        self.taken.append((state.clock.step, state.clock.time))
        self._interpolate_if_full()

    def _expressions(self, state: State) -> Fields:
        parameters, time = self.simulation.problem.parameters, state.clock.time
        return expressions_at(self.simulation, self.part, dict(state.fields), parameters, time)

    def _interpolate_if_full(self) -> None:
        if len(self.taken) == self.records:
            self._interpolate()

    def _interpolate(self) -> None:
        """Interpolate the records in the buffer, append the values to the rows, and empty the buffer.

        All processes call this together.
        """
        with self.output.stopwatch.during("probes"):
            count, members = len(self.taken), self.simulation.problem.layout.members
            rows = interpolated(self.simulation, self.part, self.samples, count * self.copies, self.weights)
            values = [found.reshape(count, *members, found.shape[-1]) for found in rows]
            steps, times = np.array([step for step, _ in self.taken]), np.array([time for _, time in self.taken])
            self.taken = []
            for (name, each), found in zip(self.receivers.items(), values, strict=True):
                new = (steps % each.every == 0) & (steps > self.output.file.last_row(group_of(name)))
                self.rows[name].append((steps[new], times[new], {VALUES: found if new.all() else found[new]}))

    @property
    def held(self) -> int:
        itemsize = self.simulation.dtype.itemsize * self.copies
        sizes = {name: itemsize * len(each.places) for name, each in self.receivers.items()}
        rows = sum(len(steps) * (16 + sizes[name]) for name, rows in self.rows.items() for steps, _, _ in rows)
        return rows + 16 * len(self.taken)

    def drain(self) -> RowsOf:
        if self.taken:
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


def expressions_at(
    simulation: ComposedSimulation, part: ReceiverCells, fields: Fields, parameters: Parameters, time: float
) -> Fields:
    """Return the expressions in all cells, by `Receivers.field`, if the receivers of ``part`` record any. Collective."""
    probed = simulation.problem.probed
    if not probed.keys() & part.cells.keys():
        return {}
    return dict(zip(probed, simulation.derived[PROBED](fields, parameters, time), strict=True))


def probes_of(output: Output) -> list[Probes]:
    """Return one stream for all tables of [probes] of the run that writes ``output``; an empty list without such tables."""
    return [Probes(output)] if output.simulation.problem.receivers else []


def group_of(name: str) -> str:
    """The group in the output file of a table of [probes]."""
    return f"{PROBES}/{name}"


def gathered(simulation: ComposedSimulation, receivers: Receivers, own: np.ndarray) -> np.ndarray:
    """Gather the values at this process's receivers of one table on rank 0. All processes call this together.

    ``own`` has the shape (rows, own receivers), sorted by number. The result has the shape (rows, receivers) and the same
    dtype. On other ranks it is zeros.
    """
    communicator, topology = simulation.communicator, simulation.device_grid.topology
    if communicator.size == 1:
        return own
    parts = communicator.gather(own)
    values = np.broadcast_to(own.dtype.type(0), (len(own), len(receivers.places)))
    if parts is not None:
        values, owners = np.empty(values.shape, own.dtype), ranks_of(receivers.cells[0], topology)
        for rank, part in enumerate(parts):
            values[:, owners == rank] = part
    return values


def parts_of(simulation: ComposedSimulation, receivers: Mapping[str, Receivers]) -> ReceiverCells:
    """Return this process's share of the receivers, by table of [probes], and of the cells around them."""
    topology, config = simulation.device_grid.topology, simulation.problem.config
    width = min(config.numerics.order, topology.shape[-1])
    return receiver_cells(list(receivers.values()), width, topology)


def interpolated(
    simulation: ComposedSimulation, part: ReceiverCells, samples: CellSamples, count: int, weights: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Interpolate the first ``count`` records of ``samples`` at this process's receivers. All processes call this together.

    Returns one array per table, (count, own receivers), in the run's dtype.
    """
    if simulation.communicator.size > 1:
        part.exchange(samples.values[:count], simulation.communicator.mpi)
    return part.at_receivers(samples, count, weights)


def weights_of(
    simulation: ComposedSimulation, receivers: Mapping[str, Receivers], part: ReceiverCells, fields: Fields
) -> list[np.ndarray]:
    """Return the weights of the cells around this process's receivers, laid out as in `ReceiverCells.own_weights`.

    ``receivers`` are those of ``part``, by table of [probes].
    With a mask those of solid cells are 0, and the others are divided by their sum, as in `at`. All processes call this
    together. Raises InputError, on all of them, if a receiver lies among solid cells, or if the solid cells of an ensemble's
    members differ.
    """
    weights = part.own_weights()
    if simulation.problem.mask is None:
        return weights
    solid, record = solid_block(simulation, fields), np.zeros((1, part.size))
    if solid.ndim > len(simulation.ranges):
        raise InputError(
            "probes: not available yet in an [ensemble] whose members have other solid cells; remove one of them"
        )
    for each in part.cells.values():
        record[0, each.slot] = 1 - solid[tuple(each.index.T)]
    samples = CellSamples({}, record, part.width, simulation.device_grid.devices)
    found = interpolated(simulation, part, samples, 1, weights)
    fluid = [values[0, place] for values, place in zip(found, part.places, strict=True)]

    def check() -> None:
        for (name, each), own, found in zip(receivers.items(), part.own, fluid, strict=True):
            lost = np.flatnonzero(np.abs(found) < LEAST_FLUID)
            if len(lost):
                raise among_solids(name, each, int(own[lost[0]]))

    agree(simulation.communicator, check)
    ends = np.cumsum([each.size for each in weights])
    inside = np.split(record[0], ends)  # then cells for receivers of other processes
    return [
        each * cells.reshape(each.shape) / found[:, None, None]
        for each, cells, found in zip(weights, inside, fluid, strict=False)
    ]
