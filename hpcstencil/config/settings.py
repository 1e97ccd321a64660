"""The input file as frozen dataclasses, one per table. `reader` fills them.

Each dataclass field declares one key of the input: its type, default, example and meaning. Checks, error messages and
the recorded input all follow from this declaration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from hpcstencil.config.boundary_conditions import BoundaryConfig
from hpcstencil.config.probes import ProbeConfig
from hpcstencil.config.stencil_config import WEIGHTS_OR_TABLE, StencilConfig
from hpcstencil.config.streams import StreamConfig
from hpcstencil.config.time_series import TIME_SERIES, TimeSeries
from hpcstencil.io.array_file import ArrayFile, ArrayInMemory, array_of
from hpcstencil.io.transports.registry import TRANSPORTS, may_write_behind
from hpcstencil.numerics.grid import Grid
from hpcstencil.numerics.integrators import INTEGRATORS
from hpcstencil.validation.schema import (
    ANY_TABLE,
    COUNT,
    EXPRESSION,
    EXPRESSION_TEXT,
    NUMBER,
    POSITIVE,
    REQUIRED,
    TEXT,
    Kind,
    Unfit,
    any_text,
    choice,
    clock_time,
    derived,
    either,
    entries,
    key,
    list_of,
)

AUTO = choice("auto")
COUNTS = list_of(COUNT, "a list of 1 to 3 positive integers, one per axis", longest=3)
NUMBERS = list_of(NUMBER, "a list of 1 to 3 numbers, one per axis", longest=3)
STEP_KEYS = ("dt", "cfl", "tolerance")  # of [time], of which one is given


@dataclass(frozen=True)
class GridConfig:
    """The table [grid] as written; the reader converts it to a `Grid`.

    ``lower`` and ``upper`` are the corners of the domain, in the length unit of the input. The default of ``lower`` is
    the origin, and the default of ``upper`` gives cells of width 1.
    """

    shape: tuple[int, ...] = key(COUNTS, REQUIRED, "shape = [512, 512]", "cells per axis")
    lower: tuple[float, ...] | None = key(NUMBERS, None, "lower = [0.0, 0.0]", "lower corner of the domain")
    upper: tuple[float, ...] | None = key(NUMBERS, None, "upper = [1.0, 1.0]", "upper corner of the domain")


@dataclass(frozen=True)
class EquationConfig:
    """The table [equation].

    ``name`` is a built-in equation, "custom", or "FILE.py:CLASS" with an absolute path. ``parameters`` are numbers,
    expressions, or "FILE.npy" or "FILE.h5:DATASET" with an absolute path, for one value per cell. ``series`` holds the
    time-dependent parameters, which the input lists among the others. ``rhs`` is empty unless the equation is custom.
    ``stencils`` hold weights, since the reader loads those that the input gives as files.
    """

    name: str = key(TEXT, REQUIRED, 'name = "heat"', "the equation")
    parameters: Mapping[str, float | str] = entries(EXPRESSION, "{} = 1.0", "its parameters")
    series: Mapping[str, TimeSeries] = entries(
        TIME_SERIES, '{} = {{ series = "wavelet.h5:trace", dt = 1e-3 }}', "its parameters that follow time"
    )
    seed: int | None = key(COUNT, None, "seed = 1", "the value of `seed` in `[initial]`")
    rhs: Mapping[str, str] = entries(
        EXPRESSION_TEXT, '"laplacian(u)"', "the time derivative of each field", 'rhs = { u = "laplacian(u)" }'
    )
    stencils: Mapping[str, StencilConfig] = entries(
        WEIGHTS_OR_TABLE,
        "{} = [[1, 2, 1], [2, 4, 2], [1, 2, 1]]",
        "the weights of a stencil, to be used like a function",
        "stencils = { blur = [[1, 2, 1], [2, 4, 2], [1, 2, 1]] }",
    )

    @property
    def arrays(self) -> dict[str, ArrayFile | ArrayInMemory]:
        """The parameters with one value per cell, from a file or from Python, by name."""
        texts = {name: text for name, text in self.parameters.items() if isinstance(text, str)}
        return {name: array for name, text in texts.items() if (array := array_of(text)) is not None}

    @property
    def in_file(self) -> tuple[Path, str] | None:
        """(absolute path, class name) of an equation in a Python file, or None for a built-in or custom equation."""
        path, colon, name = self.name.rpartition(":")
        return (Path(path), name) if colon else None


@dataclass(frozen=True)
class InitialConfig:
    """The table [initial].

    ``expressions`` maps fields to expressions, or to files with an array (`arrays`). Other fields are read from ``file``, an
    absolute path, or start at 0 if there is no file.
    """

    file: Path | None = key(TEXT, None, 'file = "start.h5"', "an HDF5 file, relative to the input")
    expressions: Mapping[str, str] = entries(EXPRESSION_TEXT, '{} = "sin(x)"', "its values at t = 0")

    @property
    def arrays(self) -> dict[str, ArrayFile]:
        """The files with the values of fields, by field."""
        return {name: file for name, text in self.expressions.items() if (file := ArrayFile.of(text)) is not None}

    @property
    def formulas(self) -> dict[str, str]:
        """The expressions that are no names of files, by field."""
        files = self.arrays
        return {name: text for name, text in self.expressions.items() if name not in files}


# Names of integrators in other programs.
INTEGRATORS_ELSEWHERE = {
    **dict.fromkeys(("rk45", "ode45", "dopri45"), "dopri5"),
    **dict.fromkeys(("rk23", "ode23"), "bs3"),
    **dict.fromkeys(("verlet", "stormer_verlet"), "leapfrog"),
}


@dataclass(frozen=True)
class Numerics:
    """The table [numerics]. If no ``integrator`` is given, the reader chooses one."""

    order: int = key(choice(2, 4, 6, 8), 2, "order = 2", "order of the derivatives in space")
    integrator: str = derived(
        choice(*INTEGRATORS, meant=INTEGRATORS_ELSEWHERE), 'integrator = "rk4"', "the time integrator"
    )
    stages: int | None = key(COUNT, None, "stages = 9", "number of stages")
    epsilon: float | None = key(NUMBER, None, "epsilon = 0.1", "damping of the fastest oscillation")
    precision: str = key(choice("float32", "float64"), "float32", 'precision = "float32"', "precision of the fields")
    kernel: str = key(
        choice("auto", "native", "pallas", "shift", "conv"),
        "auto",
        'kernel = "auto"',
        "which backend computes the steps",
    )


@dataclass(frozen=True)
class TimeConfig:
    """The table [time], in the time unit of the input. Exactly one of ``dt``, ``cfl`` and ``tolerance`` is not None."""

    end: float = key(POSITIVE, REQUIRED, "end = 10.0", "time runs from 0 to `end`")
    dt: float | None = key(POSITIVE, None, "dt = 0.1", "a fixed step")
    cfl: float | None = key(POSITIVE, None, "cfl = 0.5", "the step as a fraction of the stable step")
    tolerance: float | None = key(
        POSITIVE, None, "tolerance = 1e-6", "adaptive steps, whose estimated error stays below this number"
    )
    dt_max: float | None = key(POSITIVE, None, "dt_max = 0.5", "the longest step, with `cfl` or `tolerance`")
    dt_every: int = key(COUNT, 1, "dt_every = 1", "number of steps after which the stable step is computed again")

    @property
    def longest_step(self) -> float:
        """The longest step with ``cfl`` or ``tolerance``."""
        return self.end if self.dt_max is None else min(self.end, self.dt_max)

    @property
    def given(self) -> str:
        """The key that sets the step size: "dt", "cfl" or "tolerance"."""
        return next(name for name in STEP_KEYS if getattr(self, name) is not None)


@dataclass(frozen=True)
class Decomposition:
    """The table [decomposition]: how the grid is divided among processes, devices and tiles. Every key may be "auto".

    ``processes`` and ``tiles`` are counts per axis. ``devices`` is a count per axis, or the total number per process.
    """

    processes: tuple[int, ...] | str = key(
        either(AUTO, COUNTS), "auto", "processes = [2, 1]", "number of blocks for processes"
    )
    devices: int | tuple[int, ...] | str = key(
        either(AUTO, either(COUNT, COUNTS)), "auto", "devices = 2", "devices of each process"
    )
    tiles: tuple[int, ...] | str = key(either(AUTO, COUNTS), "auto", "tiles = [4, 4]", "tiles of a device's block")
    steps_per_exchange: int | str = key(
        either(AUTO, COUNT), "auto", "steps_per_exchange = 2", "time steps between two halo exchanges"
    )
    exchange: str = key(
        choice("auto", "mpi", "mpi4jax"), "auto", 'exchange = "mpi"', "how processes exchange the edges of their blocks"
    )


@dataclass(frozen=True)
class OutputConfig:
    """The table [output]. ``fields`` is None for all fields. If no ``path`` is given, the reader derives one from the
    name of the input file."""

    path: Path = derived(TEXT, 'path = "run.h5"', "the output file, relative to the working directory")
    every: float | None = key(POSITIVE, None, "every = 1.0", "time between snapshots")
    every_steps: int | None = key(COUNT, None, "every_steps = 100", "instead of `every`: steps between snapshots")
    fields: tuple[str, ...] | None = key(
        list_of(TEXT, "a list of field names"), None, 'fields = ["u"]', "fields to write"
    )
    compression: Literal["none", "gzip"] = key(
        choice("none", "gzip"), "none", 'compression = "none"', "compression of the fields in the file"
    )
    method: str = key(
        choice("auto", *TRANSPORTS), "auto", 'method = "auto"', "how several processes write the one file"
    )
    write_behind: bool = key(choice(True, False), True, "write_behind = false", "asynchronous output")
    units: Mapping[str, str] = entries(any_text(), '{} = "K"', "attribute `units` of each field", 'units = { u = "K" }')
    long_name: Mapping[str, str] = entries(
        any_text(), '{} = "temperature"', "attribute `long_name` of each field", 'long_name = { u = "temperature" }'
    )
    streams: Mapping[str, StreamConfig] = entries(
        ANY_TABLE,
        "{} = {{ every = 0.1 }}",
        "additional outputs",
        "streams = { plane = { every = 0.1, region = { z = 0.5 } } }",
    )

    def is_written_behind(self, processes: int) -> bool:
        """Whether snapshots are written by a background thread while the next steps are computed.

        This requires snapshots at regular intervals and a file to which each process can write independently. The last
        snapshot is always written synchronously. ``processes`` is the number of processes of the run.
        """
        regular = self.every is not None or self.every_steps is not None
        return regular and self.may_be_behind(processes)

    def may_be_behind(self, processes: int) -> bool:
        """Whether a background thread of each process may write that process's part of a file."""
        apart = processes == 1 or (may_write_behind(self.method) and self.compression == "none")
        return self.write_behind and apart


