"""The summary of a run: its steps, its speed and its wall time by activity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpcstencil.numerics.schedule import Clock
from hpcstencil.runtime.stopwatch import ACTIVITIES


@dataclass(frozen=True)
class Summary:
    """The result of a run.

    Attributes
    ----------
    steps, clock
        The number of steps that this run took, and the clock at its end.
    seconds
        The time of each activity. They add up to the wall time since the command was started.
    cells
        The number of cells that a step advances.
    bytes_per_cell
        The smallest number of bytes that a step must read and write per cell.
    steps_per_exchange
        The number of steps between two exchanges; 0 if there is an exchange for each stage.
    predicted
        The seconds per step that were predicted when ``steps_per_exchange`` was chosen; None without a prediction.
    complete_before
        Why there was nothing to do; else "".
    """

    path: Path
    steps: int = 0
    clock: Clock = Clock()
    seconds: Mapping[str, float] = field(default_factory=lambda: dict.fromkeys(ACTIVITIES, 0.0))
    cells: int = 0
    bytes_per_cell: int = 0
    kernel: str = ""
    exchange: str = ""
    steps_per_exchange: int = 1
    predicted: float | None = None
    complete_before: str = ""

    @property
    def cells_per_second(self) -> float:
        """Cell updates per second of computing time; 0 without steps.

        Computing time includes exchanges, but neither compilation nor output.
        """
        computing = self.seconds["computing"]
        return self.cells * self.steps / computing if computing else 0.0

    @property
    def t_eff(self) -> float:
        """Effective memory throughput in bytes/s: each field read once and written once per step."""
        return self.cells_per_second * self.bytes_per_cell


def report(summary: Summary) -> str:
    """Format the summary at the end of a run, for standard output."""
    if summary.complete_before:
        return summary.complete_before
    rejected = f", {summary.clock.rejected} rejected" if summary.clock.rejected else ""
    return "\n".join([
        f"steps        {summary.steps} (to step {summary.clock.step}, t = {summary.clock.time:g}){rejected}",
        f"wall time    {sum(summary.seconds.values()):.2f} s: {_shares(summary.seconds)}",
        f"speed        {summary.cells_per_second / 1e6:.1f} Mcell/s, T_eff {summary.t_eff / 1e9:.2f} GB/s",
        f"kernel       {summary.kernel}",
        *([f"exchange     {exchange_line(summary)}"] if summary.exchange else []),
        f"output       {summary.path}",
    ])  # fmt: skip


def exchange_line(summary: Summary) -> str:
    """Format how and how often halos were exchanged, and the measured and predicted time per step."""
    k = summary.steps_per_exchange
    interval = f"every {k} steps" if k > 1 else "every step" if k else "every stage"
    if summary.predicted is None or not summary.steps:
        return f"by {summary.exchange}, {interval}"
    took = summary.seconds["computing"] / summary.steps
    return f"by {summary.exchange}, {interval}; a step took {took * 1e3:.3g} ms, {summary.predicted * 1e3:.3g} ms predicted"


def _shares(seconds: Mapping[str, float]) -> str:
    """Format the time of each activity that took at least 5 ms, and of those that are always listed."""
    always = ("compiling", "computing", "output")
    shown = [name for name in ACTIVITIES if name in always or seconds[name] >= 0.005]
    return ", ".join(f"{name} {seconds[name]:.2f} s" for name in shown)
