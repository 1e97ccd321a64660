"""The cells around receivers, distributed over the processes.

Each receiver belongs to the process that owns the first of its cells. A process records the cells of its block that its own
receivers need, and the cells that receivers of other processes need. The latter are sent later, many records at once.

    record    | cells of own receivers                          | cells for others |
              | group 0: receivers x points | group 1: ...      |                  |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from hpcstencil.distributed.cell_samples import Cells, CellSamples
from hpcstencil.numerics.topology import Topology, split

TAG = 7  # tag of the messages


class Group(Protocol):
    """The receivers of one field, with the cells and weights of their interpolation; see `problem.receivers`."""

    @property
    def field(self) -> str:
        """The name of the field that is recorded."""

    @property
    def cells(self) -> np.ndarray:
        """Global indices of the cells around each receiver, int64 of shape (points, receivers, axes)."""

    @property
    def weights(self) -> np.ndarray:
        """The weights of these cells, float64 of shape (points, receivers)."""


@dataclass(frozen=True)
class ReceiverCells:
    """The receivers and recorded cells of this process.

    Attributes
    ----------
    own
        The numbers of this process's receivers in each group (`own_receivers`).
    cells
        The local cells that it records, by field.
    size
        The number of values in a record.
    width
        The number of neighbouring cells along the last axis in each row of cells around a receiver.
    sent, received
        The slots of a record that are sent to, or received from, other ranks, by rank.
    """

    groups: tuple[Group, ...]
    own: tuple[np.ndarray, ...]
    cells: dict[str, Cells]
    size: int
    width: int
    sent: dict[int, np.ndarray]
    received: dict[int, np.ndarray]

    def exchange(self, values: np.ndarray, mpi: Any) -> None:
        """Complete the records ``values``, of shape (records, size), with cells from other processes. Collective.

        ``mpi`` is the mpi4py communicator. All processes must pass the same number of records.
        """
        if not self.sent and not self.received:
            return
        requests, arrived = [], {}
        for rank, slots in self.received.items():
            arrived[rank] = np.empty((len(values), len(slots)), values.dtype)
            requests.append(mpi.Irecv(arrived[rank], rank, TAG))
        leaving = [(rank, np.ascontiguousarray(values[:, slots])) for rank, slots in self.sent.items()]
        requests += [mpi.Isend(block, rank, TAG) for rank, block in leaving]
        for request in requests:
            request.Wait()
        for rank, slots in self.received.items():
            values[:, slots] = arrived[rank]

    def at_receivers(self, samples: CellSamples, count: int, weights: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Interpolate the first ``count`` records to this process's receivers: one array per group.

        The arrays have shape (count, own receivers), with receivers sorted by number. The records must be complete, and
        ``weights`` have the layout of `own_weights`. The order of summation is fixed, so the result does not depend on which
        process computes it.
        """
        found, start = [], 0
        for each, place in zip(weights, self.places, strict=True):
            found.append(samples.weighted(start, count, each, place))
            start += each.size
        return found

    @cached_property
    def places(self) -> list[np.ndarray]:
        """For each group, the rank of each own receiver when they are sorted by number: int64 of shape (own receivers,)."""
        return [np.argsort(np.argsort(own)) for own in self.own]

    def own_weights(self) -> list[np.ndarray]:
        """Return the weights of the cells around this process's receivers, one array per group.

        They are float64 of shape (receivers, rows, width), with ``width`` cells along the last axis of the grid.
        """
        return [
            np.ascontiguousarray(group.weights[:, own].T).reshape(
                len(own), len(group.weights) // self.width, self.width
            )
            for group, own in zip(self.groups, self.own, strict=True)
        ]


def receiver_cells(groups: Sequence[Group], width: int, topology: Topology) -> ReceiverCells:
    """Return the receivers and recorded cells of the process ``topology.rank``.

    The cells around a receiver are in rows of ``width`` cells. The order of cells in messages is the same for sender and
    receiver, since both derive it from ``groups``.
    """
    rank, corner = topology.rank, np.array([start for start, _ in topology.block()])
    own, size = [], 0
    index: dict[str, list[np.ndarray]] = {group.field: [] for group in groups}
    slot: dict[str, list[np.ndarray]] = {group.field: [] for group in groups}
    foreign: list[tuple[str, np.ndarray, np.ndarray]] = []  # field, cells and their owners' ranks, for others
    received: dict[int, list[np.ndarray]] = {}
    for group in groups:
        where = ranks_of(group.cells, topology)
        owner = where[0]
        mine = own_receivers(group, topology, rank)
        slots = size + np.arange(len(mine) * len(where)).reshape(len(mine), len(where)).T
        size += slots.size
        own.append(mine)
        here = where[:, mine] == rank
        index[group.field].append(group.cells[:, mine][here] - corner)
        slot[group.field].append(slots[here])
        for other in np.unique(where[:, mine][~here]):
            received.setdefault(int(other), []).append(slots[where[:, mine] == other])
        order = in_memory_order(group)  # as their owners have them
        points, numbers = np.nonzero((where[:, order] == rank) & (owner[order] != rank))
        receivers = order[numbers]
        foreign.append((group.field, group.cells[points, receivers] - corner, owner[receivers]))
    sent: dict[int, list[np.ndarray]] = {}
    for field, cells, owners in foreign:
        leaving = size + np.arange(len(cells))
        size += len(cells)
        index[field].append(cells)
        slot[field].append(leaving)
        for other in np.unique(owners):
            sent.setdefault(int(other), []).append(leaving[owners == other])
    return ReceiverCells(
        groups=tuple(groups),
        own=tuple(own),
        cells={name: Cells(np.concatenate(index[name]), np.concatenate(slot[name])) for name in index},
        size=size,
        width=width,
        sent={other: np.concatenate(slots) for other, slots in sent.items()},
        received={other: np.concatenate(slots) for other, slots in received.items()},
    )


def own_receivers(group: Group, topology: Topology, rank: int) -> np.ndarray:
    """Return the numbers of a process's receivers, int64, in the order in which their cells lie in memory."""
    order = in_memory_order(group)
    return order[ranks_of(group.cells[0, order], topology) == rank]


def in_memory_order(group: Group) -> np.ndarray:
    """Return the numbers of all receivers, int64, in the order of their first cells."""
    return np.lexsort(group.cells[0].T[::-1])


def ranks_of(cells: np.ndarray, topology: Topology) -> np.ndarray:
    """Return the ranks, int64 of shape (...), of the processes that own cells with global indices of shape (..., axes)."""
    rank = np.zeros(cells.shape[:-1], np.int64)
    for axis, (n, parts) in enumerate(zip(topology.shape, topology.processes, strict=True)):
        stops = [split(n, parts, part)[1] for part in range(parts)]
        rank = rank * parts + np.searchsorted(stops, cells[..., axis], side="right")
    return rank
