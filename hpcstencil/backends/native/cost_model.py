"""The cost of steps in native code, in time and memory, estimated without jax and without compiling the steps."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from hpcstencil.backends.native.compiler import cache_bytes, cache_is_far, library
from hpcstencil.backends.native.passes import AXIS_OF
from hpcstencil.backends.native.program import Program
from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.decomposition import MOST_STEPS, Costs, Plan, most_steps
from hpcstencil.problem.problem import Problem

SECONDS_PER_WORK = 1.5e-10  # for one cell of a pass, unless it is measured
WAITING = 5e-5  # seconds per exchange that blocks wait for each other, however much they exchange
# Part of the computing between two exchanges that hides messages: a sweep over the last tile of rows in three dimensions, and
# nearly the whole sweep where planes are single rows.
HIDDEN = {1: 0.8, 2: 0.8, 3: 0.25}
MUCH_THE_SAME = 1.005  # among costs within this factor of the least one, the thinnest halo is chosen


@cache
def _loaded(outline: str) -> ctypes.CDLL:
    return library(outline, quickly=True)


def account(program: Program) -> ctypes.CDLL:
    """The compiled cost model of a program, loaded once per process. Raises Unsupported if it does not compile."""
    return _loaded(program.outline)


def work_per_step(program: Program, topology: Topology) -> Callable[[int], float]:
    """The function that maps the number of steps between two exchanges to the work per cell and step, in units of one
    pass over one cell. It is for this topology's largest block, with neighbours on all axes that are cut. Raises
    Unsupported like `account`."""
    work = account(program).work_per_step
    work.restype = ctypes.c_double
    block = _block(topology)
    return lambda steps: float(work(*block, ctypes.c_int64(steps)))


def least_work(program: Program, topology: Topology, shape: Sequence[int]) -> float:
    """The least work per cell and step on a block of ``shape`` cells per axis without exchanges, in units of one pass
    over one cell. Raises Unsupported like `account`."""
    work = work_per_step(
        program, replace(topology, shape=tuple(shape), processes=ones(topology), devices=ones(topology))
    )
    return min(work(steps) for steps in range(1, MOST_STEPS + 1))


def ones(topology: Topology) -> tuple[int, ...]:
    """The numbers of blocks per axis of a grid that is not cut: all 1."""
    return (1,) * topology.ndim


def steps_between_exchanges(
    program: Program, problem: Problem, topology: Topology, costs: Costs
) -> tuple[int, float | None]:
    """(number k of steps between two exchanges with the least estimated cost, predicted seconds per step). k is 0 if
    each section of a step needs an exchange. The prediction is None if ``costs`` are not measured.

        T(k) = C(k) + L / k + max(0, λ + B(k) / β - η k C(k)) / k,   C(k) = N w(k) σ

    C is the computing time per step: the work w of the cost model for each of N cells, in units of σ seconds. It
    includes halo cells that several blocks compute. An exchange takes λ + B / β, where B are its bytes (k times
    `Plan.halo_bytes_per_step`); the fraction η of the computing between two exchanges can hide it. L is the time per
    exchange that neighbours wait for each other even without messages. Raises Unsupported like `account`.
    """
    most = most_steps(problem, topology)
    if not most:
        return 0, None
    if problem.step_follows_solution:
        most = min(most, problem.config.time.dt_every)
    work, cells = work_per_step(program, topology), math.prod(topology.capacity())

    fields, itemsize = len(problem.fields) * problem.copies, np.dtype(problem.config.numerics.precision).itemsize
    unit = costs.seconds_per_work or SECONDS_PER_WORK

    def seconds(every: int) -> float:
        computing = cells * problem.copies * work(every) * unit
        sent = every * Plan.of(problem, topology, every).halo_bytes_per_step(fields, itemsize)
        messages = costs.latency + sent / costs.bytes_per_second
        return computing + (WAITING + max(0.0, messages - HIDDEN[topology.ndim] * every * computing)) / every

    predicted = {k: seconds(k) for k in range(1, min(most, MOST_STEPS) + 1)}
    best = next(k for k, cost in predicted.items() if cost <= MUCH_THE_SAME * min(predicted.values()))
    return best, None if costs.seconds_per_work is None else predicted[best]


def cells_beside(program: Program, topology: Topology, every: int, threads: int) -> int:
    """The number of values that native code keeps per device in addition to the fields of a block, for all its
    ``threads`` together, with ``every`` steps between two exchanges. Raises Unsupported like `account`."""
    room = account(program).cells_beside_fields
    room.restype = ctypes.c_int64
    cut = any(topology.is_split(axis) for axis in range(topology.ndim))
    return int(room(*_block(topology), ctypes.c_int64(every if cut else 0), ctypes.c_int64(threads)))


def _block(topology: Topology) -> list[Any]:
    """The C arguments that describe the largest block: its cells per axis of the driver, which axes wrap around, which
    ones end at boundaries, and the caches of the processor."""
    count, wraps, boundary = [1, 1, 1], [0, 0, 0], [0, 0, 0]
    for axis, b in enumerate(AXIS_OF[topology.ndim]):
        count[b] = topology.capacity()[axis]
        if not topology.is_split(axis):
            wraps[b], boundary[b] = int(topology.periodic[axis]), int(not topology.periodic[axis])
    shape = [(ctypes.c_int64 * 3)(*numbers) for numbers in (count, wraps, boundary)]
    return [*shape, ctypes.c_int64(cache_bytes()), ctypes.c_int64(cache_is_far())]
