"""What the samples of receivers add to the objective, and to its derivative with respect to the recorded field.

The receivers record while the run is taken forwards, native code within its calls. At its end rank 0 computes the terms of all
samples, and their derivatives. In the reverse sweep every process spreads these over its own cells, in the order of the
receivers' numbers, after each step: native code within its calls, other kernels between them. So nothing depends on the
decomposition.
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

from hpcstencil.adjoint.problem import RECORDED, Adjoint
from hpcstencil.backends.backend import Injection
from hpcstencil.distributed.cell_samples import CellSamples
from hpcstencil.distributed.device_grid import Body
from hpcstencil.distributed.halo import Fields
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.receivers import Receivers
from hpcstencil.simulation.simulation import Simulation
from hpcstencil.simulation.streams.probes import BUFFER, MOST_RECORDS, gathered, interpolated, parts_of, weights_of
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.expressions import Field, Node, Time, data_field

MOST_BYTES = 2**26  # of the values that one call adds


class Samples:
    """The receivers of an objective on this process.

    ``forward`` and ``backward`` are those of a `Sweep`, with the same blocks. ``observed`` are the data on rank 0, float64 of
    shape (samples, receivers) by name. ``slopes`` are the derivatives of the objective with respect to the samples of a run,
    float64 of the same shape, equal on all processes; None before `terms` has been called.
    """

    def __init__(
        self, forward: Simulation, backward: Simulation, adjoint: Adjoint, observed: Mapping[str, np.ndarray]
    ) -> None:
        misfit = adjoint.forward.misfit
        assert misfit is not None
        self.forward, self.backward, self.observed = forward, backward, observed
        self.misfit, self.slope = misfit, adjoint.sample_slope
        receivers, recorded = forward.problem.receivers[misfit.table], misfit.recorded
        # of an expression that is a field, the field
        self.receivers = replace(receivers, field=recorded.name) if isinstance(recorded, Field) else receivers
        self.every = self.receivers.every
        self.part = parts_of(forward, {misfit.table: self.receivers})
        size = -(BUFFER // (max(1, self.part.size) * forward.dtype.itemsize))
        self.records = max(1, min(MOST_RECORDS, -int(forward.communicator.maximum(np.array([size]))[0])))
        values = np.zeros((self.records, self.part.size), forward.dtype)
        made = CellSamples if RECORDED in backward.derived else forward.steps.cell_samples
        self.cells = made(self.part.cells, values, self.part.width, forward.device_grid.devices)
        self.parameters: Mapping[str, Any] = {}
        self.taken = 0  # records in the buffer
        self.rows: list[np.ndarray] = []  # the values of the records before those
        self.drained = 0  # how many of these have been drained
        self.slopes: np.ndarray | None = None
        self.weights: list[np.ndarray] = []
        self.spread: Spread | None = None
        self.injected: dict[Injection, CellsOfReceivers] = {}

    def of_member(self, forward: Simulation, observed: Mapping[str, np.ndarray]) -> Samples:
        """The same receivers for another member of an ensemble, with its data. No values may have been taken yet."""
        other = copy.copy(self)
        other.forward, other.observed, other.injected = forward, observed, {}
        return other

    # ---- forwards ----

    def begin(self, fields: Fields, parameters: Mapping[str, Any], recorded: Sequence[np.ndarray] = ()) -> None:
        """Begin to record a run with these ``parameters``: its ``fields`` at t = 0, or what follows the results of earlier
        calls of `drain`, if there are any. Collective."""
        if self.spread is None:
            self.weights = weights_of(self.forward, {self.misfit.table: self.receivers}, self.part, fields)
            self.spread = Spread(self.forward, self.receivers, self._all_weights())
        self.parameters, self.taken, self.rows, self.drained = parameters, 0, [*recorded], len(recorded)
        if not recorded:
            self._record(fields, 0.0)

    def drain(self) -> np.ndarray:
        """Return what has been recorded since the last call: float64 of shape (samples, receivers) on rank 0, zeros on the
        others. Collective."""
        self._interpolate_if(self.taken > 0)
        new, self.drained = self.rows[self.drained :], len(self.rows)
        return np.concatenate(new) if new else np.zeros((0, len(self.receivers.places)))

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

    def terms(self, times: Sequence[float]) -> list[float]:
        """Return what each sample adds to the objective, NaN where that is not finite, and compute the `slopes`. Collective.

        A run has been recorded, with samples at these ``times``. The results are equal on all processes.
        """
        self._interpolate_if(self.taken > 0)
        communicator, found = self.forward.communicator, (list[float](), np.zeros(0))
        if communicator.rank == 0:
            values = np.concatenate(self.rows)
            known: dict[Node, object] = {Time(): np.array(times)[:, None], self.misfit.sample: values}
            known |= {data_field(name): array for name, array in self.observed.items()}
            terms, slopes = (
                np.broadcast_to(numpy_evaluate.evaluate(tree, values=known), values.shape)
                for tree in (self.misfit.term, self.slope)
            )
            found = [math.fsum(row) if np.isfinite(row).all() else math.nan for row in terms], np.array(slopes)
        of_samples, self.slopes = communicator.broadcast(found)
        self.rows = []
        return of_samples

    def _record(self, fields: Fields, time: float) -> None:
        if RECORDED in self.backward.derived:
            (array,) = self.backward.derived[RECORDED](fields, self.parameters, time)
            fields = {self.receivers.field: array}
        self.cells.record(self.taken, fields)
        self.taken += 1
        self._interpolate_if(self.taken == self.records)

    def _interpolate_if(self, wanted: bool) -> None:
        if wanted:
            (own,) = interpolated(self.forward, self.part, self.cells, self.taken, self.weights)
            self.rows.append(gathered(self.forward, self.receivers, own).astype(np.float64))
            self.taken = 0

    # ---- in reverse ----

    def at(self, step: int) -> np.ndarray:
        """The derivatives with respect to the samples after a number of steps, at which receivers record."""
        assert self.slopes is not None
        found: np.ndarray = self.slopes[step // self.every]
        return found

    def seed(self, step: int) -> jax.Array:
        """The derivative with respect to the recorded field in each cell, from those with respect to samples `at` a step."""
        assert self.spread is not None  # `begin` has been called
        return self.spread(self.at(step))

    def added(self, array: jax.Array, step: int) -> jax.Array:
        """The sum of `seed` and a field, which is overwritten. Only the cells around receivers are touched."""
        assert self.spread is not None
        return self.spread.added(array, self.at(step))

    @contextmanager
    def adding(self, injection: Injection, first: int, start: int, stop: int) -> Iterator[None]:
        """A context in which a call reverses the steps from number ``start`` to ``stop``, the last one first, and adds the
        derivatives with respect to the samples before each. ``first`` is the number of the first step in its `StepRange`."""
        if injection not in self.injected:
            assert self.spread is not None
            topology = self.forward.device_grid.topology
            cells = CellsOfReceivers.near(self.receivers, self.spread.all_weights, topology, injection.beyond)
            injection.at(cells.index)
            self.injected[injection] = cells
        cells, due = self.injected[injection], [n for n in reversed(range(start, stop)) if n % self.every == 0]
        rows = {n: row for row, n in enumerate(due)}
        values = np.empty((len(due), len(cells.index)), self.forward.dtype)
        for n, row in rows.items():
            values[row] = cells.sums(self.at(n))
        with injection.adding(first, [rows.get(n, -1) for n in reversed(range(start, stop))], values):
            yield

    @property
    def most_added(self) -> int:
        """The largest number of steps that a call may reverse, so that the values which it adds take little memory."""
        cells = max([len(each.index) for each in self.injected.values()], default=self.receivers.weights.size)
        return max(1, MOST_BYTES // (max(1, cells) * self.forward.dtype.itemsize)) * self.every

    def _all_weights(self) -> np.ndarray:
        """The weights of the cells around all receivers, as in `Receivers`. Collective."""
        if self.forward.problem.mask is None:
            return self.receivers.weights
        communicator, weights = self.forward.communicator, np.empty_like(self.receivers.weights)
        parts = communicator.gather((self.part.own[0], self.weights[0]))
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
        cls, receivers: Receivers, weights: np.ndarray, topology: Topology, beyond: Sequence[int]
    ) -> CellsOfReceivers:
        """The cells in the block of the process, and up to ``beyond`` cells outside of it, per axis.

        Periodic images of cells count as other cells. ``weights`` are those around all receivers, (points, receivers).
        """
        points, numbers = np.nonzero(weights)
        cells = receivers.cells[points, numbers]
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


class Spread:
    """The transpose of the interpolation at receivers, on this process's cells.

    ``all_weights`` are those of the cells around all receivers, float64 of shape (points, receivers).
    """

    def __init__(self, simulation: Simulation, receivers: Receivers, all_weights: np.ndarray) -> None:
        topology = simulation.device_grid.topology
        self.grid, self.dtype, self.all_weights = simulation.device_grid, simulation.dtype, all_weights
        self.cells = CellsOfReceivers.near(receivers, all_weights, topology, (0,) * topology.ndim)
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
