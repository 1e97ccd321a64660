"""The table of a sweep: one row per member, with its parameters and the final values of its diagnostics.

Only finished members have values. The row of a member that is not done has NaN, even if its output holds values.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcstencil import __version__
from hpcstencil.io.file_read import open_for_reading
from hpcstencil.io.hdf5_validation import WHOLE, numbers, series
from hpcstencil.runtime.atomic_write import publish, write_atomically
from hpcstencil.runtime.filesystem import file_errors
from hpcstencil.sweep.folder import Planned
from hpcstencil.sweep.report import plain
from hpcstencil.sweep.state import Standing
from hpcstencil.validation.overrides import parse_override
from hpcstencil.validation.toml_text import dotted

FORMAT_VERSION = 1
ENDINGS = (".csv", ".h5", ".png")


@dataclass(frozen=True)
class Table:
    """The table of a sweep in memory.

    ``columns`` maps names to one value, or None, per member. ``parameters`` and ``diagnostics`` are the names of the
    columns with parameters and with final values of diagnostics.
    """

    columns: Mapping[str, Sequence[Any]]
    parameters: tuple[str, ...]
    diagnostics: tuple[str, ...]
    title: str


def collect(planned: Planned, found: Sequence[Standing], output: Path) -> list[Path]:
    """Write the table as CSV and HDF5, and a plot as PNG if there are diagnostics to plot. Returns the paths.

    ``output`` is the path without suffix. Each file is replaced atomically. Raises EnvironmentProblem if writing fails.
    """
    output = output.with_suffix("") if output.suffix in ENDINGS else output
    with file_errors(output, "create"):
        output.parent.mkdir(parents=True, exist_ok=True)
    table = tabulate(planned, found)
    paths = [output.with_name(output.name + ending) for ending in ENDINGS]
    write_atomically(paths[0], as_csv(table))
    publish(paths[1], lambda temporary: write_hdf5(table, planned, temporary))
    if not table.diagnostics or all(here.state != "done" for here in found):
        return paths[:2]
    # matplotlib is slow to import and needed only here
    from postprocess.sweep import save_sweep_figure

    publish(paths[2], lambda temporary: save_sweep_figure(paths[1], temporary))
    return paths


def tabulate(planned: Planned, found: Sequence[Standing]) -> Table:
    """Build the table of all members. It has a column for each parameter of the sweep, and for each key that --set
    changed in a member."""
    repaired = {dotted(parse_override(text)[0]): None for here in found for text in here.overrides}
    parameters = tuple(dict.fromkeys((*planned.parameters, *repaired)))
    finals = [final_values(here.member.output) if here.state == "done" else {} for here in found]
    names = tuple(dict.fromkeys(
        name for here, final in zip(found, finals, strict=True)
        for name in (*here.config.diagnostics.expressions, *(name for name in final if name not in ("time", "step")))
    ))  # fmt: skip
    own: dict[str, list[Any]] = {
        "member": [here.member.index for here in found],
        "status": [here.state for here in found],
        **{key: [plain(here.value(key)) for here in found] for key in parameters},
    }
    last: dict[str, list[Any]] = {
        "time": [final.get("time") for final in finals],
        "step": [final.get("step") for final in finals],
        "wall_time": [here.seconds if math.isfinite(here.seconds) else None for here in found],
        "attempts": [len(here.attempts) for here in found],
        "reason": [here.reason for here in found],
    }
    # A diagnostic may have the name of another column.
    called = {name: f"diagnostics.{name}" if name in (*own, *last) else name for name in names}
    values = {called[name]: [final.get(name) for final in finals] for name in names}
    return Table({**own, **values, **last}, parameters, tuple(called.values()), found[0].config.title)


def final_values(path: Path) -> dict[str, float]:
    """The last ``time``, ``step`` and value of each diagnostic in the output of a finished run, by name.

    Diagnostics with one value per member of an ensemble are left out.
    """
    with open_for_reading(path) as file:
        last = {"time": series(path, file, "time"), "step": series(path, file, "step", WHOLE)}
        group = file.get("diagnostics")
        for name in group if isinstance(group, h5py.Group) else ():
            data = numbers(path, group, name, 1, 2)
            if name not in last and data.ndim == 1:
                last[name] = data[-1:]
        return {name: values[-1].item() for name, values in last.items() if len(values)}


def as_csv(table: Table) -> str:
    """The table as CSV text. Numbers have all their digits; missing numbers are "nan", and missing text is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    numeric = {name for name, values in table.columns.items() if is_numeric(values)}
    for row in zip(*table.columns.values(), strict=True):
        entries = zip(table.columns, row, strict=True)
        writer.writerow([("nan" if name in numeric else "") if v is None else v for name, v in entries])
    return text.getvalue()


def is_numeric(values: Sequence[object]) -> bool:
    """Whether a column holds only numbers and None; booleans are not numbers."""
    return all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values)


def write_hdf5(table: Table, planned: Planned, path: Path) -> None:
    """Write the table to an HDF5 file that xarray can open, with the dimension `member` and the parameters as
    coordinates."""
    with h5py.File(path, "w") as file:
        attributes = {
            "kind": "sweep",
            "title": table.title,
            "format_version": FORMAT_VERSION,
            "hpcstencil_version": __version__,
            "mode": planned.mode,
            "parameters": json.dumps(table.parameters),
            "varied": json.dumps(planned.parameters),
            "diagnostics": json.dumps(table.diagnostics),
            # xarray reads this list of coordinates. Names are separated by blanks, so a name with a blank is left out.
            "coordinates": " ".join(name for name in table.parameters if " " not in name),
        }
        for name, value in attributes.items():
            file.attrs[name] = value
        file["member"] = np.array(table.columns["member"], np.int64)
        file["member"].make_scale("member")
        for name, values in table.columns.items():
            if name == "member":
                continue
            # '/' would make a group
            dataset = file.create_dataset(name.replace("/", "_"), data=_array(values))
            dataset.dims[0].attach_scale(file["member"])
        file["wall_time"].attrs["long_name"] = "wall time of all attempts with these settings"
        file["wall_time"].attrs["unit"] = "s"  # not 'units', which xarray would take for a time difference


def _array(values: Sequence[object]) -> np.ndarray:
    """A column as an array of shape (members,).

    It is int64 if all values are integers, float64 with NaN for missing values if they are numbers, else strings.
    """
    if is_numeric(values):
        whole = all(isinstance(value, int) and abs(value) < 2**63 for value in values)
        return np.array([math.nan if v is None else v for v in values], np.int64 if whole else np.float64)
    return np.array(["" if v is None else str(v) for v in values], h5py.string_dtype())
