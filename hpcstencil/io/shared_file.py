"""One HDF5 file written by many processes: one interface, four transports.

``Direct``: every process has the file open through MPI-IO, but writes the values of snapshots by itself, to the bytes
where HDF5 keeps them. ``Collective``: every process has the file open through MPI-IO and writes its own hyperslab; all
write in one collective call. ``Gathered``: rank 0 alone has the file open and the others send it their blocks (a serial
h5py, or one process). ``InTurn``: one process after the other opens the file and writes its own block. `chosen_method`
chooses the transport once. The bytes of the datasets are the same.

All keep the format of HDF5 1.8 (``LIBVER``): a file killed after a flush opens again without repair, and every reader
knows it. No lock is taken: MPI-IO never takes one, and some parallel file systems refuse them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import h5py
import numpy as np

from hpcstencil.io.direct_write import DirectWriter, Pieces, as_cut, places
from hpcstencil.runtime.communicator import Communicator, agree
from hpcstencil.runtime.filesystem import NOT_FOR_MPIO, file_errors, file_system
from hpcstencil.validation.errors import EnvironmentProblem

Way = Literal["direct", "mpio", "serial", "per_process"]
Method = Literal["auto"] | Way
Blocks = Mapping[str, np.ndarray | Pieces]
Placing = Mapping[str, int] | None  # alignment of new chunks, see `direct_write.placing`

LIBVER = ("v108", "v108")
CHUNK_CACHE = 64 * 2**20  # bytes per dataset: chunks stay here until all their writers are done
LONGEST_PATH = 200  # bytes of an output's path: Open MPI 4.1 crashes from 256 on, and its lock files have longer paths
MESSAGE = 2**30  # bytes per message: counts of MPI 3 are 32 bits wide
# HDF5 before 1.10.7 (and 1.12.0) cannot switch its lock off.
CAN_UNLOCK = (1, 10, 7) <= h5py.version.hdf5_version_tuple[:3] < (1, 12, 0) or h5py.version.hdf5_version_tuple > (
    1,
    12,
    0,
)


class UnsharedProblem(EnvironmentProblem):
    """A collective file operation failed on this process, perhaps on this one alone.

    The others may be waiting inside the same operation, so no agreement is possible. The last handler must abort the
    communicator; an ordinary exit is not enough.
    """

    shared = False


def open_alone(
    path: Path, mode: Literal["r", "r+", "w"], cache: int = CHUNK_CACHE, placing: Placing = None
) -> h5py.File:
    """Open ``path`` in this process alone, without a lock if HDF5 allows it. An unfinished change is visible
    (`file_read.open_for_reading` hides it). ``cache`` is the chunk cache in bytes per dataset; ``placing`` aligns new
    chunks."""
    unlocked = {"locking": False} if CAN_UNLOCK else {}
    cached = {} if mode == "r" else {"libver": LIBVER, "rdcc_nbytes": cache}
    return h5py.File(path, mode, **unlocked, **cached, **(placing or {}))


def chunk_shape(shape: Sequence[int], itemsize: int, target: int = 4 * 2**20) -> tuple[int, ...]:
    """The chunk of one snapshot of ``shape`` cells, at most ``target`` bytes. It depends on the grid alone.

    The longest axis is halved until the chunk fits. The last axis counts an eighth of its length, because contiguous
    runs make writing fast. Chunk edges then lie on the cuts into 2, 4, 8 ... blocks, and no chunk reaches far beyond
    the grid.
    """
    chunk = list(shape)
    while itemsize * math.prod(chunk) > target:
        weights = [n / 8 if axis == len(chunk) - 1 else n for axis, n in enumerate(chunk)]
        axis = weights.index(max(weights))
        chunk[axis] = -(-chunk[axis] // 2)
    return tuple(chunk)


def select(dataset: h5py.Dataset, start: Sequence[int], shape: Sequence[int]) -> tuple[Any, Any]:
    """(memory space, file space) of the hyperslab of ``shape`` at ``start``; selects nothing if it is empty."""
    file_space = dataset.id.get_space()
    if 0 in shape:
        memory_space = h5py.h5s.create_simple((1,) * len(shape))
        memory_space.select_none()
        file_space.select_none()
    else:
        memory_space = h5py.h5s.create_simple(tuple(shape))
        file_space.select_hyperslab(tuple(start), tuple(shape))
    return memory_space, file_space


def check_type(dataset: h5py.Dataset, block: np.ndarray | Pieces) -> None:
    """Raise TypeError if the dtypes of the dataset and the block differ."""
    if block.dtype != dataset.dtype:
        raise TypeError(f"{dataset.name} holds {dataset.dtype}, the block {block.dtype}")


def write_hyperslab(dataset: h5py.Dataset, start: Sequence[int], block: np.ndarray, transfer: Any = None) -> None:
    """Write ``block`` (C-contiguous, the dataset's dtype and number of axes) at the global index ``start``.

    h5py's indexing would skip the call for an empty block, and a collective write would then wait for ever. So this
    uses the low-level interface.
    """
    check_type(dataset, block)
    memory_space, file_space = select(dataset, start, block.shape)
    dataset.id.write(memory_space, file_space, block if block.size else np.empty(1, block.dtype), dxpl=transfer)


class SharedFile(Protocol):
    """One HDF5 file open for writing by all processes of a run. All processes call every method together."""

    def apply(self, action: Callable[[h5py.File], None]) -> None:
        """Change metadata: ``action`` must do the same, with equal values, on every process that runs it."""

    def write(self, name: str, start: Sequence[int], block: np.ndarray) -> None:
        """Write each process's own ``block`` (local, without ghost cells, C-contiguous; may be empty) at its own global
        index ``start``."""

    def apart(self, start: Sequence[int], blocks: Blocks) -> Callable[[], None] | None:
        """A function that writes this process's own blocks by itself, perhaps in a thread. None, on all processes, if
        this transport cannot do that or not for these blocks. The function raises EnvironmentProblem."""

    def close(self) -> None:
        """Flush and close."""


class Collective:
    """Every process has the file open with driver mpio. Failures are ``UnsharedProblem``."""

    def __init__(self, path: Path, communicator: Communicator, placing: Placing) -> None:
        self.path = path
        self.communicator = communicator
        self.transfer = h5py.h5p.create(h5py.h5p.DATASET_XFER)
        self.transfer.set_dxpl_mpio(h5py.h5fd.MPIO_COLLECTIVE)
        with file_errors(path, "open", UnsharedProblem):
            self.file = h5py.File(path, "r+", driver="mpio", comm=communicator.mpi, libver=LIBVER, **(placing or {}))

    def apply(self, action: Callable[[h5py.File], None]) -> None:
        with file_errors(self.path, "write", UnsharedProblem):
            action(self.file)

    def write(self, name: str, start: Sequence[int], block: np.ndarray) -> None:
        with file_errors(self.path, f"write '{name}' into", UnsharedProblem):
            write_hyperslab(self.file[name], start, block, self.transfer)

    def apart(self, start: Sequence[int], blocks: Blocks) -> Callable[[], None] | None:
        return None

    def close(self) -> None:
        with file_errors(self.path, "close", UnsharedProblem):
            self.file.close()


class Direct(Collective):
    """Like ``Collective``, but each process writes its part of snapshots by itself, to the bytes that HDF5 has
    allocated."""

    def __init__(self, path: Path, communicator: Communicator, placing: Placing) -> None:
        super().__init__(path, communicator, placing)
        self.writer = DirectWriter(path)

    def apart(self, start: Sequence[int], blocks: Blocks) -> Callable[[], None] | None:
        with file_errors(self.path, "write", UnsharedProblem):
            own = own_writing(self.file, self.writer, start, blocks)
        return None if self.communicator.total(np.array([int(own is None)]))[0] else own


def own_writing(
    file: h5py.File, writer: DirectWriter, start: Sequence[int], blocks: Blocks
) -> Callable[[], None] | None:
    """A function that writes this process's own blocks straight to their places in the file; None if the places are not
    available."""
    asked = []
    for name, block in blocks.items():
        dataset = file[name]
        check_type(dataset, block)
        asked.append((block, places(dataset, start, block.shape)))
    found = [(as_cut(block, where), where) for block, where in asked if where is not None]

    def write() -> None:
        with file_errors(writer.path, "write"):
            writer.write(found)

    return write if len(found) == len(asked) else None


class Gathered:
    """Rank 0 has the file open and holds at most one block of another process at a time. All processes raise together."""

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
        """Rank 0: write the own block, then those of the others. After a failure it still receives the rest, so that no
        sender waits."""
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

    def apart(self, start: Sequence[int], blocks: Blocks) -> Callable[[], None] | None:
        if self.communicator.size > 1 or self.file is None:
            return None
        with file_errors(self.path, "write"):
            return own_writing(self.file, self.writer, start, blocks)

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
                    self.file.close()

        agree(self.communicator, close)


def messages(block: np.ndarray) -> Iterator[np.ndarray]:
    """Flat views of ``block`` (C-contiguous), each at most one message long."""
    flat = block.reshape(-1)
    step = MESSAGE // block.itemsize
    return (flat[start : start + step] for start in range(0, flat.size, step))


class InTurn:
    """One process after the other opens the file alone and writes its own block. All processes raise together.

    This is slow, but needs neither MPI-IO nor memory for blocks of others. It is safe on file systems that promise only
    that a file opened after it was closed shows what was written.
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

    def apart(self, start: Sequence[int], blocks: Blocks) -> None:
        return None

    def close(self) -> None:
        agree(self.communicator, lambda: None)


WAYS: dict[Way, Callable[[Path, Communicator, Placing], SharedFile]] = {
    "direct": Direct,
    "mpio": Collective,
    "serial": Gathered,
    "per_process": InTurn,
}


def chosen_method(method: Method, communicator: Communicator, output: Path) -> Way:
    """The transport for the file ``output`` and its checkpoints. ``auto`` takes direct if there are several processes,
    h5py has MPI-IO, and rank 0 finds a suitable file system there.

    Raises EnvironmentProblem if MPI-IO is requested and h5py was built without it, or the path of ``output`` is too
    long for it.
    """
    too_long = len(os.fsencode(output)) > LONGEST_PATH
    parallel = h5py.get_config().mpi
    through_mpi = method in ("direct", "mpio")
    if through_mpi and not parallel:
        raise EnvironmentProblem(
            f"method '{method}' needs an h5py built with MPI, this one is serial: install a parallel h5py, or use 'auto'"
        )
    if communicator.size == 1:
        return "serial"
    if through_mpi and too_long:
        raise EnvironmentProblem(
            f"{output}: method '{method}' takes paths of at most {LONGEST_PATH} bytes, for Open MPI crashes on longer ones, "
            f"but got one of {len(os.fsencode(output))}; choose a shorter one, or use 'auto'"
        )
    if method != "auto":
        return method
    suited = communicator.broadcast(not too_long and file_system(output.parent) not in NOT_FOR_MPIO)
    return "direct" if parallel and suited else "serial"


def open_shared(path: Path, communicator: Communicator, way: Way, placing: Placing = None) -> SharedFile:
    """Open the existing file ``path`` for writing by all processes."""
    return WAYS[way](path, communicator, placing)
