"""Arrays of numbers that are not over the grid, in checkpoints of gradients and fits: rank 0 writes and reads them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from hpcstencil.checkpoint.checkpoint import Part, read_checkpoint
from hpcstencil.runtime.communicator import Communicator

TABLES = "tables/"  # begins the names of these arrays


def part_of(table: np.ndarray, communicator: Communicator, ndim: int) -> Part:
    """A table of numbers along the first of ``ndim`` axes."""
    ranges = _ranges(table.size, communicator, ndim)
    block = table.reshape(-1, *[1] * (ndim - 1))
    return Part(np.ascontiguousarray(block[tuple(slice(*pair) for pair in ranges)]), ranges, block.shape)


def shapes_of(arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    """The scalars by which `shape_of` knows the shapes of tables, by name."""
    return {f"{name} {axis}": n for name, table in arrays.items() for axis, n in enumerate(table.shape)}


def read_shaped(
    path: Path, name: str, scalars: Mapping[str, object], communicator: Communicator, ndim: int
) -> np.ndarray | None:
    """Read a table whose shape is in the ``scalars`` of a checkpoint; None if there is none. Collective."""
    shape = shape_of(name, scalars)
    return read(path, name, math.prod(shape), communicator, ndim).reshape(shape) if shape else None


def read_each(
    path: Path, prefix: str, names: Iterable[str], scalars: Mapping[str, object], communicator: Communicator, ndim: int
) -> dict[str, np.ndarray]:
    """Read the tables ``prefix`` and name, by name, of those names that have one, see `read_shaped`. Collective."""
    found = {name: read_shaped(path, prefix + name, scalars, communicator, ndim) for name in names}
    return {name: table for name, table in found.items() if table is not None}


def read(path: Path, name: str, size: int, communicator: Communicator, ndim: int) -> np.ndarray:
    """Read the ``size`` numbers of a table of a checkpoint, equal on all processes: shape (size,). Collective."""
    blocks, _, _ = read_checkpoint(path, _ranges(size, communicator, ndim), communicator, (TABLES + name,))
    found: np.ndarray = communicator.broadcast(blocks[TABLES + name].reshape(-1))
    return found


def shape_of(name: str, scalars: Mapping[str, object]) -> tuple[int, ...]:
    """The shape of a table from the scalars of a checkpoint, which has an entry for each axis; () if there is no table."""
    shape = list[int]()
    while isinstance(n := scalars.get(f"{name} {len(shape)}"), int):
        shape.append(n)
    return tuple(shape)


def _ranges(size: int, communicator: Communicator, ndim: int) -> list[tuple[int, int]]:
    """The index ranges of a table of ``size`` numbers: all of it on rank 0, and none on other processes."""
    return [(0, n if communicator.rank == 0 else 0) for n in (size, *[1] * (ndim - 1))]
