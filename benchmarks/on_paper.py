"""Predictions of the cost model of docs/scaling.md for up to 10 000 GPUs, from published figures; nothing is measured.

The decomposition is the one that `auto` would choose.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from cost_model import exchange_of

from hpcstencil.config.reader import from_mapping
from hpcstencil.numerics.topology import best_parts, factorizations
from hpcstencil.problem.build import build
from hpcstencil.problem.decomposition import MOST_STEPS, Plan
from hpcstencil.runtime.communicator import OneProcess
from hpcstencil.simulation.prepared import Choice, Decomposed, prepared_with

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "scaling.png"
GPUS = (1, 8, 64, 512, 4096, 10_000)
ITEMSIZE = 4  # float32


@dataclass(frozen=True)
class Link:
    """A link between GPUs: the latency of a message in seconds, and the bandwidth in bytes per second sent plus received."""

    message: float
    bandwidth: float


# Inputs, not measurements; docs/scaling.md names their sources.
MEMORY = 0.9 * 3.35e12  # bytes/s read plus written
KERNEL = 3.8e-6  # smallest time of a GPU kernel in a sequence, in seconds
SYNCHRONIZE = 7e-6  # seconds until the host knows that the GPU is done
NETWORK, NVLINK, PCIE = 2 * 50e9, 2 * 450e9, 2 * 64e9  # bytes/s, both directions
MPI, COPY = 3e-6, 6.5e-6  # latency of a message, and of a copy between host and GPU, in seconds
CALL = 1e-4  # seconds for a call of compiled code from Python
FILES = 4.6e12  # bytes/s to a parallel file system

SENT = KERNEL + SYNCHRONIZE + MPI  # a kernel extracts a strip, the host waits for it, and MPI sends it
WITHIN_NODE, DIRECT = Link(SENT, NVLINK), Link(SENT, NETWORK)
STAGED = Link(SENT + 2 * COPY, 1 / (1 / NETWORK + 2 / PCIE))


@dataclass(frozen=True)
class Case:
    """An equation and its integrator. With one kernel per stage, a step reads or writes ``arrays`` arrays per field."""

    name: str
    equation: str
    integrator: str
    arrays: int


@dataclass(frozen=True)
class Kernel:
    """A stencil kernel on GPUs.

    It makes ``sweeps`` through memory per stage, each a GPU kernel; None means one GPU kernel per stage. The host checks the
    loop's condition every ``together`` steps.
    """

    name: str
    sweeps: int | None
    together: int


CASES = (Case("heat, euler", "heat", "euler", 2), Case("Gray-Scott, rk4", "gray_scott", "rk4", 17))
XLA_SWEEPS = 4
FUSED, XLA = Kernel("pallas", None, 8), Kernel("shift", XLA_SWEEPS, 2)
# Cells per axis: of each GPU for weak scaling, and of the whole grid for strong scaling.
WEAK, STRONG = 512, 1024


def shape_of(gpus: int, weak: bool) -> tuple[int, ...]:
    """Return the shape of the grid on ``gpus`` GPUs, for weak or strong scaling."""
    if not weak:
        return (STRONG,) * 3
    parts = best_parts(gpus, (gpus,) * 3, (False,) * 3, (1,) * 3)
    assert parts is not None
    return tuple(WEAK * p for p in parts)


@cache
def planned(case: Case, gpus: int, weak: bool, kernel: Kernel) -> tuple[Plan, int]:
    """Return the plan that `auto` chooses, and the number of fields."""
    tables = {
        "grid": {"shape": list(shape_of(gpus, weak))},
        "equation": {"name": case.equation},
        "numerics": {"integrator": case.integrator, "kernel": kernel.name},
        "time": {"end": 1.0, "dt": 0.1},
    }
    problem = build(from_mapping(tables, Path()))
    prepared = prepared_with(Decomposed.of(problem, gpus, 1), Choice(kernel.name), OneProcess())
    return prepared.plan, len(problem.fields)


def link_of(gpus: int, staged: bool) -> Link:
    """Return the slowest link that a GPU's halos use: within a node of eight GPUs, or between nodes."""
    return STAGED if staged else WITHIN_NODE if gpus <= 8 else DIRECT


