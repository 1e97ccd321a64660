"""The protocol of output transports: one HDF5 file, open for writing by many processes.

All transports write the same bytes into the datasets. No lock is taken: MPI-IO never takes one, and some parallel file
systems refuse them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import h5py
import numpy as np

from hpcstencil.io.direct_write import Pieces
from hpcstencil.io.hdf5_access import Placing
from hpcstencil.runtime.communicator import Communicator
from hpcstencil.validation.errors import EnvironmentProblem

Blocks = Mapping[str, np.ndarray | Pieces]


class UnsharedProblem(EnvironmentProblem):
    """A collective file operation failed on this process, and perhaps on no other.

    The others may be waiting inside the same operation, so no agreement is possible. The last handler must abort the
    communicator; an ordinary exit is not enough.
    """

    shared = False


class Transport(Protocol):
    """One HDF5 file open for writing by all processes of a run. All processes call every method together.

    A driver is made from the path of an existing file, the communicator, and the alignment of new chunks
    (`direct_write.placing`). Its failures are EnvironmentProblem on all processes, or ``UnsharedProblem``.
    """

    def apply(self, action: Callable[[h5py.File], None]) -> None:
        """Change metadata by ``action``, which some or all processes run on the open file. It must do the same, with
        equal values, on each of them."""

    def write(self, name: str, start: Sequence[int], block: np.ndarray) -> None:
        """Write this process's own ``block`` of the dataset ``name`` at its own global index ``start``. The block is
        local, without ghost cells, C-contiguous, and in the dtype of the dataset; it may be empty."""

    def independent_write(self, start: Sequence[int], blocks: Blocks) -> Callable[[], None] | None:
        """A function that writes this process's own ``blocks`` at the global index ``start`` without the other
        processes, perhaps in a thread. None, on all processes, if this transport cannot do that for these blocks. The
        function raises EnvironmentProblem if writing fails."""

    def close(self) -> None:
        """Flush and close the file."""


Driver = Callable[[Path, Communicator, Placing], Transport]
