"""Timing of loops on all processes at once, and the copy bandwidth that serves as the reference."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hpcstencil.runtime.communicator import Communicator

Action = Callable[[int], Any]  # does something for the given number of rounds
COPY_CELLS = 2**25  # on each device: 128 MB, more than the caches hold
COPY_CELLS_ON_GPU = 2**28  # 1 GB, so that the time in which the host starts each copy does not count
REPEATS, FEW = 10, 3  # repeats of a timing; FEW if all repeats together take longer than
LONG = 30.0  # seconds
SECONDS_PER_TIMING, MOST_ROUNDS = 0.1, 2**21


def timings(actions: Sequence[Action], communicator: Communicator) -> list[np.ndarray]:
    """Seconds per round of each ``action(rounds)``, without compilation: one float64 array (repeats, processes) per
    action, the same on all processes. All processes call this together and begin each timing together. The actions take
    turns, so that other load on the machine affects all of them."""
    rounds = [_enough_rounds(action, communicator) for action in actions]
    repeats: list[list[np.ndarray]] = []
    spent = 0.0
    while len(repeats) < REPEATS and (spent < LONG or len(repeats) < FEW):
        times = [_once(action, n, communicator) for action, n in zip(actions, rounds, strict=True)]
        spent += sum(float(each.max()) for each in times)
        repeats.append([each / n for each, n in zip(times, rounds, strict=True)])
    return [np.array(each) for each in zip(*repeats, strict=True)]


def _enough_rounds(action: Action, communicator: Communicator) -> int:
    """A number of rounds that takes at least SECONDS_PER_TIMING; the first calls compile."""
    for _ in range(2):  # compiles; pmap compiles again for its own results
        jax.block_until_ready(action(1))
    rounds = 1
    while _once(action, rounds, communicator).max() < SECONDS_PER_TIMING and rounds < MOST_ROUNDS:
        rounds *= 2
    return rounds


def _once(action: Action, rounds: int, communicator: Communicator) -> np.ndarray:
    """Seconds that ``rounds`` rounds take, for each process."""
    communicator.barrier()
    start = time.perf_counter()
    jax.block_until_ready(action(rounds))
    return np.array(communicator.allgather(time.perf_counter() - start))


def slowest(times: np.ndarray) -> float:
    """Seconds per round of the best repeat in one array (repeats, processes) of `timings`. The slowest process
    determines the time of a repeat."""
    return float(times.max(axis=1).min())


def in_place(run: Callable[..., Any], held: list[Any]) -> Action:
    """The action that calls ``run(arrays, rounds)`` on the only item of the list ``held`` and stores the result there.
    ``run`` may use up the memory of its argument, so that a call allocates nothing."""

    def action(rounds: int) -> Any:
        held[0] = run(held[0], rounds)
        return held[0]

    return action


def copy_bandwidth(communicator: Communicator, devices: Sequence[jax.Device]) -> float:
    """Bytes per second, read plus written, that all processes reach together when each copies an array on each of its
    ``devices``. All processes call this together."""

    def body(x: jax.Array, n: int | jax.Array) -> jax.Array:
        return lax.fori_loop(0, n, lambda i, a: a + jnp.float32(1), x)

    cells = COPY_CELLS_ON_GPU if devices[0].platform == "gpu" else COPY_CELLS
    if len(devices) == 1:
        array, run = jax.device_put(np.zeros(cells, np.float32), devices[0]), jax.jit(body, donate_argnums=0)
    else:
        array = np.zeros((len(devices), cells), np.float32)
        run = jax.pmap(body, in_axes=(0, None), devices=devices, donate_argnums=0)
    (times,) = timings([in_place(run, [array])], communicator)
    return 8 * cells * len(devices) * communicator.size / slowest(times)
