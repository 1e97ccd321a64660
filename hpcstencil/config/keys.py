"""The tables of the input file: the names that exist, and each fixed key with its kind, default and example."""

from __future__ import annotations

from hpcstencil.equations import EQUATIONS
from hpcstencil.numerics.grid import AXES
from hpcstencil.numerics.integrators import INTEGRATORS
from hpcstencil.symbolic.expressions import FUNCTIONS, HALFWAY, REDUCTIONS
from hpcstencil.validation.schema import (
    COUNT,
    NUMBER,
    POSITIVE,
    REQUIRED,
    TEXT,
    Key,
    choice,
    clock_time,
    either,
    list_of,
)

BUILT_IN = tuple(EQUATIONS)
OPERATORS = (
    "laplacian", "dx", "dy", "dz", "dxx", "dxy", "dxz", "dyy", "dyz", "dzz", "divergence", "gradient_squared",
    "div_grad", "upwind", "point", "at", "noise", *(f"{kind}_{axis}" for kind in HALFWAY for axis in AXES),
)  # fmt: skip
RESERVED = frozenset((
    *FUNCTIONS, *REDUCTIONS, *OPERATORS, *AXES, "pi", "t", "time", "step", "member", "file", "every", "every_steps",
    "name", "rhs", "seed", "diagnostics", "mesh", "operators",
))  # fmt: skip

AUTO = choice("auto")
COUNTS = list_of(COUNT, "a list of positive integers, one per axis", longest=3)
CLOCK = clock_time()
NUMBERS = list_of(NUMBER, "a list of numbers, one per axis", longest=3)

# The tables with fixed keys; in [equation], [initial], [boundary] and [diagnostics] the user chooses the keys.
TABLES: dict[str, dict[str, Key]] = {
    "grid": {
        "shape": Key(COUNTS, REQUIRED, "shape = [512, 512]"),
        "lower": Key(NUMBERS, None, "lower = [0.0, 0.0]"),
        "upper": Key(NUMBERS, None, "upper = [1.0, 1.0]"),
    },
    "numerics": {
        "order": Key(choice(2, 4, 6, 8), 2, "order = 2"),
        "integrator": Key(choice(*INTEGRATORS), None, 'integrator = "rk4"'),
        "stages": Key(COUNT, None, "stages = 9"),
        "epsilon": Key(NUMBER, None, "epsilon = 0.1"),
        "precision": Key(choice("float32", "float64"), "float32", 'precision = "float32"'),
        "kernel": Key(choice("auto", "native", "pallas", "shift", "conv"), "auto", 'kernel = "auto"'),
    },
    "time": {
        "end": Key(POSITIVE, REQUIRED, "end = 10.0"),
        "dt": Key(POSITIVE, None, "dt = 0.1"),
        "cfl": Key(POSITIVE, None, "cfl = 0.5"),
        "tolerance": Key(POSITIVE, None, "tolerance = 1e-6"),
        "dt_every": Key(COUNT, 1, "dt_every = 1"),
    },
    "decomposition": {
        "processes": Key(either(AUTO, COUNTS), "auto", "processes = [2, 1]"),
        "devices": Key(either(AUTO, either(COUNT, COUNTS)), "auto", "devices = 2"),
        "tiles": Key(either(AUTO, COUNTS), "auto", "tiles = [4, 4]"),
        "steps_per_exchange": Key(either(AUTO, COUNT), "auto", "steps_per_exchange = 2"),
        "exchange": Key(choice("auto", "mpi4jax"), "auto", 'exchange = "mpi4jax"'),
    },
    "output": {
        "path": Key(TEXT, None, 'path = "run.h5"'),
        "every": Key(POSITIVE, None, "every = 1.0"),
        "every_steps": Key(COUNT, None, "every_steps = 100"),
        "fields": Key(list_of(TEXT, "a list of field names"), None, 'fields = ["u"]'),
        "compression": Key(choice("none", "gzip"), "none", 'compression = "none"'),
        "method": Key(choice("auto", "direct", "mpio", "serial", "per_process"), "auto", 'method = "auto"'),
        "write_behind": Key(choice(True, False), True, "write_behind = false"),
    },
    "checkpoint": {
        "every_steps": Key(COUNT, None, "every_steps = 1000"),
        "every_minutes": Key(POSITIVE, None, "every_minutes = 30"),
        "keep": Key(COUNT, 2, "keep = 2"),
        "walltime": Key(either(AUTO, CLOCK), "auto", 'walltime = "12:00:00"'),
    },
}
TOP = ("title", "grid", "equation", "initial", "boundary", "numerics", "time", "decomposition", "output", "diagnostics",
       "checkpoint", "mask", "verify", "ensemble")  # fmt: skip
STEP_KEYS = ("dt", "cfl", "tolerance")  # of [time], of which one is given
LEAST_TOLERANCE = {"float32": 1.2e-7, "float64": 2.3e-16}  # the spacing of numbers near 1
MOST_STEPS = 2.0**53  # float64 counts exactly up to here
MOST_EPSILON = 1.0
HDF5_SUFFIXES = (".h5", ".hdf5", ".nc")
MOST_CELLS = 2**63
MOST_OUTPUTS = 2**31
LONGEST_NAME = 100  # characters of a field, parameter or diagnostic
LONGEST_PATH = (
    4000  # bytes of the output's full path: systems allow 4095, and files beside it have longer names
)
LONGEST_FILE_NAME = 220  # bytes of the output's name, of the 255 that file systems allow
WIDTHS = {"float32": (1e-18, 1e18), "float64": (1e-100, 1e100)}  # of a cell: squares and volumes stay in range
