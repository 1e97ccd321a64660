"""Where the time of a step goes: each process's own computing, the halo exchange, and waiting for the others.

With the seconds of
    T     the step loop, on its slowest process,
    C_r   the same loop on process r with all messages left out (it gets its own edge strips back as ghost cells),
    E     as many exchanges, in a loop of nothing else, on its slowest process,
    E_r   that loop on process r with all messages left out, so cutting and placing strips,
each timed on all processes at once and in turns, the exchange has the share E / T, and process r waits for the share
    1 - (C_r + E - E_r) / T,
what is neither its own computing nor the messages. Noise may make that negative; it is 0 then.

Edges in shared memory are put there by the passes that compute, and taken from there: there are no messages. Native code
counts the seconds W_r that process r waits for its neighbours' edges in those of the loop; W_r / T is its share of waiting, and
the least of them, which even the last process has to wait for, that of the exchange.
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

from hpcstencil.backends.native.ffi_call import NATIVE
from hpcstencil.backends.native.shared_memory import SharedEdges
from hpcstencil.benchmark.timing import Action, in_place, slowest, timings
from hpcstencil.distributed.halo import Fields
from hpcstencil.runtime.communicator import Communicator, OneProcess
from hpcstencil.simulation.compose import simulate
from hpcstencil.simulation.decomposition import MOST_STEPS, Plan
from hpcstencil.simulation.simulation import Simulation

Run = Callable[[Fields, int], Fields]


@dataclass(frozen=True)
class Shares:
    """Seconds per step; the share of the exchange by itself in them, and of waiting per process."""

    step: float
    exchange: float
    waiting: list[float]


def shares(simulation: Simulation, dt: float, fields: Fields, communicator: Communicator) -> Shares:
    """Time the step loop of a simulation and what it is made of; the fields are used up. All processes take part."""
    plan, held = simulation.plan, [fields]
    steps = steps_of_round(plan)
    if simulation.shared_edges is not None:
        return shares_of_shared_edges(
            simulation, simulation.shared_edges, in_place(stepping(simulation, dt, steps), held), steps
        )
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


def shares_of_shared_edges(simulation: Simulation, shared_edges: SharedEdges, action: Action, steps: int) -> Shares:
    """As `shares`, where edges go through shared memory."""
    for _ in range(2):
        jax.block_until_ready(action(1))  # compiles
    before, start = shared_edges.waited, time.perf_counter()
    (loop,) = timings([action], simulation.communicator)
    waits = simulation.communicator.allgather((shared_edges.waited - before) / (time.perf_counter() - start))
    return Shares(slowest(loop) / steps, min(waits), waits)


def waiting(total: float, exchange: float, own_exchange: np.ndarray, own: np.ndarray) -> list[float]:
    """1 - (C_r + E - E_r) / T per process, at least 0, of T, E, all E_r and all C_r."""
    messages = np.maximum(0.0, exchange - own_exchange)
    return np.maximum(0.0, 1.0 - (own + messages) / total).tolist()


def without_messages(simulation: Simulation) -> Simulation:
    """The simulation on this process, which gets its own edge strips back in place of the others'."""
    alone, devices = OneProcess(simulation.communicator.rank), simulation.machine.devices.devices
    return simulate(simulation.problem, simulation.plan, alone, devices, simulation.kernel)


def steps_of_round(plan: Plan) -> int:
    """Steps that are timed as one: so many as fill whole intervals between exchanges, and the passes of native code."""
    every = plan.every or 1
    return every * math.ceil(MOST_STEPS / every)


def stepping(simulation: Simulation, dt: float, steps: int) -> Run:
    """Rounds of so many time steps, each from t = 0."""
    parameters, one = simulation.problem.parameters, simulation.per_member
    return lambda fields, n: simulation.advance(fields, parameters, one(0.0), one(0), one(dt), one(n * steps))


def exchanging(simulation: Simulation, steps: int) -> Run:
    """Rounds of the halo exchanges of so many steps, and nothing else."""
    machine, plan = simulation.machine, simulation.plan
    widths = machine.widths(plan.rounds)
    times = steps // plan.every if plan.every else steps * plan.stages

    if machine.leaves_compiled_code:
        exchange = machine.outer_exchange(widths)

        def outside(fields: Fields, rounds: int) -> Fields:
            for _ in range(rounds * times):
                jax.block_until_ready(exchange(fields))
            return fields

        return outside

    def received(u: Any, places: Any, n: Any) -> Any:
        frame = machine.frame(places)

        def body(i: Any, total: Any) -> Any:
            fields, total = lax.optimization_barrier((u, total))  # strips are cut anew in every round
            ghosts = machine.received(fields, widths, frame, {}).values()
            return total + sum(jnp.ravel(strip)[0] for strips in ghosts for strip in strips if strip is not None)

        return lax.fori_loop(0, n, body, simulation.dtype.type(0))

    def surrounded(u: Any, places: Any, n: Any) -> Any:
        frame = machine.frame(places)

        def body(i: Any, u: Any) -> Any:
            return machine.cropped(machine.surrounded(u, widths, frame, {}))

        return lax.fori_loop(0, n, body, u)

    if simulation.kernel != NATIVE:
        surround = machine.compiled(surrounded, 1, donate=True)
        return lambda fields, rounds: surround(fields, machine.places, rounds * times)
    receive = machine.compiled(received, 1)  # native code takes ghost cells as they come

    def inside(fields: Fields, rounds: int) -> Fields:
        jax.block_until_ready(receive(fields, machine.places, rounds * times))
        return fields

    return inside