@dataclass(frozen=True)
class DiagnosticsConfig:
    """The table [diagnostics]: expressions by name, evaluated every ``every_steps`` steps, or with each output if that is
    None."""

    every_steps: int | None = key(COUNT, None, "every_steps = 10", "steps between two rows")
    expressions: Mapping[str, str] = entries(TEXT, '{} = "integral(u)"', "an expression with reductions over the grid")


@dataclass(frozen=True)
class CheckpointConfig:
    """The table [checkpoint]: how often checkpoints are written, how many are kept, and when the run must stop."""

    every_steps: int | None = key(COUNT, None, "every_steps = 1000", "steps between two checkpoints")
    every_minutes: float | None = key(
        POSITIVE, None, "every_minutes = 30", "instead of `every_steps`: minutes between two checkpoints"
    )
    keep: int = key(COUNT, 2, "keep = 2", "number of checkpoints that are kept")
    walltime: str = key(
        either(AUTO, clock_time()), "auto", 'walltime = "12:00:00"', "the time after which the run stops by itself"
    )


def _surface(value: Any) -> Any:
    """The value given for the surface, or None for "no_flux". Raises Unfit for anything else."""
    if value == "no_flux":
        return None
    if isinstance(value, Mapping) and list(value) == ["value"]:
        return value["value"]
    raise Unfit


