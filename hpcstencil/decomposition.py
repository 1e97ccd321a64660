"""Choosing the decomposition: blocks per process and device, and how many steps to take between two exchanges."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from hpcstencil.errors import InputError
from hpcstencil.grid import AXES
from hpcstencil.problem import Problem
from hpcstencil.settings import Decomposition as Wishes
from hpcstencil.topology import Topology, best_parts, counts_that_work

# Of the cost model behind steps_per_exchange = "auto": seconds per exchange, and per cell and stage. They only weigh the
# price of a message against that of computing halo cells twice, so their order of magnitude is what matters.
EXCHANGE_IN_LOOP = 5e-5
EXCHANGE_BETWEEN_CALLS = 1e-3
SECONDS_PER_CELL = 1e-9
NATIVE_SECONDS_PER_CELL = 1.5e-10
NATIVE_SECONDS_PER_BYTE = 1e-10  # of the fields: native code reads and writes them once between two exchanges
MOST_STEPS = 16
MOST_TRIED, MOST_NAMED = 4096, 16  # counts of processes looked at, and named, where the given one does not work


@dataclass(frozen=True)
class Plan:
    """A decomposition: the topology as rank 0 sees it, and ``every`` steps between two exchanges (0: each stage)."""

    topology: Topology
    every: int
    radius: tuple[int, ...]
    stages: int
    lowered: bool = False  # whether blocks are too thin for a whole step between two exchanges

    @property
    def halo(self) -> tuple[int, ...]:
        """Ghost cells per axis of one exchange, on the axes that are cut."""
        rounds = self.every * self.stages or 1
        return tuple(rounds * r if self.topology.is_split(a) else 0 for a, r in enumerate(self.radius))

    def halo_bytes_per_step(self, fields: int, itemsize: int) -> float:
        """Bytes that the busiest process sends and receives per step, averaged over the steps of one exchange."""
        block = [stop - start for start, stop in self.topology.block(0)]
        cells, width = 0, list(block)
        for axis, h in enumerate(self.halo):
            if self.topology.processes[axis] > 1:
                cells += 2 * h * math.prod(width) // width[axis]
                width[axis] += 2 * h
        exchanges = 1 / self.every if self.every else self.stages
        return 2 * cells * fields * itemsize * exchanges

    def native_memory(self, fields: int, itemsize: int) -> int:
        """As `memory_per_process`, for native code: the state twice, and the ghost cells received."""
        own = math.prod(self.topology.capacity())
        around = math.prod(n + 2 * h for n, h in zip(self.topology.capacity(), self.halo, strict=True)) - own
        return (2 * own + 2 * around) * fields * itemsize * self.topology.device_count

    def memory_per_process(self, fields: int, itemsize: int) -> int:
        """Bytes of field arrays on the busiest process: state, padded state, and the integrator's stage values."""
        cells = math.prod(n + 2 * h for n, h in zip(self.topology.capacity(), self.halo, strict=True))
        arrays = 3 if self.stages == 1 else 5
        return arrays * fields * itemsize * cells * self.topology.device_count

    def topology_of(self, rank: int) -> Topology:
        """The topology as process ``rank`` sees it."""
        return replace(self.topology, rank=rank)

    def describe(self) -> dict[str, Any]:
        """What was chosen, for the output file and the terminal."""
        return {
            "processes": list(self.topology.processes),
            "devices": list(self.topology.devices),
            "tiles": list(self.topology.tiles),
            "steps_per_exchange": self.every or "stage",
            "halo": list(self.halo),
        }


def for_kernel(before: Plan, problem: Problem, kernel: str) -> Plan:
    """The plan with as many steps between two exchanges as suit the kernel."""
    return plan(problem, before.topology.size, before.topology.device_count, kernel)


def plan(problem: Problem, processes: int, devices: int, kernel: str = "shift") -> Plan:
    """The decomposition for so many processes of so many devices each, as the input asks or the best there is.

    Raises InputError where the input's own counts do not fit, or blocks would be thinner than the stencil's radius.
    """
    grid, wishes, radius = problem.config.grid, problem.config.decomposition, problem.radius
    periodic = problem.config.boundary.periodic
    for axis, r in enumerate(radius):
        needed = r + problem.staggered  # images in a wall begin one cell further inside
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
    every, most = _every(wishes, topology, radius, problem, kernel)
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
    wishes: Wishes, topology: Topology, radius: tuple[int, ...], problem: Problem, kernel: str
) -> tuple[int, int]:
    """Steps between two exchanges, as given or by the cost model, and the most that the thinnest block allows."""
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
    whole = (
        kernel in ("native", "pallas") and most > 0
    )  # which take whole steps between two exchanges, if there is room
    counts = range(int(whole), min(most, MOST_STEPS) + 1)
    if kernel == "native" and whole:
        itemsize = 4 if problem.config.numerics.precision == "float32" else 8
        size = len(problem.fields) * itemsize
        return min(counts, key=lambda k: (_native_cost(k, topology, radius, stages, size), -k)), most
    return min(counts, key=lambda k: (_cost(k, topology, radius, stages), -k)), most


def _latency(topology: Topology) -> float:
    """Estimated seconds of an exchange, whatever its size."""
    return EXCHANGE_BETWEEN_CALLS if topology.device_count > 1 and topology.size > 1 else EXCHANGE_IN_LOOP


def _native_cost(every: int, topology: Topology, radius: tuple[int, ...], stages: int, size: int) -> float:
    """As `_cost`, for native code: cells of the halo are computed as long as they are needed, half of them on average, and the
    fields, ``size`` bytes per cell, go through memory once between two exchanges."""
    shape = topology.narrowest()
    cells = math.prod(
        n + (every * stages * r if topology.is_split(axis) else 0)
        for axis, (n, r) in enumerate(zip(shape, radius, strict=True))
    )
    return (
        _latency(topology) + math.prod(shape) * size * NATIVE_SECONDS_PER_BYTE
    ) / every + stages * cells * NATIVE_SECONDS_PER_CELL


def _cost(every: int, topology: Topology, radius: tuple[int, ...], stages: int) -> float:
    """Estimated seconds per step with ``every`` steps between two exchanges."""
    rounds = every * stages or 1
    cells = math.prod(
        n + (2 * rounds * r if topology.is_split(axis) and rounds > 1 else 0)
        for axis, (n, r) in enumerate(zip(topology.narrowest(), radius, strict=True))
    )
    exchanges = 1 / every if every else stages
    return exchanges * _latency(topology) + stages * cells * SECONDS_PER_CELL
