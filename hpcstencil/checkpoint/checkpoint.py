"""Checkpoints: the whole state of a run at one step, in a separate file beside the output.

``NAME.checkpoint.STEP.h5`` is written under a temporary name, sealed with checksums (see `seal`), and renamed once it is on
disk. A file of that name was therefore complete once, and its seal shows whether it still is. It holds global arrays, so the
numbers of processes that write and read it can differ.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcstencil.checkpoint.paths import checkpoint_path, keep_newest, list_checkpoints
from hpcstencil.checkpoint.seal import Array, Damaged, read_seal, seal
from hpcstencil.io.file_layout import Attributes, write_attributes, write_coordinates
from hpcstencil.io.file_read import SCALES, Contents, grid_shape, open_for_reading
from hpcstencil.io.hdf5_access import open_alone
from hpcstencil.io.hdf5_validation import attributes, numbers
from hpcstencil.io.transports.choice import chosen_transport, open_transport
from hpcstencil.io.transports.protocol import Transport
from hpcstencil.numerics.checksum import checksum
from hpcstencil.numerics.grid import Grid
from hpcstencil.numerics.topology import Range
from hpcstencil.runtime.communicator import Communicator, agree, from_rank_0
from hpcstencil.runtime.filesystem import file_errors, prepare_folder, reserve, sync
from hpcstencil.runtime.launcher import local_place
from hpcstencil.runtime.progress import say
from hpcstencil.validation.errors import EnvironmentProblem, HpcstencilError, InputError

FORMAT_VERSION = 2
SCALARS = "run-scalars"  # the group whose attributes are the scalars; array names contain no hyphen

Blocks = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Part:
    """This process's ``block`` of an array of the global ``shape``, at the index ``ranges`` of that array.

    The block is C-contiguous, without ghost cells, and may be empty. It may have additional leading axes before those of the
    grid.
    """

    block: np.ndarray
    ranges: Sequence[Range]
    shape: tuple[int, ...]


Scalars = Mapping[str, float | int | str]
NO_PARTS: Mapping[str, Part] = {}
Places = dict[str, tuple[int, int]]  # (byte offset, size) in the file, by array


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
    method: str = "auto",
    partial_arrays: Mapping[str, Part] = NO_PARTS,
) -> Path:
    """Write a checkpoint of the state after ``step`` steps, at ``time``, and return its path. Collective.

    ``arrays`` maps names, in which "/" separates groups, to this process's blocks: local, without ghost cells, C-contiguous,
    of any dtype, possibly with additional leading axes. ``ranges`` is the global index range of the blocks per axis.
    ``partial_arrays`` are arrays over parts of the grid. All processes must pass the same names in the same order, and equal
    ``scalars`` and ``attributes``. ``method`` is the `output.method` of the input.

    Only the newest ``keep`` checkpoints of this run remain. Raises EnvironmentProblem if the file system fails; earlier
    checkpoints are then unchanged.
    """
    parts = {**{name: Part(block, ranges, grid.shape) for name, block in arrays.items()}, **partial_arrays}
    final = checkpoint_path(output, step)
    temporary = final.with_name(final.name + ".tmp")
    transport = chosen_transport(method, communicator, output)
    prepare_folder(final, communicator)

    def lay_out() -> Places:
        with file_errors(temporary, "create"):
            temporary.unlink(missing_ok=True)
            with open_alone(temporary, "w") as file:
                return _lay_out(file, grid, parts, step, time, scalars or {}, attributes)

    places = from_rank_0(communicator, lay_out)
    try:
        reserve(temporary, sum(size for _, size in places.values()), communicator, hollow=True)
    except EnvironmentProblem:
        if communicator.rank == 0:
            temporary.unlink(missing_ok=True)
        raise
    _fill(open_transport(temporary, communicator, transport), parts)
    checksums = _checksums(parts, communicator)

    def flush() -> None:
        if local_place()[0] == 0:  # each host flushes what its processes wrote
            with file_errors(temporary, "write"):
                sync(temporary)

    def publish() -> None:
        if communicator.rank == 0:
            with file_errors(final, "write"):
                seal(temporary, {name: Array(*places[name], checksums[name]) for name in parts})
                sync(temporary)
                os.replace(temporary, final)
                sync(final.parent)
            keep_newest(output, final, keep)

    agree(communicator, flush)
    agree(communicator, publish)
    return final


def _checksums(parts: Mapping[str, Part], communicator: Communicator) -> dict[str, int]:
    """Return the checksum of each global array by name, computed from the blocks of all processes. Collective."""
    shares = [checksum(part.block, [first for first, _ in part.ranges]) for part in parts.values()]
    return dict(zip(parts, communicator.total(np.array(shares, np.int64)).tolist(), strict=True))


def _fill(file: Transport, parts: Mapping[str, Part]) -> None:
    """Write this process's blocks of all arrays, set ``complete`` to 1, and close the file. Collective."""
    for name, part in parts.items():
        inner = [first for first, _ in part.ranges]
        file.write(name, [0] * (part.block.ndim - len(inner)) + inner, part.block)
    file.apply(lambda h5: h5.attrs.modify("complete", 1))
    file.close()


