"""Read an input file into the dataclasses of `settings`.

Types, ranges and the consistency of keys are checked here. Expressions stay text; `symbolic.parser` parses them later.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcstencil.config.boundary_conditions import read_boundary
from hpcstencil.config.ensemble import by_dotted_key, check_steps, read_ensemble
from hpcstencil.config.limits import LEAST_TOLERANCE, MOST_CELLS, MOST_EPSILON, MOST_OUTPUTS, MOST_STEPS, WIDTHS
from hpcstencil.config.names import allowed_name
from hpcstencil.config.path_checks import check_is_file, check_path
from hpcstencil.config.paths import all_arrays, check_output_path, sources
from hpcstencil.config.planned import refuse_planned
from hpcstencil.config.probes import read_probes
from hpcstencil.config.settings import (
    STEP_KEYS,
    TABLES,
    TOP,
    CheckpointConfig,
    Config,
    Decomposition,
    DiagnosticsConfig,
    EquationConfig,
    FitConfig,
    GradientConfig,
    InitialConfig,
    MaskConfig,
    Numerics,
    ObjectiveConfig,
    OutputConfig,
    SumConfig,
    TimeConfig,
    VerifyConfig,
)
from hpcstencil.config.stencil_config import StencilConfig
from hpcstencil.config.stencil_weights import weights_of
from hpcstencil.config.streams import streams_of
from hpcstencil.config.time_series import time_series_of
from hpcstencil.equations import EQUATIONS
from hpcstencil.io.array_file import HDF5_SUFFIXES, IMAGE, ArrayFile, ArrayInMemory, array_of
from hpcstencil.numerics.finite_differences import Weights
from hpcstencil.numerics.grid import AXES, Grid
from hpcstencil.numerics.integrators import FEWEST_STAGES, INTEGRATORS, MOST_STAGES, SUPER_STEPPING
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import at, listing, nearest, shown, too_many, unknown, wrong
from hpcstencil.validation.overrides import override, parse_override
from hpcstencil.validation.schema import EXPRESSION, Key, entries_of, keys_of, names_of, read, table, take
from hpcstencil.validation.toml_text import read_file

OTHER_SUFFIXES = (
    *HDF5_SUFFIXES,
    ".npz",
    ".jpg",
    ".jpeg",
    ".gif",
    ".bmp",
    ".tif",
    ".tiff",
    ".webp",
)  # no file of an array
BOUNDARY = 'boundary = { x = "periodic", y = { neumann = 0.0 } }'
MEANT = {
    **dict.fromkeys(("t_range", "t_end", "t_max", "tmax", "duration"), "time.end"),
    **dict.fromkeys(("bc", "bcs", "boundary_conditions", "periodic"), "boundary"),
    **dict.fromkeys(("solver", "scheme"), "numerics.integrator"),
    **dict.fromkeys(("adaptive", "rtol", "atol"), "time.tolerance"),
    **dict.fromkeys(("max_step", "max_dt", "dtmax", "hmax"), "time.dt_max"),
    **dict.fromkeys(("tracker", "trackers"), "diagnostics"),
    **dict.fromkeys(("pde", "consts", "constants", "parameters"), "equation"),
    **dict.fromkeys(("state", "initial_state", "ic"), "initial"),
    **dict.fromkeys(("dtype", "double"), "numerics.precision"),
    "space_order": "numerics.order",
    "time_order": "numerics.integrator",
    **dict.fromkeys(("nbl", "nbpml"), "boundary"),
    "origin": "grid.lower",
    "extent": "grid.upper",
    "backend": "numerics.kernel",
    **{key: f"equation.{key}" for key in ("rhs", "stencils", "seed")},
    "streams": "output.streams",
}  # keys as other programs name them
# Tables whose keys are also looked for if one stands in the wrong table.
SEARCHED = ("grid", "numerics", "time", "decomposition", "output", "checkpoint")


def load(path: Path, overrides: Sequence[str] = (), output: Path | None = None) -> Config:
    """Read and check the input file at ``path``.

    ``overrides`` are the arguments of --set, such as "time.end=2.0", and ``output`` that of --output, if it is given. Raises
    InputError if the file cannot be read, if a key or value is wrong, if a data file is missing, or if the output path cannot
    be used.
    """
    tables = read_file(path)
    check_path("INPUT.toml", path.absolute())  # is written into the output, with the paths of data beside it
    config = from_mapping(tables, path.absolute().parent, overrides, path.stem)
    check_sources(config)
    check_output_path(config, path, output or config.output.path, "--output" if output else "output.path")
    return config


def check_sources(config: Config) -> None:
    """Raise InputError if a data file that the input names does not exist.

    `from_mapping` does not check this, because the input recorded in an output file may be read after its data files
    were deleted.
    """
    kinds = {"initial.file": "an HDF5 file", **{key: file.kind for key, file in all_arrays(config).items()}}
    for key, file in sources(config).items():
        check_is_file(key, file, kinds[key])


def from_mapping(raw: Mapping[str, object], base: Path, overrides: Sequence[str] = (), stem: str = "output") -> Config:
    """Check the tables ``raw``, as parsed from TOML, and convert them to a `Config`.

    Relative paths of data files start at ``base``. ``overrides`` are the arguments of --set. The output file is
    ``stem``.h5 if the input does not name one. Raises InputError for any wrong key or value.
    """
    raw = override(raw, overrides)
    refuse_planned(raw)
    for name in raw:
        if name not in TOP:
            raise unknown(at(name), "table or key", name, TOP, _home(name))
    for name in SEARCHED:
        _refuse_unknown_keys(raw, name)
    grid = _grid(_table(raw, "grid"))
    equation = _equation(_section(raw, "equation"), base, grid.ndim)
    time = _time(_table(raw, "time"), equation)
    config = Config(
        title=take("title", keys_of(Config)["title"], raw.get("title", "")),
        grid=grid,
        equation=equation,
        initial=_initial(_section(raw, "initial"), base),
        boundary=read_boundary(table("boundary", raw.get("boundary", {}), BOUNDARY), grid.axes),
        numerics=_numerics(_table(raw, "numerics"), time),
        time=time,
        decomposition=_decomposition(_table(raw, "decomposition"), grid),
        output=_output(_table(raw, "output"), stem, grid, time.end),
        diagnostics=_diagnostics(_section(raw, "diagnostics")),
        checkpoint=_checkpoint(_table(raw, "checkpoint")),
        mask=_mask(raw, base) if "mask" in raw else None,
        verify=_verify(raw),
        ensemble=read_ensemble(_section(raw, "ensemble")),
        probes=read_probes(_section(raw, "probes"), base, grid),
        objective=_objective(raw, base),
        gradient=_gradient(raw),
        fit=_fit(raw) if "fit" in raw else None,
    )
    if config.ensemble:
        check_steps(config)
        for key in (".".join(parse_override(text)[0]) for text in overrides):
            if key in config.ensemble:
                raise InputError(f"--set {key}: the members have their own values; set the list ensemble.{key} instead")
        for key, recorded in (("output.streams", config.output.streams), ("probes", config.probes)):
            if recorded and config.time.dt is None:
                raise InputError(
                    f"{key}: not available yet in an [ensemble] with time.{config.time.given}, whose members take steps of "
                    "their own; give a fixed time.dt"
                )
    _refuse_extremes(config)
    if config.mask is not None and config.numerics.order != 2:
        raise wrong(
            "numerics.order", "2 with [mask], whose surfaces run along cells", config.numerics.order, "set it to 2"
        )
    return config


def _refuse_extremes(config: Config) -> None:
    """Raise InputError for values whose allowed range depends on other keys: more outputs than can be counted, and
    stencil weights and cell widths that overflow or underflow in the precision of the fields."""
    end, every, precision = config.time.end, config.output.every, config.numerics.precision
    if every is not None and end / every > MOST_OUTPUTS:
        raise wrong("output.every", "at most 2**31 outputs up to time.end", every, "write output less often")
    for name, stencil in config.equation.stencils.items():
        largest = float(np.abs(stencil.weights).max())
        if largest > float(np.finfo(precision).max):
            raise wrong(f"equation.stencils.{name}", f"weights that {precision} can hold", largest, "scale them")
    least, most = WIDTHS[precision]
    for axis, dx in zip(AXES, config.grid.spacing, strict=False):
        if not least <= dx <= most:
            raise InputError(
                f"grid.upper: expected cells between {least:g} and {most:g} wide, whose squares {precision} can hold, but "
                f"got {dx:g} along {axis}; use another unit of length"
            )


# ---- tables ----------------------------------------------------------------------------------------------------------


def _section(raw: Mapping[str, object], name: str) -> Mapping[str, Any]:
    """The table ``name`` of the input, empty if it is missing. Raises InputError if it is not a table."""
    return table(name, raw.get(name, {}), f"[{name}]")


def _table(raw: Mapping[str, object], name: str) -> dict[str, Any]:
    """The values of the table ``name``, by the field names of its dataclass: its keys with defaults filled in, and its
    sub-tables."""
    section, declared = _section(raw, name), TABLES[name]
    values = read(name, section, keys_of(declared))
    return values | {
        field: _entries(section, name, field) for field, spec in entries_of(declared).items() if spec.table
    }


def _entries(section: Mapping[str, object], name: str, field: str, new: bool = False) -> dict[str, Any]:
    """The entries with names of the user's choice that belong to a dataclass field of the table ``name``.

    With ``new``, the entries define names, which must be allowed in expressions. Raises InputError for invalid values.
    """
    spec = entries_of(TABLES[name])[field]
    if spec.table:
        given = table(f"{name}.{field}", section.get(field, {}), spec.table)
    else:
        given = {key: value for key, value in section.items() if key not in names_of(TABLES[name])}
    path = (name, field) if spec.table else (name,)
    entries = {}
    for entry, value in given.items():
        if new:
            allowed_name(at(*path, entry), entry)
        entries[entry] = take(at(*path, entry), spec.key(entry), value)
    return entries


def _home(key: str) -> str | None:
    """The dotted key that a user who wrote ``key`` into the wrong table probably meant; None if none is similar."""
    return next((f"{name}.{key}" for name in SEARCHED if key in keys_of(TABLES[name])), MEANT.get(key))


def _refuse_unknown_keys(raw: Mapping[str, object], name: str) -> None:
    """Raise InputError for a key of the table ``name`` that is not declared in its dataclass."""
    known = names_of(TABLES[name])
    for key in _section(raw, name):
        if key not in known:
            raise unknown(at(name, key), "key", key, known, _home(key) if name in SEARCHED else None)


def _grid(values: dict[str, Any]) -> Grid:
    """The grid of the table [grid]. Raises InputError for corners that do not fit the shape or each other, for cells
    too narrow for float64, and for too many cells."""
    shape = values["shape"]
    lower = values["lower"] or (0.0,) * len(shape)
    for key, given in (("lower", lower), ("upper", values["upper"])):
        if given is not None and len(given) != len(shape):
            raise wrong(f"grid.{key}", f"one number per axis, {len(shape)} in all", list(given), "add or drop some")
    upper = values["upper"] or tuple(a + n for a, n in zip(lower, shape, strict=True))
    for axis, a, b in zip(AXES, lower, upper, strict=False):
        if not a < b:
            raise InputError(
                f"grid.upper: expected more than grid.lower = {a:g} along {axis}, but got {b:g}; swap the two"
            )
    grid = Grid(shape, lower, upper)
    for axis, a, b, dx in zip(AXES, lower, upper, grid.spacing, strict=False):
        if not math.isfinite(dx) or a + 0.5 * dx == a or b - 0.5 * dx == b:
            raise InputError(
                f"grid.upper: expected cells that float64 tells apart, but got {dx:g} wide cells from {a:g} to {b:g} "
                f"along {axis}; move or scale the axis"
            )
    if grid.cells >= MOST_CELLS:
        raise wrong("grid.shape", "fewer than 2**63 cells in all", list(shape), "take a coarser grid")
    return grid


def _equation(raw: Mapping[str, object], base: Path, ndim: int) -> EquationConfig:
    """Read the table [equation], whose keys include parameters with names of the user's choice.

    Data files and the Python file of the equation are relative to ``base``. Raises InputError for a missing or unknown
    name of the equation, and for entries that a built-in or custom equation cannot have.
    """
    if "name" not in raw and "rhs" in raw:
        raise InputError(
            'equation.name: expected "custom" beside a table rhs, but the key is missing; write name = "custom"'
        )
    values = read("equation", raw, keys_of(EquationConfig))
    name = values["name"]
    known = (*EQUATIONS, "custom")
    file, colon, class_name = name.rpartition(":")
    if colon and file.endswith(".py"):
        if not class_name.isidentifier():
            raise wrong(
                "equation.name", "a file and the name of a class in it", name, 'write "my_equation.py:MyEquation"'
            )
        values["name"] = f"{os.path.abspath(base / file)}:{class_name}"
    elif name.endswith(".py"):
        raise wrong("equation.name", "a file and the name of a class in it", name, f'write "{name}:CLASS"')
    elif name not in known:
        meant = {"diffusion": "heat", "reaction_diffusion": "custom"}.get(name)
        raise unknown("equation.name", "equation", name, known, meant)
    custom = name == "custom"
    rhs = _entries(raw, "equation", "rhs", new=True) if custom else {}
    if custom and not rhs:
        near = nearest("rhs", [key for key, value in raw.items() if isinstance(value, Mapping)])
        advice = f"is {shown(near)} meant for it?" if near else 'write u = "laplacian(u)"'
        raise InputError(f"equation.rhs: expected one entry per field, but there is none; {advice}")
    if not custom and "rhs" in raw:
        raise InputError('equation.rhs: only a custom equation has one; set name = "custom" or remove it')
    for key in rhs:
        if key in raw:
            raise InputError(f"{at('equation', key)}: '{key}' is a field already; give the parameter another name")
    in_tables = [
        key for key, value in raw.items() if isinstance(value, Mapping) and key not in names_of(EquationConfig)
    ]
    tables = {key: raw[key] for key in in_tables}
    raw = {key: value for key, value in raw.items() if key not in tables}
    parameters = {
        key: _located(at("equation", key), value, base) if isinstance(value, str) else value
        for key, value in _entries(raw, "equation", "parameters", new=custom).items()
    }
    stencils = {
        key: _stencil(("equation", "stencils", key), given, base, ndim)
        for key, given in _entries(raw, "equation", "stencils", new=True).items()
    }
    return EquationConfig(
        **values,
        parameters=parameters,
        series={
            key: time_series_of(key, given, base)
            for key, given in _entries(tables, "equation", "series", new=custom).items()
        },
        rhs=rhs,
        stencils=stencils,
    )


def _stencil(
    path: tuple[str, ...], given: Weights | str | Mapping[str, object], base: Path, ndim: int
) -> StencilConfig:
    """Read a user-defined stencil, given as its weights, as the name of a .npy file, or as a table with a method."""
    keys, key = keys_of(StencilConfig), at(*path)
    if not isinstance(given, Mapping):
        return StencilConfig(weights_of(key, given, base, ndim), file=_weights_file(given, base))
    for name in given:
        if name not in keys:
            raise unknown(at(*path, name), "key", name, tuple(keys))
    values = read(path, given, keys)
    weights = values["weights"]
    return StencilConfig(
        weights_of(at(*path, "weights"), weights, base, ndim), values["method"], _weights_file(weights, base)
    )


def _weights_file(given: Weights | str, base: Path) -> Path | None:
    return Path(os.path.abspath(base / given)) if isinstance(given, str) else None


def _located(key: str, text: str, base: Path) -> str:
    """The text of a parameter. If it names a data file, the path, relative to ``base``, is made absolute.

    Raises InputError for images and other files that hold no numbers per cell.
    """
    file = array_of(text)
    if isinstance(file, ArrayInMemory) or file is None and Path(text).suffix.lower() not in OTHER_SUFFIXES:
        return text
    if file is None or file.kind == IMAGE:
        expected = 'an expression, or a file with numbers, "FILE.npy" or "FILE.h5:DATASET"'
        raise wrong(key, expected, text, "convert or complete it")
    return str(replace(file, path=Path(os.path.abspath(base / file.path))))


def _initial(raw: Mapping[str, object], base: Path) -> InitialConfig:
    """Read the table [initial]. Files are relative to ``base``."""
    file = read("initial", raw, keys_of(InitialConfig))["file"]
    texts = {
        name: _located(f"initial.{name}", text, base) for name, text in _entries(raw, "initial", "expressions").items()
    }
    return InitialConfig(file and Path(os.path.abspath(base / file)), texts)


def _time(values: dict[str, Any], equation: EquationConfig) -> TimeConfig:
    """Check the table [time] and choose the default, cfl = 0.5. Raises InputError for more than one of dt, cfl and
    tolerance, for a custom equation without dt or tolerance, and for too many steps."""
    given = [name for name in STEP_KEYS if values[name] is not None]
    if len(given) > 1:
        raise too_many([f"time.{name}" for name in given], "remove one" if len(given) == 2 else "keep one")
    if equation.name == "custom" and given not in (["dt"], ["tolerance"]):
        raise InputError(
            f"time.{'cfl' if given else 'dt'}: a custom equation needs dt or tolerance, since its stable step is only "
            "estimated; write for example dt = 0.1, which hpcstencil check compares with the estimate, or tolerance = 1e-4"
        )
    if not given:
        values["cfl"] = 0.5
    if values["dt_max"] is not None and values["dt"] is not None:
        raise too_many(("time.dt", "time.dt_max"), "remove time.dt_max, since dt fixes the step")
    if values["dt"] is not None and values["end"] / values["dt"] > MOST_STEPS:
        raise wrong("time.dt", "at most 2**53 steps up to time.end", values["dt"], "take longer steps")
    return TimeConfig(**values)


def _numerics(values: dict[str, Any], time: TimeConfig) -> Numerics:
    """Check [numerics] and choose the default integrator: rk4, or with time.tolerance one with an error estimate."""
    estimating = [name for name, method in INTEGRATORS.items() if method.error]
    name = values["integrator"] or (estimating[-1] if time.tolerance else "rk4")
    if time.tolerance is not None and name not in estimating:
        allowed = listing(map(shown, estimating), "or")
        raise wrong(
            "numerics.integrator", f"{allowed} with time.tolerance", name, "or give time.dt or time.cfl instead"
        )
    stages = values["stages"]
    if stages is not None and name not in SUPER_STEPPING:
        families = listing(map(shown, SUPER_STEPPING), "or")
        raise InputError(
            f"numerics.stages: only {families} has an adjustable number of stages, not {shown(name)}; remove it"
        )
    if stages is not None and not FEWEST_STAGES <= stages <= MOST_STAGES:
        raise wrong("numerics.stages", f"{FEWEST_STAGES} to {MOST_STAGES}", stages, "take another count")
    epsilon = values["epsilon"]
    if epsilon is not None and name != "ab2":
        raise InputError(f'numerics.epsilon: only "ab2" has it, not {shown(name)}; remove it')
    if epsilon is not None and not 0.0 <= epsilon <= MOST_EPSILON:
        raise wrong("numerics.epsilon", f"0 to {MOST_EPSILON:g}", epsilon, "the usual one is 0.1")
    least = LEAST_TOLERANCE[values["precision"]]
    if time.tolerance is not None and time.tolerance < least:
        expected = f"at least {least:g}, the precision of {values['precision']}"
        advice = 'loosen it, or set numerics.precision = "float64"' if values["precision"] == "float32" else "loosen it"
        raise wrong("time.tolerance", expected, time.tolerance, advice)
    return Numerics(**{**values, "integrator": name})


def _decomposition(values: dict[str, Any], grid: Grid) -> Decomposition:
    """Check the table [decomposition]. Raises InputError for counts that do not match the number of axes."""
    for key in ("processes", "devices", "tiles"):
        given = values[key]
        if isinstance(given, tuple) and len(given) != grid.ndim:
            raise wrong(f"decomposition.{key}", f"{grid.ndim} counts, one per axis", list(given), "make them agree")
    return Decomposition(**values)


def _output(values: dict[str, Any], stem: str, grid: Grid, end: float) -> OutputConfig:
    """Check the table [output] and its streams. The default path is ``stem``.h5."""
    if values["every"] is not None and values["every_steps"] is not None:
        raise too_many(("output.every", "output.every_steps"), "remove one")
    fields = values["fields"] or ()
    if len(set(fields)) < len(fields):
        raise wrong("output.fields", "each field once", list(fields), "remove the repetition")
    values["path"] = Path(values["path"] or f"{stem}.h5")
    values["streams"] = streams_of(values["streams"], grid, end)
    return OutputConfig(**values)


def _diagnostics(raw: Mapping[str, object]) -> DiagnosticsConfig:
    """Read the table [diagnostics]. Raises InputError for a misspelled key and for names that are not allowed."""
    values = read("diagnostics", raw, keys_of(DiagnosticsConfig))
    for key, value in raw.items():
        meant = "every_steps" if key == "every" else nearest(key, values)
        # A number alone is no diagnostic, but may well be a key misspelled (every_step = 10).
        if key not in values and meant and (key == "every" or not isinstance(value, str)):
            raise unknown(at("diagnostics", key), "key", key, (), meant)
    return DiagnosticsConfig(**values, expressions=_entries(raw, "diagnostics", "expressions", new=True))


def _mask(raw: Mapping[str, object], base: Path) -> MaskConfig:
    """Read the table [mask]. The path of a data file, relative to ``base``, is made absolute."""
    _refuse_unknown_keys(raw, "mask")
    mask = MaskConfig(**_table(raw, "mask"))
    if mask.array is None and Path(mask.solid).suffix.lower() in OTHER_SUFFIXES:
        expected = '"FILE.h5:DATASET", "FILE.npy", "FILE.png" or an expression'
        raise wrong("mask.solid", expected, mask.solid, "convert or complete it")
    if isinstance(mask.array, ArrayFile):
        mask = replace(mask, solid=str(replace(mask.array, path=Path(os.path.abspath(base / mask.array.path)))))
    if mask.surface is not None:
        mask = replace(mask, surface=take("mask.surface.value", Key(EXPRESSION, None, "value = 0.0"), mask.surface))
    return mask


def _verify(raw: Mapping[str, object]) -> VerifyConfig:
    """Read the table [verify]."""
    _refuse_unknown_keys(raw, "verify")
    return VerifyConfig(**_table(raw, "verify"))


def _objective(raw: Mapping[str, object], base: Path) -> ObjectiveConfig:
    """Read the table [objective]. Paths of data files, relative to ``base``, are made absolute."""
    section, every_steps = dict(_section(raw, "objective")), None
    for name, value in section.items():
        if isinstance(value, Mapping) and name != "data":
            keys = keys_of(SumConfig)
            for entry in value:
                if entry not in keys:
                    raise unknown(at("objective", name, entry), "key", entry, tuple(keys))
            summed = SumConfig(**read(("objective", name), value, keys))
            section[name], every_steps = summed.sum, summed.every_steps
    found = _entries(section, "objective", "expressions", new=True)
    if len(found) > 1:
        raise too_many([at("objective", name) for name in found], "put the terms into one")
    data = {
        name: _data_file(at("objective", "data", name), text, base)
        for name, text in _entries(section, "objective", "data", new=True).items()
    }
    if data and not found:
        raise InputError(
            'objective: expected an expression beside the data, but there is none; write misfit = "integral((u - target)**2)"'
        )
    return ObjectiveConfig(expressions=found, data=data, every_steps=every_steps)


def _data_file(key: str, text: str, base: Path) -> str:
    """The text of a data file with its path, relative to ``base``, made absolute. Raises InputError for other texts."""
    file = array_of(text)
    if isinstance(file, ArrayInMemory):
        return text
    if file is None or file.kind == IMAGE:
        raise wrong(key, 'the name of a file with numbers, "FILE.h5:DATASET" or "FILE.npy"', text, "correct it")
    return str(replace(file, path=Path(os.path.abspath(base / file.path))))


def _gradient(raw: Mapping[str, object]) -> GradientConfig:
    """Read the table [gradient]. Raises InputError for names given twice, and for both limits of the stored states."""
    _refuse_unknown_keys(raw, "gradient")
    values = _table(raw, "gradient")
    if len(set(values["of"])) < len(values["of"]):
        raise wrong("gradient.of", "each name once", list(values["of"]), "remove the repetition")
    if values["checkpoints"] is not None and values["memory"] is not None:
        raise too_many(("gradient.checkpoints", "gradient.memory"), "remove one")
    return GradientConfig(**values)


def _fit(raw: Mapping[str, object]) -> FitConfig:
    """Read the table [fit]. Raises InputError for names that are not in gradient.of."""
    _refuse_unknown_keys(raw, "fit")
    section = dict(_section(raw, "fit"))
    for name in FitConfig().by_name:
        if isinstance(given := section.get(name), Mapping):
            section[name] = by_dotted_key(f"fit.{name}", given)
    raw = {**raw, "fit": section}
    fit, known = FitConfig(**_table(raw, "fit")), _gradient(raw).of
    if not known:
        raise InputError(
            "fit: expected the names of what to find in gradient.of, but it is missing; write for example [gradient] of = "
            '["equation.D"]'
        )
    for table_name, given in fit.by_name.items():
        for name in given:
            if name not in known:
                names = listing(map(shown, known), "or")
                raise wrong(
                    at("fit", table_name, name), f"a name in gradient.of, {names}", name, "correct one of the two"
                )
    return fit


def _checkpoint(values: dict[str, Any]) -> CheckpointConfig:
    """Check the table [checkpoint]. Raises InputError if both intervals are given."""
    if values["every_steps"] is not None and values["every_minutes"] is not None:
        raise too_many(("checkpoint.every_steps", "checkpoint.every_minutes"), "remove one")
    return CheckpointConfig(**values)
