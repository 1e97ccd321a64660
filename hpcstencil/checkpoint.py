"""Checkpoints: the whole state of a run at one step, in a file of its own beside the output.

``NAME.checkpoint.STEP.h5`` is written under a temporary name and renamed when it is on disk, so a file of that name is
always whole. It holds global arrays, hence any number of processes can read what any other number has written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcstencil.errors import EnvironmentProblem, HpcstencilError, InputError
from hpcstencil.files import file_errors, prepare_folder, reserve
from hpcstencil.grid import Grid
from hpcstencil.hdf5_layout import Attributes, write_attributes, write_coordinates
from hpcstencil.hdf5_read import SCALES, open_for_reading
from hpcstencil.hyperslabs import Method, SharedFile, chosen_method, open_alone, open_shared
from hpcstencil.parallel import Communicator, agree
from hpcstencil.topology import Range

FORMAT_VERSION = 1
SCALARS = "run-scalars"  # group whose attributes are the scalars; the hyphen keeps its name apart from every array's

Blocks = Mapping[str, np.ndarray]
Scalars = Mapping[str, float | int | str]


def checkpoint_path(output: Path, step: int) -> Path:
    """``NAME.checkpoint.STEP.h5`` beside the output ``NAME.h5``."""
    return output.with_name(f"{output.stem}.checkpoint.{step:012d}.h5")


def list_checkpoints(output: Path) -> list[Path]:
    """Checkpoints of the run that writes ``output``, newest first, whole or not; temporary files are left out."""
    return _siblings(output, r"\.h5")


def remove_stale(output: Path, communicator: Communicator, after: int | None = None) -> None:
    """Remove what a killed run left half written beside ``output``; with ``after``, also checkpoints of later steps.

    A run that begins anew under an old name says ``after=-1``, one that goes on from step n says ``after=n``: what an
    abandoned course of the run left would otherwise pass for the newest.
    """

    def remove() -> None:
        if communicator.rank == 0:
            later = [] if after is None else [path for path in list_checkpoints(output) if step_of(path) > after]
            for path in _siblings(output, r"\.h5\.tmp") + later:
                with file_errors(path, "remove"):
                    path.unlink(missing_ok=True)

    agree(communicator, remove)


def step_of(path: Path) -> int:
    """The step in the name of a checkpoint."""
    return int(path.name.split(".checkpoint.")[-1].split(".")[0])


def _siblings(output: Path, ending: str) -> list[Path]:
    pattern = re.compile(rf"{re.escape(output.stem)}\.checkpoint\.\d{{12,}}{ending}")
    folder = output.parent
    found = [path for path in folder.iterdir() if pattern.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(found, key=step_of, reverse=True)


def write_checkpoint(
    output: Path,
    communicator: Communicator,
    grid: Grid,
    *,
    step: int,
    time: float,
    arrays: Blocks,
    ranges: Sequence[Range],
    scalars: Scalars | None = None,
    attributes: Attributes,
    keep: int,
    method: Method = "auto",
) -> Path:
    """Write the state after ``step`` steps and keep the newest ``keep`` checkpoints of this run; returns the new path.

    ``arrays`` maps names to this process's blocks (interior, local, C-contiguous) of the global index ``ranges``, the
    same names in the same order on all processes; ``scalars`` and ``attributes`` are equal on all.
    Raises EnvironmentProblem where the file system fails; earlier checkpoints are then untouched.
    """
    final = checkpoint_path(output, step)
    temporary = final.with_name(final.name + ".tmp")
    chosen_method(method, communicator)
    prepare_folder(final, communicator)

    def lay_out() -> None:
        if communicator.rank == 0:
            with file_errors(temporary, "create"):
                temporary.unlink(missing_ok=True)
                with open_alone(temporary, "w") as file:
                    _lay_out(file, grid, arrays, step, time, scalars or {}, attributes)

    agree(communicator, lay_out)
    try:
        reserve(temporary, grid.cells * sum(block.itemsize for block in arrays.values()), communicator)
    except EnvironmentProblem:
        if communicator.rank == 0:
            temporary.unlink(missing_ok=True)
        raise
    shared = open_shared(temporary, communicator, method)
    _fill(shared, arrays, ranges)
    communicator.barrier()

    def publish() -> None:
        if communicator.rank == 0:
            with file_errors(final, "write"):
                _sync(temporary)
                os.replace(temporary, final)
                _sync(final.parent)
            for old in [path for path in list_checkpoints(output) if path != final][max(keep - 1, 0) :]:
                with file_errors(old, "remove"):
                    old.unlink(missing_ok=True)

    agree(communicator, publish)
    return final


def _fill(shared: SharedFile, arrays: Blocks, ranges: Sequence[Range]) -> None:
    """Write the blocks; ``complete`` becomes 1 when all of them are in the file."""
    start = tuple(first for first, _ in ranges)
    for name, block in arrays.items():
        shared.write(name, start, block)
    shared.apply(lambda file: file.attrs.modify("complete", 1))
    shared.close()


def _lay_out(
    file: h5py.File, grid: Grid, arrays: Blocks, step: int, time: float, scalars: Scalars, attributes: Attributes
) -> None:
    """Everything but the arrays' values: contiguous datasets over the whole grid, allocated, never filled."""
    write_attributes(file, {**attributes, "kind": "checkpoint", "format_version": FORMAT_VERSION})
    write_attributes(file, {"step": step, "time": float(time), "complete": 0})
    write_attributes(file.create_group(SCALARS), scalars)
    write_coordinates(file, grid)
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    space = h5py.h5s.create_simple(grid.shape)
    for name, block in arrays.items():
        if name in (*SCALES, SCALARS):
            raise ValueError(f"array '{name}': a checkpoint uses this name itself")
        h5py.h5d.create(file.id, name.encode(), h5py.h5t.py_create(block.dtype), space, properties)
        for dimension, scale in zip(file[name].dims, grid.axes, strict=True):
            dimension.attach_scale(file[scale])


