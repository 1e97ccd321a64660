"""The cells on which what receivers record depends, with their weights, where it is a linear function of the fields.

A receiver of a field reads the cells around it, with the weights of the interpolation. A receiver of an expression such as
dx(p) also reads their neighbours. The transposed expression, applied to the weights of the interpolation, gives those of all
cells. It is applied to many receivers at once, if they are far from each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcstencil.adjoint.names import SAMPLED, SAMPLES_SEED
from hpcstencil.distributed.halo import Fields
from hpcstencil.problem.receivers import Receivers
from hpcstencil.simulation.simulation import ComposedSimulation


@dataclass(frozen=True)
class WeightedCells:
    """The cells that receivers read: what receiver r records is the sum of weights·cells over the entries with its number.

    ``cells`` are global indices, int64 of shape (entries, axes), ``numbers`` are those of the receivers, int64 of shape
    (entries,) and sorted, and ``weights`` are float64 of this shape.
    """

    cells: np.ndarray
    numbers: np.ndarray
    weights: np.ndarray

    @classmethod
    def of_field(cls, receivers: Receivers, weights: np.ndarray) -> WeightedCells:
        """The cells around receivers of a field, those with a weight. ``weights`` have the shape (points, receivers)."""
        numbers, points = np.nonzero(weights.T)
        return cls(receivers.cells[points, numbers], numbers, weights[points, numbers])

    @classmethod
    def joined(cls, parts: Sequence[WeightedCells], counts: Sequence[int]) -> WeightedCells:
        """Those of several tables of [probes], with ``counts`` receivers each, which are numbered one after the other."""
        first = np.cumsum([0, *counts])
        return cls(
            np.concatenate([each.cells for each in parts]),
            np.concatenate([each.numbers + n for each, n in zip(parts, first, strict=False)]),
            np.concatenate([each.weights for each in parts]),
        )


class TransposedExpressions:
    """The transposes of the expressions that receivers record, which must be linear (`Adjoint.injected`).

    ``backward`` is the simulation of the adjoint problem, ``tables`` are those of [probes] that the objective sums over, and
    ``fields`` and ``parameters`` are those of the problem, at any time.
    """

    def __init__(
        self, backward: ComposedSimulation, tables: Sequence[str], fields: Fields, parameters: Mapping[str, Any]
    ) -> None:
        problem, topology = backward.problem, backward.device_grid.topology
        self.backward, self.parameters = backward, parameters
        self.names = tuple(problem.derived[SAMPLED])
        self.radius = np.array(problem.discretization.radius(problem.derived[SAMPLED].values()))
        self.shape, self.periodic = np.array(topology.shape), np.array(topology.periodic)
        self.start, self.stop = np.array(backward.ranges).T
        zeros = backward.put({SAMPLES_SEED + table: self._block(backward.dtype) for table in tables})
        self.fields = {**fields, **zeros}

    def cells(self, table: str, around: WeightedCells) -> dict[str, WeightedCells]:
        """The cells of each field that the receivers of a table read, by the names of the derivatives: adjoint.u. Collective.

        ``around`` are the cells in which they read the expression. Equal on all processes.
        """
        found = list[np.ndarray]()  # rows of a field, a receiver, the indices of a cell
        weights = list[np.ndarray]()
        for numbers, boxes in self._groups(around):
            seed, owner = self._block(np.float64), self._block(np.int64) - 1
            chosen = np.isin(around.numbers, numbers)
            cells, own = around.cells[chosen], around.weights[chosen]
            here = ((cells >= self.start) & (cells < self.stop)).all(axis=1)
            np.add.at(seed, tuple((cells[here] - self.start).T), own[here])
            for number, box in zip(numbers, boxes, strict=True):
                owner[box] = number
            for field, block in enumerate(self._applied(table, seed)):
                near = owner >= 0
                assert not (np.isfinite(block) & (block != 0) & ~near).any(), (
                    "receivers read cells that are not near them"
                )
                places = np.nonzero(near & (block != 0))
                row = np.stack([np.full(len(places[0]), field), owner[places]], axis=1)
                found.append(np.concatenate([row, np.stack(places, axis=1) + self.start], axis=1))
                weights.append(block[places].astype(np.float64))
        return self._everywhere(np.concatenate(found), np.concatenate(weights))

    def _block(self, dtype: npt.DTypeLike) -> np.ndarray:
        return np.zeros(self.stop - self.start, dtype)

    def _applied(self, table: str, seed: np.ndarray) -> list[np.ndarray]:
        """The transposed expressions, this process's blocks, if ``seed`` is its block of the derivatives with respect to what
        the receivers of a table read."""
        seeds = self.backward.put({SAMPLES_SEED + table: seed.astype(self.backward.dtype)})
        arrays = self.backward.derived[SAMPLED]({**self.fields, **seeds}, self.parameters, 0.0)
        return [self.backward.block(array) for array in arrays]

    def _groups(self, around: WeightedCells) -> Iterator[tuple[np.ndarray, list[tuple[np.ndarray, ...]]]]:
        """Yield receivers that read no cells in common: their numbers, and the cells of this process near each."""
        receivers, first = np.unique(around.numbers, return_index=True)
        anchors = around.cells[first]
        away = around.cells - np.repeat(anchors, np.diff([*first, len(around.numbers)]), axis=0)
        half = self.shape // 2
        away = np.where(self.periodic, (away + half) % self.shape - half, away)
        reach = np.abs(away).max(axis=0, initial=0) + self.radius + 1
        width = 2 * reach + 1
        whole = np.where(self.periodic, self.shape // width * width, anchors.max(axis=0, initial=0) + 1)
        places = np.where(anchors < whole, anchors % width, width + anchors - whole)
        _, same = np.unique(anchors, axis=0, return_inverse=True)
        order = np.argsort(same.ravel(), kind="stable")
        counts = np.unique(same, return_counts=True)[1]
        rank = np.empty(len(anchors), np.int64)  # among receivers with the same anchor
        rank[order] = np.concatenate([np.arange(count) for count in counts])
        _, group = np.unique(np.column_stack([places, rank]), axis=0, return_inverse=True)
        for each in range(group.max(initial=-1) + 1):
            (members,) = np.nonzero(group.ravel() == each)
            yield receivers[members], [self._near(anchors[n], reach) for n in members]

    def _near(self, anchor: np.ndarray, reach: np.ndarray) -> tuple[np.ndarray, ...]:
        """Index those cells of this process's block that are up to ``reach`` cells from another one."""
        found = []
        for axis, (start, stop) in enumerate(zip(self.start, self.stop, strict=True)):
            index = np.arange(anchor[axis] - reach[axis], anchor[axis] + reach[axis] + 1)
            index = index % self.shape[axis] if self.periodic[axis] else index
            found.append(index[(index >= start) & (index < stop)] - start)
        return np.ix_(*found)

    def _everywhere(self, rows: np.ndarray, weights: np.ndarray) -> dict[str, WeightedCells]:
        """The weighted cells of all processes by field, from ``rows`` with a field, a receiver and a cell. Collective."""
        communicator = self.backward.communicator
        parts, found = communicator.gather((rows, weights)), dict[str, WeightedCells]()
        if parts is not None:
            rows, weights = (np.concatenate([part[n] for part in parts]) for n in (0, 1))
            order = np.lexsort(rows.T[::-1])
            rows, weights = rows[order], weights[order]
            for number, name in enumerate(self.names):
                own = rows[:, 0] == number
                found[name] = WeightedCells(rows[own, 2:], rows[own, 1], weights[own])
        return communicator.broadcast(found)
