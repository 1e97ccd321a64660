"""The rows of the benchmark table: the problems, the numbers of processes, and the measured figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import jax

from hpcstencil.benchmark.shares import shares
from hpcstencil.benchmark.timing import copy_bandwidth
from hpcstencil.config.paths import sources
from hpcstencil.config.settings import Config
from hpcstencil.numerics.grid import Grid
from hpcstencil.problem.build import build
from hpcstencil.problem.problem import Problem
from hpcstencil.problem.stability import cfl_step
from hpcstencil.runtime.communicator import Communicator, on_first
from hpcstencil.runtime.progress import say
from hpcstencil.simulation.backend_choice import prepare
from hpcstencil.simulation.compose import compose
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.simulation.step_speed import remember_step_speed
from hpcstencil.validation.errors import InputError

T = TypeVar("T")
Row = dict[str, Any]
TINY_STEP = 1e-9  # step size for inputs with a tolerance, as a fraction of the end time; short enough to be stable


@dataclass(frozen=True)
class Case:
    """One row of the table: a problem decomposed over a number of processes.

    ``scaling`` is "strong" or "weak", or None if the row is not part of a scaling series.
    """

    decomposed: Decomposed
    scaling: str | None = None

    @property
    def problem(self) -> Problem:
        """The problem that is measured."""
        return self.decomposed.problem

    @property
    def processes(self) -> int:
        """The number of processes."""
        return self.decomposed.topology.size


# ---- which rows ------------------------------------------------------------------------------------------------------


def counts(processes: int) -> list[int]:
    """Return the numbers of processes in a scaling series: the powers of 2 below ``processes``, and ``processes``."""
    return [*(2**k for k in range((processes - 1).bit_length())), processes]


def grown(config: Config, times: int) -> Config:
    """Return the input on a grid with ``times`` as many cells of the same size, extended along the first axis.

    Raises InputError if the input reads a file, because its contents fit only the original grid.
    """
    for name in sources(config):
        raise InputError(f"{name} is a file made for the input's own grid")
    grid = config.grid
    longer = grid.lower[0] + times * (grid.upper[0] - grid.lower[0])
    shape, upper = (times * grid.shape[0], *grid.shape[1:]), (longer, *grid.upper[1:])
    return replace(config, grid=Grid(shape, grid.lower, upper))


def scaling_cases(problem: Problem, processes: int, devices: int) -> list[Case]:
    """Return the cases of strong and weak scaling on 1, 2, 4, ... processes with ``devices`` devices each.

    Strong scaling uses the input's grid, weak scaling a grid that grows with the number of processes. If the grid cannot
    grow, a message says so and weak scaling is omitted. Raises InputError if the input's grid cannot be decomposed over one
    of these numbers of processes.
    """

    def case(scaling: str, count: int) -> Case:
        config = problem.config
        if count < processes:  # the input may ask for more blocks than processes
            config = replace(config, decomposition=replace(config.decomposition, processes="auto"))
        alike = scaling == "strong" or count == 1
        given = replace(problem, config=config) if alike else build(grown(config, count))
        return Case(Decomposed.of(given, count, devices), scaling)

    cases = [case("strong", count) for count in counts(processes)]
    try:
        return cases + [case("weak", count) for count in counts(processes)]
    except InputError as refusal:
        say(f"no rows of weak scaling, where the grid grows with the processes: {refusal}")
        return cases


# ---- measuring them --------------------------------------------------------------------------------------------------


def measure(
    cases: Sequence[Case], communicator: Communicator, devices: Sequence[jax.Device]
) -> tuple[float, list[Row]]:
    """Measure all cases; return (copy bandwidth of all processes in bytes per second, one row per case). Collective.

    A case with fewer processes is measured by the first ones, on a separate communicator, while the others sleep. The
    ``efficiency`` of a row is its speed divided by the number of processes and by the speed of the first row of the same kind
    of scaling, which has one process. ``roof`` is the copy bandwidth, in bytes per second, of the row's processes alone.
    """

    def by_first(count: int, action: Callable[[Communicator], T]) -> T:
        return communicator.broadcast(on_first(communicator, count, action))  # type: ignore[return-value]  # rank 0's

    sizes = sorted({case.processes for case in cases})
    roofs = {count: by_first(count, partial(copy_bandwidth, devices=devices)) for count in sizes}
    bandwidth = roofs[communicator.size]
    measured: dict[tuple[int, Grid], Row] = {}
    rows: list[Row] = []
    for case in cases:
        same = case.processes, case.problem.config.grid
        if same not in measured:
            measured[same] = by_first(case.processes, partial(_measured, case, devices))
            communicator.watch.step(len(measured))
        row = measured[same]
        alone = next((other for other in rows if other["scaling"] == case.scaling), row)
        faster = row["cells_per_second"] / alone["cells_per_second"]
        rows.append({
            **row,
            "ratio": row["t_eff"] / bandwidth,
            "ratio_stages": row["t_eff"] / bandwidth * row["stages"],
            "scaling": case.scaling,
            "efficiency": faster / case.processes if case.scaling else None,
            "roof": roofs[case.processes],
        })  # fmt: skip
        if communicator.rank == 0 and case.processes == communicator.size and case.scaling != "weak":
            remember_step_speed(case.problem, row["kernel"], case.decomposed.topology, row["cells_per_second"])
    return bandwidth, rows


def _measured(case: Case, devices: Sequence[jax.Device], communicator: Communicator) -> Row:
    """Measure the step loop of a case, and return its settings and figures."""
    problem, config = case.problem, case.problem.config
    start = time.perf_counter()
    prepared = prepare(case.decomposed, devices, communicator)
    plan = prepared.plan
    # The loop that takes the steps is measured, without the control of adaptive steps.
    simulation = replace(compose(prepared, communicator, devices), control=None)
    made = time.perf_counter()
    fields = simulation.initial_fields()
    begun = time.perf_counter()
    fields = simulation.compile(fields)
    compiled = time.perf_counter()
    found = shares(simulation, _step(problem), fields, communicator)
    speed = problem.cells / found.step
    return {
        "equation": config.equation.name,
        "order": config.numerics.order,
        "precision": config.numerics.precision,
        "grid": list(config.grid.shape),
        "processes": list(plan.topology.processes),
        "devices": list(plan.topology.devices),
        "kernel": prepared.kernel,
        "exchange": simulation.exchange,
        "steps_per_exchange": plan.steps_per_exchange or "stage",
        "stages": plan.stages,
        "cells_per_second": speed,
        "t_eff": speed * 2 * len(problem.fields) * simulation.dtype.itemsize,
        "exchange_fraction": found.exchange,
        "waiting_fraction": found.waiting,
        "compile_seconds": made - start + compiled - begun,
    }


def _step(problem: Problem) -> float:
    """Return the step size with which the loop is timed: that of the input, or a stable one if the input gives none."""
    time_ = problem.config.time
    if time_.dt is not None:
        return time_.dt
    return TINY_STEP * time_.end if time_.tolerance else cfl_step(problem, dict.fromkeys(problem.measured, 1.0))
