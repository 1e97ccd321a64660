"""The cost of steps in native code, in time and memory, found without jax and without compiling them."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import cache
from typing import Any

from hpcstencil.backends.native.compiler import cache_bytes, cache_is_far, library
from hpcstencil.backends.native.passes import AXIS_OF
from hpcstencil.backends.native.program import Program
from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.decomposition import MOST_STEPS, latency, most_steps
from hpcstencil.problem.problem import Problem

SECONDS_PER_CELL = 1.5e-10  # of a pass
MUCH_THE_SAME = 1.005  # times the least cost: within it the thinner halo is chosen


@cache
def _loaded(outline: str) -> ctypes.CDLL:
    return library(outline, quickly=True)


def account(program: Program) -> ctypes.CDLL:
    """The library that knows the cost of a program's steps. Raises Unsupported if it does not compile."""
    return _loaded(program.outline)


def work_per_step(program: Program, topology: Topology) -> Callable[[int], float]:
    """The work for a cell in one step, in cells of a pass, as a function of the steps between two exchanges: for a block
    with neighbours on all axes that are cut. Raises Unsupported as `account`."""
    work = account(program).work_per_step
    work.restype = ctypes.c_double
    block = _block(topology)
    return lambda steps: float(work(*block, ctypes.c_int64(steps)))


def steps_between_exchanges(program: Program, problem: Problem, topology: Topology) -> int:
    """The number of steps between two exchanges with the least estimated cost, 0 for an exchange per section of a step.

    The cost model weighs the exchange and the halo cells that are computed again against the additional passes through
    memory that fewer steps need. Raises Unsupported as `account`.
    """
    most = most_steps(problem, topology)
    if not most:
        return 0
    if problem.step_follows_solution:
        most = min(most, problem.config.time.dt_every)
    work, cells = work_per_step(program, topology), math.prod(topology.capacity())

    def seconds(every: int) -> float:
        return latency(topology) / every + cells * work(every) * SECONDS_PER_CELL

    costs = {k: seconds(k) for k in range(1, min(most, MOST_STEPS) + 1)}
    return next(k for k, cost in costs.items() if cost <= MUCH_THE_SAME * min(costs.values()))


def cells_beside(program: Program, topology: Topology, every: int, threads: int) -> int:
    """The cells that native code with ``threads`` threads keeps beside the fields of a block, with ``every`` steps
    between two exchanges. Raises Unsupported as `account`."""
    room = account(program).cells_beside_fields
    room.restype = ctypes.c_int64
    cut = any(topology.is_split(axis) for axis in range(topology.ndim))
    return int(room(*_block(topology), ctypes.c_int64(every if cut else 0), ctypes.c_int64(threads)))


def _block(topology: Topology) -> list[Any]:
    """The largest block as programs take it: cells, which axes wrap around, and which end at boundaries; the cache."""
    count, wraps, boundary = [1, 1, 1], [0, 0, 0], [0, 0, 0]
    for axis, b in enumerate(AXIS_OF[topology.ndim]):
        count[b] = topology.capacity()[axis]
        if not topology.is_split(axis):
            wraps[b], boundary[b] = int(topology.periodic[axis]), int(not topology.periodic[axis])
    shape = [(ctypes.c_int64 * 3)(*numbers) for numbers in (count, wraps, boundary)]
    return [*shape, ctypes.c_int64(cache_bytes()), ctypes.c_int64(cache_is_far())]
