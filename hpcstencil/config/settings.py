"""The input file as frozen dataclasses, one per table; `reader` makes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcstencil.config.boundary_conditions import BoundaryConfig
from hpcstencil.config.keys import STEP_KEYS
from hpcstencil.numerics.grid import Grid


@dataclass(frozen=True)
class EquationConfig:
    """The equation's name, its parameters as given (numbers, or expressions of the coordinates), the rhs of a custom
    equation, and the ``seed`` that initial expressions may use. The name of an equation in a Python file is
    "FILE.py:CLASS", with the file's absolute path."""

    name: str
    parameters: Mapping[str, float | str] = field(default_factory=dict)
    rhs: Mapping[str, str] = field(default_factory=dict)
    seed: int | None = None

    @property
    def in_file(self) -> tuple[Path, str] | None:
        """(file, class) of an equation in a Python file."""
        path, colon, name = self.name.rpartition(":")
        return (Path(path), name) if colon else None


@dataclass(frozen=True)
class InitialConfig:
    """Initial expressions per field, and the file from which the other fields are read."""

    expressions: Mapping[str, str] = field(default_factory=dict)
    file: Path | None = None


@dataclass(frozen=True)
class Numerics:
    """``stages`` of a super time stepping method and ``epsilon`` of ab2, if given."""

    order: int
    integrator: str
    stages: int | None
    epsilon: float | None
    precision: str
    kernel: str


@dataclass(frozen=True)
class TimeConfig:
    """Exactly one of ``dt``, ``cfl`` and ``tolerance`` is given."""

    end: float
    dt: float | None
    cfl: float | None
    tolerance: float | None
    dt_every: int

    @property
    def given(self) -> str:
        """Which of the three is given."""
        return next(name for name in STEP_KEYS if getattr(self, name) is not None)


@dataclass(frozen=True)
class Decomposition:
    """The requested decomposition: "auto", or counts per axis; ``devices`` may be one number per process."""

    processes: tuple[int, ...] | str
    devices: int | tuple[int, ...] | str
    tiles: tuple[int, ...] | str
    steps_per_exchange: int | str
    exchange: str


@dataclass(frozen=True)
class OutputConfig:
    """Where and how often snapshots are written. ``fields`` None means all fields. With ``write_behind``, snapshots are
    written while the next steps are computed."""

    path: Path
    every: float | None
    every_steps: int | None
    fields: tuple[str, ...] | None
    compression: Any
    method: Any
    write_behind: bool = True
    units: Mapping[str, str] = field(default_factory=dict)
    long_name: Mapping[str, str] = field(default_factory=dict)

    def is_written_behind(self, processes: int) -> bool:
        """Whether snapshots, except the last, are copied and written while the next steps are computed. That needs
        snapshots between the first and the last, and a file to which each process can write independently."""
        regular = self.every is not None or self.every_steps is not None
        apart = processes == 1 or (self.method in ("auto", "direct") and self.compression == "none")
        return self.write_behind and regular and apart


@dataclass(frozen=True)
class DiagnosticsConfig:
    """Diagnostics by name; ``every_steps`` None means whenever output is written."""

    every_steps: int | None
    expressions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckpointConfig:
    """How often checkpoints are written, and how many are kept."""
    every_steps: int | None
    every_minutes: float | None
    keep: int
    walltime: str


@dataclass(frozen=True)
class MaskConfig:
    """Solid cells: those with a non-zero ``solid`` at their centre. ``solid`` is an expression or FILE:DATASET;
    ``dataset`` holds the two parts of the latter. The surface has the given ``value``, or no flux."""

    solid: str
    value: float | str | None = None
    dataset: tuple[Path, str] | None = None


@dataclass(frozen=True)
class VerifyConfig:
    """Settings of `hpcstencil verify`: the exact solution per field, and the diagnostics that are conserved."""

    exact: Mapping[str, str] = field(default_factory=dict)
    conserved: tuple[str, ...] = ()


@dataclass(frozen=True)
class Config:
    """A checked input file, one attribute per table. ``ensemble`` holds the values of every member by dotted key."""

    title: str
    grid: Grid
    equation: EquationConfig
    initial: InitialConfig
    boundary: BoundaryConfig
    numerics: Numerics
    time: TimeConfig
    decomposition: Decomposition
    output: OutputConfig
    diagnostics: DiagnosticsConfig
    checkpoint: CheckpointConfig
    verify: VerifyConfig = VerifyConfig()
    mask: MaskConfig | None = None
    ensemble: Mapping[str, tuple[float | str, ...]] = field(default_factory=dict)
