"""The decomposition of a problem: blocks per process and device, and the number of steps between two halo exchanges."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from hpcstencil.numerics.grid import AXES
from hpcstencil.numerics.topology import Topology, best_parts, counts_that_work
from hpcstencil.problem.problem import Problem
from hpcstencil.validation.errors import InputError

# The cost model of steps_per_exchange = "auto" for array code: seconds per exchange, and per cell and stage of a CPU; on GPUs
# the latter is measured. They balance the cost of messages against redundant work in halo cells, so only their order of
# magnitude matters.
EXCHANGE_IN_LOOP = 5e-5
EXCHANGE_BETWEEN_CALLS = 1e-3
SECONDS_PER_CELL = 1e-9
MOST_STEPS_PER_EXCHANGE = 16
MOST_TRIED, MOST_NAMED = (
    4096,
    16,
)  # numbers of processes that are tried, and that an error message lists


@dataclass(frozen=True)
class Costs:
    """Measured costs of communication and computation, from which the number of steps between exchanges is chosen.

    ``latency`` is the time of a short message to a neighbour, in seconds. ``bytes_per_second`` is the bandwidth of the
    busiest process, counting what it sends and receives. ``seconds_per_work`` is the time of one unit of work in the
    cost model of the backend, or None. The defaults mean that nothing was measured.
    """

    latency: float = 0.0
    bytes_per_second: float = math.inf
    seconds_per_work: float | None = None


UNMEASURED = Costs()


@dataclass(frozen=True)
class Plan:
    """A decomposition and the number of steps between halo exchanges; the same on all processes.

    Attributes
    ----------
    topology
        The blocks, as rank 0 sees them.
    steps_per_exchange
        The number of steps between two exchanges; 0 for an exchange before each stage.
    radius
        The number of ghost cells per axis that one evaluation of the right-hand side uses up.
    stages
        The number of evaluations per step.
    seconds
        The predicted time of a step; None without measurements.
    known_reach
        An upper limit of `reach` per axis, if the backend knows one.
    """

    topology: Topology
    steps_per_exchange: int
    radius: tuple[int, ...]
    stages: int
    seconds: float | None = None
    known_reach: tuple[int, ...] | None = None

    @classmethod
    def of(
        cls,
        problem: Problem,
        topology: Topology,
        steps_per_exchange: int,
        seconds: float | None = None,
        known_reach: tuple[int, ...] | None = None,
    ) -> Plan:
        """The plan of a problem; ``radius`` and ``stages`` follow from the problem."""
        return cls(topology, steps_per_exchange, problem.radius, problem.method.evaluations, seconds, known_reach)

    @property
    def rounds(self) -> int:
        """Number of evaluations of the right-hand side between two exchanges, at least 1."""
        return self.steps_per_exchange * self.stages or 1

    @property
    def reach(self) -> tuple[int, ...]:
        """Number of cells per axis that the code reads beyond a block between two exchanges."""
        most = tuple(self.rounds * r for r in self.radius)
        return tuple(map(min, self.known_reach or most, most))

    @property
    def exchanges_per_step(self) -> float:
        """Number of exchanges per step; less than 1 if there are several steps between two exchanges."""
        return 1 / self.steps_per_exchange if self.steps_per_exchange else self.stages

    @property
    def halo(self) -> tuple[int, ...]:
        """Width in cells, per axis, of the halo that one exchange fills on either side; 0 along axes that are not
        split."""
        return tuple(r if self.topology.is_split(a) else 0 for a, r in enumerate(self.reach))

    def halo_bytes_per_step(self, fields: int, itemsize: int) -> float:
        """Bytes per step that the busiest process sends and receives, on average.

        The busiest process has the largest block, with neighbours on both sides of each split axis. ``fields`` is the
        number of arrays that are exchanged, and ``itemsize`` the size of their dtype in bytes.
        """
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
        """The decomposition as a dictionary that can be written as JSON, for the output file and the terminal.

        It has the keys of [decomposition], with counts per axis as lists, and "halo".
        """
        return {
            "processes": list(self.topology.processes),
            "devices": list(self.topology.devices),
            "tiles": list(self.topology.tiles),
            "steps_per_exchange": self.steps_per_exchange or "stage",
            "halo": list(self.halo),
        }


def decompose(problem: Problem, processes: int, devices: int) -> Topology:
    """Decompose the grid for ``processes`` processes with ``devices`` devices each.

    The blocks are those that the input requests, or else those with the least halo surface. The returned topology is the view
    of rank 0; all processes compute the same. Raises InputError if the requested counts do not fit, if the grid is
    too small for the stencil at a boundary, or if blocks would be thinner than the radius of the stencil.
    """
    grid, wishes, radius = problem.config.grid, problem.config.decomposition, problem.radius
    periodic = problem.config.boundary.periodic
    for axis, r in enumerate(radius):
        needed = r + bool(problem.positions)  # mirror images in a wall begin one cell further inside
        if not periodic[axis] and grid.shape[axis] < needed:
            raise InputError(
                f"grid.shape: {grid.shape[axis]} cells along {AXES[axis]} are fewer than the {needed} that the stencil needs "
                f"at a boundary; use a finer grid, or a lower numerics.order or narrower stencil"
            )
    process_parts = _parts(wishes.processes, processes, grid.shape, periodic, radius, "processes")
    thinnest = tuple(n // p for n, p in zip(grid.shape, process_parts, strict=True))
    device_parts = _parts(wishes.devices, devices, thinnest, periodic, radius, "devices")
    tiles = (1,) * grid.ndim if isinstance(wishes.tiles, str) else tuple(wishes.tiles)
    topology = Topology(grid.shape, periodic, process_parts, device_parts, tiles)
    for axis, (count, cells) in enumerate(zip(tiles, topology.narrowest(), strict=True)):
        if count > cells:
            raise InputError(
                f"decomposition.tiles: expected at most {cells} along {AXES[axis]}, the cells of the narrowest block, "
                f'but got {count}; give fewer, or "auto"'
            )
    _check_given_interval(problem, topology)
    return topology


def _parts(
    wish: Any, count: int, shape: tuple[int, ...], periodic: tuple[bool, ...], radius: tuple[int, ...], key: str
) -> tuple[int, ...]:
    """The number of blocks per axis: as given by ``wish``, or with the least halo surface if that is "auto".

    ``count`` is the total and ``shape`` the cells per axis to split. Raises InputError, which names ``key``, if the
    blocks would be thinner than ``radius``.
    """
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


def exchanges(problem: Problem, topology: Topology) -> bool:
    """Whether ghost cells must be exchanged between processes or between devices."""
    return any(r and topology.is_split(axis) for axis, r in enumerate(problem.radius))


def most_steps(problem: Problem, topology: Topology) -> int:
    """The largest number of steps between two exchanges for which the halo fits into the thinnest block.

    It is 0 if the halo of one step does not fit, and MOST_STEPS_PER_EXCHANGE if nothing is exchanged. With a stencil by FFT it
    is 0, because a Fourier transform would spread the outdated values of used-up halo cells over the block.
    """
    stages, narrowest = problem.method.evaluations, topology.narrowest()
    room = [narrowest[axis] // (r * stages) for axis, r in enumerate(problem.radius) if r and topology.is_split(axis)]
    return 0 if room and problem.by_fft else min(room, default=MOST_STEPS_PER_EXCHANGE)


def _check_given_interval(problem: Problem, topology: Topology) -> None:
    """Raise InputError if decomposition.steps_per_exchange is too large for the blocks or for the control of the step
    size."""
    given, control = problem.config.decomposition.steps_per_exchange, problem.config.time
    if isinstance(given, str):
        return
    if given > MOST_STEPS_PER_EXCHANGE:
        raise InputError(
            f"decomposition.steps_per_exchange: expected at most {MOST_STEPS_PER_EXCHANGE}, but got {given}; take fewer"
        )
    if problem.by_fft and exchanges(problem, topology):
        raise InputError(
            f'decomposition.steps_per_exchange: expected "auto" with equation.stencils.{problem.by_fft} by "fft", which '
            f"needs an exchange per stage, but got {given}; remove it"
        )
    most, longest = most_steps(problem, topology), 1 if control.tolerance is not None else control.dt_every
    if given > most:
        raise InputError(
            f"decomposition.steps_per_exchange: {given} steps need blocks "
            f"{given * problem.method.evaluations * max(problem.radius)} cells wide, but "
            f'the thinnest has {min(topology.narrowest())}; give at most {most}, or "auto"'
            if most
            else "decomposition.steps_per_exchange: blocks are too thin to take even one whole step between "
            'exchanges; give "auto" (an exchange per stage) or fewer processes and devices'
        )
    if problem.step_follows_solution and given > longest:
        what = "each step with time.tolerance" if control.tolerance is not None else f"time.dt_every = {longest} steps"
        raise InputError(
            f"decomposition.steps_per_exchange: {given} steps are too many, since the step size is chosen anew after {what}; "
            f'give at most {longest}, or "auto"'
        )


def steps_between_exchanges(problem: Problem, topology: Topology, least: int = 0, costs: Costs = UNMEASURED) -> int:
    """The number of steps between two exchanges with the least estimated cost, for the backends that run array code.

    It is 0 for an exchange before each stage, and 1 if nothing is exchanged. It is at least ``least`` if the halo of so
    many steps fits into the blocks.
    """
    if not exchanges(problem, topology):
        return 1
    control, most = problem.config.time, most_steps(problem, topology)
    if problem.step_follows_solution:
        most = min(most, 1 if control.tolerance is not None else control.dt_every)
    counts = range(min(least, most), min(most, MOST_STEPS_PER_EXCHANGE) + 1)
    return min(counts, key=lambda every: (_cost(Plan.of(problem, topology, every), costs), -every))


def latency(topology: Topology) -> float:
    """The estimated time of an exchange of no data, in seconds."""
    return EXCHANGE_BETWEEN_CALLS if topology.device_count > 1 and topology.size > 1 else EXCHANGE_IN_LOOP


def _cost(plan: Plan, costs: Costs) -> float:
    """The estimated time of a step of a plan, in seconds."""
    again = plan.rounds > 1  # halo cells are computed redundantly
    cells = math.prod(n + 2 * h * again for n, h in zip(plan.topology.narrowest(), plan.halo, strict=True))
    messages = 2 * sum(p > 1 for p in plan.topology.processes)  # one after the other
    exchange = latency(plan.topology) + messages * costs.latency
    return plan.exchanges_per_step * exchange + plan.stages * cells * (costs.seconds_per_work or SECONDS_PER_CELL)