def _lay_out(
    file: h5py.File,
    grid: Grid,
    parts: Mapping[str, Part],
    step: int,
    time: float,
    scalars: Scalars,
    attributes: Attributes,
) -> Places:
    """Create everything except the values of the arrays, and return the positions of these in the file.

    The datasets are contiguous, allocated but not filled.
    """
    write_attributes(file, {**attributes, "kind": "checkpoint", "format_version": FORMAT_VERSION})
    write_attributes(file, {"step": step, "time": float(time), "complete": 0})
    write_attributes(file.create_group(SCALARS), scalars)
    write_coordinates(file, grid)
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    places = {}
    for name, part in parts.items():
        if name in (*SCALES, SCALARS):
            raise ValueError(f"array '{name}': a checkpoint uses this name itself")
        block = part.block
        group, _, last = name.rpartition("/")
        parent = file.require_group(group) if group else file
        leading = block.shape[: block.ndim - grid.ndim]
        space = h5py.h5s.create_simple((*leading, *part.shape))
        dataset = h5py.h5d.create(parent.id, last.encode(), h5py.h5t.py_create(block.dtype), space, properties)
        if leading and "member" not in file:  # an extra first axis is that of an ensemble
            file["member"] = np.arange(leading[0])
            file["member"].make_scale("member")
        for axis, scale in enumerate(grid.axes if part.shape == grid.shape else (), start=len(leading)):
            file[name].dims[axis].attach_scale(file[scale])
        places[name] = (dataset.get_offset(), dataset.get_storage_size())
    return places


def newest_checkpoint(output: Path, communicator: Communicator) -> Path | None:
    """Return the newest valid checkpoint of the run that writes ``output``; None if there is none. Collective.

    Each damaged checkpoint is skipped with a warning.
    """
    for path in from_rank_0(communicator, lambda: list_checkpoints(output)):
        try:
            verify(path, communicator)
        except HpcstencilError as error:
            say(f"warning: {error}; it is skipped")
            continue
        return path
    return None


def can_be_extended(output: Path, contents: Contents) -> bool:
    """Return whether a complete run can continue to a later end time. ``contents`` are those of its ``output``."""
    return contents.clock is not None or bool(list_checkpoints(output))


def verify(path: Path, communicator: Communicator) -> None:
    """Verify all values of a checkpoint, of which each process reads a slab. Collective.

    Raises InputError on all processes if the file has changed since it was written, EnvironmentProblem if it cannot be read.
    """
    sealed = from_rank_0(communicator, lambda: read_seal(path))
    for name, array in sealed.items():  # one array at a time, to save memory
        _read_verified(path, {name: array}, None, communicator)


