"""Threads of this process: their number, and work divided among them."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

from hpcstencil.runtime.communicator import T
from hpcstencil.runtime.launcher import local_place


def threads_for(devices: int) -> int:
    """Return the number of threads for each of ``devices`` devices of this process, at least 1.

    The cores that the process may use are divided among its devices. Unless the process is bound to a subset of cores, they
    are also divided among the processes of the host.
    """
    return max(1, int(_cores() / devices))


def crowding(devices: int) -> float:
    """Return how many times longer all ``devices`` of this process take for their work at once than one of them alone.

    It is more than 1 if together they have more threads than the process has cores.
    """
    alone, together = (max(1.0, threads_for(devices) * n / _cores()) for n in (1, devices))
    return together / alone


def _cores() -> float:
    """Return this process's share of the cores: those that it may use, divided among processes that may use the same."""
    cores = len(os.sched_getaffinity(0))
    return cores / local_place()[1] if cores == os.cpu_count() else cores  # a bound process has its cores for itself


@cache
def _helpers() -> ThreadPoolExecutor:
    """Return the pool of additional threads, created once."""
    return ThreadPoolExecutor(max(1, threads_for(1) - 1))


def by_threads(action: Callable[..., T], *arrays: np.ndarray) -> list[T]:
    """Apply ``action`` to parts of the arrays in parallel, and return the results in order.

    All arrays are split along their first axis at the same indices, into one part per core of this process, but at most one
    part per row.
    """
    count = max(1, min(threads_for(1), len(arrays[0])))
    parts = list(zip(*(np.array_split(array, count) for array in arrays), strict=True))
    helped = [_helpers().submit(action, *part) for part in parts[1:]]
    own = action(*parts[0])  # this thread has a core already; a woken one might have to wait for it
    return [own, *(thread.result() for thread in helped)]