@dataclass(frozen=True)
class MaskConfig:
    """The table [mask], which marks solid cells.

    A cell is solid where ``solid`` is not 0 at its centre. ``solid`` is an expression, or the path of a data file with
    one value per cell, as text that `array_of` accepts. ``surface`` is the value of the fields on the solid surface, or
    None for no flux through it.
    """

    solid: str = key(
        TEXT,
        REQUIRED,
        'solid = "(x - 1)**2 + (y - 1)**2 < 0.04"',
        "an expression, where cells with a value other than 0 are solid",
    )
    surface: float | str | None = key(
        Kind('"no_flux" or a table with a value', _surface), None, "{ value = 0.0 }", "condition at the surface"
    )

    @property
    def array(self) -> ArrayFile | ArrayInMemory | None:
        """The file or array in memory that marks the solid cells; None if ``solid`` is an expression."""
        return array_of(self.solid)


@dataclass(frozen=True)
class VerifyConfig:
    """The table [verify], settings of `hpcstencil verify`.

    ``exact`` maps each field to its manufactured solution, an expression in the coordinates and t. ``conserved`` lists
    diagnostics that must stay constant.
    """

    exact: Mapping[str, str] = entries(
        EXPRESSION_TEXT, '"exp(-t)*sin(x)"', "the manufactured solution", 'exact = { u = "exp(-t)*sin(x)" }'
    )
    conserved: tuple[str, ...] = key(
        list_of(TEXT, "a list of names of diagnostics"),
        (),
        'conserved = ["mass"]',
        "diagnostics that must stay constant",
    )


