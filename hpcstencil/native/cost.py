"""What steps cost in native code, without jax: for choosing how many are taken between two exchanges."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from hpcstencil.native.compiler import cache_bytes, library
from hpcstencil.native.passes import AXIS_OF
from hpcstencil.native.program import program
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
