"""The file that `hpcstencil gradient` writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcstencil import __version__
from hpcstencil.config.provenance import to_toml
from hpcstencil.config.settings import Config
from hpcstencil.gradient.checkpoints import FREE
from hpcstencil.gradient.origin import refuse_changed
from hpcstencil.io.file_read import open_for_reading
from hpcstencil.io.hdf5_access import open_alone
from hpcstencil.io.hdf5_validation import attributes
from hpcstencil.runtime.publish import publish
from hpcstencil.validation.errors import InputError


def write(path: Path, config: Config, value: float, gradient: Mapping[str, Any], digests: Mapping[str, str]) -> None:
    """Write an objective and its gradient to ``path``, on one process.

    The attribute ``objective`` of the root is the value, and each entry of ``gradient``, a number or an array, is a dataset of
    its name. The input, the ``digests`` of its arrays and the version are attributes too. Raises EnvironmentProblem if the file
    cannot be written.
    """

    def make(temporary: Path) -> None:
        with open_alone(temporary, "w") as file:
            file.attrs["objective"] = value
            file.attrs["name"] = next(iter(config.objective.expressions))
            file.attrs["input"] = to_toml(config)
            file.attrs["arrays_sha256"] = json.dumps(digests)
            file.attrs["hpcstencil_version"] = __version__
            for key, derivative in gradient.items():
                file[key] = derivative

    publish(path, make)


def refuse_other(path: Path, config: Config, digests: Mapping[str, str]) -> None:
    """Raise InputError unless ``path`` is the file of the gradient of this input with these data. For one process."""
    with open_for_reading(path) as file:
        found = attributes(path, file)
    if not {"objective", "arrays_sha256"} <= found.keys():
        raise InputError(f"{path}: expected the file of a gradient, but it is another; choose another --output")
    refuse_changed(path, found, config, digests, FREE)
