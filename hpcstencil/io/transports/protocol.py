"""The interface of output transports, by which several processes write one HDF5 file.

All transports write the same bytes into the datasets. None takes a file lock, because MPI-IO never does and some parallel
file systems do not support locks.
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
    """Raised when a collective file operation failed on this process, and perhaps on no other.

    The others may be waiting inside the same operation, so the processes cannot agree on the failure. The outermost handler
    must abort the communicator; an ordinary exit is not enough.
    """

    shared = False


class Transport(Protocol):
    """One HDF5 file that all processes of a run have open for writing. All methods are collective.

    A transport is created from the path of an existing file, the communicator, and the alignment of new chunks
    (`direct_write.placing`). It reports failures as EnvironmentProblem on all processes, or as ``UnsharedProblem``.
    """

    def apply(self, action: Callable[[h5py.File], None]) -> None:
        """Change metadata by ``action``, which some or all processes run on the open file.

        It must do the same, with equal values, on all processes.
        """

    def write(self, name: str, start: Sequence[int], block: np.ndarray) -> None:
        """Write this process's ``block`` of the dataset ``name`` at the global index ``start``.

        The block is local, without ghost cells, C-contiguous, and in the dtype of the dataset. It may be empty.
        """

    def independent_write(self, start: Sequence[int], blocks: Blocks) -> Callable[[], None] | None:
        """Return a function that writes this process's ``blocks`` at the global index ``start`` independently.

        The function may run in a thread and raises EnvironmentProblem if writing fails. The result is None, on all
        processes, if this transport cannot write these blocks independently.
        """

    def close(self) -> None:
        """Flush and close the file."""


Driver = Callable[[Path, Communicator, Placing], Transport]
