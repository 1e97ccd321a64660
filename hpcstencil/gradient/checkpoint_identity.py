"""The origin of the checkpoints and stored states of gradients and fits: which input, data and kernels they were made with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcstencil import __version__
from hpcstencil.checkpoint.checkpoint import newest_checkpoint, read_checkpoint
from hpcstencil.checkpoint.seal import read_seal
from hpcstencil.config.paths import objective_files
from hpcstencil.config.provenance import differences, to_toml
from hpcstencil.config.reader import from_mapping
from hpcstencil.config.settings import Config
from hpcstencil.gradient.members import Members
from hpcstencil.io.file_read import inspect
from hpcstencil.io.hdf5_validation import json_attribute
from hpcstencil.problem.parameter_files import content_of
from hpcstencil.runtime.communicator import Communicator, from_rank_0
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.toml_text import parse

# Keys in which a gradient or a fit that continues may differ from the one before. (Steps end at the times of `output.every`.)
FREE = (
    "title",
    "output.",
    "checkpoint.",
    "decomposition.",
    "diagnostics.",
    "verify.",
    "gradient.checkpoints",
    "gradient.memory",
    "gradient.storage",
)
FIXED = ("output.every",)


def digests_of(members: Members) -> dict[str, str]:
    """The SHA-256 of each array in the input, by dotted key. Collective."""
    simulation, config = members.forward, members.config
    contents = simulation.problem.contents
    files = objective_files(config)
    data = from_rank_0(
        simulation.communicator, lambda: {key: content_of(config, key, file).sha256 for key, file in files.items()}
    )
    return {**{key: found.sha256 for key, found in contents.items()}, **data}


def attributes_of(what: str, members: Members, digests: Mapping[str, str]) -> dict[str, str]:
    """The attributes of a checkpoint of ``what``, such as "fit". ``digests`` are those of `digests_of`."""
    config, kernels = members.config, (members.forward.kernel, members.sweeps[0].backward.kernel)
    return {
        "of": what,
        "title": config.title,
        "input": to_toml(config),
        "hpcstencil_version": __version__,
        "kernels": json.dumps(kernels),
        "arrays_sha256": json.dumps(digests),
    }


def kernels_in(path: Path) -> tuple[str, str]:
    """The kernels of the run and of its adjoint with which a checkpoint was computed. Not collective.

    Raises InputError if the file does not say.
    """
    found = json_attribute(path, inspect(path).attributes, "kernels", [])
    if len(found) != 2 or not all(isinstance(kernel, str) for kernel in found):
        raise InputError(f"{path}: expected two kernels in the attribute 'kernels', but got {found}; take another file")
    return found[0], found[1]


def newest(output: Path, what: str, communicator: Communicator) -> Path | None:
    """The newest valid checkpoint of ``what`` that writes ``output``, None if there is none. Collective.

    Raises InputError, on all processes, if it is that of something else.
    """
    path = newest_checkpoint(output, communicator)
    if path is not None:
        from_rank_0(communicator, lambda: _refuse_kind(path, inspect(path).attributes, what))
    return path


def read_scalars(path: Path, members: Members, digests: Mapping[str, str], free: tuple[str, ...]) -> Mapping[str, Any]:
    """The numbers in a checkpoint of these ``members``. Collective.

    Raises InputError, on all processes, if the data or the input have changed, except for the keys ``free``.
    """
    simulation = members.forward
    _, scalars, attributes = read_checkpoint(path, simulation.ranges, simulation.communicator, ())
    from_rank_0(simulation.communicator, lambda: refuse_changed(path, attributes, members.config, digests, free))
    return scalars


def _refuse_kind(path: Path, attributes: Mapping[str, Any], what: str) -> None:
    found = attributes.get("of", "run") if {"kernels", "arrays_sha256"} <= attributes.keys() else "run"
    if found != what:
        raise InputError(
            f"{path}: expected the checkpoint of a {what}, but got that of a {found}; choose another --output"
        )


def refuse_changed(
    path: Path, attributes: Mapping[str, Any], config: Config, digests: Mapping[str, str], free: tuple[str, ...]
) -> None:
    """Raise InputError unless the file at ``path``, with these ``attributes``, was made with this input and these data.

    The input may differ in the keys ``free``.
    """
    origin = from_mapping(parse(attributes.get("input", ""), f"{path}, its attribute 'input'"), path.parent)
    changed = [
        key
        for key in differences(origin, config)
        if key in FIXED or not any(key == one or (one.endswith(".") and key.startswith(one)) for one in free)
    ]
    known = json_attribute(path, dict(attributes), "arrays_sha256", {})
    changed += [key for key in digests if known.get(key) != digests[key]]
    if changed:
        raise InputError(
            f"{changed[0]}: {path.name} was made with another value; continue with the same input, or begin again with "
            "--overwrite"
        )


def refuse_other(path: Path, what: str, config: Config, digests: Mapping[str, str], free: tuple[str, ...]) -> None:
    """Raise InputError unless the checkpoint at ``path`` is sound and of ``what``, with this input and these data.

    The values of its arrays are not read. Not collective.
    """
    try:
        read_seal(path)
        attributes = inspect(path).attributes
    except InputError:
        raise InputError(
            f"{path}: expected a {what}, but it is damaged or something else; remove it, or begin again with --overwrite"
        ) from None
    _refuse_kind(path, attributes, what)
    refuse_changed(path, attributes, config, digests, free)
