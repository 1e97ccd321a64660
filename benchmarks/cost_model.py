"""The cost model of docs/scaling.md: seconds per step against ranks and steps per exchange.

A message costs its latency plus its bytes divided by the bandwidth (R. Hockney, Parallel Computing 20 (1994) 389-398). Taking
k steps between two exchanges costs the recomputation of ghost cells (C. Ding & Y. He, SC'01, "A ghost cell expansion method").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from hpcstencil.problem.decomposition import Plan


@dataclass(frozen=True)
class Exchange:
    """The number and size of the messages of the busiest rank in one halo exchange."""

    messages: int
    bytes: float


def exchange_of(plan: Plan, fields: int, itemsize: int) -> Exchange:
    """Return the exchange of a plan: one message in each direction of every axis that is decomposed over processes."""
    cut = sum(count > 1 and halo > 0 for count, halo in zip(plan.topology.processes, plan.halo, strict=True))
    return Exchange(2 * cut, plan.halo_bytes_per_step(fields, itemsize) / plan.exchanges_per_step)


@dataclass(frozen=True)
class Costs:
    """The constants of the model, in seconds: ``per_cell`` of a pass for one core, ``per_message`` and ``per_byte`` for a rank.

    Ranks share the cores evenly. With fewer ranks than cores, each computes with several threads. With more, each has a
    fraction of a core, for computing and for messages.
    """

    per_cell: float
    per_message: float
    per_byte: float

    def computing(self, ranks: int, cores: int, cells: int, work: float) -> float:
        """Return the computing time per step, in seconds, of ranks with ``cells`` cells each and ``work`` passes per cell."""
        return self.per_cell * work * cells * ranks / cores

    def exchanging(self, ranks: int, cores: int, exchange: Exchange) -> float:
        """Return the seconds of one exchange."""
        return max(1.0, ranks / cores) * (self.per_message * exchange.messages + self.per_byte * exchange.bytes)


def fitted(terms: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Fit non-negative costs of the ``terms``, one row per measurement, to the ``seconds``.

    The fit minimizes the sum of squared relative errors.
    """
    measured = np.array(seconds)
    return nnls(np.array(terms, float) / measured[:, None], np.ones(len(measured)))[0].tolist()
