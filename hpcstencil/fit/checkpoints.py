"""Checkpoints of a fit: its whole state after an iteration, from which it continues with the same bits.

They are files like the checkpoints of a run (`checkpoint.checkpoint`), with the number of the iteration for the step. Arrays
over the grid are in datasets NAME/KEY, numbers in scalars of the same names, and rows of the history in scalars as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from hpcstencil import __version__
from hpcstencil.checkpoint.checkpoint import newest_checkpoint, read_checkpoint, write_checkpoint
from hpcstencil.config.paths import objective_files
from hpcstencil.config.provenance import differences, to_toml
from hpcstencil.config.reader import from_mapping
from hpcstencil.fit.lbfgs import Pair, Point, Row, State, Vector
from hpcstencil.gradient.members import Members
from hpcstencil.io.file_read import inspect
from hpcstencil.problem.parameter_files import content_of
from hpcstencil.runtime.communicator import Communicator, from_rank_0
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.toml_text import parse

# Keys in which a fit that continues may differ from the one before.
FREE = (
    "fit.steps",
    "fit.tolerance",
    "title",
    "output.",
    "checkpoint.",
    "decomposition.",
    "diagnostics.",
    "verify.",
    "gradient.checkpoints",
    "gradient.memory",
)


def write(output: Path, members: Members, state: State, digests: Mapping[str, str]) -> Path:
    """Write the checkpoint of a fit that writes ``output``, and return its path. Collective. See `write_checkpoint`."""
    simulation, config, vectors = members.forward, members.config, _vectors(state)
    named = {f"{name}/{key}": value for name, vector in vectors.items() for key, value in vector.items()}
    scalars = {name: float(value) for name, value in named.items() if not np.ndim(value)}
    products = {f"product{n}": pair.product for n, pair in enumerate(state.pairs)}
    rows = {f"row {n}": json.dumps(astuple(row)) for n, row in enumerate(state.rows)}
    return write_checkpoint(
        output,
        simulation.communicator,
        config.grid,
        step=len(state.rows) - 1,
        time=0.0,
        arrays={name: np.ascontiguousarray(value) for name, value in named.items() if np.ndim(value)},
        ranges=simulation.ranges,
        scalars={**scalars, **products, **rows, "value": state.point.value, "pairs": len(state.pairs)},
        attributes={
            "title": config.title,
            "input": to_toml(config),
            "hpcstencil_version": __version__,
            "kernels": json.dumps([simulation.kernel, members.sweeps[0].backward.kernel]),
            "arrays_sha256": json.dumps(digests),
        },
        keep=config.checkpoint.keep,
        method=config.output.method,
    )


def _vectors(state: State) -> dict[str, Vector]:
    found = {"unknowns": state.point.unknowns, "gradient": state.point.gradient}
    for n, pair in enumerate(state.pairs):
        found |= {f"moved{n}": pair.moved, f"changed{n}": pair.changed}
    return found


def digests_of(members: Members) -> dict[str, str]:
    """The SHA-256 of each array in the input, by dotted key. Collective."""
    simulation, config = members.forward, members.config
    contents = simulation.problem.contents
    files = objective_files(config)
    data = from_rank_0(
        simulation.communicator, lambda: {key: content_of(config, key, file).sha256 for key, file in files.items()}
    )
    return {**{key: found.sha256 for key, found in contents.items()}, **data}


def kernels_in(path: Path) -> tuple[str, str]:
    """The kernels of the run and of its adjoint with which the fit that wrote a checkpoint was computed. Not collective."""
    forward, backward = json.loads(inspect(path).attributes["kernels"])
    return forward, backward


def newest(output: Path, communicator: Communicator) -> Path | None:
    """The newest valid checkpoint of the fit that writes ``output``, None if there is none. Collective.

    Raises InputError if it is the checkpoint of a run.
    """
    path = newest_checkpoint(output, communicator)
    if path is not None and from_rank_0(communicator, lambda: "kernels" not in inspect(path).attributes):
        raise InputError(f"{path}: expected the checkpoint of a fit, but got that of a run; choose another --output")
    return path


def read(path: Path, members: Members, like: Vector, digests: Mapping[str, str]) -> State:
    """Read the state of a fit from a checkpoint. Collective. ``like`` has the types of the unknowns.

    Raises InputError, on all processes, if the input or its data have changed.
    """
    simulation = members.forward
    communicator = simulation.communicator
    blocks, scalars, attributes = read_checkpoint(path, simulation.ranges, communicator)

    def checked() -> None:
        origin = from_mapping(parse(str(attributes["input"]), f"{path}, its attribute 'input'"), path.parent)
        changed = [
            key
            for key in differences(origin, members.config)
            if not any(key == free or (free.endswith(".") and key.startswith(free)) for free in FREE)
        ]
        known = json.loads(str(attributes["arrays_sha256"]))
        changed += [key for key in digests if known.get(key) != digests[key]]
        if changed:
            raise InputError(
                f"{changed[0]}: {path.name} was made with another value; continue with the same input, or begin again with "
                "--overwrite"
            )

    from_rank_0(communicator, checked)

    def vector(name: str) -> dict[str, Any]:
        return {
            key: np.ascontiguousarray(blocks[f"{name}/{key}"]) if np.ndim(x) else np.float64(scalars[f"{name}/{key}"])
            for key, x in like.items()
        }

    pairs = [
        Pair(vector(f"moved{n}"), vector(f"changed{n}"), float(scalars[f"product{n}"]))
        for n in range(int(scalars["pairs"]))
    ]
    rows: list[Row] = []
    while (text := scalars.get(f"row {len(rows)}")) is not None:
        rows.append(Row(*json.loads(str(text))))
    point = Point(vector("unknowns"), float(scalars["value"]), vector("gradient"))
    return State(point, tuple(pairs), tuple(rows))
