"""HDF5 in one process: opening a file without a lock, and writing a block of a dataset.

All files keep the format of HDF5 1.8 (``LIBVER``). Every reader supports it, and if a process is killed after a flush, its
file can be opened again without repair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np

Placing = Mapping[str, int] | None  # alignment of new chunks, see `direct_write.placing`

LIBVER = ("v108", "v108")
CHUNK_CACHE = 64 * 2**20  # bytes per dataset: chunks stay here until all their writers are done
# HDF5 before 1.10.7 (and 1.12.0) cannot switch its lock off.
CAN_UNLOCK = (1, 10, 7) <= h5py.version.hdf5_version_tuple[:3] < (1, 12, 0) or h5py.version.hdf5_version_tuple > (
    1,
    12,
    0,
)


def open_alone(
    path: Path, mode: Literal["r", "r+", "w"], cache: int = CHUNK_CACHE, placing: Placing = None
) -> h5py.File:
    """Open the file at ``path`` in this process alone, without a lock if HDF5 allows it.

    ``cache`` is the size of the chunk cache in bytes per dataset, and ``placing`` aligns new chunks. An unfinished change is
    visible; `file_read.open_for_reading` hides it.
    """
    unlocked = {"locking": False} if CAN_UNLOCK else {}
    cached = {} if mode == "r" else {"libver": LIBVER, "rdcc_nbytes": cache}
    return h5py.File(path, mode, **unlocked, **cached, **(placing or {}))


def select(dataset: h5py.Dataset, start: Sequence[int], shape: Sequence[int]) -> tuple[Any, Any]:
    """Return (memory space, file space) of the hyperslab of ``shape`` at index ``start``; an empty one selects nothing."""
    file_space = dataset.id.get_space()
    if 0 in shape:
        memory_space = h5py.h5s.create_simple((1,) * len(shape))
        memory_space.select_none()
        file_space.select_none()
    else:
        memory_space = h5py.h5s.create_simple(tuple(shape))
        file_space.select_hyperslab(tuple(start), tuple(shape))
    return memory_space, file_space


def check_type(dataset: h5py.Dataset, dtype: np.dtype) -> None:
    """Raise TypeError if a block of this ``dtype`` does not have the dtype of the dataset."""
    if dtype != dataset.dtype:
        raise TypeError(f"{dataset.name} holds {dataset.dtype}, the block {dtype}")


def write_hyperslab(dataset: h5py.Dataset, start: Sequence[int], block: np.ndarray, transfer: Any = None) -> None:
    """Write ``block`` (C-contiguous, with the dtype and number of axes of the dataset) at the global index ``start``.

    Raises TypeError if the dtypes differ. This uses h5py's low-level interface, because its indexing skips the call for an
    empty block, and the other processes of a collective write would then wait for ever.
    """
    check_type(dataset, block.dtype)
    memory_space, file_space = select(dataset, start, block.shape)
    dataset.id.write(memory_space, file_space, block if block.size else np.empty(1, block.dtype), dxpl=transfer)
