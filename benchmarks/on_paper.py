"""Predictions of the cost model of docs/scaling.md for up to 10 000 GPUs, from figures measured on one GPU and published ones.

The formulas and most figures are those by which `auto` chooses the steps between two exchanges
(`hpcstencil.backends.pallas.cost_model`). The decomposition is the one that `auto` would choose.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from hpcstencil.backends.pallas.cost_model import (
    COLLECTIVE,
    KERNEL,
    MEMORY,
    MPI,
    NETWORK,
    NVLINK,
    ROUND,
    SYNCHRONIZE,
    Links,
    Work,
    parts,
)
from hpcstencil.config.reader import from_mapping
from hpcstencil.numerics.topology import best_parts, factorizations
from hpcstencil.problem.build import build
from hpcstencil.problem.decomposition import MOST_STEPS_PER_EXCHANGE, Plan, decompose
from hpcstencil.problem.problem import Problem

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "scaling.png"
GPUS = (1, 8, 64, 512, 4096, 10_000)
ITEMSIZE = 4  # float32
# Cells per axis: of each GPU for weak scaling, of the whole grid for strong scaling, and of blocks of several sizes.
WEAK, STRONG, SIZES = 512, 1024, (512, 384, 256, 192, 128, 96, 64)

# Inputs beside those of the cost model; docs/scaling.md names their sources.
PCIE, COPY = 2 * 64e9, 6.5e-6  # bytes/s in both directions, and latency in seconds, of a copy between host and GPU
CALL = 1e-4  # seconds for a call of compiled code from Python
FILES = 4.6e12  # bytes/s to a parallel file system
XLA_SWEEPS, XLA_TOGETHER = 1.5, 2  # sweeps of `shift` through memory per stage; steps in each round of its loop


@dataclass(frozen=True)
class Way:
    """A way to exchange strips, and its links within a node of eight GPUs and between nodes."""

    name: str
    within: Links
    between: Links

    def links(self, gpus: int) -> Links:
        """Return the slowest links that a GPU's strips use."""
        return self.within if gpus <= 8 else self.between


SENT = SYNCHRONIZE + MPI  # the host waits for the strip, and MPI sends it
STAGED = Links(SENT + 2 * COPY, 1 / (1 / NETWORK + 2 / PCIE), collective=False)
COLLECTIVES = Way("collectives", Links(COLLECTIVE, NVLINK, True), Links(COLLECTIVE, NETWORK, True))
DIRECT = Way("mpi4jax", Links(SENT, NVLINK, False), Links(SENT, NETWORK, False))
THROUGH_HOST = Way("mpi4jax through the host", STAGED, STAGED)
WAYS = (COLLECTIVES, DIRECT, THROUGH_HOST)


@dataclass(frozen=True)
class Case:
    """An equation and its integrator."""

    name: str
    equation: str
    integrator: str


CASES = (Case("heat, euler", "heat", "euler"), Case("Gray-Scott, rk4", "gray_scott", "rk4"))


@cache
def problem_of(case: Case, shape: tuple[int, ...]) -> Problem:
    """Return the problem of a case on a grid of ``shape`` cells per axis."""
    tables = {
        "grid": {"shape": list(shape)},
        "equation": {"name": case.equation},
        "numerics": {"integrator": case.integrator, "kernel": "pallas"},
        "time": {"end": 1.0, "dt": 0.1},
    }
    return build(from_mapping(tables, Path()))


def shape_of(gpus: int, cells: int) -> tuple[int, ...]:
    """Return the shape of the grid on ``gpus`` GPUs, each with ``cells`` cells per axis."""
    processes = best_parts(gpus, (gpus,) * 3, (False,) * 3, (1,) * 3)
    assert processes is not None
    return tuple(cells * p for p in processes)


@dataclass(frozen=True)
class Prediction:
    """The predicted step with the best number of steps per exchange: its ``plan``, and its ``seconds`` by activity."""

    plan: Plan
    seconds: dict[str, float]

    @property
    def step(self) -> float:
        """The seconds of a step."""
        return sum(self.seconds.values())

    @property
    def k(self) -> str:
        """The number of steps per exchange, as text."""
        if self.plan.topology.size == 1:
            return "–"
        return str(self.plan.steps_per_exchange or "a stage")


@cache
def predict(case: Case, gpus: int, shape: tuple[int, ...], way: Way = COLLECTIVES) -> Prediction:
    """Return the prediction for a grid of ``shape`` cells on ``gpus`` GPUs."""
    problem = problem_of(case, shape)
    return best(Plan.of(problem, decompose(problem, gpus, 1), 1), Work.of(problem, None), way.links(gpus))