def _sync(path: Path) -> None:
    """Have the file or folder on disk when this returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_checkpoint(path: Path) -> None:
    """Raise InputError where ``path`` is not a whole checkpoint, EnvironmentProblem where it cannot be read.

    Whole means: finished, and every array as long on disk as its shape says.
    """
    with open_for_reading(path) as file:
        if file.attrs.get("kind") != "checkpoint":
            raise InputError(f"{path}: not a checkpoint of hpcstencil")
        version = int(file.attrs.get("format_version", 0))
        if version != FORMAT_VERSION:
            raise InputError(f"{path}: has format version {version}, this hpcstencil reads {FORMAT_VERSION}")
        if not file.attrs.get("complete", 0):
            raise InputError(f"{path}: was never finished; take an older checkpoint")
        shape = tuple(file[axis].shape[0] for axis in "xyz" if axis in file)
        size = path.stat().st_size
        for name, dataset in _arrays(file).items():
            end = (dataset.id.get_offset() or size) + dataset.id.get_storage_size()
            if dataset.shape != shape or end > size:
                raise InputError(f"{path}: '{name}' is cut short; take an older checkpoint")


def _arrays(file: h5py.File) -> dict[str, h5py.Dataset]:
    return {name: item for name, item in file.items() if isinstance(item, h5py.Dataset) and name not in SCALES}


def newest_checkpoint(output: Path, communicator: Communicator) -> Path | None:
    """The newest whole checkpoint of the run that writes ``output``, found by rank 0; None where there is none."""
    newest = None
    if communicator.rank == 0:
        newest = next((path for path in list_checkpoints(output) if _is_whole(path)), None)
    return communicator.broadcast(newest)


def _is_whole(path: Path) -> bool:
    try:
        check_checkpoint(path)
    except HpcstencilError:
        return False
    return True


def read_checkpoint(
    path: Path, ranges: Sequence[Range], names: Sequence[str] | None = None
) -> tuple[int, float, dict[str, np.ndarray], dict[str, Any], dict[str, Any]]:
    """(step, time, arrays, scalars, attributes) of the checkpoint at ``path``.

    ``arrays`` are this process's blocks of the global index ``ranges``, whatever the decomposition that wrote them;
    ``names`` selects some (default: all). Each process reads for itself.
    Raises InputError where the file is not a whole checkpoint with these arrays over a grid that has these ranges.
    """
    check_checkpoint(path)
    with open_for_reading(path) as file:
        there = _arrays(file)
        missing = [name for name in names or () if name not in there]
        if missing:
            raise InputError(f"{path}: no array '{missing[0]}'; it holds {', '.join(there) or 'none'}")
        for name in (wanted := list(there if names is None else names)):
            if len(ranges) != there[name].ndim or any(
                b > n for (_, b), n in zip(ranges, there[name].shape, strict=True)
            ):
                raise InputError(f"{path}: '{name}' has shape {there[name].shape}: it must be on the same grid")
        index = tuple(slice(start, stop) for start, stop in ranges)
        blocks = {name: there[name][index] for name in wanted}
        attributes = dict(file.attrs)
        scalars = {name: _plain(value) for name, value in file[SCALARS].attrs.items()}
    return int(attributes["step"]), float(attributes["time"]), blocks, scalars, attributes


def _plain(value: Any) -> Any:
    """A number of Python for one of numpy."""
    return value.item() if isinstance(value, np.generic) else value
