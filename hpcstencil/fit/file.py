"""The file that `hpcstencil fit` writes: the unknowns that were found, and the history of the fit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpcstencil.fit.run import Fitted
from hpcstencil.gradient.file import write_result
from hpcstencil.gradient.members import Members
from hpcstencil.io.hdf5_access import open_alone
from hpcstencil.runtime.atomic_write import publish


def write(path: Path, members: Members, fitted: Fitted, found: Mapping[str, Any]) -> None:
    """Write the result of a fit to ``path``, on one process.

    ``found`` are the values, written as `write_result` describes. The group ``history`` has a value
    per iteration, that of the start first: ``objective``, ``gradient_norm``, ``step`` (the length, in units of the direction)
    and ``evaluations``. Raises EnvironmentProblem if the file cannot be written.
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
            file.attrs["end"] = fitted.why
            write_result(file, "fit", members, rows[-1].objective, found)
            file["history/iteration"] = np.arange(len(rows))
            file["history/iteration"].make_scale("iteration")
            for name, values in history.items():
                file[f"history/{name}"] = values
                file[f"history/{name}"].dims[0].attach_scale(file["history/iteration"])

    publish(path, make)
