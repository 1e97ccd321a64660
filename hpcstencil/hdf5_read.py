"""Reading the files of a run, each process for itself: needs neither MPI nor jax."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcstencil.errors import InputError
from hpcstencil.files import file_errors
from hpcstencil.grid import AXES
from hpcstencil.hyperslabs import open_alone
from hpcstencil.journal import Before, pending
from hpcstencil.positions import FACE
from hpcstencil.topology import Range

SCALES = ("time", "step", "member", *AXES, *(axis + FACE for axis in AXES))  # root datasets that are not fields


@dataclass(frozen=True)
class Contents:
    """What a run's file holds. ``steps`` and ``times`` are those of the committed snapshots of an output, or the one of
    a checkpoint; ``shape`` is the grid's, ``fields`` its arrays' names with their dtypes."""

    kind: str
    complete: bool
    title: str
    input: str
    input_sha256: str
    version: str
    steps: tuple[int, ...]
    times: tuple[float, ...]
    fields: dict[str, np.dtype]
    shape: tuple[int, ...]
    diagnostics: tuple[str, ...]
    attributes: dict[str, Any]

    @property
    def clock(self) -> dict[str, Any] | None:
        """Of an output whose last snapshot holds all that its run would go on from: where its clock stood, by `state.split`."""
        return json.loads(self.attributes["clock"]) if self.complete and "clock" in self.attributes else None

    @property
    def step(self) -> int | None:
        """Step of the last committed snapshot."""
        return self.steps[-1] if self.steps else None

    @property
    def time(self) -> float | None:
        """Time of the last committed snapshot."""
        return self.times[-1] if self.times else None


def fields_in(file: h5py.File) -> dict[str, h5py.Dataset]:
    """The fields that a file holds. Those of an ensemble have an axis of its members and those of the grid: what has one
    axis alone there lists what the members differ in."""
    found = {name: item for name, item in file.items() if isinstance(item, h5py.Dataset) and name not in SCALES}
    if "member" in file:
        found = {name: item for name, item in found.items() if item.ndim > 1}
    return found


@contextmanager
def open_for_reading(path: Path) -> Iterator[h5py.File]:
    """The open file; raises InputError where it is missing or not HDF5, EnvironmentProblem where reading fails.

    No lock is taken, so a file that a run is still writing opens too. A change that was begun and not finished is left
    out: the file is as it was before.
    """
    with file_errors(path, "read"):
        if not path.is_file():
            raise InputError(f"{path}: no such file")
        unfinished = pending(path)
        if unfinished is not None:
            with Before(path, unfinished) as before, h5py.File(before, "r") as file:
                yield file
            return
        if not h5py.is_hdf5(path):
            raise InputError(f"{path}: not an HDF5 file, or one that was never finished")
        with open_alone(path, "r") as file:
            yield file


def inspect(path: Path) -> Contents:
    """What the output or checkpoint file at ``path`` holds; no field is read.

    Raises InputError where the file is missing or of another kind, EnvironmentProblem where it cannot be read.
    """
    with open_for_reading(path) as file:
        attributes = dict(file.attrs)
        kind = attributes.get("kind")
        if kind not in ("output", "checkpoint"):
            raise InputError(f"{path}: neither an output nor a checkpoint of hpcstencil")
        if kind == "output":
            committed = min(file["time"].shape[0], file["step"].shape[0])
            steps, times = file["step"][:committed].tolist(), file["time"][:committed].tolist()
        else:
            steps, times = [int(attributes["step"])], [float(attributes["time"])]
        return Contents(
            kind=kind,
            complete=bool(attributes.get("complete", 0)),
            title=str(attributes.get("title", "")),
            input=str(attributes.get("input", "")),
            input_sha256=str(attributes.get("input_sha256", "")),
            version=str(attributes.get("hpcstencil_version", "")),
            steps=tuple(steps),
            times=tuple(times),
            fields={name: dataset.dtype for name, dataset in fields_in(file).items()},
            shape=tuple(file[axis].shape[0] for axis in "xyz" if axis in file),
            diagnostics=tuple(name for name in file.get("diagnostics", ()) if name not in SCALES),
            attributes=attributes,
        )


def read_block(
    path: Path, name: str, ranges: Sequence[Range], shape: Sequence[int] | None = None, dtype: Any = None
) -> np.ndarray:
    """The hyperslab ``ranges`` (global, per axis) of dataset ``name``: an array of the ranges' lengths.

    A dataset with one more leading axis is a series of snapshots, of which the last committed one is read. Where
    ``shape`` (of the whole grid) is given the dataset must have it; ``dtype`` converts. Each process reads for itself.

    Raises InputError where file or dataset are missing or do not fit, EnvironmentProblem where reading fails.
    """
    with open_for_reading(path) as file:
        dataset = file.get(name)
        if not isinstance(dataset, h5py.Dataset):
            raise InputError(f"{path}: no dataset '{name}'; it holds {', '.join(file) or 'nothing'}")
        series = dataset.ndim == len(ranges) + 1
        there = dataset.shape[series:]
        if len(there) != len(ranges) or (shape is not None and there != tuple(shape)):
            expected = tuple(shape) if shape is not None else f"{len(ranges)} axes"
            raise InputError(f"{path}: '{name}' has shape {there}, expected {expected}: it must be on the same grid")
        snapshots = file["time"].shape[0] if series and "time" in file else dataset.shape[0]
        if series and snapshots == 0:
            raise InputError(f"{path}: '{name}' holds no snapshot yet")
        index = ((snapshots - 1,) if series else ()) + tuple(slice(start, stop) for start, stop in ranges)
        block = dataset[index]
    return np.ascontiguousarray(block, dtype=dtype)
