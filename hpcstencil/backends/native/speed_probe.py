"""Measurement of a native program's speed on this machine, without JAX, by stepping a small block."""

from __future__ import annotations

import ctypes
import time

import numpy as np

from hpcstencil.backends.native.compiler import cache_bytes, cache_is_far, cache_share
from hpcstencil.backends.native.passes import AXIS_OF
from hpcstencil.backends.native.program import Program
from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.problem import Problem

PROBE_CELLS = 2**22
FIXED_COST = 64  # cost of filling one cell of a fixed array (coordinate_tables.hpp), in steps of one cell
PROBE_STEPS = 64  # largest number of steps in a call
PROBE_SECONDS = 0.3  # after this time, counted from the end of the first call, no call is begun
MARGIN = 64  # coordinates beyond the block
Three = ctypes.c_int64 * 3
Pointers = ctypes.POINTER(ctypes.c_void_p)


class Call(ctypes.Structure):
    """The C++ struct with the arguments of a call (call.hpp), where its members are described."""

    _fields_ = (
        ("fields", Pointers),
        ("ghosts", Pointers),
        ("results", Pointers),
        ("parameters", ctypes.c_void_p),
        ("constants", ctypes.c_void_p),
        ("coordinates", Pointers),
        ("clock", ctypes.c_void_p),
        ("capacity", Three),
        ("count", Three),
        ("margin", Three),
        ("width", Three),
        ("wraps", ctypes.c_int32 * 3),
        ("boundary", ctypes.c_int32 * 2 * 3),
        ("threads", ctypes.c_int64),
        ("l2_bytes", ctypes.c_int64),
        ("l3_is_far", ctypes.c_int64),
        ("l3_bytes", ctypes.c_int64),
        ("edges", ctypes.c_void_p),
        ("every", ctypes.c_int64),
        ("section", ctypes.c_void_p),
        ("error_sums", ctypes.c_void_p),
        ("records", ctypes.c_int64),
        ("member", ctypes.c_int64),
        ("members", ctypes.c_int64),
    )


def probe_shape(topology: Topology, fixed: int = 0) -> tuple[int, ...]:
    """Return the cells per axis of the block to measure with.

    It is this process's largest block, shortened along its first axes if it has more than `PROBE_CELLS` cells. The limit is
    lower for a program with ``fixed`` arrays, which must be filled first.
    """
    shape, most = list(topology.capacity()), PROBE_CELLS // (1 + FIXED_COST * fixed)
    for axis in range(len(shape)):
        others = int(np.prod(shape)) // shape[axis]
        shape[axis] = max(min(shape[axis], 16), min(shape[axis], most // others))
    return tuple(shape)


def seconds_per_step(
    program: Program, library: ctypes.CDLL, problem: Problem, topology: Topology, threads: int
) -> float:
    """Measure the seconds that the program takes per step on a block of `probe_shape`.

    The block has the boundaries of the whole grid. The result is the minimum over calls with a growing number of steps: a call
    loads and stores the fields once, which takes as long as several steps. The first call also allocates memory, so its time
    does not count. The time step is 0, so the values do not change.
    """
    config = problem.config
    dtype, shape = np.dtype(config.numerics.precision), probe_shape(topology, program.fixed)
    names = [*program.fields, *program.errors]
    arrays = [np.ones(shape, dtype) for _ in names]
    addresses = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
    count, wraps = [1, 1, 1], [0, 0, 0]
    places = [np.zeros(1 + 2 * MARGIN) for _ in range(3)]
    caches = {"l2_bytes": cache_bytes(), "l3_is_far": int(cache_is_far()), "l3_bytes": cache_share()}
    call = Call(threads=threads, **caches, every=1, margin=Three(*[MARGIN] * 3))
    for axis, b in enumerate(AXIS_OF[topology.ndim]):
        count[b], wraps[b] = shape[axis], int(topology.periodic[axis])
        places[b] = config.grid.centres(axis, -MARGIN, shape[axis] + MARGIN, topology.periodic[axis])
        for side in (0, 1):
            call.boundary[b][side] = 1 - wraps[b]
    call.capacity, call.count, call.wraps = Three(*count), Three(*count), (ctypes.c_int32 * 3)(*wraps)
    call.fields, call.results = (ctypes.cast(addresses, Pointers) for _ in range(2))
    call.ghosts = ctypes.cast((ctypes.c_void_p * 6)(), Pointers)
    origins = (ctypes.c_void_p * 3)(*(place.ctypes.data + MARGIN * place.itemsize for place in places))
    call.coordinates = ctypes.cast(origins, Pointers)
    given = [float(np.ravel(problem.parameters[name])[0]) for name in program.parameters]
    samples = [np.asarray(problem.parameters[name]) for name in program.sampled]
    parameters, constants = np.concatenate([[*given, 0.0], *samples]), np.array([*program.constants, 0.0])
    call.parameters, call.constants = parameters.ctypes.data, constants.ctypes.data

    def seconds(steps: int) -> float:
        clock, start = np.array([0.0, 0.0, 0.0, float(steps)]), time.perf_counter()
        call.clock = clock.ctypes.data
        library.advance(ctypes.byref(call))
        return time.perf_counter() - start

    seconds(1)
    best, steps, begun = float("inf"), 1, time.perf_counter()
    while steps <= PROBE_STEPS and time.perf_counter() - begun < PROBE_SECONDS:
        best = min(best, *(seconds(steps) / steps for _ in range(2)))
        steps *= 2
    library.stored_not_finite()  # the run asks about its own values, not those of this block
    return best
