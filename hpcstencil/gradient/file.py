"""The file that `hpcstencil gradient` writes, and what it has in common with that of `hpcstencil fit`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcstencil import __version__
from hpcstencil.config.provenance import to_toml
from hpcstencil.config.settings import Config
from hpcstencil.gradient.checkpoint_identity import refuse_changed
from hpcstencil.gradient.checkpoints import FREE
from hpcstencil.gradient.members import Members
from hpcstencil.io.file_layout import write_coordinates
from hpcstencil.io.file_read import open_for_reading
from hpcstencil.io.hdf5_access import open_alone
from hpcstencil.io.hdf5_validation import attributes
from hpcstencil.runtime.atomic_write import publish
from hpcstencil.validation.errors import InputError


def write(path: Path, members: Members, value: float, gradient: Mapping[str, Any], digests: Mapping[str, str]) -> None:
    """Write an objective and its gradient to ``path``, on one process.

    The attributes and datasets are those of `write_result`. The ``digests`` of the input's arrays are an attribute too. Raises
    EnvironmentProblem if the file cannot be written.
    """

    def make(temporary: Path) -> None:
        with open_alone(temporary, "w") as file:
            file.attrs["arrays_sha256"] = json.dumps(digests)
            write_result(file, "gradient", members, value, gradient)

    publish(path, make)


def write_result(file: h5py.File, kind: str, members: Members, objective: float, values: Mapping[str, Any]) -> None:
    """Write an ``objective`` and ``values`` by the entry of gradient.of: the derivatives, or what a fit has found.

    Each of the ``values``, a number or an array on the grid, is a dataset of its name, beside the coordinates of the cells.
    Those in which the members of an ensemble differ have the members as first axis. For time series, the datasets NAME.time
    have the times of the samples. Attributes of the root are the ``kind`` of file, the objective and its name, the keys of the
    values, the title, the input and the version.
    """
    config, series = members.config, members.series
    file.attrs["kind"] = kind
    file.attrs["title"] = config.title
    file.attrs["objective"] = objective
    file.attrs["name"] = next(iter(config.objective.expressions))
    file.attrs["unknowns"] = json.dumps(list(values))
    file.attrs["input"] = to_toml(config)
    file.attrs["hpcstencil_version"] = __version__
    write_coordinates(file, config.grid)
    if members.count:
        file["member"] = np.arange(members.count)
        file["member"].make_scale("member")
    for key, array in values.items():
        file[key] = array
        if key in series:
            times = f"{key}.time"
            file[times] = np.arange(len(array)) * series[key].dt
            file[times].make_scale(times)
            file[key].dims[0].attach_scale(file[times])
            continue
        member = ("member",) if key in members.own else ()
        axes = (*member, *(config.grid.axes if np.ndim(array) > len(member) else ()))
        for axis, name in enumerate(axes):
            file[key].dims[axis].attach_scale(file[name])


def is_complete(path: Path, config: Config, digests: Mapping[str, str], interrupted: bool) -> bool:
    """Whether ``path`` is the file of the gradient of this input with these data. For one process.

    If there are files of an ``interrupted`` gradient, ``path`` may be the file of another input, which it is to replace.
    Otherwise raises InputError if it is that. Also raises InputError if it is no file of a gradient.
    """
    if not path.exists():
        return False
    with open_for_reading(path) as file:
        found = attributes(path, file)
    if not {"objective", "arrays_sha256"} <= found.keys():
        raise InputError(f"{path}: expected a gradient file, but got a file of another kind; choose another --output")
    try:
        refuse_changed(path, found, config, digests, FREE)
    except InputError:
        if not interrupted:
            raise
        return False
    return True