DATA_FILE = Kind('the name of a file, "FILE.h5:DATASET" or "FILE.npy"', TEXT.convert)


@dataclass(frozen=True)
class SumConfig:
    """An objective that is added up over steps: over the initial state and that after every ``every_steps`` steps."""

    sum: str = key(EXPRESSION_TEXT, REQUIRED, 'sum = "integral(u**2)"', "an expression with reductions over the grid")
    every_steps: int = key(COUNT, 1, "every_steps = 10", "steps between two terms of the sum")


@dataclass(frozen=True)
class ObjectiveConfig:
    """The table [objective]: one expression with a name, taken at the end of a run, or added up over steps.

    ``every_steps`` is that of `SumConfig`, None if the expression is taken at the end. ``data`` maps names in the expression
    to files with one value per cell, as text that `array_of` accepts, with absolute paths.
    """

    expressions: Mapping[str, str] = entries(
        EXPRESSION_TEXT, '{} = "integral((u - target)**2)"', "an expression with reductions over the grid"
    )
    data: Mapping[str, str] = entries(
        DATA_FILE, '{} = "observed.h5:u"', "arrays that the expression uses", 'data = { target = "observed.h5:u" }'
    )
    every_steps: int | None = None

    @property
    def arrays(self) -> dict[str, ArrayFile | ArrayInMemory]:
        """The files in ``data``, by name."""
        return {name: array for name, text in self.data.items() if (array := array_of(text)) is not None}


