"""The file that `hpcstencil gradient` writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcstencil import __version__
from hpcstencil.config.provenance import to_toml
from hpcstencil.config.settings import Config
from hpcstencil.io.hdf5_access import open_alone
from hpcstencil.runtime.publish import publish


def write(path: Path, config: Config, value: float, gradient: Mapping[str, Any]) -> None:
    """Write an objective and its gradient to ``path``, on one process.

    The attribute ``objective`` of the root is the value, and each entry of ``gradient``, a number or an array, is a dataset of
    its name. The input and the version are attributes too. Raises EnvironmentProblem if the file cannot be written.
    """

    def make(temporary: Path) -> None:
        with open_alone(temporary, "w") as file:
            file.attrs["objective"] = value
            file.attrs["name"] = next(iter(config.objective.expressions))
            file.attrs["input"] = to_toml(config)
            file.attrs["hpcstencil_version"] = __version__
            for key, derivative in gradient.items():
                file[key] = derivative

    publish(path, make)
