"""Transport ``direct``: each process writes its part of a snapshot itself, to the bytes that HDF5 has allocated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import h5py
import numpy as np

from hpcstencil.io.direct_write import DirectWriter, own_write
from hpcstencil.io.hdf5_access import Placing
from hpcstencil.io.transports.mpio import Mpio
from hpcstencil.io.transports.protocol import Blocks, UnsharedProblem
from hpcstencil.runtime.communicator import Communicator
from hpcstencil.runtime.filesystem import file_errors


class Direct:
    """A transport in which each process writes its blocks of snapshots independently.

    Every process also has the file open through MPI-IO. Changes of metadata, and blocks that cannot be written
    independently, are collective, as in `Mpio`.
    """

    def __init__(self, path: Path, communicator: Communicator, placing: Placing) -> None:
        self.together = Mpio(path, communicator, placing)
        self.communicator = communicator
        self.writer = DirectWriter(path)

    def apply(self, action: Callable[[h5py.File], None]) -> None:
        self.together.apply(action)

    def write(self, name: str, start: Sequence[int], block: np.ndarray) -> None:
        self.together.write(name, start, block)

    def independent_write(self, start: Sequence[int], blocks: Blocks) -> Callable[[], None] | None:
        with file_errors(self.together.path, "write", UnsharedProblem):
            own = own_write(self.together.file, self.writer, start, blocks)
        return None if self.communicator.total(np.array([int(own is None)]))[0] else own

    def close(self) -> None:
        with file_errors(self.together.path, "close", UnsharedProblem):
            self.writer.close()
        self.together.close()
