"""Clocks: a loop timed on all processes at once, and the copy bandwidth as the yardstick."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hpcstencil.runtime.communicator import Communicator

Action = Callable[[int], Any]  # does something for so many rounds
COPY_CELLS = 2**25  # of each device: 128 MB, beyond the caches
COPY_CELLS_ON_GPU = 2**28  # 1 GB, beside which it does not count that the host starts each copy
REPEATS, FEW = 10, 3  # of a timing; the latter where all of them together take longer than
LONG = 30.0  # seconds
SECONDS_PER_TIMING, MOST_ROUNDS = 0.1, 2**21


def timings(actions: Sequence[Action], communicator: Communicator) -> list[np.ndarray]:
    """Seconds per round of each ``action(rounds)``, arrays of shape (repeats, processes), compilation apart.

    All processes begin together, and the actions take turns, so that what else the machine does meets all of them.
    """
    rounds = [_enough_rounds(action, communicator) for action in actions]
    repeats: list[list[np.ndarray]] = []
    spent = 0.0
    while len(repeats) < REPEATS and (spent < LONG or len(repeats) < FEW):
        times = [_once(action, n, communicator) for action, n in zip(actions, rounds, strict=True)]
        spent += sum(float(each.max()) for each in times)
        repeats.append([each / n for each, n in zip(times, rounds, strict=True)])
    return [np.array(each) for each in zip(*repeats, strict=True)]


def _enough_rounds(action: Action, communicator: Communicator) -> int:
    for _ in range(2):  # compiles; pmap again for what it returned itself
        jax.block_until_ready(action(1))
    rounds = 1
    while _once(action, rounds, communicator).max() < SECONDS_PER_TIMING and rounds < MOST_ROUNDS:
        rounds *= 2
    return rounds


def _once(action: Action, rounds: int, communicator: Communicator) -> np.ndarray:
    """Seconds that each process takes."""
    communicator.barrier()
    start = time.perf_counter()
    jax.block_until_ready(action(rounds))
    return np.array(communicator.allgather(time.perf_counter() - start))


def slowest(times: np.ndarray) -> float:
    """The best repeat of one of `timings`, each repeat being that of its slowest process."""
    return float(times.max(axis=1).min())


def in_place(run: Callable[..., Any], held: list[Any]) -> Action:
    """``run(arrays, rounds)`` on what is ``held``, in one item, as an action to be timed. It may use up the memory of what it
    is given, so that a call sets up nothing."""

    def action(rounds: int) -> Any:
        held[0] = run(held[0], rounds)
        return held[0]

    return action


def copy_bandwidth(communicator: Communicator, devices: Sequence[Any]) -> float:
    """Bytes per second, read plus written, that all processes together reach when each copies an array on its devices."""

    def body(x: Any, n: Any) -> Any:
        return lax.fori_loop(0, n, lambda i, a: a + jnp.float32(1), x)

    cells = COPY_CELLS_ON_GPU if devices[0].platform == "gpu" else COPY_CELLS
    if len(devices) == 1:
        array, run = jax.device_put(np.zeros(cells, np.float32), devices[0]), jax.jit(body, donate_argnums=0)
    else:
        array = np.zeros((len(devices), cells), np.float32)
        run = jax.pmap(body, in_axes=(0, None), devices=devices, donate_argnums=0)
    (times,) = timings([in_place(run, [array])], communicator)
    return 8 * cells * len(devices) * communicator.size / slowest(times)
