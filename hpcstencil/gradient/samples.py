"""The sums over receivers in an objective, and the derivatives of the objective with respect to what they record.

The receivers record while the run is taken forwards, native code within its calls. At its end rank 0 computes the sums, and
then the derivatives with respect to all samples. In the reverse sweep every process spreads these over its own cells, in the
order of the receivers' numbers, after each step: native code within its calls, other kernels between them. So nothing depends
on the decomposition.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hpcstencil.adjoint.problem import RECORDED, SAMPLES_SEED, Adjoint
from hpcstencil.backends.backend import Injection
from hpcstencil.distributed.cell_samples import CellSamples
from hpcstencil.distributed.device_grid import Body
from hpcstencil.distributed.halo import Fields
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.misfit import ReceiverSum
from hpcstencil.problem.receivers import Receivers
from hpcstencil.simulation.simulation import Simulation
from hpcstencil.simulation.streams.probes import BUFFER, MOST_RECORDS, gathered, interpolated, parts_of, weights_of
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.expressions import Field, Node, Time, data_field, samples_field
from hpcstencil.validation.errors import NumericsError

MOST_BYTES = 2**26  # of the values that one call adds


class Samples:
    """The receivers of an objective on this process, of all tables of [probes] that it sums over.

    ``forward`` and ``backward`` are those of a `Sweep`, with the same blocks. ``observed`` are the data on rank 0, float64 of
    shape (samples, receivers) by name. ``slopes`` are the derivatives of the objective with respect to the samples of a run,
    float64 of that shape by table, equal on all processes; None before `weigh` has been called.
    """

    def __init__(
        self, forward: Simulation, backward: Simulation, adjoint: Adjoint, observed: Mapping[str, np.ndarray]
    ) -> None:
        misfit = adjoint.forward.misfit
        assert misfit is not None
        self.forward, self.backward, self.observed = forward, backward, observed
        self.misfit, self.term_slopes = misfit, adjoint.sample_slopes
        self.receivers = forward.problem.summed_receivers
        for table, tree in misfit.recorded.items():
            if isinstance(tree, Field):  # also an expression that is one
                self.receivers[table] = replace(self.receivers[table], field=tree.name)
        # fields to which derivatives are added, or fields SAMPLES_SEED, with the tables of the receivers
        self.tables = adjoint.injected or {SAMPLES_SEED + table: (table,) for table in self.receivers}
        assert forward.problem.adds_every is not None
        self.every = forward.problem.adds_every
        self.part = parts_of(forward, self.receivers)
        size = -(BUFFER // (max(1, self.part.size) * forward.dtype.itemsize))
        self.records = max(1, min(MOST_RECORDS, -int(forward.communicator.maximum(np.array([size]))[0])))
        values = np.zeros((self.records, self.part.size), forward.dtype)
        made = CellSamples if RECORDED in backward.derived else forward.steps.cell_samples
        self.cells = made(self.part.cells, values, self.part.width, forward.device_grid.devices)
        self.parameters: Mapping[str, Any] = {}
        self.taken = 0  # records in the buffer
        self.rows: list[dict[str, np.ndarray]] = []  # the values of the records before those
        self.drained = 0  # how many of these have been drained
        self.values: dict[str, np.ndarray] = {}  # of a whole run, on rank 0
        self.slopes: Mapping[str, np.ndarray] | None = None
        self.weights: list[np.ndarray] = []
        self.spread: dict[str, Spread] = {}
        self.injected: dict[Injection, InjectedCells] = {}

    def of_member(self, forward: Simulation, observed: Mapping[str, np.ndarray]) -> Samples:
        """The same receivers for another member of an ensemble, with its data. No values may have been taken yet."""
        other = copy.copy(self)
        other.forward, other.observed, other.injected, other.spread = forward, observed, {}, {}
        return other

    # ---- forwards ----

    def begin(
        self, fields: Fields, parameters: Mapping[str, Any], recorded: Sequence[Mapping[str, np.ndarray]] = ()
    ) -> None:
        """Begin to record a run with these ``parameters``: its ``fields`` at t = 0, or what follows the results of earlier
        calls of `drain`, if there are any. Collective."""
        if not self.spread:
            self.weights = weights_of(self.forward, self.receivers, self.part, fields)
            weights = {
                table: self._all_weights(number, each) for number, (table, each) in enumerate(self.receivers.items())
            }
            for name, tables in self.tables.items():
                cells = np.concatenate([self.receivers[table].cells for table in tables], axis=1)
                all_weights = np.concatenate([weights[table] for table in tables], axis=1)
                self.spread[name] = Spread(self.forward, cells, all_weights)
        self.parameters, self.taken, self.rows, self.drained = parameters, 0, [*map(dict, recorded)], len(recorded)
        self.values = {}
        if not recorded:
            self._record(fields, 0.0)

    def drain(self) -> dict[str, np.ndarray]:
        """Return what has been recorded since the last call, by table: float64 of shape (records, receivers) on rank 0, zeros
        on the others. Collective."""
        self._interpolate_if(self.taken > 0)
        new, self.drained = self.rows[self.drained :], len(self.rows)
        return self._joined(new)

    def _joined(self, rows: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
        return {
            table: np.concatenate([np.zeros((0, len(each.places))), *(row[table] for row in rows)])
            for table, each in self.receivers.items()
        }

    def most(self, step: int) -> int:
        """The largest number of steps of the next call, which begins with the step of this number."""
        room = self.records - self.taken if self.cells.while_stepping else 1
        return (step // self.every + room) * self.every - step

    @contextmanager
    def recording(self, step: int, steps: StepRange) -> Iterator[None]:
        """A context in which a call takes ``steps``, the first of which has the number ``step``."""
        self.cells.expect(self.every, step // self.every + 1 - self.taken, step - steps.first)
        try:
            yield
        finally:
            self.cells.expect_nothing()

    def after(self, fields: Fields, first: int, last: int, time: float) -> None:
        """Note that a call has taken the steps from ``first`` to ``last``, to ``fields`` at a ``time``. Collective."""
        due = last // self.every - first // self.every
        if due and not self.cells.while_stepping:
            return self._record(fields, time)
        self.taken += due
        self._interpolate_if(self.taken == self.records)

    def sums(self, times: Sequence[float]) -> dict[str, float]:
        """Return the sums of `Misfit`, by the names of their nodes. Collective.

        A run has been recorded, with records at these ``times``. The results are equal on all processes. Raises NumericsError,
        on all processes, if a term is not finite.
        """
        self._interpolate_if(self.taken > 0)
        communicator, found, broken = self.forward.communicator, dict[str, float](), None
        if communicator.rank == 0:
            self.values = self._joined(self.rows)
            for each in self.misfit.sums:
                terms = self._at_samples(each, each.term, times)
                if not np.isfinite(terms).all():
                    when = np.flatnonzero(~np.isfinite(terms).all(axis=1))[0] * self._stride(each)
                    broken = min(times[when], math.inf if broken is None else broken)
                found[each.node.name] = math.fsum(terms.ravel().tolist()) if broken is None else math.nan
        found, broken = communicator.broadcast((found, broken))
        self.rows = []
        if broken is not None:
            raise NumericsError(
                f"objective: expected finite terms of sum(), but at t = {broken:g} there is one that is not; take shorter "
                "steps, or change it"
            )
        return found

    def weigh(self, weights: Sequence[float], times: Sequence[float]) -> None:
        """Compute the `slopes`, from the derivatives of the objective with respect to the sums, in the order of `Misfit.sums`.
        `sums` has been called with these ``times``. Collective."""
        slopes = dict[str, np.ndarray]()
        if self.forward.communicator.rank == 0:
            for each, weight, of_samples in zip(self.misfit.sums, weights, self.term_slopes, strict=True):
                for table, slope in of_samples.items():
                    found = weight * self._at_samples(each, slope, times)
                    slopes[table] = found + slopes[table] if table in slopes else found
        self.values = {}
        self.slopes = self.forward.communicator.broadcast(slopes)

    def _at_samples(self, of: ReceiverSum, tree: Node, times: Sequence[float]) -> np.ndarray:
        """Evaluate a tree of samples on rank 0, for each: float64 of shape (samples, receivers)."""
        stride = self._stride(of)
        known: dict[Node, Any] = {samples_field(table): self.values[table][::stride] for table in of.tables}
        shape = known[samples_field(of.tables[0])].shape
        known |= {data_field(name): array for name, array in self.observed.items()}
        known[Time()] = np.array(times)[::stride, None]
        return np.broadcast_to(numpy_evaluate.evaluate(tree, values=known), shape)

    def _stride(self, of: ReceiverSum) -> int:
        """The number of records between two samples of a sum."""
        return self.receivers[of.tables[0]].every // self.every

    def _record(self, fields: Fields, time: float) -> None:
        if RECORDED in self.backward.derived:
            arrays = self.backward.derived[RECORDED](fields, self.parameters, time)
            tables = self.backward.problem.derived[RECORDED]
            found = {self.receivers[table].field: array for table, array in zip(tables, arrays, strict=True)}
            fields = {**fields, **found}
        self.cells.record(self.taken, fields)
        self.taken += 1
        self._interpolate_if(self.taken == self.records)

    def _interpolate_if(self, wanted: bool) -> None:
        if wanted:
            own = interpolated(self.forward, self.part, self.cells, self.taken, self.weights)
            self.rows.append(
                {
                    table: gathered(self.forward, each, values).astype(np.float64)
                    for (table, each), values in zip(self.receivers.items(), own, strict=True)
                }
            )
            self.taken = 0

    # ---- in reverse ----

    def at(self, name: str, step: int) -> np.ndarray:
        """The derivatives with respect to the samples after a number of steps, of the receivers of all ``tables`` of a field;
        0 for tables that have no samples there."""
        assert self.slopes is not None
        found = []
        for table in self.tables[name]:
            number, rest = divmod(step, self.receivers[table].every)
            found.append(np.zeros(len(self.receivers[table].places)) if rest else self.slopes[table][number])
        return np.concatenate(found)

    def seeds(self, step: int) -> Fields:
        """The derivatives with respect to the recorded fields in each cell, from those with respect to samples `at` a step."""
        return {name: spread(self.at(name, step)) for name, spread in self.spread.items()}

    def added(self, name: str, array: jax.Array, step: int) -> jax.Array:
        """The sum of a field, which is overwritten, and its seed. Only the cells around receivers are touched."""
        return self.spread[name].added(array, self.at(name, step))

    @contextmanager
    def adding(self, injection: Injection, first: int, start: int, stop: int) -> Iterator[None]:
        """A context in which a call reverses the steps from number ``start`` to ``stop``, the last one first, and adds the
        derivatives with respect to the samples before each. ``first`` is the number of the first step in its `StepRange`."""
        if injection not in self.injected:
            self.injected[injection] = InjectedCells.of(self.spread, injection.beyond)
            injection.at(self.injected[injection].index)
        cells = self.injected[injection]
        added = [(n, name) for n in reversed(range(start, stop)) for name in self.tables]
        due = [each for each in added if each[0] % self.every == 0]
        rows = {each: row for row, each in enumerate(due)}
        values = np.zeros((len(due), len(cells.index)), self.forward.dtype)
        for (n, name), row in rows.items():
            values[row, cells.slot[name]] = cells.of_field[name].sums(self.at(name, n))
        with injection.adding(first, [rows.get(each, -1) for each in added], values):
            yield

    @property
    def most_added(self) -> int:
        """The largest number of steps that a call may reverse, so that the values which it adds take little memory."""
        all_cells = sum(each.weights.size for each in self.receivers.values())
        cells = max([len(each.index) for each in self.injected.values()], default=all_cells) * len(self.tables)
        return max(1, MOST_BYTES // (max(1, cells) * self.forward.dtype.itemsize)) * self.every

    def _all_weights(self, number: int, receivers: Receivers) -> np.ndarray:
        """The weights of the cells around all receivers of the table with this number, as in `Receivers`. Collective."""
        if self.forward.problem.mask is None:
            return receivers.weights
        communicator, weights = self.forward.communicator, np.empty_like(receivers.weights)
        parts = communicator.gather((self.part.own[number], self.weights[number]))
        for numbers, own in parts or ():
            weights[:, numbers] = own.reshape(len(numbers), len(weights)).T
        return communicator.broadcast(weights)


@dataclass(frozen=True)
class CellsOfReceivers:
    """The cells around receivers that lie in a block or near it.

    ``index`` are the different ones, relative to the first cell of the block: int64 of shape (cells, axes). The others are in
    the order in which values are added up: the ``numbers`` of the receivers, the ``weights``, and the ``slot`` of the cell
    among the different ones.
    """

    index: np.ndarray
    slot: np.ndarray
    numbers: np.ndarray
    weights: np.ndarray

    @classmethod
    def near(
        cls, all_cells: np.ndarray, weights: np.ndarray, topology: Topology, beyond: Sequence[int]
    ) -> CellsOfReceivers:
        """The cells in the block of the process, and up to ``beyond`` cells outside of it, per axis.

        Periodic images of cells count as other cells. ``all_cells`` are those around all receivers, as in `Receivers`, and
        ``weights`` theirs, (points, receivers).
        """
        points, numbers = np.nonzero(weights)
        cells = all_cells[points, numbers]
        for axis, (start, stop) in enumerate(topology.block()):
            n, more = topology.shape[axis], beyond[axis]
            most = -(-more // n) if topology.periodic[axis] else 0  # images on either side
            place = np.concatenate([cells[:, axis] + image * n for image in range(-most, most + 1)])
            cells, points, numbers = (np.concatenate([each] * (2 * most + 1)) for each in (cells, points, numbers))
            here = (place >= start - more) & (place < stop + more)
            cells[:, axis] = place - start
            cells, points, numbers = cells[here], points[here], numbers[here]
        shape = [stop - start + 2 * more for (start, stop), more in zip(topology.block(), beyond, strict=True)]
        places = np.ravel_multi_index(tuple((cells + np.array(beyond)).T), shape)
        order = np.lexsort((points, numbers, places))
        different, slot = np.unique(places[order], return_inverse=True)
        index = np.stack(np.unravel_index(different, shape), axis=-1) - np.array(beyond)
        return cls(index, slot, numbers[order], weights[points[order], numbers[order]])

    def sums(self, slopes: np.ndarray) -> np.ndarray:
        """Σ weights·slopes in the cells of ``index``, float64; ``slopes`` are float64 of shape (receivers,)."""
        return np.bincount(self.slot, self.weights * slopes[self.numbers], len(self.index))


@dataclass(frozen=True)
class InjectedCells:
    """The cells around all receivers whose derivatives native code adds: ``index`` as in `CellsOfReceivers`; by field, the
    cells around its receivers, and their places in ``index``."""

    index: np.ndarray
    of_field: Mapping[str, CellsOfReceivers]
    slot: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, spread: Mapping[str, Spread], beyond: Sequence[int]) -> InjectedCells:
        """The cells near the block of the process, of the receivers of each field, as in `CellsOfReceivers.near`."""
        found = {
            name: CellsOfReceivers.near(each.all_cells, each.all_weights, each.grid.topology, beyond)
            for name, each in spread.items()
        }
        each = [cells.index for cells in found.values()]
        index, slot = np.unique(np.concatenate(each), axis=0, return_inverse=True)
        slots = np.split(slot.ravel(), np.cumsum([len(one) for one in each])[:-1])
        return cls(index, found, dict(zip(found, slots, strict=True)))


class Spread:
    """The transpose of the interpolation at receivers, on this process's cells.

    ``all_cells`` are those around all receivers, as in `Receivers`, and ``all_weights`` theirs, float64 of shape (points,
    receivers).
    """

    def __init__(self, simulation: Simulation, all_cells: np.ndarray, all_weights: np.ndarray) -> None:
        topology = simulation.device_grid.topology
        self.grid, self.dtype = simulation.device_grid, simulation.dtype
        self.all_cells, self.all_weights = all_cells, all_weights
        self.cells = CellsOfReceivers.near(all_cells, all_weights, topology, (0,) * topology.ndim)
        index, devices, self.parts = self.cells.index, self.grid.devices, list[np.ndarray]()
        moved = []
        for device in range(len(devices.devices)):
            here, there = devices.slices(device)
            first, stop = (np.array([getattr(s, end) for s in here]) for end in ("start", "stop"))
            self.parts.append(np.flatnonzero(((index >= first) & (index < stop)).all(axis=1)))
            moved.append(index[self.parts[-1]] - first + [s.start for s in there])
        # Devices have arrays of equal length: the rest of each lies outside of the block, where nothing is written.
        self.most = max(map(len, moved))
        outside = np.array(topology.capacity())
        filled = [np.concatenate([own, np.tile(outside, (self.most - len(own), 1))]) for own in moved]
        self.index = tuple(self._put([own[:, axis] for own in filled]) for axis in range(topology.ndim))

    def __call__(self, slopes: np.ndarray) -> jax.Array:
        """Return the field Σ weights·slopes; ``slopes`` are float64 of shape (receivers,)."""
        return self._set(self._sums(slopes), self.index)

    def added(self, array: jax.Array, slopes: np.ndarray) -> jax.Array:
        """Return ``array`` + Σ weights·slopes. The array is overwritten."""
        return self._add(array, self._sums(slopes), self.index)

    def _sums(self, slopes: np.ndarray) -> jax.Array | np.ndarray:
        """Σ weights·slopes in the cells of ``index``; compiled code transfers it faster than `_put`, to a single device."""
        sums = self.cells.sums(slopes).astype(self.dtype)
        if not self.grid.devices.several:
            return sums
        filled = [np.concatenate([sums[part], np.zeros(self.most - len(part), self.dtype)]) for part in self.parts]
        return self._put(filled)

    def _put(self, arrays: list[np.ndarray]) -> jax.Array:
        """Transfer an array to each device."""
        devices = self.grid.devices
        return jax.device_put(np.stack(arrays) if devices.several else arrays[0], devices.sharding)

    @cached_property
    def _set(self) -> Body:
        shape, dtype = self.grid.topology.capacity(), self.dtype

        def body(values: jax.Array, index: tuple[jax.Array, ...]) -> jax.Array:
            return jnp.zeros(shape, dtype).at[index].set(values, mode="drop")

        return self.grid.compiled(body, 0)

    @cached_property
    def _add(self) -> Body:
        def body(array: jax.Array, values: jax.Array, index: tuple[jax.Array, ...]) -> jax.Array:
            return array.at[index].add(values, mode="drop")

        return self.grid.compiled(body, 0, (0,))
