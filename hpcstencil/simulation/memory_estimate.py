"""Estimate of the memory that a run needs for arrays over the grid."""

from __future__ import annotations

import math

import numpy as np

from hpcstencil.config.streams import StreamConfig
from hpcstencil.simulation.prepared import Prepared
from hpcstencil.symbolic.expressions import OPERATORS

COORDINATES = 4  # float64 copies of the coordinates at the start of a run; they matter on long one-dimensional grids


def memory(prepared: Prepared) -> int:
    """Estimate the peak memory, in bytes, for arrays over the grid on the busiest process, over all its devices."""
    problem, topology = prepared.problem, prepared.plan.topology
    config, own = problem.config, math.prod(topology.capacity())
    resting, stepping = prepared.lowered.cells_held(prepared.plan)
    derivatives = sum(not tree.kinds.isdisjoint(OPERATORS) for tree in problem.reduced())
    cells = max(stepping, resting + (derivatives + 1) * own if derivatives else 0)
    cells = max(cells, resting + len(problem.derived_trees()) * own)
    if config.output.is_written_behind(topology.size):
        cells += len(config.output.fields or problem.shown) * own
    coordinates = COORDINATES * 8 * sum(topology.capacity())
    itemsize = np.dtype(config.numerics.precision).itemsize
    arrays = topology.device_count * (cells * problem.copies * itemsize + coordinates)
    return arrays + sum(_of_stream(prepared, stream, itemsize) for stream in config.output.streams.values())


def _of_stream(prepared: Prepared, stream: StreamConfig, itemsize: int) -> int:
    """Estimate the peak memory, in bytes, of a stream on the busiest process.

    It is that of a record and, for a mean, of float64 sums and the mean of one field. Small records that are held for a while
    are not counted.
    """
    problem, topology = prepared.problem, prepared.plan.topology
    own = min(stream.cells(problem.config.grid).cells, topology.device_count * math.prod(topology.capacity()))
    fields = len(stream.names(problem.shown))
    each = fields * itemsize + (8 * (fields + 1) if stream.average else 0)
    return own * problem.copies * each