def best(first: Plan, work: Work, links: Links) -> Prediction:
    """Return the prediction for a decomposition with its best number of steps per exchange."""
    return min((Prediction(plan, parts(plan, work, links)) for plan in plans(first)), key=lambda found: found.step)


def plans(first: Plan) -> Iterator[Plan]:
    """Return the plan with every possible number of steps per exchange."""
    for every in range(MOST_STEPS_PER_EXCHANGE + 1):
        other = replace(first, steps_per_exchange=every)
        if all(h <= n for h, n in zip(other.halo, first.topology.narrowest(), strict=True)):
            yield other


def gain_of_cuts(case: Case, gpus: int, shape: tuple[int, ...]) -> float:
    """Return the fraction of time that the best other decomposition saves relative to that of `auto`.

    Both have their best number of steps per exchange.
    """
    problem, chosen = problem_of(case, shape), predict(case, gpus, shape)
    work, found = Work.of(problem, None), [chosen.step]
    for processes in factorizations(gpus, 3):
        other = replace(chosen.plan, topology=replace(chosen.plan.topology, processes=processes))
        if min(other.topology.narrowest()) >= max(other.radius):
            found.append(best(other, work, COLLECTIVES.links(gpus)).step)
    return 1 - min(found) / chosen.step


def table(case: Case, weak: bool) -> list[str]:
    """Format a table of predictions against the number of GPUs."""
    lines = [
        f"{case.name}, {title(weak)}:",
        "",
        "| GPUs | blocks | largest block | collectives: k | ms per step | efficiency | largest loss, and its share of the step "
        "| mpi4jax: k | efficiency | through the host: k | efficiency |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for gpus in GPUS:
        shape = shape_of(gpus, WEAK) if weak else (STRONG,) * 3
        found = [predict(case, gpus, shape, way) for way in WAYS]
        alone = predict(case, 1, (WEAK if weak else STRONG,) * 3).step / (1 if weak else gpus)
        first, topology = found[0], found[0].plan.topology
        lost = {what: seconds for what, seconds in first.seconds.items() if what != "own cells"}
        largest = max(lost, key=lost.__getitem__)
        lines.append(
            f"| {gpus:,} | {' x '.join(map(str, topology.processes))} | {' x '.join(map(str, topology.capacity()))} | "
            f"{first.k} | {first.step * 1e3:.3f} | {alone / first.step:.2f} | {largest}, {lost[largest] / first.step:.0%} | "
            + " | ".join(f"{other.k} | {alone / other.step:.2f}" for other in found[1:])
            + " |"
        )
    return [*lines, ""]


def title(weak: bool) -> str:
    return f"{WEAK}³ cells per GPU (weak scaling)" if weak else f"{STRONG}³ cells in all (strong scaling)"


def used(case: Case, cells: int, way: Way) -> tuple[Prediction, float]:
    """Return the prediction for blocks of ``cells``³ on all GPUs, and their speed relative to a large block alone."""
    found = predict(case, GPUS[-1], shape_of(GPUS[-1], cells), way)
    return found, found.seconds["own cells"] / found.step


def sizes() -> list[str]:
    """Format the table of predictions against the size of the blocks, on all GPUs."""
    columns = [(case, way) for case in CASES for way in WAYS[:2]]
    heads = " | ".join(f"{case.name}, {way.name}: k | ms per step | efficiency" for case, way in columns)
    lines = [f"| block | {heads} |", "|---|" + "---|---|---|" * len(columns)]
    for cells in SIZES:
        row = []
        for case, way in columns:
            found, efficiency = used(case, cells, way)
            row.append(f"{found.k} | {found.step * 1e3:.3f} | {efficiency:.2f}")
        lines.append(f"| {cells}³ | {' | '.join(row)} |")
    return lines


def beside_steps(case: Case) -> str:
    """Format the cost of diagnostics and output on the largest number of GPUs, in weak scaling."""
    gpus = GPUS[-1]
    step = predict(case, gpus, shape_of(gpus, WEAK)).step
    fields, cells = len(problem_of(case, shape_of(gpus, WEAK)).fields), WEAK**3
    reduction = math.ceil(math.log2(gpus)) * MPI
    diagnostic = 2 * (CALL + fields * ITEMSIZE * 2 * XLA_SWEEPS * cells / MEMORY) + 3 * reduction
    snapshot = gpus * cells * fields * ITEMSIZE / FILES
    return (
        f"| {case.name} | {step * 1e3:.2f} | {diagnostic * 1e3:.2f} | {3 * reduction * 1e6:.0f} | "
        f"{math.ceil(diagnostic / step / 0.01)} | {snapshot:.1f} | {math.ceil(snapshot / step / 0.05):,} |"
    )


def by_xla(case: Case, gpus: int, weak: bool) -> tuple[str, float]:
    """Return (best number of steps per exchange, seconds per step) of XLA's kernels, which pad and do not overlap."""
    shape = shape_of(gpus, WEAK) if weak else (STRONG,) * 3
    problem = problem_of(case, shape)
    fields, links = len(problem.fields), DIRECT.links(gpus)

    def seconds(plan: Plan) -> float:
        cells, again = plan.topology.capacity(), plan.rounds > 1
        padded = math.prod(n + 2 * h * again for n, h in zip(cells, plan.halo, strict=True))
        sweep = KERNEL + 2 * fields * ITEMSIZE * padded / MEMORY
        sending = messages(plan) * plan.exchanges_per_step * (KERNEL + links.latency)
        sending += plan.halo_bytes_per_step(fields, ITEMSIZE) / links.bytes_per_second
        return XLA_SWEEPS * plan.stages * sweep + sending + ROUND / XLA_TOGETHER

    every = plans(Plan.of(problem, decompose(problem, gpus, 1), 1))
    fastest = min(every, key=seconds)
    return Prediction(fastest, {}).k, seconds(fastest)


def messages(plan: Plan) -> int:
    """Return the messages of the busiest process in an exchange: one in each direction of every axis that is cut."""
    return 2 * sum(count > 1 and halo > 0 for count, halo in zip(plan.topology.processes, plan.halo, strict=True))


def paper() -> str:
    """Return all predictions in Markdown."""
    lines = [line for weak in (True, False) for case in CASES for line in table(case, weak)]
    grids = [shape for gpus in GPUS[1:] for shape in ((gpus, shape_of(gpus, WEAK)), (gpus, (STRONG,) * 3))]
    gain = max(gain_of_cuts(case, *grid) for case in CASES for grid in grids)
    lines += [
        f"In every row, no other decomposition is more than {gain:.0%} faster than the one that `auto` chooses (collectives, "
        "and the best k of each).",
        "",
        f"Blocks of several sizes on {GPUS[-1]:,} GPUs; the efficiency is relative to the speed of a large block alone:",
        "",
        *sizes(),
        "",
        f"Besides the steps, {GPUS[-1]:,} GPUs of {WEAK}³ cells:",
        "",
        "| equation | a step, ms | one diagnostic, ms | of which reductions, µs | 1 % if every ... steps | a snapshot of all "
        "fields, s | 5 % if every ... steps |",
        "|---|---|---|---|---|---|---|",
        *(beside_steps(case) for case in CASES),
        "",
        "With XLA's own kernels (`shift`) and mpi4jax, the same GPUs:",
        "",
        "| equation | scaling | best k | ms per step | efficiency |",
        "|---|---|---|---|---|",
    ]
    for case in CASES:
        for weak in (True, False):
            k, step = by_xla(case, GPUS[-1], weak)
            alone = by_xla(case, 1, weak)[1] / (1 if weak else GPUS[-1])
            lines.append(
                f"| {case.name} | {'weak' if weak else 'strong'} | {k} | {step * 1e3:.3f} | {alone / step:.2f} |"
            )
    return "\n".join(lines)


def draw() -> None:
    """Draw the efficiency against the number of GPUs, and against the size of their blocks."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    counts = [*(2**n for n in range(14)), GPUS[-1]]
    figure, (by_count, by_size) = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for case, colour in zip(CASES, ("tab:blue", "tab:red"), strict=True):
        alone = predict(case, 1, (WEAK,) * 3).step
        for way, line in zip(WAYS, ("-", "--", ":"), strict=True):
            steps = [predict(case, gpus, shape_of(gpus, WEAK), way).step for gpus in counts]
            by_count.plot(
                counts, [alone / step for step in steps], line, color=colour, label=f"{case.name}: {way.name}"
            )
            by_size.plot(SIZES, [used(case, cells, way)[1] for cells in SIZES], line, color=colour)
    by_count.set_xscale("log")
    by_count.set_xlabel("GPUs")
    by_count.set_title(title(weak=True), fontsize="medium")
    by_size.set_xscale("log", base=2)
    by_size.set_xticks(SIZES, [f"{n}³" for n in SIZES], fontsize="small")
    by_size.minorticks_off()
    by_size.set_xlabel("cells per GPU")
    by_size.set_title(f"{GPUS[-1]:,} GPUs".replace(",", " "), fontsize="medium")
    for axes in (by_count, by_size):
        axes.grid(alpha=0.3)
    by_count.set_ylabel("predicted efficiency")
    by_count.set_ylim(0, 1.05)
    by_count.legend(fontsize="x-small", loc="lower left")
    figure.savefig(PICTURE, dpi=110)
    pyplot.close(figure)
