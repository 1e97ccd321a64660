"""Transport ``serial``: only rank 0 has the file open, and the other processes send it their blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import h5py
import numpy as np

from hpcstencil.io.direct_write import DirectWriter, own_write
from hpcstencil.io.hdf5_access import CHUNK_CACHE, Placing, open_alone, write_hyperslab
from hpcstencil.io.transports.protocol import Blocks
from hpcstencil.runtime.communicator import Communicator, agree
from hpcstencil.runtime.filesystem import file_errors
from hpcstencil.validation.errors import EnvironmentProblem

MESSAGE = 2**30  # most bytes per message, because counts in MPI 3 have 32 bits


class Serial:
    """A transport in which rank 0 writes all blocks, holding at most one block of another process at a time.

    A failure is raised on all processes.
    """

    def __init__(self, path: Path, communicator: Communicator, placing: Placing) -> None:
        self.path = path
        self.communicator, self.placing = communicator, placing
        self.file: h5py.File | None = None
        self.writer = DirectWriter(path)
        agree(communicator, self._open)

    def _open(self) -> None:
        if self.communicator.rank == 0:
            alone = self.communicator.size == 1  # it writes whole chunks, which a cache would only copy
            with file_errors(self.path, "open"):
                self.file = open_alone(self.path, "r+", 0 if alone else CHUNK_CACHE, self.placing)

    def apply(self, action: Callable[[h5py.File], None]) -> None:
        def act() -> None:
            if self.file is not None:
                with file_errors(self.path, "write"):
                    action(self.file)

        agree(self.communicator, act)

    def write(self, name: str, start: Sequence[int], block: np.ndarray) -> None:
        places = self.communicator.gather((tuple(start), block.shape))

        def transfer() -> None:
            if places is None:
                self._send(block)
            else:
                self._write_all(name, places, block)

        agree(self.communicator, transfer)

    def _write_all(self, name: str, places: Sequence[tuple[Sequence[int], tuple[int, ...]]], block: np.ndarray) -> None:
        """Write rank 0's own block and then those of the others, on rank 0.

        After a failure, the remaining blocks are still received, so that no sender waits.
        """
        assert self.file is not None
        problem: EnvironmentProblem | None = None
        for rank, (start, shape) in enumerate(places):
            piece = block if rank == 0 else self._receive(rank, shape, block.dtype)
            if problem is None:
                try:
                    with file_errors(self.path, f"write '{name}' into"):
                        write_hyperslab(self.file[name], start, piece)
                except EnvironmentProblem as error:
                    problem = error
        if problem is not None:
            raise problem

    def independent_write(self, start: Sequence[int], blocks: Blocks) -> Callable[[], None] | None:
        if self.communicator.size > 1 or self.file is None:
            return None
        with file_errors(self.path, "write"):
            return own_write(self.file, self.writer, start, blocks)

    def _send(self, block: np.ndarray) -> None:
        for piece in messages(block):
            self.communicator.mpi.Send(piece, dest=0)

    def _receive(self, rank: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        block = np.empty(shape, dtype)
        for piece in messages(block):
            self.communicator.mpi.Recv(piece, source=rank)
        return block

    def close(self) -> None:
        def close() -> None:
            if self.file is not None:
                with file_errors(self.path, "close"):
                    self.writer.close()
                    self.file.close()

        agree(self.communicator, close)


def messages(block: np.ndarray) -> Iterator[np.ndarray]:
    """Return flat views of ``block`` (C-contiguous), each of at most MESSAGE bytes."""
    flat = block.reshape(-1)
    step = MESSAGE // block.itemsize
    return (flat[start : start + step] for start in range(0, flat.size, step))
