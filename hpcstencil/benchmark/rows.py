"""The rows of the table: which problems are measured on how many processes, and what is told of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from hpcstencil.benchmark.shares import shares
from hpcstencil.benchmark.timing import copy_bandwidth
from hpcstencil.config.paths import sources
from hpcstencil.config.settings import Config
from hpcstencil.numerics.grid import Grid
from hpcstencil.problem.build import build
from hpcstencil.problem.problem import Problem
from hpcstencil.runtime.communicator import Communicator, on_first
from hpcstencil.runtime.progress import say
from hpcstencil.simulation.compose import simulate
from hpcstencil.simulation.decomposition import Plan, for_kernel, plan
from hpcstencil.simulation.kernel_choice import kernel_for
from hpcstencil.simulation.measurement_cache import key, remember
from hpcstencil.validation.errors import InputError

T = TypeVar("T")
Row = dict[str, Any]
TINY_STEP = 1e-9  # of the end time, where a tolerance governs the steps: short enough to be stable


@dataclass(frozen=True)
class Case:
    """What a row measures: a problem on its plan's processes. ``scaling`` is "strong" or "weak", None for a row by itself."""

    problem: Problem
    plan: Plan
    scaling: str | None = None

    @property
    def processes(self) -> int:
        return self.plan.topology.size


# ---- which rows ------------------------------------------------------------------------------------------------------


def counts(processes: int) -> list[int]:
    """1, 2, 4, ... and ``processes``."""
    return [*(2**k for k in range((processes - 1).bit_length())), processes]


def grown(config: Config, times: int) -> Config:
    """The input on a grid of so many times as many cells of the same size, longer along the first axis.

    Raises InputError where the input reads a file, which is made for its own grid.
    """
    for name in sources(config):
        raise InputError(f"{name} is a file made for the input's own grid")
    grid = config.grid
    longer = grid.lower[0] + times * (grid.upper[0] - grid.lower[0])
    shape, upper = (times * grid.shape[0], *grid.shape[1:]), (longer, *grid.upper[1:])
    return replace(config, grid=Grid(shape, grid.lower, upper))


def scaling_cases(problem: Problem, processes: int, devices: int) -> list[Case]:
    """Strong scaling, the same grid on 1, 2, 4 ... processes, and weak scaling, a grid that grows with them; where it cannot
    grow, that is said.

    Raises InputError where the input's grid cannot be cut so.
    """

    def case(scaling: str, count: int) -> Case:
        config = problem.config
        if count < processes:  # the blocks that the input may ask for are too many
            config = replace(config, decomposition=replace(config.decomposition, processes="auto"))
        alike = scaling == "strong" or count == 1
        given = replace(problem, config=config) if alike else build(grown(config, count))
        return Case(given, plan(given, count, devices), scaling)

    cases = [case("strong", count) for count in counts(processes)]
    try:
        return cases + [case("weak", count) for count in counts(processes)]
    except InputError as refusal:
        say(f"no rows of weak scaling, where the grid grows with the processes: {refusal}")
        return cases


# ---- measuring them --------------------------------------------------------------------------------------------------


def measure(cases: Sequence[Case], communicator: Communicator, devices: Sequence[Any]) -> tuple[float, list[Row]]:
    """(bytes per second that all processes together copy, a row per case), the same on all processes.

    A case of fewer processes is measured by the first ones, on a communicator of their own, while the others sleep. The
    efficiency is the speed over that of one process, of the same kind of scaling, and over the number of processes; ``roof``
    is what the row's processes copy per second where they are alone.
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
            remember(key(case.problem, f"speed:{communicator.size}"), row["cells_per_second"])
    return bandwidth, rows


def _measured(case: Case, devices: Sequence[Any], communicator: Communicator) -> Row:
    """What a case is, and its step loop in numbers."""
    problem, config = case.problem, case.problem.config
    start = time.perf_counter()
    kernel = kernel_for(problem, devices, communicator, case.plan.lowered).kernel
    chosen = for_kernel(case.plan, problem, kernel, communicator)
    # Whatever governs the steps, the loop is measured that takes them.
    simulation = replace(simulate(problem, chosen, communicator, devices, kernel), control=None)
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
        "processes": list(chosen.topology.processes),
        "devices": list(chosen.topology.devices),
        "kernel": kernel,
        "exchange": simulation.exchange,
        "steps_per_exchange": chosen.every or "stage",
        "stages": chosen.stages,
        "cells_per_second": speed,
        "t_eff": speed * 2 * len(problem.fields) * simulation.dtype.itemsize,
        "exchange_fraction": found.exchange,
        "waiting_fraction": found.waiting,
        "compile_seconds": made - start + compiled - begun,
    }


def _step(problem: Problem) -> float:
    """The input's time step, or one of its kind."""
    time_ = problem.config.time
    if time_.dt is not None:
        return time_.dt
    return TINY_STEP * time_.end if time_.tolerance else problem.dt(dict.fromkeys(problem.measured, 1.0))