def _size(value: object) -> int:
    """The number of bytes that a text such as "4GB" gives, in decimal units. Raises Unfit for anything else."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([kMGT]?B)", value) if isinstance(value, str) else None
    size = float(found[1]) * 1000 ** ("B", "kB", "MB", "GB", "TB").index(found[2]) if found else 0.0
    if not 1 <= size < 2**63:
        raise Unfit
    return int(size)


@dataclass(frozen=True)
class GradientConfig:
    """The table [gradient], settings of `hpcstencil gradient`. ``memory`` is a text such as "4GB"."""

    of: tuple[str, ...] = key(
        list_of(TEXT, "a list of names"),
        (),
        'of = ["initial.u", "equation.D"]',
        "the quantities to differentiate with respect to",
    )
    checkpoints: int | None = key(COUNT, None, "checkpoints = 20", "the number of states that are stored")
    memory: str | None = key(
        Kind('a size such as "4GB"', lambda value: value if _size(value) else None),
        None,
        'memory = "4GB"',
        "instead of `checkpoints`: room for stored states and a tape, per process",
    )
    storage: str = key(choice("memory", "disk"), "memory", 'storage = "memory"', "where states are stored")
    tape_precision: str = key(
        choice("full", "half"), "full", 'tape_precision = "half"', "the precision of the values on a tape"
    )

    @property
    def bytes(self) -> int | None:
        """The size that ``memory`` gives; None if it is not given."""
        return None if self.memory is None else _size(self.memory)


@dataclass(frozen=True)
class FitConfig:
    """The table [fit], settings of `hpcstencil fit`.

    ``lower``, ``upper``, ``scale``, ``smoothing`` and ``frozen`` map names in gradient.of to values.
    """

    method: str = key(choice("lbfgs"), "lbfgs", 'method = "lbfgs"', "the method")
    steps: int = key(COUNT, 100, "steps = 50", "the largest number of iterations")
    tolerance: float = key(
        POSITIVE, 1e-6, "tolerance = 1e-4", "the fit stops when the gradient norm is this fraction of its initial value"
    )
    history: int = key(COUNT, 10, "history = 10", "number of earlier iterations from which curvature is estimated")
    lower: Mapping[str, float | str] = entries(EXPRESSION, "{} = 0.0", "lower bounds", 'lower = { "equation.D" = 0.0 }')
    upper: Mapping[str, float | str] = entries(EXPRESSION, "{} = 1.0", "upper bounds", 'upper = { "equation.D" = 1.0 }')
    scale: Mapping[str, float] = entries(POSITIVE, "{} = 0.1", "typical sizes", 'scale = { "equation.D" = 0.1 }')
    smoothing: Mapping[str, float] = entries(
        POSITIVE, "{} = 0.05", "smoothing lengths of fields", 'smoothing = { "initial.u" = 0.05 }'
    )
    frozen: Mapping[str, str] = entries(
        EXPRESSION_TEXT, '{} = "x < 0.1"', "cells that keep their values", 'frozen = { "initial.u" = "x < 0.1" }'
    )

    @property
    def by_name(self) -> dict[str, Mapping[str, Any]]:
        """The sub-tables, whose keys are names in gradient.of."""
        return {name: getattr(self, name) for name in ("lower", "upper", "scale", "smoothing", "frozen")}


@dataclass(frozen=True, kw_only=True)
class Config:
    """A checked input file, with one attribute per table.

    Defaults are filled in, and the paths of data files are absolute. ``mask`` and ``fit`` are None without a table [mask] or
    [fit].
    ``ensemble`` maps dotted keys, such as "equation.D", to one value per member.
    """

    title: str = key(any_text(), "", 'title = "a title"', "the heading of plots, and stored in the output")
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
    mask: MaskConfig | None = None
    verify: VerifyConfig = VerifyConfig()
    ensemble: Mapping[str, tuple[float | str, ...]] = field(default_factory=dict)
    probes: Mapping[str, ProbeConfig] = field(default_factory=dict)
    objective: ObjectiveConfig = ObjectiveConfig()
    gradient: GradientConfig = GradientConfig()
    fit: FitConfig | None = None


TOP = tuple(field.name for field in fields(Config))
# The tables whose keys are declared here. Those of [boundary] and [ensemble] follow from the grid and the fields.
TABLES: Mapping[str, type] = {
    "grid": GridConfig, "equation": EquationConfig, "initial": InitialConfig, "numerics": Numerics, "time": TimeConfig,
    "decomposition": Decomposition, "output": OutputConfig, "diagnostics": DiagnosticsConfig,
    "checkpoint": CheckpointConfig, "mask": MaskConfig, "verify": VerifyConfig,
    "objective": ObjectiveConfig, "gradient": GradientConfig, "fit": FitConfig,
}  # fmt: skip
