"""What a run did and where its time went, and the closing words about it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from hpcstencil.schedule import Clock


@dataclass
class Seconds:
    """Where the wall time went."""

    compile: float = 0.0
    compute: float = 0.0
    output: float = 0.0
    checkpoint: float = 0.0
    diagnostics: float = 0.0

    def spent(self, what: str, since: float) -> None:
        setattr(self, what, getattr(self, what) + time.perf_counter() - since)


@dataclass(frozen=True)
class Summary:
    """What a run did. ``wall`` seconds include everything after jax was started."""

    path: Path
    steps: int
    clock: Clock
    wall: float
    seconds: Seconds
    cells: int
    bytes_per_cell: int
    kernel: str = ""
    exchange: str = ""
    complete_before: str = ""  # where there was nothing to do: why

    @property
    def cells_per_second(self) -> float:
        """Cells advanced by one step per second of computing (exchange included; compiling and output not)."""
        return self.cells * self.steps / self.seconds.compute if self.seconds.compute else 0.0

    @property
    def t_eff(self) -> float:
        """Effective memory throughput, bytes/s: each field read once and written once per step."""
        return self.cells_per_second * self.bytes_per_cell


def tell(summary: Summary) -> str:
    """The closing summary, for standard output."""
    if summary.complete_before:
        return summary.complete_before
    s = summary.seconds
    rejected = f", {summary.clock.rejected} rejected" if summary.clock.rejected else ""
    return "\n".join([
        f"steps        {summary.steps} (to step {summary.clock.step}, t = {summary.clock.time:g}){rejected}",
        f"wall time    {summary.wall:.2f} s, of which compiling {s.compile:.2f} s, computing {s.compute:.2f} s, output "
        f"{s.output:.2f} s, checkpoints {s.checkpoint:.2f} s, diagnostics {s.diagnostics:.2f} s",
        f"speed        {summary.cells_per_second / 1e6:.1f} Mcell/s, T_eff {summary.t_eff / 1e9:.2f} GB/s",
        f"kernel       {summary.kernel}",
        *([f"exchange     by {summary.exchange}"] if summary.exchange else []),
        f"output       {summary.path}",
    ])  # fmt: skip
