"""The choice of the output transport, made once for an output and its checkpoints."""

from __future__ import annotations

import os
import pkgutil
from pathlib import Path

import h5py

from hpcstencil.io.hdf5_access import Placing
from hpcstencil.io.transports.protocol import Driver, Transport
from hpcstencil.io.transports.registry import AUTO, entry
from hpcstencil.runtime.communicator import Communicator
from hpcstencil.runtime.filesystem import NOT_FOR_MPIO, file_system
from hpcstencil.validation.errors import EnvironmentProblem

# Most bytes in an output's path: Open MPI 4.1 crashes from 256 bytes on, and its lock files have longer paths.
LONGEST_PATH = 200


def chosen_transport(method: str, communicator: Communicator, output: Path) -> str:
    """Choose the transport for the file ``output`` and its checkpoints; return its name, the same on all processes.

    Collective. A single process uses "serial". With the ``method`` "auto", several processes use "direct" if h5py was built
    with MPI-IO and the file system, as rank 0 sees it, is suitable; otherwise "serial".

    Raises EnvironmentProblem if a method needs MPI-IO and h5py was built without it, or the path of ``output`` is too long
    for it; InputError for an unknown name.
    """
    too_long = len(os.fsencode(output)) > LONGEST_PATH
    parallel = h5py.get_config().mpi
    through_mpi = method != AUTO and entry(method).uses_mpi_io
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
    if method != AUTO:
        return method
    suited = communicator.broadcast(not too_long and file_system(output.parent) not in NOT_FOR_MPIO)
    return "direct" if parallel and suited else "serial"


def open_transport(path: Path, communicator: Communicator, name: str, placing: Placing = None) -> Transport:
    """Open the existing file at ``path`` for writing by all processes, with the transport ``name``. Collective.

    ``placing`` aligns new chunks (`direct_write.placing`). Raises InputError for an unknown name, EnvironmentProblem if the
    file cannot be opened.
    """
    driver: Driver = pkgutil.resolve_name(entry(name).driver)
    return driver(path, communicator, placing)
