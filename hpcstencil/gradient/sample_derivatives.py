"""The derivatives of an objective with respect to what its receivers record, and how the reverse sweep adds them.

Rank 0 computes the derivatives with respect to all samples at the end of the forward run. In the reverse sweep every process
spreads these over its own cells, in the order of the receivers' numbers, after each step: native code within its calls, other
kernels between them. So nothing depends on the decomposition.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hpcstencil.adjoint.names import SAMPLES_SEED
from hpcstencil.adjoint.problem import Adjoint
from hpcstencil.backends.backend import Injection
from hpcstencil.config.probes import probe_key
from hpcstencil.distributed.device_grid import Body
from hpcstencil.distributed.halo import Fields
from hpcstencil.gradient.derivative_sums import IN_OBJECTIVE
from hpcstencil.gradient.samples import Samples, summed
from hpcstencil.gradient.weighted_cells import TransposedExpressions, WeightedCells
from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.receivers import Receivers
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.validation.errors import NumericsError
from hpcstencil.validation.messages import listing

MOST_BYTES = 2**26  # of the values that one call adds


class SampleDerivatives(Samples):
    """The receivers of an objective, with the derivatives with respect to their samples.

    ``forward`` and ``backward`` are those of a `ReverseSweep`, with the same blocks, and ``observed`` is as in `Samples`.
    ``slopes`` are the derivatives of the objective with respect to the samples of a run, float64 of shape (samples, receivers)
    by table, equal on all processes; None before `weigh` has been called.
    """

    def __init__(
        self,
        forward: ComposedSimulation,
        backward: ComposedSimulation,
        adjoint: Adjoint,
        observed: Mapping[str, np.ndarray],
    ) -> None:
        super().__init__(forward, observed)
        self.term_slopes, self.number_slopes = adjoint.sample_slopes, adjoint.number_slopes
        self.adjoint, self.backward = adjoint, backward
        # fields to which derivatives are added, or fields SAMPLES_SEED, with the tables of the receivers
        self.tables = adjoint.injected or {SAMPLES_SEED + table: (table,) for table in self.receivers}
        self.numbers: dict[str, Any] = {}  # the parameters in transposed expressions
        self.slopes: Mapping[str, np.ndarray] | None = None
        self.spread: dict[str, Spread] = {}
        self.injected: dict[Injection, InjectedCells] = {}

    def of_member(self, forward: ComposedSimulation, observed: Mapping[str, np.ndarray]) -> SampleDerivatives:
        other = super().of_member(forward, observed)
        other.injected, other.spread = {}, {}
        return other

    def begin(
        self, fields: Fields, parameters: Mapping[str, Any], recorded: Sequence[Mapping[str, np.ndarray]] = ()
    ) -> None:
        super().begin(fields, parameters, recorded)
        numbers = {name: parameters[name] for name in self.adjoint.numbers_of_samples}
        if self.spread and numbers == self.numbers:
            return
        self.numbers, self.injected = numbers, {}
        around = {
            table: WeightedCells.of_field(each, self._all_weights(number, each))
            for number, (table, each) in enumerate(self.receivers.items())
        }
        read = self._read(around, fields, parameters)
        for name, tables in self.tables.items():
            parts = [read.get((name, table), around[table]) for table in tables]
            counts = [len(self.receivers[table].places) for table in tables]
            self.spread[name] = Spread(self.forward, WeightedCells.joined(parts, counts))

    def _read(
        self, around: Mapping[str, WeightedCells], fields: Fields, parameters: Mapping[str, Any]
    ) -> dict[tuple[str, str], WeightedCells]:
        """The cells that receivers read if they record expressions, by field adjoint.u and table. Collective."""
        tables = self.adjoint.transposed
        if not tables:
            return {}
        made = TransposedExpressions(self.backward, [*self.receivers], fields, parameters)
        return {(name, table): cells for table in tables for name, cells in made.cells(table, around[table]).items()}

    def weigh(self, weights: Sequence[float], times: Sequence[float]) -> dict[str, float]:
        """Compute the `slopes`, from the derivatives of the objective with respect to the sums, in the order of `Misfit.sums`.

        `sums` has been called with these ``times``. Returns the derivatives with respect to numbers inside of the sums, by
        name, equal on all processes; they may not be finite. Collective. Raises NumericsError, on all processes, if a slope is
        not finite.
        """
        if not all(map(math.isfinite, weights)):
            raise NumericsError(
                f"gradient: expected finite derivatives of the objective with respect to its sums, but got {listing(weights)}; "
                f"{IN_OBJECTIVE}"
            )
        slopes, of_numbers = dict[str, np.ndarray](), dict[str, float]()
        if self.forward.communicator.rank == 0:
            for each, weight, of_samples in zip(self.misfit.sums, weights, self.term_slopes, strict=True):
                for table, slope in of_samples.items():
                    found = weight * self._at_samples(each, slope, times)
                    slopes[table] = found + slopes[table] if table in slopes else found
            for name, trees in self.number_slopes.items():
                parts = zip(self.misfit.sums, weights, trees, strict=True)
                terms = [weight * self._at_samples(each, tree, times) for each, weight, tree in parts]
                of_numbers[name] = summed(np.concatenate([each.ravel() for each in terms]))
        self.values = {}
        self.slopes, of_numbers = self.forward.communicator.broadcast((slopes, of_numbers))
        for table, of_table in self.slopes.items():
            if count := np.count_nonzero(~np.isfinite(of_table)):
                raise NumericsError(
                    f"gradient: expected finite derivatives of the objective with respect to the samples of "
                    f"{probe_key(table)}, but {count} of {of_table.size} have none; {IN_OBJECTIVE}"
                )
        return of_numbers

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
        cells = self.injected[injection]
        if injection.index is not cells.index:  # those of another member
            injection.at(cells.index)
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
        parts = communicator.gather((self.recorder.part.own[number], self.recorder.weights[number]))
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
    def near(cls, everywhere: WeightedCells, topology: Topology, beyond: Sequence[int]) -> CellsOfReceivers:
        """Those of ``everywhere`` in the block of the process, and up to ``beyond`` cells outside of it, per axis.

        Periodic images of cells count as other cells.
        """
        cells, numbers, weights = everywhere.cells, everywhere.numbers, everywhere.weights
        for axis, (start, stop) in enumerate(topology.block()):
            n, more = topology.shape[axis], beyond[axis]
            most = -(-more // n) if topology.periodic[axis] else 0  # images on either side
            place = np.concatenate([cells[:, axis] + image * n for image in range(-most, most + 1)])
            cells, numbers, weights = (np.concatenate([each] * (2 * most + 1)) for each in (cells, numbers, weights))
            here = (place >= start - more) & (place < stop + more)
            cells[:, axis] = place - start
            cells, numbers, weights = cells[here], numbers[here], weights[here]
        shape = [stop - start + 2 * more for (start, stop), more in zip(topology.block(), beyond, strict=True)]
        places = np.ravel_multi_index(tuple((cells + np.array(beyond)).T), shape)
        order = np.argsort(places, kind="stable")  # those of a cell stay sorted by receiver
        different, slot = np.unique(places[order], return_inverse=True)
        index = np.stack(np.unravel_index(different, shape), axis=-1) - np.array(beyond)
        return cls(index, slot, numbers[order], weights[order])

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
            name: CellsOfReceivers.near(each.everywhere, each.grid.topology, beyond) for name, each in spread.items()
        }
        each = [cells.index for cells in found.values()]
        index, slot = np.unique(np.concatenate(each), axis=0, return_inverse=True)
        slots = np.split(slot.ravel(), np.cumsum([len(one) for one in each])[:-1])
        return cls(index, found, dict(zip(found, slots, strict=True)))


class Spread:
    """The transpose of what receivers record, on this process's cells of a field. They read those of ``everywhere``."""

    def __init__(self, simulation: ComposedSimulation, everywhere: WeightedCells) -> None:
        topology = simulation.device_grid.topology
        self.grid, self.dtype = simulation.device_grid, simulation.dtype
        self.everywhere = everywhere
        self.cells = CellsOfReceivers.near(everywhere, topology, (0,) * topology.ndim)
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
