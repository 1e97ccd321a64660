"""What steps cost in native code, without jax: for choosing how many are taken between two exchanges."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

from hpcstencil.native.compiler import cache_bytes, library
from hpcstencil.native.passes import AXIS_OF
from hpcstencil.native.program import program
from hpcstencil.parallel import local_place
from hpcstencil.problem import Problem
from hpcstencil.topology import Topology


def work_per_step(problem: Problem, topology: Topology) -> Callable[[int], float]:
    """The work for a cell in one step, in cells of a pass, of a block with neighbours on all axes that are cut, where so many
    steps are taken between two exchanges. Raises Unsupported where there is no native code."""
    work = library(program(problem).text).work
    work.restype = ctypes.c_double
    count, wraps, boundary = [1, 1, 1], [0, 0, 0], [0, 0, 0]
    for axis, b in enumerate(AXIS_OF[topology.ndim]):
        count[b] = topology.capacity()[axis]
        if not topology.is_split(axis):
            wraps[b], boundary[b] = int(topology.periodic[axis]), int(not topology.periodic[axis])
    shape = [(ctypes.c_int64 * 3)(*numbers) for numbers in (count, wraps, boundary)]
    return lambda steps: float(work(*shape, ctypes.c_int64(cache_bytes()), ctypes.c_int64(steps)))


def threads_for(devices: int) -> int:
    """How many threads each of so many devices of this process may use: the cores that are left to it."""
    cores = len(os.sched_getaffinity(0))
    beside = local_place()[1] if cores == os.cpu_count() else 1  # a process that is bound has its cores for itself
    return max(1, cores // (beside * devices))
