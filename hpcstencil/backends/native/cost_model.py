"""Estimates of the time and memory that native code needs, without JAX and without compiling the steps."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from hpcstencil.backends.native.compiler import DriverPart, cache_bytes, cache_is_far, cache_share, library
from hpcstencil.backends.native.passes import AXIS_OF
from hpcstencil.backends.native.program import Program
from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.decomposition import MOST_STEPS_PER_EXCHANGE, Costs, Plan, most_steps
from hpcstencil.problem.problem import Problem

SECONDS_PER_WORK = 1.5e-10  # for one cell of a pass, unless it is measured
WAITING = 5e-5  # seconds per exchange for which blocks wait for each other, however little they exchange
# The fraction of the computing between two exchanges that can hide messages, by number of axes: in three dimensions the sweep
# over the last tile of rows, in one and two dimensions nearly the whole sweep.
HIDDEN = {1: 0.8, 2: 0.8, 3: 0.25}
MUCH_THE_SAME = 1.005  # of all choices whose cost is within this factor of the least, the thinnest halo is taken


@cache
def _loaded(outline: str, driver: tuple[DriverPart, ...]) -> ctypes.CDLL:
    return library(outline, driver, quickly=True)


def account(program: Program) -> ctypes.CDLL:
    """Compile and load the cost model of a program, once per process. Raises Unsupported if it does not compile."""
    return _loaded(program.outline, program.driver)


def work_per_step(program: Program, topology: Topology) -> Callable[[int], float]:
    """Return the function (steps between two exchanges) -> work per cell and step.

    The unit of work is one pass over one cell. The block is the largest of this topology, with neighbours on all
    decomposed axes. Raises Unsupported like `account`.
    """
    work = account(program).work_per_step
    work.restype = ctypes.c_double
    block = _block(topology)
    return lambda steps: float(work(*block, ctypes.c_int64(steps)))


def reach_of_steps(library: ctypes.CDLL, ndim: int, steps: int) -> tuple[int, ...]:
    """Return how many cells beyond a block ``steps`` steps load at most, per axis of the grid.

    ``library`` is a program, or its cost model (`account`). With leapfrog the cells are a third of one stencil's radius per
    stage if only one of the two groups of fields has a stencil.
    """
    found = (ctypes.c_int64 * 3)()
    library.reach_of_steps(ctypes.c_int64(steps), found)
    return tuple(found[axis] for axis in AXIS_OF[ndim])


def least_work(program: Program, topology: Topology, shape: Sequence[int]) -> float:
    """Return the least work per cell and step on a block of ``shape`` cells per axis, without exchanges.

    The unit is one pass over one cell. Raises Unsupported like `account`.
    """
    work = work_per_step(
        program, replace(topology, shape=tuple(shape), processes=ones(topology), devices=ones(topology))
    )
    return min(work(steps) for steps in range(1, MOST_STEPS_PER_EXCHANGE + 1))


def ones(topology: Topology) -> tuple[int, ...]:
    """Return the number of blocks per axis of an undecomposed grid: all 1."""
    return (1,) * topology.ndim


def step_time(program: Program, problem: Problem, topology: Topology, costs: Costs) -> Callable[[int], float]:
    """Return the function k -> T(k), the estimated seconds per step with k steps between two exchanges, k > 0.

        T(k) = C(k) + L / k + max(0, λ + B(k) / β - η k C(k)) / k,   C(k) = N w(k) σ

    C is the computing time per step of a block of N cells. The cost model gives w, the work per cell, which includes halo
    cells that several blocks compute; σ is the time per unit of work. An exchange sends B bytes (k times
    `Plan.halo_bytes_per_step`) with latency λ and bandwidth β. The fraction η of the computing between two exchanges can
    hide it. L is the time per exchange for which neighbours wait for each other in any case.

    ``costs`` are λ, β and σ, or an assumed σ if it was not measured. Raises Unsupported like `account`.
    """
    work, cells = work_per_step(program, topology), math.prod(topology.capacity())
    fields, itemsize = len(problem.fields) * problem.copies, np.dtype(problem.config.numerics.precision).itemsize
    unit = costs.seconds_per_work or SECONDS_PER_WORK

    def seconds(every: int) -> float:
        computing = cells * problem.copies * work(every) * unit
        plan = Plan.of(problem, topology, every, known_reach=reach_of_steps(account(program), topology.ndim, every))
        sent = every * plan.halo_bytes_per_step(fields, itemsize)
        messages = costs.latency + sent / costs.bytes_per_second
        return computing + (WAITING + max(0.0, messages - HIDDEN[topology.ndim] * every * computing)) / every

    return seconds


def steps_between_exchanges(
    program: Program, problem: Problem, topology: Topology, costs: Costs
) -> tuple[int, float | None]:
    """Return (number k of steps between two exchanges with the least `step_time`, predicted seconds per step).

    k is 0 if blocks are too thin for a whole step between two exchanges. The prediction is None if ``costs`` are not
    measured. Raises Unsupported like `account`.
    """
    most = most_steps(problem, topology)
    if not most:
        return 0, None
    if problem.step_follows_solution:
        most = min(most, problem.config.time.dt_every)
    seconds = step_time(program, problem, topology, costs)
    predicted = {k: seconds(k) for k in range(1, min(most, MOST_STEPS_PER_EXCHANGE) + 1)}
    best = next(k for k, cost in predicted.items() if cost <= MUCH_THE_SAME * min(predicted.values()))
    return best, None if costs.seconds_per_work is None else predicted[best]


def cells_beside(program: Program, topology: Topology, every: int, threads: int) -> int:
    """Return the number of values that native code keeps per device in addition to the fields of a block.

    All ``threads`` of the device are counted, with ``every`` steps between two exchanges. Raises Unsupported like `account`.
    """
    room = account(program).cells_beside_fields
    room.restype = ctypes.c_int64
    cut = any(topology.is_split(axis) for axis in range(topology.ndim))
    return int(room(*_block(topology), ctypes.c_int64(every if cut else 0), ctypes.c_int64(threads)))


def _block(topology: Topology) -> list[Any]:
    """Return the C arguments that describe the largest block.

    They are its cells per axis of the driver, which axes are periodic within the block, which ones end at boundaries, and
    the sizes of the processor's caches.
    """
    count, wraps, boundary = [1, 1, 1], [0, 0, 0], [0, 0, 0]
    for axis, b in enumerate(AXIS_OF[topology.ndim]):
        count[b] = topology.capacity()[axis]
        if not topology.is_split(axis):
            wraps[b], boundary[b] = int(topology.periodic[axis]), int(not topology.periodic[axis])
    shape = [(ctypes.c_int64 * 3)(*numbers) for numbers in (count, wraps, boundary)]
    return [*shape, *map(ctypes.c_int64, (cache_bytes(), cache_is_far(), cache_share()))]