def parts_of(case: Case, kernel: Kernel, chosen: Plan, fields: int, link: Link) -> dict[str, float]:
    """Return the seconds per step of the busiest GPU, by activity."""
    cells = chosen.topology.capacity()
    several = chosen.rounds > 1
    own, surrounded = math.prod(cells), math.prod(n + 2 * h * several for n, h in zip(cells, chosen.halo, strict=True))
    arrays, kernels = case.arrays, chosen.stages
    if kernel.sweeps is not None:
        arrays, kernels = 2 * kernel.sweeps * chosen.stages, kernel.sweeps * chosen.stages
    computing, twice = (moving(arrays * n, fields) for n in (own, surrounded - own))
    exchange, exchanges = exchange_of(chosen, fields, ITEMSIZE), chosen.exchanges_per_step
    # An array with halos is put together, and after several steps the block is cut out of it; XLA's sweeps include that.
    around = bool(exchange.messages and kernel.sweeps is None) * (1 + (chosen.every > 1)) * exchanges
    return {
        "own cells": computing,
        "cells computed twice": twice,
        "padding with halos": around * max(KERNEL, moving(2 * surrounded, fields)),
        "starting kernels": max(0.0, kernels * KERNEL - computing - twice) + SYNCHRONIZE / kernel.together,
        "latency": exchanges * exchange.messages * link.message,
        "bandwidth": exchanges * exchange.bytes / link.bandwidth,
    }


def moving(cells: float, fields: int) -> float:
    """Return the seconds to read, or to write, all fields of ``cells`` cells."""
    return fields * ITEMSIZE * cells / MEMORY


def plans(chosen: Plan, kernel: Kernel) -> Iterator[Plan]:
    """Return the plan with every possible number of steps per exchange. Only XLA's kernels can exchange at each stage."""
    for every in (*range(1, MOST_STEPS + 1), *([0] if kernel == XLA else [])):
        other = replace(chosen, every=every)
        if all(h <= n for h, n in zip(other.halo, chosen.topology.narrowest(), strict=True)):
            yield other


def cuts(chosen: Plan) -> Iterator[Plan]:
    """Return the plan with every other decomposition of the grid into the same number of blocks."""
    for parts in factorizations(chosen.topology.size, chosen.topology.ndim):
        other = replace(chosen, topology=replace(chosen.topology, processes=parts))
        if min(other.topology.narrowest()) >= max(chosen.radius):
            yield other


@dataclass(frozen=True)
class Prediction:
    """The predicted steps on a number of GPUs: as planned by `auto`, and with the best number of steps per exchange.

    ``alone`` is the time, in seconds, of a single GPU for the number of cells that each GPU has.
    """

    alone: float
    auto: Plan
    best: Plan
    auto_parts: dict[str, float]
    best_parts: dict[str, float]

    @property
    def auto_efficiency(self) -> float:
        return self.alone / sum(self.auto_parts.values())

    @property
    def best_efficiency(self) -> float:
        return self.alone / sum(self.best_parts.values())


def predict(case: Case, gpus: int, weak: bool, staged: bool = False, kernel: Kernel = FUSED) -> Prediction:
    auto, fields = planned(case, gpus, weak, kernel)

    def parts(chosen: Plan) -> dict[str, float]:
        return parts_of(case, kernel, chosen, fields, link_of(gpus, staged))

    best = min(plans(auto, kernel), key=lambda chosen: sum(parts(chosen).values()))
    one = parts(planned(case, 1, weak, kernel)[0])
    return Prediction(sum(one.values()) / (1 if weak else gpus), auto, best, parts(auto), parts(best))


def gain_of_cuts(case: Case, gpus: int, weak: bool) -> float:
    """Return the fraction of time that the best other decomposition saves relative to that of `auto`.

    Both have their best number of steps per exchange.
    """
    (auto, fields), link = planned(case, gpus, weak, FUSED), link_of(gpus, staged=False)
    others = (parts_of(case, FUSED, other, fields, link) for cut in cuts(auto) for other in plans(cut, FUSED))
    return 1 - min(sum(parts.values()) for parts in others) / sum(predict(case, gpus, weak).best_parts.values())


def k_of(chosen: Plan) -> str:
    """Format the number of steps per exchange."""
    if chosen.topology.size == 1:
        return "–"
    return str(chosen.every) if chosen.every else "a stage"


