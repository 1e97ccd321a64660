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

Action = Callable[[int], Any]  # runs for the given number of rounds
COPY_CELLS = 2**25  # cells on each device: 128 MB, more than the caches hold
COPY_CELLS_ON_GPU = 2**28  # 1 GB, so that launch overhead is negligible
REPEATS, FEW = 10, 3  # repeats of a timing; only FEW if they take longer than LONG in total
LONG = 30.0  # seconds
SECONDS_PER_TIMING, MOST_ROUNDS = 0.1, 2**21


def timings(actions: Sequence[Action], communicator: Communicator) -> list[np.ndarray]:
    """Time each ``action(rounds)`` without compilation. Collective.

    Returns the seconds per round: one float64 array of shape (repeats, processes) per action, equal on all processes. All
    processes begin each timing together. The actions take turns, so that other load on the machine affects all of them.
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
    """Find a number of rounds that takes at least SECONDS_PER_TIMING, or MOST_ROUNDS. Compiles the action first."""
    for _ in range(2):  # compiles; pmap compiles again for its own results
        jax.block_until_ready(action(1))
    rounds = 1
    while _once(action, rounds, communicator).max() < SECONDS_PER_TIMING and rounds < MOST_ROUNDS:
        rounds *= 2
    return rounds


def _once(action: Action, rounds: int, communicator: Communicator) -> np.ndarray:
    """Return the seconds that ``rounds`` rounds take on each process, of shape (processes,)."""
    communicator.barrier()
    start = time.perf_counter()
    jax.block_until_ready(action(rounds))
    return np.array(communicator.broadcast(communicator.gather(time.perf_counter() - start)))


def slowest(times: np.ndarray) -> float:
    """Return the seconds per round of the best repeat in one array (repeats, processes) of `timings`.

    The slowest process determines the time of a repeat.
    """
    return float(times.max(axis=1).min())


def in_place(run: Callable[..., Any], held: list[Any]) -> Action:
    """Return the action that calls ``run(arrays, rounds)`` on the only item of the list ``held`` and stores the result there.

    ``run`` may overwrite its argument, so that a call allocates no memory.
    """

    def action(rounds: int) -> Any:
        held[0] = run(held[0], rounds)
        return held[0]

    return action


def copy_bandwidth(communicator: Communicator, devices: Sequence[jax.Device]) -> float:
    """Measure the copy bandwidth of all processes together, in bytes per second read plus written. Collective.

    Each process copies an array on each of its ``devices``.
    """

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
