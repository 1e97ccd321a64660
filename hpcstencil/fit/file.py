"""The file that `hpcstencil fit` writes: the unknowns that were found, and the history of the fit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpcstencil import __version__
from hpcstencil.config.provenance import to_toml
from hpcstencil.config.settings import Config
from hpcstencil.fit.run import Fitted
from hpcstencil.io.file_layout import write_coordinates
from hpcstencil.io.hdf5_access import open_alone
from hpcstencil.runtime.publish import publish


def write(path: Path, config: Config, fitted: Fitted, found: Mapping[str, Any]) -> None:
    """Write the result of a fit to ``path``, on one process.

    Each entry of ``found``, a number or an array on the grid, is a dataset of its name. The group ``history`` has a value per
    iteration, that of the start first: ``objective``, ``gradient_norm``, ``step`` (the length, in units of the direction) and
    ``evaluations``. Raises EnvironmentProblem if the file cannot be written.
    """
    rows = fitted.state.rows
    history = {
        "objective": np.array([row.objective for row in rows]),
        "gradient_norm": np.array([row.norm for row in rows]),
        "step": np.array([row.length for row in rows]),
        "evaluations": np.array([row.evaluations for row in rows]),
    }

    def make(temporary: Path) -> None:
        with open_alone(temporary, "w") as file:
            file.attrs["kind"] = "fit"
            file.attrs["title"] = config.title
            file.attrs["objective"] = rows[-1].objective
            file.attrs["name"] = next(iter(config.objective.expressions))
            file.attrs["unknowns"] = json.dumps(list(found))
            file.attrs["end"] = fitted.why
            file.attrs["input"] = to_toml(config)
            file.attrs["hpcstencil_version"] = __version__
            write_coordinates(file, config.grid)
            for key, values in found.items():
                file[key] = values
                for axis, name in enumerate(config.grid.axes if np.ndim(values) else ()):
                    file[key].dims[axis].attach_scale(file[name])
            for name, values in history.items():
                file[f"history/{name}"] = values

    publish(path, make)
