"""The shares of a step's time that are spent on computing, on the halo exchange, and on waiting for other processes.

Four loops are timed in turns, each on all processes at once:

    T     the step loop, on its slowest process
    C_r   the same loop on process r without messages, where a block's own edge strips become its ghost cells
    E     a loop with only the exchanges of the step loop, on its slowest process
    E_r   the loop of exchanges on process r without messages, which only extracts and inserts strips

The share of the exchange is E / T. The share of waiting on process r is the time that is neither its own computing nor
messages,

    1 - (C_r + E - E_r) / T

or 0 if noise makes it negative.

Native code exchanges edges inside the passes that compute. It measures the time W_r of the step loop for which process r waits
for the edges of its neighbours, so the share of waiting is W_r / T. The share of the exchange is the smallest of these,
because every process waits at least that long.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hpcstencil.benchmark.timing import Action, in_place, slowest, timings
from hpcstencil.distributed.device_blocks import Placed
from hpcstencil.distributed.halo import Fields
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.problem.decomposition import MOST_STEPS_PER_EXCHANGE, Plan
from hpcstencil.runtime.communicator import Communicator, OneProcess
from hpcstencil.simulation.compose import compose
from hpcstencil.simulation.simulation import ComposedSimulation

Run = Callable[[Fields, int], Fields]


@dataclass(frozen=True)
class Shares:
    """The result of `shares`.

    ``step`` is the time per step in seconds, on the slowest process. ``exchange`` is the fraction of it that the exchange
    takes, and ``waiting`` the fraction for which each process waits for others.
    """

    step: float
    exchange: float
    waiting: list[float]


def shares(simulation: ComposedSimulation, dt: float, fields: Fields, communicator: Communicator) -> Shares:
    """Time the step loop of a simulation and its parts, with steps of size ``dt``. Collective.

    ``fields`` are this process's fields without ghost cells; they are overwritten. The result is equal on all processes.
    """
    plan, held = simulation.plan, [fields]
    steps = steps_of_round(plan)
    if simulation.device_grid.exchange.waited() is not None:
        return shares_by_waiting(simulation, in_place(stepping(simulation, dt, steps), held), steps)
    runs = [stepping(simulation, dt, steps)]
    if plan.topology.size * plan.topology.device_count > 1:
        runs.append(exchanging(simulation, steps))
    if plan.topology.size > 1:
        silent = without_messages(simulation)
        runs += [exchanging(silent, steps), stepping(silent, dt, steps)]
    loop, *others = timings([in_place(run, held) for run in runs], communicator)
    total, exchange = slowest(loop), slowest(others[0]) if others else 0.0
    own = [times.min(axis=0) for times in others[1:]]
    return Shares(total / steps, min(1.0, exchange / total), waiting(total, exchange, *own) if own else [0.0])


def shares_by_waiting(simulation: ComposedSimulation, action: Action, steps: int) -> Shares:
    """Compute `shares` for an exchange that measures how long a process waits for its neighbours.

    ``action`` takes rounds of ``steps`` steps.
    """
    exchange = simulation.device_grid.exchange
    for _ in range(2):
        jax.block_until_ready(action(1))  # compiles
    before, start = exchange.waited() or 0.0, time.perf_counter()
    (loop,) = timings([action], simulation.communicator)
    seconds = (exchange.waited() or 0.0) - before
    everyone = simulation.communicator.gather(seconds / (time.perf_counter() - start))
    waits = simulation.communicator.broadcast(everyone)
    assert waits is not None
    return Shares(slowest(loop) / steps, min(waits), waits)


def waiting(total: float, exchange: float, own_exchange: np.ndarray, own: np.ndarray) -> list[float]:
    """Return the share of waiting 1 - (C_r + E - E_r) / T of each process r, at least 0.

    ``total`` is T and ``exchange`` is E. ``own_exchange`` are the E_r and ``own`` the C_r, of shape (processes,). All are in
    seconds.
    """
    messages = np.maximum(0.0, exchange - own_exchange)
    return np.maximum(0.0, 1.0 - (own + messages) / total).tolist()


def without_messages(simulation: ComposedSimulation) -> ComposedSimulation:
    """Return the simulation of this process's part without messages: its own edge strips become its ghost cells.

    Its results are wrong, but the work is the same.
    """
    alone, devices = OneProcess(simulation.communicator.rank), simulation.device_grid.devices.devices
    return compose(simulation.prepared, alone, devices)


def steps_of_round(plan: Plan) -> int:
    """Return the number of steps that are timed together.

    It is a multiple of the interval between exchanges, and large enough for the longest sweeps of native code.
    """
    every = plan.steps_per_exchange or 1
    return every * math.ceil(MOST_STEPS_PER_EXCHANGE / every)


def stepping(simulation: ComposedSimulation, dt: float, steps: int) -> Run:
    """Return a function (fields, rounds) -> fields that takes rounds of ``steps`` time steps of size ``dt`` from t = 0."""
    one = simulation.per_member
    return lambda fields, n: simulation.advance(fields, StepRange(one(0.0), one(0), one(dt), one(n * steps)))


def exchanging(simulation: ComposedSimulation, steps: int) -> Run:
    """Return a function (fields, rounds) -> fields that performs only the halo exchanges of ``steps`` steps per round."""
    device_grid, plan = simulation.device_grid, simulation.plan
    widths = device_grid.widths_of(plan.reach)
    times = steps // plan.steps_per_exchange if plan.steps_per_exchange else steps * plan.stages

    if not device_grid.exchange.fused:
        exchange = device_grid.outside(widths)

        def outside(fields: Fields, rounds: int) -> Fields:
            for _ in range(rounds * times):
                jax.block_until_ready(exchange(fields))
            return fields

        return outside

    def received(u: Fields, places: Placed, n: int | jax.Array) -> Any:
        frame = device_grid.frame(places)

        def body(i: jax.Array, total: jax.Array) -> jax.Array:
            fields, total = lax.optimization_barrier((u, total))  # strips are extracted again in every round
            ghosts = device_grid.received(fields, widths, frame).values()
            return total + sum(jnp.ravel(strip)[0] for strips in ghosts for strip in strips if strip is not None)

        return lax.fori_loop(0, n, body, simulation.dtype.type(0))

    def surrounded(u: Fields, places: Placed, n: int | jax.Array) -> Any:
        frame = device_grid.frame(places)

        def body(i: jax.Array, u: Fields) -> Fields:
            return device_grid.cropped(device_grid.surrounded(u, widths, frame))

        return lax.fori_loop(0, n, body, u)

    if not simulation.prepared.lowered.ghosts_apart:
        surround = device_grid.compiled(surrounded, 1, donated=(0,))
        return lambda fields, rounds: surround(fields, device_grid.places, rounds * times)
    receive = device_grid.compiled(received, 1)

    def inside(fields: Fields, rounds: int) -> Fields:
        jax.block_until_ready(receive(fields, device_grid.places, rounds * times))
        return fields

    return inside
