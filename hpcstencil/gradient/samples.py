"""What the samples of receivers add to the objective, and to its derivative with respect to the recorded field.

Rank 0 adds up the terms of all receivers in the order of their numbers, and every process spreads the derivatives over its own
cells, again in that order. So neither depends on the decomposition.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hpcstencil.adjoint.problem import RECORDED, Adjoint
from hpcstencil.distributed.cell_samples import CellSamples
from hpcstencil.distributed.device_grid import Body
from hpcstencil.distributed.halo import Fields
from hpcstencil.distributed.receiver_cells import ranks_of
from hpcstencil.problem.receivers import Receivers
from hpcstencil.simulation.simulation import Simulation
from hpcstencil.simulation.streams.probes import gathered, interpolated, parts_of, weights_of
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.expressions import Node, Time, data_field


class Samples:
    """The receivers of an objective on this process.

    ``forward`` and ``backward`` are those of a `Sweep`, with the same blocks. ``observed`` are the data on rank 0, float64 of
    shape (samples, receivers) by name.
    """

    def __init__(
        self, forward: Simulation, backward: Simulation, adjoint: Adjoint, observed: Mapping[str, np.ndarray]
    ) -> None:
        misfit = adjoint.forward.misfit
        assert misfit is not None
        self.forward, self.backward, self.observed = forward, backward, observed
        self.misfit, self.slope = misfit, adjoint.sample_slope
        self.receivers: Receivers = forward.problem.receivers[misfit.table]
        self.part = parts_of(forward, {misfit.table: self.receivers})
        record = np.zeros((1, self.part.size), forward.dtype)
        self.cells = CellSamples(self.part.cells, record, self.part.width, forward.device_grid.devices)
        self.weights: list[np.ndarray] = []
        self.spread: Spread | None = None

    def of_member(self, forward: Simulation, observed: Mapping[str, np.ndarray]) -> Samples:
        """The same receivers for another member of an ensemble, with its data. No values may have been taken yet."""
        other = copy.copy(self)
        other.forward, other.observed = forward, observed
        return other

    def values(self, fields: Fields, parameters: Mapping[str, Any], time: float) -> np.ndarray:
        """The values at all receivers, float64 by number, on rank 0; zeros on the others. Collective."""
        if self.spread is None:
            self.weights = weights_of(self.forward, {self.misfit.table: self.receivers}, self.part, fields)
            self.spread = Spread(self.forward, self.receivers, self._all_weights())
        if RECORDED in self.backward.derived:
            (array,) = self.backward.derived[RECORDED](fields, parameters, time)
            fields = {self.receivers.field: array}
        self.cells.record(0, fields)
        (own,) = interpolated(self.forward, self.part, self.cells, 1, self.weights)
        return gathered(self.forward, self.receivers, own)[0].astype(np.float64)

    def term(self, fields: Fields, parameters: Mapping[str, Any], step: int, time: float) -> tuple[float, np.ndarray]:
        """Return what the samples of one step add to the objective, and its derivative with respect to each. Collective.

        The derivatives are float64 of shape (receivers,). Both are equal on all processes. A value that is not finite
        is NaN.
        """
        values, communicator = self.values(fields, parameters, time), self.forward.communicator
        found = (math.nan, values)
        if communicator.rank == 0:
            known: dict[Node, object] = {Time(): np.float64(time), self.misfit.sample: values}
            known |= {data_field(name): array[step // self.receivers.every] for name, array in self.observed.items()}
            terms, slopes = (
                np.broadcast_to(numpy_evaluate.evaluate(tree, values=known), values.shape)
                for tree in (self.misfit.term, self.slope)
            )
            found = math.fsum(terms) if np.isfinite(terms).all() else math.nan, np.array(slopes)
        return communicator.broadcast(found)

    def seed(self, slopes: np.ndarray) -> jax.Array:
        """The derivative with respect to the recorded field in each cell, from those with respect to all samples."""
        assert self.spread is not None  # `term` has been called
        return self.spread(slopes)

    def added(self, array: jax.Array, slopes: np.ndarray) -> jax.Array:
        """The sum of `seed` and a field, which is overwritten. Only the cells around receivers are touched."""
        assert self.spread is not None
        return self.spread.added(array, slopes)

    def _all_weights(self) -> np.ndarray:
        """The weights of the cells around all receivers, as in `Receivers`. Collective."""
        if self.forward.problem.mask is None:
            return self.receivers.weights
        communicator, weights = self.forward.communicator, np.empty_like(self.receivers.weights)
        parts = communicator.gather((self.part.own[0], self.weights[0]))
        for numbers, own in parts or ():
            weights[:, numbers] = own.reshape(len(numbers), -1).T
        return communicator.broadcast(weights)


class Spread:
    """The transpose of the interpolation at receivers, on this process's cells.

    ``weights`` are those of the cells around all receivers, float64 of shape (points, receivers).
    """

    def __init__(self, simulation: Simulation, receivers: Receivers, weights: np.ndarray) -> None:
        topology = simulation.device_grid.topology
        self.grid, self.dtype = simulation.device_grid, simulation.dtype
        corner = np.array([start for start, _ in topology.block()])
        points, numbers = np.nonzero((ranks_of(receivers.cells, topology) == topology.rank) & (weights != 0.0))
        cells = receivers.cells[points, numbers] - corner
        shape = [stop - start for start, stop in topology.block()]
        places = np.ravel_multi_index(tuple(cells.T), shape)
        order = np.lexsort((points, numbers, places))
        self.numbers, self.weights = numbers[order], weights[points[order], numbers[order]]
        different, self.slot = np.unique(places[order], return_inverse=True)
        self.count, index = len(different), np.stack(np.unravel_index(different, shape), axis=-1)
        devices, self.parts = self.grid.devices, list[np.ndarray]()
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
        sums = np.bincount(self.slot, self.weights * slopes[self.numbers], self.count).astype(self.dtype)
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
