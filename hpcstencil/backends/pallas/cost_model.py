"""Estimates of the time of a step of GPU kernels, without JAX. docs/scaling.md derives the formulas and names the sources.

An evaluation of the right-hand side after an exchange is two launches: one computes the cells that read no strip while messages
travel, one computes the others. If the latter cannot store the strips that are sent next, one launch cuts them. Further
evaluations before the next exchange are one launch each, on a region that shrinks towards the block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hpcstencil.backends.pallas.neighbours import reads_corners, stores_strips
from hpcstencil.backends.pallas.passes import passes
from hpcstencil.numerics.topology import Topology
from hpcstencil.problem.decomposition import MOST_STEPS_PER_EXCHANGE, Costs, Plan, exchanges, most_steps
from hpcstencil.problem.problem import Problem

# Figures of an H100, measured, published or estimated: docs/scaling.md says which. A run on GPUs measures the time of a cell.
MEMORY = 2.8e12  # bytes/s read plus written by the kernels
KERNEL = 1.2e-6  # seconds that a launch adds to the time of its cells
ROUND = 1.7e-5  # seconds between two rounds of the loop over steps, in which the host learns whether another follows
SYNCHRONIZE = 7e-6  # seconds until the host knows that the GPU is done
COLLECTIVE = 2e-5  # latency of a collective permute, in seconds
MPI = 3e-6  # latency of an MPI message between GPUs, in seconds
NVLINK, NETWORK = 2 * 450e9, 2 * 50e9  # bytes/s of a GPU, sent plus received: within a node, and between nodes
KERNELS_PER_ROUND = 32  # in each round of the loop, if a step has fewer; see `time_loop.repeated`
LINE = 64  # bytes that are read from memory at once
CUTTING = 1.7e12  # bytes/s read plus written by the kernel that cuts strips
SECTOR = 8  # the interior begins at a multiple of this many cells along the last axis
ROWS = 3.4  # time of a cell in a row, which takes more instructions, in times of a cell in a box
STORING = 6e11  # bytes/s at which rows store strips, besides the time of their cells


@dataclass(frozen=True)
class Links:
    """The links over which the busiest GPU exchanges strips.

    Attributes
    ----------
    latency
        Seconds of an exchange of no data with a neighbour.
    bytes_per_second
        Bandwidth, sent plus received.
    collective
        Whether messages travel while kernels compute, as between the devices of a process. For those of mpi4jax the GPU
        waits.
    """

    latency: float
    bytes_per_second: float
    collective: bool


BETWEEN_DEVICES = Links(COLLECTIVE, NVLINK, collective=True)


@dataclass(frozen=True)
class Work:
    """The work of an evaluation of the right-hand side.

    Attributes
    ----------
    per_cell
        Seconds of a cell in a box.
    fields, itemsize
        The number of fields that are exchanged, and the bytes of a value.
    inner
        The number of kernels before the one that evaluates the right-hand sides, each for operands of derivatives.
    corners
        Whether one evaluation reads corners of the halo.
    stores
        Whether the kernels that read strips store those to be sent before the next evaluation; see `stores_strips`.
    """

    per_cell: float
    fields: int
    itemsize: int
    inner: int
    corners: bool
    stores: bool

    @classmethod
    def of(cls, problem: Problem, per_cell: float | None) -> Work:
        """The work of a problem; ``per_cell`` is None if it is not measured, and then follows from the arrays moved."""
        fields, itemsize = len(problem.fields), np.dtype(problem.config.numerics.precision).itemsize
        inner = len(passes(problem.trees).inner)
        if per_cell is None:
            per_cell = arrays_moved(problem) * itemsize / MEMORY / problem.method.evaluations
        corners = reads_corners(problem.right_hand_sides(), problem)
        return cls(per_cell, fields, itemsize, inner, corners, not corners and stores_strips(problem))


def arrays_moved(problem: Problem) -> int:
    """Return the number of arrays that a step reads or writes, if each stage reads each of its arrays once.

    A stage reads the values and the slopes of earlier stages that it combines, and those of which it evaluates slopes. It
    writes its own values, and the slopes that later stages use.
    """
    method = problem.method
    kept: set[int] = set()
    moved = 0
    for i, stage in enumerate(method.stages, start=1):
        used, later = {j for j, _ in stage.slopes}, {j for other in method.stages[i:] for j, _ in other.slopes}
        fresh = used - kept
        kept |= fresh & later
        moved += len({j for j, _ in stage.values} | fresh) + len(used - fresh) + 1 + len(fresh & later)
        moved += 2 * bool(stage.remembered)
    return moved * len(problem.trees) * (1 + len(passes(problem.trees).inner))


def parts(plan: Plan, work: Work, links: Links) -> dict[str, float]:
    """Return the seconds per step of the busiest GPU, by activity; see docs/scaling.md.

    Each step has ``plan.exchanges_per_step`` exchanges, each of them followed by ``plan.rounds`` evaluations.
    """
    cells, last = plan.topology.capacity(), len(plan.radius) - 1
    cut = [axis for axis, width in enumerate(plan.halo) if width]
    own, per_cell = math.prod(cells), work.per_cell

    def region(width: int) -> int:
        return math.prod(n + 2 * width * plan.radius[a] * (a in cut) for a, n in enumerate(cells))

    def depth(axis: int) -> int:
        unit = SECTOR if axis == last else 1
        return -(-plan.radius[axis] // unit) * unit

    evaluated = [region(plan.rounds - j) for j in range(1, plan.rounds + 1)]
    interior = math.prod(max(0, n - 2 * depth(a) * (a in cut)) for a, n in enumerate(cells))
    stores = work.stores and plan.rounds == 1
    edges = ROWS * per_cell * (evaluated[0] - interior) if cut else 0.0
    boxes = per_cell * (interior if cut else evaluated[0])
    launches = (boxes > 0) + (edges > 0) + plan.rounds - 1 + plan.rounds * work.inner

    strips, making, waits = 0.0, 0.0, 0  # bytes sent plus received; seconds; latencies one after the other
    if cut:
        corners = work.corners or plan.rounds > 1
        width = list(cells)
        for axis in cut:
            h = plan.halo[axis]
            strip = 2 * h * math.prod(width) / width[axis] * work.fields * work.itemsize
            read = max(1.0, LINE / (h * work.itemsize)) if axis == last else 1.0
            strips, making = strips + 2 * strip, making + (strip / STORING if stores else strip * (read + 1) / CUTTING)
            width[axis] += 2 * h * corners
        launches += 0 if stores else 2 * len(cut) if corners else 1
        waits = 2 * len(cut)
    exchange = waits * links.latency + strips / links.bytes_per_second
    hidden = min(exchange, KERNEL + boxes if boxes else 0.0) if links.collective else 0.0
    per_exchange = {
        "own cells": per_cell * own * plan.rounds,
        "cells computed twice": per_cell * sum(n - own for n in evaluated),
        "edges in rows": edges - per_cell * (evaluated[0] - interior) if cut else 0.0,
        "making strips": making,
        "starting kernels": KERNEL * launches,
        "waiting for messages": exchange - hidden,
    }
    per_step = {what: seconds * plan.exchanges_per_step for what, seconds in per_exchange.items()}
    per_step["starting kernels"] += ROUND / steps_per_round(plan.stages)
    return per_step


def steps_per_round(evaluations: int) -> int:
    """Return the number of steps in each round of the loop on a GPU, for a step of several ``evaluations``."""
    return max(1, KERNELS_PER_ROUND // evaluations)


def steps_between_exchanges(problem: Problem, topology: Topology, least: int, costs: Costs) -> tuple[int, float | None]:
    """Return (cheapest number of steps between two exchanges, predicted seconds per step).

    It is 0 for an exchange before each evaluation of the right-hand side, and at least ``least`` if the blocks have room for
    the halo of ``least`` steps. The prediction is None if ``costs`` are not measured.
    """
    work, most = Work.of(problem, costs.seconds_per_work), most_steps(problem, topology)
    if problem.step_follows_solution:
        most = min(most, problem.config.time.dt_every)
    counts = range(min(least, most), min(most, MOST_STEPS_PER_EXCHANGE) + 1) if exchanges(problem, topology) else (1,)
    links = links_of(topology, costs)
    seconds = {every: sum(parts(Plan.of(problem, topology, every), work, links).values()) for every in counts}
    best = min(seconds, key=lambda every: (seconds[every], every))
    return best, None if costs.seconds_per_work is None else seconds[best]


def links_of(topology: Topology, costs: Costs) -> Links:
    """Return the links of a run: those between the devices of a process, or those of mpi4jax between processes.

    The latter have the measured ``costs``, or published ones if nothing was measured.
    """
    if topology.size == 1:
        return BETWEEN_DEVICES
    return Links(SYNCHRONIZE + (costs.latency or MPI), min(NETWORK, costs.bytes_per_second), collective=False)
