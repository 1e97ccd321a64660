"""The cost model of docs/scaling.md: seconds per step against ranks and steps per exchange.

A message costs a latency and bytes over a bandwidth (R. Hockney, Parallel Computing 20 (1994) 389-398); k steps are taken
between two exchanges at the price of cells computed twice (C. Ding & Y. He, SC'01, "A ghost cell expansion method").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from hpcstencil.problem.decomposition import Plan


@dataclass(frozen=True)
class Exchange:
    """What the busiest rank sends and receives in one halo exchange."""

    messages: int
    bytes: float


def exchange_of(plan: Plan, fields: int, itemsize: int) -> Exchange:
    """The exchange of a plan: a message in each direction of every axis that is cut between processes."""
    cut = sum(count > 1 and halo > 0 for count, halo in zip(plan.topology.processes, plan.halo, strict=True))
    return Exchange(2 * cut, plan.halo_bytes_per_step(fields, itemsize) / plan.exchanges_per_step)


@dataclass(frozen=True)
class Costs:
    """Seconds of a core ``per_cell`` of a pass, and of a rank that has a core ``per_message`` and ``per_byte`` of an exchange.

    Ranks share the cores evenly: with fewer ranks than cores each computes with several threads, with more of them each has a
    part of a core, for its messages too.
    """

    per_cell: float
    per_message: float
    per_byte: float

    def computing(self, ranks: int, cores: int, cells: int, work: float) -> float:
        """Seconds per step of ranks that own so many ``cells`` each, ``work`` being the passes over a cell in one step."""
        return self.per_cell * work * cells * ranks / cores

    def exchanging(self, ranks: int, cores: int, exchange: Exchange) -> float:
        """Seconds of one exchange."""
        return max(1.0, ranks / cores) * (self.per_message * exchange.messages + self.per_byte * exchange.bytes)


def fitted(terms: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """The costs of the ``terms``, a row per measurement, that come next to the ``seconds``: none negative, and the least
    squares of relative errors."""
    measured = np.array(seconds)
    return nnls(np.array(terms, float) / measured[:, None], np.ones(len(measured)))[0].tolist()
