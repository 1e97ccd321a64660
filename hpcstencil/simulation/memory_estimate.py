"""The memory of a run's arrays over the grid, estimated before it begins."""

from __future__ import annotations

import math

import numpy as np

from hpcstencil.numerics.integrators import Method
from hpcstencil.problem.problem import Problem
from hpcstencil.runtime.threads import threads_for
from hpcstencil.simulation.decomposition import Plan
from hpcstencil.symbolic.expressions import OPERATORS, walk

COORDINATES = 4  # float64 copies of the coordinates at the start of a run; they matter on long grids of one axis


def memory(plan: Plan, problem: Problem, kernel: str) -> int:
    """Bytes of the arrays over the grid that the busiest process holds at once, with a ``kernel``.

    Native code holds the state, the arrays that it steps in (with ghost cells), and functions of several coordinates.
    In an ensemble it holds the state four times, because members are reordered for it and back. XLA decides what its
    own kernels hold; this counts what XLA holds for a right-hand side without inner results.
    """
    config, topology = problem.config, plan.topology
    fields, own = len(problem.fields), math.prod(topology.capacity())
    whole = math.prod(n + 2 * h for n, h in zip(topology.capacity(), plan.halo, strict=True))
    if kernel == "native":
        from hpcstencil.backends.native.cost_model import cells_beside
        from hpcstencil.backends.native.program import program

        threads = threads_for(topology.device_count)
        beside = 3 * fields * whole if problem.members else cells_beside(problem, topology, plan.every, threads)
        resting = stepping = fields * whole + beside + program(problem).fixed * own
    else:
        resting = fields * own
        stepping = fields * whole * _arrays(problem.method, fields) * (config.grid.ndim if kernel == "conv" else 1)
    derivatives = sum(any(isinstance(part, OPERATORS) for part in walk(tree)) for tree in problem.reduced())
    cells = max(stepping, resting + (derivatives + 1) * own if derivatives else 0)
    if config.output.is_written_behind(topology.size):
        cells += len(config.output.fields or problem.shown) * own
    coordinates = COORDINATES * 8 * sum(topology.capacity())
    itemsize = np.dtype(config.numerics.precision).itemsize
    return topology.device_count * (cells * problem.copies * itemsize + coordinates)


def _arrays(method: Method, fields: int) -> int:
    """Arrays per field that XLA holds during a step (``benchmarks/memory.py``). Two if a field is moved in one go.
    Values and slopes at u and the last values if the stages are a loop. Else u, a slope per stage, the value at which
    it is taken if several fields need it, and with an error estimate the state before a rejected step."""
    if method.partitioned:
        return 2
    if method.uniform_from < len(method.stages):
        return 5
    stages = method.evaluations
    return 1 + stages + (fields > 1 and stages > 1) + 2 * bool(method.error)
