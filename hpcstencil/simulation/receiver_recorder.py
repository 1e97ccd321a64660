"""The values at receivers after every few steps, for probes and for the objectives of gradients.

The cells around receivers are recorded, by native code within its calls, into a buffer. When it is full, or values are needed,
cells next to other blocks are exchanged, and each process interpolates at its own receivers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import numpy as np

from hpcstencil.distributed.cell_samples import CellSamples
from hpcstencil.distributed.halo import Fields
from hpcstencil.distributed.receiver_cells import ReceiverCells, ranks_of, receiver_cells
from hpcstencil.distributed.windows import Parameters
from hpcstencil.problem.receivers import LEAST_FLUID, PROBED, Receivers, among_solids
from hpcstencil.runtime.communicator import agree
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.simulation.solid_cells import solid_block
from hpcstencil.validation.errors import InputError

BUFFER = 64 * 2**20  # bytes of cells that are recorded before values are interpolated, at most
MOST_RECORDS = 1000


class ReceiverRecorder:
    """A buffer with records of the cells around ``receivers``, by table of [probes], after ``every`` steps.

    Each record has the cells of ``copies`` members of an ensemble. With ``in_calls``, native code records within its calls.
    ``count`` is the number of records in the buffer, which has room for ``capacity``.
    """

    def __init__(
        self,
        simulation: ComposedSimulation,
        receivers: Mapping[str, Receivers],
        every: int,
        copies: int = 1,
        in_calls: bool = True,
    ) -> None:
        self.simulation, self.receivers, self.every, self.copies = simulation, receivers, every, copies
        self.part = part_of(simulation, receivers)
        fitting = BUFFER // max(1, self.part.size * simulation.dtype.itemsize * copies)
        fewest = -int(simulation.communicator.maximum(np.array([-fitting]))[0])  # on all processes
        self.capacity, self.count = max(1, min(MOST_RECORDS, fewest)), 0
        values = np.zeros((self.capacity * copies, self.part.size), simulation.dtype)
        made = simulation.steps.cell_samples if in_calls else CellSamples
        self.samples = made(self.part.cells, values, self.part.width, simulation.device_grid.devices, copies)
        self.weights: list[np.ndarray] = []

    @property
    def while_stepping(self) -> bool:
        """Whether calls of many steps record. Otherwise `record` is called after each step that ``every`` divides."""
        return self.samples.while_stepping

    @property
    def with_last(self) -> bool:
        """Whether calls also record the state after their last step."""
        return self.samples.with_last

    @property
    def is_full(self) -> bool:
        return self.count == self.capacity

    def of_member(self, simulation: ComposedSimulation) -> Self:
        """The same buffer for another member of an ensemble, whose runs do not overlap with this one's."""
        other = copy.copy(self)
        other.simulation, other.weights = simulation, []
        return other

    def begin(self, fields: Fields) -> None:
        """Begin a run at its first state with an empty buffer, and find the weights, once. Collective.

        Raises the errors of `weights_of`.
        """
        self.count = 0
        if not self.weights:
            self.weights = weights_of(self.simulation, self.receivers, self.part, fields)

    def steps_left(self, step: int) -> int:
        """The largest number of steps of the next call, which begins at the state after ``step`` steps."""
        room = self.capacity - self.count if self.while_stepping else 1
        return (step // self.every + room) * self.every - step

    def expect(self, step: int, first: int, due: Sequence[int], time_of: Callable[[int], float]) -> None:
        """Announce a call, which must follow at once, from the state after ``step`` steps.

        ``first`` is the number of that step in the `StepRange` of the call. ``due`` are the numbers of steps of the run that
        it records, and ``time_of`` gives their times. `expect_nothing` must follow the call.
        """
        times = {} if self.with_last else {n: time_of(each) for n, each in enumerate(due, self.count)}
        self.samples.expect(self.every, step // self.every + 1 - self.count, step - first, times)

    def expect_nothing(self) -> None:
        """Announce that the next call records nothing."""
        self.samples.expect_nothing()

    def record(self, fields: Fields, parameters: Parameters, time: float) -> None:
        """Record a state between calls. The buffer must not be full."""
        self.samples.record(self.count, {**fields, **self._expressions(fields, parameters, time)})
        self.count += 1

    def after_call(self, count: int, has_last: bool, fields: Fields, parameters: Parameters, time: float) -> None:
        """Note that a call has added ``count`` records, with or without the record of its last state, which is given."""
        self.count += count
        if has_last and not self.with_last:
            self.samples.record(self.count - 1, self._expressions(fields, parameters, time))

    def _expressions(self, fields: Fields, parameters: Parameters, time: float) -> Fields:
        """The expressions in all cells, by `Receivers.field`, if the receivers of this process record any. Collective."""
        probed = self.simulation.problem.probed
        if not probed.keys() & self.part.cells.keys():
            return {}
        return dict(zip(probed, self.simulation.derived[PROBED](fields, parameters, time), strict=True))

    def keep_finite(self, count: int) -> int:
        """Keep those of the ``count`` records of a call that come before the first that is not finite on some process, and
        return their number. Collective."""
        rows = self.samples.values.reshape(self.capacity, -1)  # with those of all members
        broken = np.flatnonzero(~np.isfinite(rows[self.count : self.count + count]).all(axis=1))
        mine = int(broken[0]) if len(broken) else count
        kept = -int(self.simulation.communicator.maximum(np.array([-mine]))[0])
        self.count += kept
        return kept

    def interpolate(self) -> list[np.ndarray]:
        """Interpolate all records at this process's receivers, and empty the buffer. Collective.

        Returns one array per table, of shape (records, own receivers), in an ensemble (records * copies, own receivers), in
        the run's dtype.
        """
        found = _interpolated(self.simulation, self.part, self.samples, self.count * self.copies, self.weights)
        self.count = 0
        return found


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


def part_of(simulation: ComposedSimulation, receivers: Mapping[str, Receivers]) -> ReceiverCells:
    """Return this process's share of the receivers, by table of [probes], and of the cells around them."""
    topology, config = simulation.device_grid.topology, simulation.problem.config
    width = min(config.numerics.order, topology.shape[-1])
    return receiver_cells(list(receivers.values()), width, topology)


def _interpolated(
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
    found = _interpolated(simulation, part, samples, 1, weights)
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
