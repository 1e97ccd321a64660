"""Reading of output and checkpoint files. Each process reads independently; neither MPI nor JAX is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcstencil.io.dataset_names import PROBES
from hpcstencil.io.hdf5_access import open_alone
from hpcstencil.io.hdf5_validation import (
    WHOLE,
    attributes,
    json_attribute,
    kind_of,
    numbers,
    probe_datasets,
    refuse_other_files,
    series,
)
from hpcstencil.io.rollback_journal import Before, pending
from hpcstencil.numerics.grid import AXES
from hpcstencil.numerics.topology import Range
from hpcstencil.runtime.filesystem import file_errors
from hpcstencil.symbolic.staggering import FACE, Layout
from hpcstencil.validation.errors import InputError

SCALES = ("time", "step", "member", *AXES, *(axis + FACE for axis in AXES))  # root datasets that are not fields


@dataclass(frozen=True)
class Contents:
    """The contents of a run's file, without the values of fields.

    ``kind`` is "output" or "checkpoint". ``steps`` and ``times`` are those of the committed snapshots of an output, or the
    single ones of a checkpoint. ``shape`` is that of the grid. ``fields`` maps the names of fields to their dtypes.
    """

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
        """The clock at the end of a complete output, as stored by `state.split`.

        It is None if the last snapshot is not the whole state, so that a run cannot continue from it.
        """
        return self.attributes["clock"] if self.complete and "clock" in self.attributes else None

    @property
    def step(self) -> int | None:
        """The step of the last committed snapshot; None if there is none."""
        return self.steps[-1] if self.steps else None

    @property
    def time(self) -> float | None:
        """The time of the last committed snapshot; None if there is none."""
        return self.times[-1] if self.times else None


def fields_in(file: h5py.File) -> dict[str, h5py.Dataset]:
    """Return the fields of a file by name: its arrays of floats, without coordinates.

    In an ensemble, fields have a leading member axis. A dataset with a single axis then lists values in which the members
    differ, and is not a field.
    """
    found = {
        name: item
        for name, item in file.items()
        if isinstance(item, h5py.Dataset) and name not in SCALES and kind_of(item) == "f"
    }
    if "member" in file:
        found = {name: item for name, item in found.items() if item.ndim > 1}
    return found


def grid_shape(path: Path, file: h5py.File) -> tuple[int, ...]:
    """Return the shape of a file's grid, from its cell coordinates; () if the file has none.

    Raises InputError if the coordinates are not lists of numbers.
    """
    return tuple(numbers(path, file, axis, 1).size for axis in AXES if axis in file)


@contextmanager
def open_for_reading(path: Path) -> Iterator[h5py.File]:
    """Open the file at ``path`` for reading, as a context manager; an unfinished change is not visible.

    No lock is taken, so that a file which a run is still writing can be opened too. Raises InputError if the file is
    missing, not HDF5, or would make HDF5 read another file; EnvironmentProblem if reading fails.
    """
    with file_errors(path, "read"):
        if not path.is_file():
            raise InputError(f"{path}: no such file")
        unfinished = pending(path)
        if unfinished is not None:
            with Before(path, unfinished) as before, h5py.File(before, "r") as file:
                refuse_other_files(file, path, before)
                yield file
            return
        if not h5py.is_hdf5(path):
            raise InputError(
                f"{path}: not an HDF5 file, or one that was never finished; choose another, or write it again"
            )
        with open_alone(path, "r") as file:
            refuse_other_files(file, path)
            yield file


def inspect(path: Path) -> Contents:
    """Return the contents of the output or checkpoint at ``path``, without reading fields.

    Raises InputError if the file is missing, damaged or of another kind, EnvironmentProblem if it cannot be read.
    """
    with open_for_reading(path) as file:
        found = attributes(path, file)
        kind = found.get("kind")
        if kind == "output":
            steps, times = series(path, file, "step", WHOLE).tolist(), series(path, file, "time").tolist()
            committed = min(len(steps), len(times))
        elif kind == "checkpoint":
            if not {"step", "time"} <= found.keys():
                raise InputError(f"{path}: expected the attributes 'step' and 'time' of a checkpoint; take another")
            steps, times, committed = [found["step"]], [found["time"]], 1
        else:
            raise InputError(f"{path}: neither an output nor a checkpoint of hpcstencil")
        if "clock" in found:
            found["clock"] = json_attribute(path, found, "clock", {})
            if not all(isinstance(value, int | float) for value in found["clock"].values()):
                raise InputError(
                    f"{path}: expected numbers in the attribute 'clock', but got something else; correct it"
                )
        diagnostics = file.get("diagnostics", ())
        return Contents(
            kind=kind,
            complete=bool(found.get("complete", 0)),
            title=found.get("title", ""),
            input=found.get("input", ""),
            input_sha256=found.get("input_sha256", ""),
            version=found.get("hpcstencil_version", ""),
            steps=tuple(map(int, steps[:committed])),
            times=tuple(map(float, times[:committed])),
            fields={name: dataset.dtype for name, dataset in fields_in(file).items()},
            shape=grid_shape(path, file),
            diagnostics=tuple(name for name in diagnostics if name not in SCALES)
            if isinstance(diagnostics, h5py.Group)
            else (),
            attributes=found,
        )


def read_series(path: Path, name: str, longest: int) -> np.ndarray:
    """Read the whole dataset ``name``, with one axis of at most ``longest`` numbers, in the dtype of the file.

    Not collective. Raises InputError if the file or dataset is missing, has another shape or does not hold real numbers;
    EnvironmentProblem if reading fails.
    """
    with open_for_reading(path) as file:
        dataset = numbers(path, file, name)
        if dataset.ndim != 1 or dataset.size > longest:
            raise InputError(
                f"{path}: '{name}' has shape {dataset.shape}, expected one axis with 2 to {longest} samples; write such a "
                "dataset"
            )
        return np.asarray(dataset[()])


def read_whole(path: Path, name: str) -> np.ndarray:
    """Read the whole dataset ``name`` of real numbers, in its shape and the dtype of the file.

    Not collective. Raises InputError if the file or dataset is missing, EnvironmentProblem if reading fails.
    """
    with open_for_reading(path) as file:
        return np.asarray(numbers(path, file, name)[()])


def read_shape(path: Path, name: str) -> tuple[int, ...]:
    """Read the shape of the dataset ``name``. Raises as `read_whole`."""
    with open_for_reading(path) as file:
        return tuple(numbers(path, file, name).shape)


def read_recorded(path: Path, table: str, axes: Sequence[str]) -> dict[str, np.ndarray]:
    """Read the times ("time") at which a table of [probes] was recorded, and the places of its receivers along the ``axes``.

    They are float64; there are none if the file lacks some of them. Not collective. Raises InputError if the file is missing or
    the table is malformed, EnvironmentProblem if reading fails.
    """
    with open_for_reading(path) as file:
        if not {"time", *axes} <= set(file[f"{PROBES}/{table}"]):
            return {}
        values, places = probe_datasets(path, file, table)
        found = {"time": series(path, values.parent, "time"), **{axis: place[()] for axis, place in places.items()}}
        return {name: np.asarray(each, np.float64) for name, each in found.items()}


def read_block(
    path: Path,
    name: str,
    ranges: Sequence[Range],
    shape: Sequence[int] | None = None,
    dtype: Any = None,
    member: tuple[int, int] | None = None,
) -> np.ndarray:
    """Read the hyperslab ``ranges`` (global, half-open, per axis) of the dataset ``name``. Not collective.

    The result is a C-contiguous array without ghost cells, converted to ``dtype`` if that is given. If the dataset has one
    more leading axis, it is a series of snapshots, and the last committed one is read. If ``shape`` (of the whole grid) is
    given, the dataset must have it. If the dataset is a field in the output of an ensemble, ``member`` says of which one the
    block is: its index, and the number of members, which the file must have. Raises InputError if the file or dataset is
    missing or does not fit, EnvironmentProblem if reading fails.
    """
    with open_for_reading(path) as file:
        return _block(path, file, name, ranges, shape, dtype, member)


def read_blocks(
    path: Path, names: Sequence[str], ranges: Sequence[Range], layout: Layout, dtype: Any
) -> dict[str, np.ndarray]:
    """Read the blocks of several fields, by name, each as by `read_block`, with the global shapes of ``layout``.

    Raises the same errors as `read_block`.
    """
    with open_for_reading(path) as file:
        return {name: _block(path, file, name, ranges, layout.shape(name), dtype) for name in names}


def _block(
    path: Path,
    file: h5py.File,
    name: str,
    ranges: Sequence[Range],
    shape: Sequence[int] | None,
    dtype: Any,
    member: tuple[int, int] | None = None,
) -> np.ndarray:
    """Read a block from an open file, see `read_block`."""
    dataset = numbers(path, file, name)
    before: tuple[int, ...] = ()
    if member is not None and "member" in file and dataset.ndim == len(ranges) + 2:
        if dataset.shape[0] != member[1]:
            raise InputError(
                f"{path}: '{name}' has {dataset.shape[0]} members, expected {member[1]}; take the output of an ensemble of "
                "this size"
            )
        before = member[:1]
    repeated = dataset.ndim == len(ranges) + len(before) + 1
    there = dataset.shape[len(before) + repeated :]
    if len(there) != len(ranges) or (shape is not None and there != tuple(shape)):
        expected = tuple(shape) if shape is not None else f"{len(ranges)} axes"
        raise InputError(f"{path}: '{name}' has shape {there}, expected {expected}: it must be on the same grid")
    snapshots = dataset.shape[len(before)] if repeated else 0
    if repeated and "time" in file:
        snapshots = min(snapshots, numbers(path, file, "time", 1).size)
    if repeated and snapshots == 0:
        raise InputError(f"{path}: '{name}' holds no snapshot yet")
    index = before + ((snapshots - 1,) if repeated else ()) + tuple(slice(start, stop) for start, stop in ranges)
    return np.ascontiguousarray(dataset[index], dtype=dtype)
