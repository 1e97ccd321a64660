"""Checkpoints of a fit: its whole state after an iteration, from which it continues with the same bits.

They are files like the checkpoints of a run (`checkpoint.checkpoint`), with the number of the iteration for the step. Arrays
over the grid are in datasets NAME/KEY, time series in tables of the same names, numbers in scalars of these names too, and rows
of the history in scalars as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from hpcstencil.checkpoint.checkpoint import read_checkpoint, write_checkpoint
from hpcstencil.fit.lbfgs import Pair, Point, Row, State, Vector
from hpcstencil.gradient import checkpoint_identity, tables
from hpcstencil.gradient.members import Members
from hpcstencil.gradient.tables import TABLES, part_of

# Keys in which a fit that continues may differ from the one before.
FREE = (*checkpoint_identity.FREE, "fit.steps", "fit.tolerance")
WHAT = "fit"


def write(output: Path, members: Members, state: State, digests: Mapping[str, str]) -> Path:
    """Write the checkpoint of a fit that writes ``output``, and return its path. Collective. See `write_checkpoint`."""
    simulation, config, vectors = members.forward, members.config, _vectors(state)
    named = {f"{name}/{key}": value for name, vector in vectors.items() for key, value in vector.items()}
    scalars = {name: float(value) for name, value in named.items() if not np.ndim(value)}
    series = {f"{name}/{key}": vector[key] for name, vector in vectors.items() for key in members.series}
    products = {f"product{n}": pair.product for n, pair in enumerate(state.pairs)}
    rows = {f"row {n}": json.dumps(astuple(row)) for n, row in enumerate(state.rows)}
    return write_checkpoint(
        output,
        simulation.communicator,
        config.grid,
        step=len(state.rows) - 1,
        time=0.0,
        arrays={name: np.ascontiguousarray(x) for name, x in named.items() if np.ndim(x) and name not in series},
        ranges=simulation.ranges,
        scalars={**scalars, **products, **rows, "value": state.point.value, "pairs": len(state.pairs)},
        attributes=checkpoint_identity.attributes_of(WHAT, members, digests),
        keep=config.checkpoint.keep,
        method=config.output.method,
        partial_arrays={
            TABLES + name: part_of(x, simulation.communicator, config.grid.ndim) for name, x in series.items()
        },
    )


def _vectors(state: State) -> dict[str, Vector]:
    found = {"unknowns": state.point.unknowns, "gradient": state.point.gradient}
    for n, pair in enumerate(state.pairs):
        found |= {f"moved{n}": pair.moved, f"changed{n}": pair.changed}
    return found


def read(path: Path, members: Members, like: Vector, digests: Mapping[str, str]) -> State:
    """Read the state of a fit from a checkpoint. Collective. ``like`` has the types of the unknowns.

    Raises InputError, on all processes, if the input or its data have changed.
    """
    simulation = members.forward
    communicator = simulation.communicator
    scalars = checkpoint_identity.read_scalars(path, members, digests, FREE)
    series, ndim = members.series, len(simulation.ranges)
    arrays = [key for key, x in like.items() if np.ndim(x) and key not in series]

    count = int(scalars["pairs"])
    vectors = ["unknowns", "gradient", *(f"{each}{n}" for n in range(count) for each in ("moved", "changed"))]
    names = [f"{name}/{key}" for name in vectors for key in arrays]
    blocks, _, _ = read_checkpoint(path, simulation.ranges, communicator, names)

    def vector(name: str) -> dict[str, Any]:
        found: dict[str, Any] = {key: np.ascontiguousarray(blocks[f"{name}/{key}"]) for key in arrays}
        for key in series:
            found[key] = tables.read(path, f"{name}/{key}", len(like[key]), communicator, ndim)
        return {key: found[key] if key in found else np.float64(scalars[f"{name}/{key}"]) for key in like}

    pairs = [Pair(vector(f"moved{n}"), vector(f"changed{n}"), float(scalars[f"product{n}"])) for n in range(count)]
    rows: list[Row] = []
    while (text := scalars.get(f"row {len(rows)}")) is not None:
        rows.append(Row(*json.loads(str(text))))
    point = Point(vector("unknowns"), float(scalars["value"]), vector("gradient"))
    return State(point, tuple(pairs), tuple(rows))
