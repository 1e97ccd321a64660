"""Threads of this process: how many cores it has, and work divided among them."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

from hpcstencil.runtime.communicator import T
from hpcstencil.runtime.launcher import local_place


def threads_for(devices: int) -> int:
    """How many threads each of so many devices of this process may use: the cores that are left to it."""
    cores = len(os.sched_getaffinity(0))
    beside = local_place()[1] if cores == os.cpu_count() else 1  # a process that is bound has its cores for itself
    return max(1, cores // (beside * devices))


@cache
def _helpers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, threads_for(1) - 1))


def by_threads(action: Callable[..., T], *arrays: np.ndarray) -> list[T]:
    """What ``action`` returns for parts of the arrays, which are cut alike along their first axis: one for each core that is
    left to this process, and no more than there are rows."""
    count = max(1, min(threads_for(1), len(arrays[0])))
    parts = list(zip(*(np.array_split(array, count) for array in arrays), strict=True))
    helped = [_helpers().submit(action, *part) for part in parts[1:]]
    own = action(*parts[0])  # this thread has a core, which one that is woken might have to wait for
    return [own, *(thread.result() for thread in helped)]