def table(case: Case, weak: bool) -> list[str]:
    """Format a table of predictions against the number of GPUs."""
    lines = [
        f"{case.name}, {title(weak)}:",
        "",
        "| GPUs | blocks | largest block | `auto`: k | ms per step | efficiency | best k | efficiency | largest loss, "
        "and its share of the step | through the host: `auto` | best |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for gpus in GPUS:
        direct, staged = (predict(case, gpus, weak, staged) for staged in (False, True))
        lost = {what: seconds for what, seconds in direct.best_parts.items() if what != "own cells"}
        largest = max(lost, key=lost.__getitem__)
        topology = direct.auto.topology
        lines.append(
            f"| {gpus:,} | {' x '.join(map(str, topology.processes))} | {' x '.join(map(str, topology.capacity()))} | "
            f"{k_of(direct.auto)} | {sum(direct.auto_parts.values()) * 1e3:.3f} | {direct.auto_efficiency:.2f} | "
            f"{k_of(direct.best)} | {direct.best_efficiency:.2f} | "
            f"{largest}, {lost[largest] / sum(direct.best_parts.values()):.0%} | "
            f"{staged.auto_efficiency:.2f} | {staged.best_efficiency:.2f}, k = {k_of(staged.best)} |"
        )
    return [*lines, ""]


def title(weak: bool) -> str:
    return f"{WEAK}³ cells per GPU (weak scaling)" if weak else f"{STRONG}³ cells in all (strong scaling)"


def beside_steps(case: Case) -> str:
    """Format the cost of diagnostics and output on the largest number of GPUs, in weak scaling."""
    gpus = GPUS[-1]
    step = sum(predict(case, gpus, weak=True).best_parts.values())
    fields, cells = planned(case, gpus, True, FUSED)[1], WEAK**3
    reduction = math.ceil(math.log2(gpus)) * MPI
    diagnostic = 2 * (CALL + moving(2 * XLA_SWEEPS * cells, fields)) + 3 * reduction
    snapshot = gpus * cells * fields * ITEMSIZE / FILES
    return (
        f"| {case.name} | {step * 1e3:.2f} | {diagnostic * 1e3:.2f} | {3 * reduction * 1e6:.0f} | "
        f"{math.ceil(diagnostic / step / 0.01)} | {snapshot:.1f} | {math.ceil(snapshot / step / 0.05):,} |"
    )


def paper() -> str:
    """Return all predictions in Markdown."""
    lines = [line for weak in (True, False) for case in CASES for line in table(case, weak)]
    gain = max(gain_of_cuts(case, gpus, weak) for case in CASES for gpus in GPUS for weak in (True, False))
    lines += [
        f"No other cut of the grid than that of `auto`, each with its own best k, is more than {gain:.1%} faster in any of "
        "these rows.",
        "",
        f"Besides the steps, {GPUS[-1]:,} GPUs of {WEAK}³ cells:",
        "",
        "| equation | a step, ms | one diagnostic, ms | of which reductions, µs | 1 % if every ... steps | a snapshot of all "
        "fields, s | 5 % if every ... steps |",
        "|---|---|---|---|---|---|---|",
        *(beside_steps(case) for case in CASES),
        "",
        f"With XLA's own kernels (`{XLA.name}`), the same GPUs:",
        "",
        "| equation | scaling | `auto`: k | ms per step | efficiency | best k | ms per step | efficiency |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        for weak in (True, False):
            slow = predict(case, GPUS[-1], weak, kernel=XLA)
            lines.append(
                f"| {case.name} | {'weak' if weak else 'strong'} | {k_of(slow.auto)} | "
                f"{sum(slow.auto_parts.values()) * 1e3:.3f} | {slow.auto_efficiency:.2f} | {k_of(slow.best)} | "
                f"{sum(slow.best_parts.values()) * 1e3:.3f} | {slow.best_efficiency:.2f} |"
            )
    return "\n".join(lines)


def draw() -> None:
    """Draw the efficiency against the number of GPUs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    counts = [*(2**n for n in range(14)), GPUS[-1]]
    figure, both = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for axes, weak in zip(both, (True, False), strict=True):
        for case, colour in zip(CASES, ("tab:blue", "tab:red"), strict=True):
            direct, staged = ([predict(case, gpus, weak, s) for gpus in counts] for s in (False, True))
            axes.plot(counts, [p.best_efficiency for p in direct], color=colour, label=f"{case.name}: best k")
            axes.plot(counts, [p.auto_efficiency for p in direct], "--", color=colour, label="k of auto")
            axes.plot(counts, [p.best_efficiency for p in staged], ":", color=colour, label="best k, through the host")
        axes.set_xscale("log")
        axes.set_xlabel("GPUs")
        axes.set_title(title(weak), fontsize="medium")
        axes.grid(alpha=0.3)
    both[0].set_ylabel("predicted efficiency")
    both[0].set_ylim(0, 1.05)
    both[0].legend(fontsize="x-small", loc="lower left")
    figure.savefig(PICTURE, dpi=110)
    pyplot.close(figure)
