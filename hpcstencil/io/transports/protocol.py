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
    """A collective file operation failed on this process, perhaps on this one alone.

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
        """Change metadata: ``action`` must do the same, with equal values, on every process that runs it."""

    def write(self, name: str, start: Sequence[int], block: np.ndarray) -> None:
        """Write each process's own ``block`` (local, without ghost cells, C-contiguous; may be empty) at its own global
        index ``start``."""

    def independent_write(self, start: Sequence[int], blocks: Blocks) -> Callable[[], None] | None:
        """A function that writes this process's own blocks by itself, perhaps in a thread. None, on all processes, if
        this transport cannot do that or not for these blocks. The function raises EnvironmentProblem."""

    def close(self) -> None:
        """Flush and close."""


Driver = Callable[[Path, Communicator, Placing], Transport]
