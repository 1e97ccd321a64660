"""The choice of the decomposition: blocks per process and device, and the number of steps between two exchanges."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from hpcstencil.config.settings import Decomposition as Wishes
from hpcstencil.numerics.grid import AXES
from hpcstencil.numerics.topology import Topology, best_parts, counts_that_work
from hpcstencil.problem.problem import Problem
from hpcstencil.runtime.communicator import Communicator, from_rank_0
from hpcstencil.validation.errors import InputError

# The cost model behind steps_per_exchange = "auto": seconds per exchange, and per cell and stage. They only weigh the
# price of a message against that of computing halo cells twice, so their order of magnitude is what matters.
EXCHANGE_IN_LOOP = 5e-5
EXCHANGE_BETWEEN_CALLS = 1e-3
SECONDS_PER_CELL = 1e-9
NATIVE_SECONDS_PER_CELL = 1.5e-10  # of a pass
MUCH_THE_SAME = 1.005  # times the least cost: within it the thinner halo is chosen
MOST_STEPS = 16
MOST_TRIED, MOST_NAMED = 4096, 16  # process counts that are tried, and named in the error, if the given one does not work


@dataclass(frozen=True)
class Plan:
    """A decomposition: the topology as rank 0 sees it, and ``every`` steps between two exchanges (0: an exchange per
    stage)."""

    topology: Topology
    every: int
    radius: tuple[int, ...]
    stages: int
    lowered: bool = False  # whether blocks are too thin for a whole step between two exchanges

    @property
    def rounds(self) -> int:
        """Evaluations of the right-hand side between two exchanges."""
        return self.every * self.stages or 1

    @property
    def exchanges_per_step(self) -> float:
        """Exchanges per step; less than 1 if several steps are taken between two."""
        return 1 / self.every if self.every else self.stages

    @property
    def halo(self) -> tuple[int, ...]:
        """Ghost cells per axis of one exchange, 0 on axes that are not cut."""
        return tuple(self.rounds * r if self.topology.is_split(a) else 0 for a, r in enumerate(self.radius))

    def halo_bytes_per_step(self, fields: int, itemsize: int) -> float:
        """Bytes that the busiest process sends and receives per step, averaged over the steps of one exchange."""
        block = [stop - start for start, stop in self.topology.block(0)]
        cells, width = 0, list(block)
        for axis, h in enumerate(self.halo):
            if self.topology.processes[axis] > 1:
                cells += 2 * h * math.prod(width) // width[axis]
                width[axis] += 2 * h
        return 2 * cells * fields * itemsize * self.exchanges_per_step

    def topology_of(self, rank: int) -> Topology:
        """The topology as process ``rank`` sees it."""
        return replace(self.topology, rank=rank)

    def describe(self) -> dict[str, Any]:
        """The decomposition for the output file and the terminal."""
        return {
            "processes": list(self.topology.processes),
            "devices": list(self.topology.devices),
            "tiles": list(self.topology.tiles),
            "steps_per_exchange": self.every or "stage",
            "halo": list(self.halo),
        }


def for_kernel(before: Plan, problem: Problem, kernel: str, communicator: Communicator) -> Plan:
    """The plan with the number of steps between two exchanges that suits the kernel, the same on all processes. Raises
    Unsupported if native code is requested and cannot be generated."""
    topology = before.topology
    given = problem.config.decomposition.steps_per_exchange
    if kernel not in ("native", "pallas") or not isinstance(given, str) or not any(before.halo):
        return before
    if kernel == "pallas":
        wishes = problem.config.decomposition
        return replace(before, every=_every(wishes, topology, before.radius, problem, whole=True)[0])
    return replace(before, every=from_rank_0(communicator, lambda: _native_every(problem, topology, before.radius)))


def plan(problem: Problem, processes: int, devices: int) -> Plan:
    """The decomposition for ``processes`` processes of ``devices`` devices each, as the input requests or else the best
    one.

    Raises InputError if the input's own counts do not fit, or blocks would be thinner than the stencil's radius.
    """
    grid, wishes, radius = problem.config.grid, problem.config.decomposition, problem.radius
    periodic = problem.config.boundary.periodic
    for axis, r in enumerate(radius):
        needed = r + bool(problem.positions)  # mirror images in a wall begin one cell further inside
        if not periodic[axis] and grid.shape[axis] < needed:
            raise InputError(
                f"grid.shape: {grid.shape[axis]} cells along {AXES[axis]} are fewer than the {needed} that the stencil needs "
                f"beside a boundary; use a finer grid or a lower numerics.order"
            )
    process_parts = _parts(wishes.processes, processes, grid.shape, periodic, radius, "processes")
    thinnest = tuple(n // p for n, p in zip(grid.shape, process_parts, strict=True))
    device_parts = _parts(wishes.devices, devices, thinnest, periodic, radius, "devices")
    tiles = (1,) * grid.ndim if isinstance(wishes.tiles, str) else tuple(wishes.tiles)
    topology = Topology(grid.shape, periodic, process_parts, device_parts, tiles)
    stages = problem.method.evaluations
    every, most = _every(wishes, topology, radius, problem)
    return Plan(topology, every, radius, stages, lowered=most == 0)


def _parts(
    wish: Any, count: int, shape: tuple[int, ...], periodic: tuple[bool, ...], radius: tuple[int, ...], key: str
) -> tuple[int, ...]:
    """Blocks per axis: as given, or those with the least halo surface."""
    if isinstance(wish, tuple):
        if math.prod(wish) != count:
            raise InputError(
                f"decomposition.{key}: {list(wish)} makes {math.prod(wish)} blocks, but there are {count} {key}; give "
                f'factors of {count}, or "auto"'
            )
        for axis, (p, n, r) in enumerate(zip(wish, shape, radius, strict=True)):
            if p > 1 and n // p < max(r, 1):
                raise InputError(
                    f"decomposition.{key}: {p} blocks along {AXES[axis]} would have {n // p} cells, fewer than the "
                    f'stencil\'s radius {r}; give at most {max(1, n // max(r, 1))} there, or "auto"'
                )
        return wish
    parts = best_parts(count, shape, periodic, radius)
    if parts is None:
        working = counts_that_work(min(max(count, 2), MOST_TRIED), shape, periodic, radius)[-MOST_NAMED:]
        raise InputError(
            f"decomposition.{key}: {count} {key} would leave blocks thinner than the stencil's radius "
            f"{max(radius)} on {' x '.join(map(str, shape))} cells; counts that work: {', '.join(map(str, working))}"
        )
    return parts


def _every(
    wishes: Wishes, topology: Topology, radius: tuple[int, ...], problem: Problem, whole: bool = False
) -> tuple[int, int]:
    """Steps between two exchanges, as given or by the cost model, and the most that the thinnest block allows. With
    ``whole`` at least one whole step if there is room."""
    stages = problem.method.evaluations
    room = [
        topology.narrowest()[axis] // (r * stages) for axis, r in enumerate(radius) if r and topology.is_split(axis)
    ]
    most = min(room, default=MOST_STEPS)
    given = wishes.steps_per_exchange
    control = problem.config.time
    adaptive = problem.step_follows_solution
    longest = 1 if control.tolerance is not None else control.dt_every
    if not isinstance(given, str):
        if given > most:
            raise InputError(
                f"decomposition.steps_per_exchange: {given} steps need blocks {given * stages * max(radius)} cells wide, but "
                f'the thinnest has {min(topology.narrowest())}; give at most {most}, or "auto"'
                if most
                else "decomposition.steps_per_exchange: blocks are too thin to take even one whole step between "
                'exchanges; give "auto" (an exchange per stage) or fewer processes and devices'
            )
        if adaptive and given > longest:
            what = "with time.tolerance" if control.tolerance is not None else f"after time.dt_every = {longest}"
            raise InputError(
                f"decomposition.steps_per_exchange: {given} is too much, since {what} the step is determined anew; give at "
                f'most {longest}, or "auto"'
            )
        return given, most
    if not room:
        return 1, most
    if adaptive:
        most = min(most, longest)
    counts = range(int(whole and most > 0), min(most, MOST_STEPS) + 1)
    return min(counts, key=lambda k: (_cost(Plan(topology, k, radius, stages)), -k)), most


def _latency(topology: Topology) -> float:
    """Estimated seconds of an exchange of any size."""
    return EXCHANGE_BETWEEN_CALLS if topology.device_count > 1 and topology.size > 1 else EXCHANGE_IN_LOOP


def _native_every(problem: Problem, topology: Topology, radius: tuple[int, ...]) -> int:
    """Steps of native code between two exchanges. The cost model weighs the exchange and the halo cells that are
    computed again against the additional passes through memory that fewer steps need."""
    from hpcstencil.backends.native.cost_model import work_per_step

    most = _every(problem.config.decomposition, topology, radius, problem)[1]
    if not most:
        return 0  # an exchange for each section of a step
    if problem.step_follows_solution:
        most = min(most, problem.config.time.dt_every)
    work, cells = work_per_step(problem, topology), math.prod(topology.capacity())

    def seconds(every: int) -> float:
        return _latency(topology) / every + cells * work(every) * NATIVE_SECONDS_PER_CELL

    costs = {k: seconds(k) for k in range(1, min(most, MOST_STEPS) + 1)}
    return next(k for k, cost in costs.items() if cost <= MUCH_THE_SAME * min(costs.values()))


def _cost(plan: Plan) -> float:
    """Estimated seconds per step."""
    again = plan.rounds > 1  # cells of the halo are computed
    cells = math.prod(n + 2 * h * again for n, h in zip(plan.topology.narrowest(), plan.halo, strict=True))
    return plan.exchanges_per_step * _latency(plan.topology) + plan.stages * cells * SECONDS_PER_CELL
