"""Transport ``mpio``: all processes write their hyperslabs through MPI-IO in one collective call."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import h5py
import numpy as np

from hpcstencil.io.hdf5_access import LIBVER, Placing, write_hyperslab
from hpcstencil.io.transports.protocol import Blocks, UnsharedProblem
from hpcstencil.runtime.communicator import Communicator, from_rank_0
from hpcstencil.runtime.filesystem import file_errors


class Mpio:
    """A transport in which every process has the file open with HDF5's mpio driver. Failures are ``UnsharedProblem``."""

    def __init__(self, path: Path, communicator: Communicator, placing: Placing) -> None:
        self.path = path
        self.communicator = communicator
        self.transfer = h5py.h5p.create(h5py.h5p.DATASET_XFER)
        self.transfer.set_dxpl_mpio(h5py.h5fd.MPIO_COLLECTIVE)
        from_rank_0(communicator, lambda: find_room(path))
        with file_errors(path, "open", UnsharedProblem):
            self.file = h5py.File(path, "r+", driver="mpio", comm=communicator.mpi, libver=LIBVER, **(placing or {}))

    def apply(self, action: Callable[[h5py.File], None]) -> None:
        with file_errors(self.path, "write", UnsharedProblem):
            action(self.file)

    def write(self, name: str, start: Sequence[int], block: np.ndarray) -> None:
        with file_errors(self.path, f"write '{name}' into", UnsharedProblem):
            write_hyperslab(self.file[name], start, block, self.transfer)

    def independent_write(self, start: Sequence[int], blocks: Blocks) -> Callable[[], None] | None:
        return None

    def close(self) -> None:
        with file_errors(self.path, "close", UnsharedProblem):
            self.file.close()


def find_room(path: Path) -> None:
    """Raise EnvironmentProblem if nothing can be written beside ``path``, before MPI-IO opens it.

    Open MPI keeps a lock file beside an open file. If it cannot write that file, it waits for ever, on all processes.
    """
    with file_errors(path, "open"), tempfile.TemporaryFile(dir=path.parent, buffering=0) as file:
        file.write(bytes(4096))
