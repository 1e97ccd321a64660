"""Transport ``mpio``: all processes write their hyperslabs through MPI-IO in one collective call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import h5py
import numpy as np

from hpcstencil.io.hdf5_access import LIBVER, Placing, write_hyperslab
from hpcstencil.io.transports.protocol import Blocks, UnsharedProblem
from hpcstencil.runtime.communicator import Communicator
from hpcstencil.runtime.filesystem import file_errors, find_room


class Mpio:
    """A transport in which every process has the file open with HDF5's mpio driver. Failures are ``UnsharedProblem``."""

    def __init__(self, path: Path, communicator: Communicator, placing: Placing) -> None:
        self.path = path
        self.communicator = communicator
        self.transfer = h5py.h5p.create(h5py.h5p.DATASET_XFER)
        self.transfer.set_dxpl_mpio(h5py.h5fd.MPIO_COLLECTIVE)
        find_room(path, communicator)  # for the lock file of Open MPI, which waits for ever if it cannot write it
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
