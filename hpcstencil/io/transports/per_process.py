"""Transport ``per_process``: one process after the other opens the file and writes its own block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import h5py
import numpy as np

from hpcstencil.io.hdf5_access import Placing, open_alone, write_hyperslab
from hpcstencil.io.transports.protocol import Blocks
from hpcstencil.runtime.communicator import Communicator, agree
from hpcstencil.runtime.filesystem import file_errors


class PerProcess:
    """A transport in which one process after the other opens the file and writes its own block.

    This is slow, but needs neither MPI-IO nor memory for blocks of other processes. It is safe even on file systems with
    close-to-open consistency, such as NFS. A failure is raised on all processes.
    """

    def __init__(self, path: Path, communicator: Communicator, placing: Placing) -> None:
        self.path = path
        self.communicator, self.placing = communicator, placing

    def apply(self, action: Callable[[h5py.File], None]) -> None:
        def act() -> None:
            if self.communicator.rank == 0:
                with file_errors(self.path, "write"), open_alone(self.path, "r+", placing=self.placing) as file:
                    action(file)

        agree(self.communicator, act)

    def write(self, name: str, start: Sequence[int], block: np.ndarray) -> None:
        def write_own() -> None:
            mpi, rank = self.communicator.mpi, self.communicator.rank
            if rank > 0:
                mpi.recv(source=rank - 1)
            try:
                with file_errors(self.path, f"write '{name}' into"), open_alone(self.path, "r+") as file:
                    write_hyperslab(file[name], start, block)
            finally:
                if rank + 1 < self.communicator.size:
                    mpi.send(None, dest=rank + 1)

        agree(self.communicator, write_own)

    def independent_write(self, start: Sequence[int], blocks: Blocks) -> None:
        return None

    def close(self) -> None:
        agree(self.communicator, lambda: None)
