"""The file that `hpcstencil fit` writes: the unknowns that were found, and the history of the fit."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
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


def write(
    path: Path,
    config: Config,
    fitted: Fitted,
    found: Mapping[str, Any],
    own: Collection[str],
    series: Mapping[str, float],
) -> None:
    """Write the result of a fit to ``path``, on one process.

    Each entry of ``found``, a number or an array on the grid, is a dataset of its name. Those in ``own`` have the members of an
    ensemble as first axis. Those in ``series``, with the time between two samples, are time series; the datasets NAME.time have
    the times of their samples. The group ``history`` has a value per iteration, that of the start first: ``objective``,
    ``gradient_norm``, ``step`` (the length, in units of the direction) and ``evaluations``. Raises EnvironmentProblem if the
    file cannot be written.
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
            if config.ensemble:
                file["member"] = np.arange(len(next(iter(config.ensemble.values()))))
                file["member"].make_scale("member")
            for key, values in found.items():
                file[key] = values
                if key in series:
                    times = f"{key}.time"
                    file[times] = np.arange(len(values)) * series[key]
                    file[times].make_scale(times)
                    file[key].dims[0].attach_scale(file[times])
                    continue
                member = ("member",) if key in own else ()
                axes = (*member, *(config.grid.axes if np.ndim(values) > len(member) else ()))
                for axis, name in enumerate(axes):
                    file[key].dims[axis].attach_scale(file[name])
            for name, values in history.items():
                file[f"history/{name}"] = values

    publish(path, make)