def read_checkpoint(
    path: Path, ranges: Sequence[Range], communicator: Communicator, names: Sequence[str] | None = None
) -> tuple[dict[str, np.ndarray], dict[str, Any], dict[str, Any]]:
    """Read and verify the checkpoint at ``path``; return (arrays, scalars, attributes). Collective.

    The arrays are this process's blocks of the global index ``ranges``, by name: local, without ghost cells, in the dtype of
    the file, with any additional axes first. The decomposition may differ from that of the run that wrote the checkpoint,
    but the ranges of all processes must cover the grid, each cell once. ``names`` selects arrays (default: all). For an array
    over a part of the grid, ``ranges`` are indices of that array.

    Raises InputError if the file is not a valid checkpoint with these arrays on this grid, EnvironmentProblem if it cannot be
    read.
    """

    def look() -> dict[str, Array]:
        sealed = read_seal(path)
        missing = [name for name in names or () if name not in sealed]
        if missing:
            raise InputError(f"{path}: no array '{missing[0]}'; it holds {', '.join(sealed) or 'none'}")
        return sealed if names is None else {name: sealed[name] for name in names}

    return _read_verified(path, from_rank_0(communicator, look), ranges, communicator)


def _read_verified(
    path: Path, sealed: Mapping[str, Array], ranges: Sequence[Range] | None, communicator: Communicator
) -> tuple[dict[str, np.ndarray], dict[str, Any], dict[str, Any]]:
    """Read and verify the arrays in ``sealed``, see `read_checkpoint`. Collective.

    If ``ranges`` is None, each process reads a slab of the grid.
    """

    def own_ranges(shape: tuple[int, ...]) -> Sequence[Range]:
        """Return this process's index ranges of an array of this shape."""
        first, last = (shape[0] * (communicator.rank + i) // communicator.size for i in (0, 1))
        own = [(first, last), *((0, n) for n in shape[1:])] if ranges is None else ranges
        if len(own) != len(shape) or any(last > n for (_, last), n in zip(own, shape, strict=True)):
            raise InputError(
                f"{path}: its grid has shape {shape}: a run that continues from it must be on the same grid"
            )
        return own

    def read() -> tuple[dict[str, np.ndarray], dict[str, list[int]], dict[str, Any], dict[str, Any]]:
        with _opened(path) as (file, shape):
            blocks, starts = {}, {}
            for name in sealed:
                array = numbers(path, file, name)
                if array.ndim < len(shape):
                    raise InputError(
                        f"{path}: expected '{name}' over the grid, but got the shape {array.shape}; take another"
                    )
                own = own_ranges(array.shape[array.ndim - len(shape) :])
                blocks[name] = array[(..., *(slice(*pair) for pair in own))]
                starts[name] = [first for first, _ in own]
            group = file.get(SCALARS)
            if not isinstance(group, h5py.Group):
                raise InputError(f"{path}: expected a group '{SCALARS}'; take another checkpoint")
            return blocks, starts, attributes(path, group), attributes(path, file)

    blocks, starts, scalars, found = agree(communicator, read)
    shares = [checksum(block, starts[name]) for name, block in blocks.items()]
    for name, total in zip(sealed, communicator.total(np.array(shares, np.int64)).tolist(), strict=True):
        if total != sealed[name].checksum:
            raise Damaged(f"{path}: the values of '{name}' are damaged; take an older checkpoint")
    return blocks, scalars, found


def holds(path: Path, names: Sequence[str], communicator: Communicator) -> bool:
    """Return whether the checkpoint has these arrays. Collective. Raises InputError if its seal is missing or damaged."""
    return from_rank_0(communicator, lambda: set(names) <= set(read_seal(path)))


@contextmanager
def _opened(path: Path) -> Iterator[tuple[h5py.File, tuple[int, ...]]]:
    """Open a checkpoint as a context manager; yield (file, shape of its grid).

    Raises InputError if the file is not a checkpoint of this format.
    """
    with open_for_reading(path) as file:
        found = attributes(path, file)
        if found.get("kind") != "checkpoint":
            raise InputError(f"{path}: not a checkpoint of hpcstencil")
        version = found.get("format_version", 0)
        if version != FORMAT_VERSION:
            raise InputError(f"{path}: has format version {version}, this hpcstencil reads {FORMAT_VERSION}")
        shape = grid_shape(path, file)
        if not shape:
            raise InputError(f"{path}: expected the coordinates of a grid; take another checkpoint")
        yield file, shape
