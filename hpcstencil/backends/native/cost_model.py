"""What steps cost in native code, in time and memory, without jax, and without compiling them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

from hpcstencil.backends.native.compiler import cache_bytes, cache_is_far, library
from hpcstencil.backends.native.passes import AXIS_OF
from hpcstencil.backends.native.program import program
from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.problem import Problem


@cache
def _loaded(outline: str) -> ctypes.CDLL:
    return library(outline, quickly=True)


def account(problem: Problem) -> ctypes.CDLL:
    """What tells the cost of steps. Raises Unsupported where there is no native code."""
    return _loaded(program(problem).outline)


def work_per_step(problem: Problem, topology: Topology) -> Callable[[int], float]:
    """The work for a cell in one step, in cells of a pass, of a block with neighbours on all axes that are cut, where so many
    steps are taken between two exchanges. Raises Unsupported where there is no native code."""
    work = account(problem).work_per_step
    work.restype = ctypes.c_double
    block = _block(topology)
    return lambda steps: float(work(*block, ctypes.c_int64(steps)))


def cells_beside(problem: Problem, topology: Topology, every: int, threads: int) -> int:
    """The cells that native code with so many ``threads`` keeps beside the fields of a block, with ``every`` steps between two
    exchanges. Raises Unsupported where there is no native code."""
    room = account(problem).cells_beside_fields
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
