"""Measurement, at the start of a run, of the costs by which the number of steps between two exchanges is chosen.

Messages between neighbours are timed at every start, the work of the backend once per machine. Costs affect the speed of a
run, never its results.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from hpcstencil.backends.backend import Lowered
from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.decomposition import Costs
from hpcstencil.problem.problem import Problem
from hpcstencil.runtime.communicator import Communicator, from_rank_0
from hpcstencil.runtime.hosts import boot, host
from hpcstencil.runtime.threads import threads_for
from hpcstencil.simulation.measurement_cache import key, recall, remember

SHORT, LONG = 8, 2**18  # bytes of a message
ROUNDS = 4  # exchanges of each size; the first one is not timed, because it also connects the processes


@dataclass(frozen=True)
class ByStepping:
    """A measurement of the work of a backend that takes whole steps: what is measured, and a function that does it.

    ``what`` names the kernel and the kind of device, ``seconds_per_work`` is the function.
    """

    what: str
    seconds_per_work: Callable[[], float]


def measured_costs(
    lowered: Lowered,
    problem: Problem,
    topology: Topology,
    communicator: Communicator,
    by_stepping: ByStepping | None = None,
) -> Costs:
    """Measure the costs of exchange and computing for the blocks of ``topology``. Collective.

    The work is measured ``by_stepping`` if that is given, otherwise by the backend itself. The result is equal on all
    processes.
    """
    topology = replace(topology, rank=communicator.rank)
    latency, bytes_per_second = 0.0, float("inf")
    if communicator.size > 1 and sends_messages(problem, communicator):
        latency, bytes_per_second = message_costs(topology, communicator)
    return Costs(latency, bytes_per_second, work_cost(lowered, problem, topology, communicator, by_stepping))


def sends_messages(problem: Problem, communicator: Communicator) -> bool:
    """Return whether processes may exchange halos by messages instead of shared memory. Collective."""
    several_hosts = len(communicator.alike(f"{host()} {boot()}")) < communicator.size
    return several_hosts or problem.config.decomposition.exchange != "auto"


def work_cost(
    lowered: Lowered,
    problem: Problem,
    topology: Topology,
    communicator: Communicator,
    by_stepping: ByStepping | None,
) -> float | None:
    """Return the seconds per unit of work on the slowest process. Collective.

    The value is recalled from rank 0's cache, or measured on all processes at once, as in a run. It is None if the backend
    has no cost model.
    """
    devices = topology.device_count
    what = f"seconds per work:{threads_for(devices)}:{devices * communicator.size}:{'x'.join(map(str, topology.capacity()))}"
    name = key(problem, what if by_stepping is None else f"{what}:{by_stepping.what}")
    known = from_rank_0(communicator, lambda: recall(name))
    if isinstance(known, float) and known > 0.0:
        return known
    communicator.barrier()
    measure = partial(lowered.seconds_per_work, topology) if by_stepping is None else by_stepping.seconds_per_work
    own = measure()
    slowest = float(communicator.maximum(np.array([np.inf if own is None else own]))[0])
    if slowest == np.inf:  # some process has none
        return None
    if communicator.rank == 0:
        remember(name, slowest)
    return slowest


def message_costs(topology: Topology, communicator: Communicator) -> tuple[float, float]:
    """Measure (latency in seconds, bandwidth in bytes per second) of messages on the slowest process. Collective.

    All processes send to all their neighbours at once, as in an exchange. The bandwidth counts bytes sent and received.
    """
    cut = [axis for axis, parts in enumerate(topology.processes) if parts > 1]
    ranks = [topology.neighbour(axis, direction) for axis in cut for direction in (-1, 1)]
    pairs = [(n, rank) for n, rank in enumerate(ranks) if rank is not None]
    short = exchange_seconds(SHORT, pairs, communicator)
    long = exchange_seconds(LONG, pairs, communicator)
    short, long, most = (float(x) for x in communicator.maximum(np.array([short, long, len(pairs)])))
    return short, 2 * LONG * most / max(long - short, 1e-9)


def exchange_seconds(size: int, pairs: list[tuple[int, int]], communicator: Communicator) -> float:
    """Time exchanges of messages of ``size`` bytes with neighbours, and return the seconds of the fastest. Collective.

    ``pairs`` are (direction, rank) of the neighbours. A message sent in direction n arrives from direction n ^ 1.
    """
    mpi: Any = communicator.mpi
    sent, received = np.zeros(size, np.uint8), np.empty((len(pairs), size), np.uint8)
    best = float("inf")
    for round_ in range(ROUNDS):
        mpi.Barrier()
        start = time.perf_counter()
        requests = [mpi.Irecv(received[m], rank, n) for m, (n, rank) in enumerate(pairs)]
        requests += [mpi.Isend(sent, rank, n ^ 1) for n, rank in pairs]
        for request in requests:
            request.Wait()
        if round_:
            best = min(best, time.perf_counter() - start)
    return best
