"""The output transports by name, with their properties.

``output.method`` accepts these names. Classes are named as strings instead of imported, because `check` reads the names
without loading h5py.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcstencil.validation.messages import unknown

AUTO = "auto"  # the choice depends on the processes, h5py and the file system, see `choice`


@dataclass(frozen=True)
class Entry:
    """The properties of a transport.

    ``driver`` is "module:class" of its `protocol.Transport`. ``uses_mpi_io`` says that it needs an h5py built with MPI.
    ``independent`` says that each of several processes can write its part of an uncompressed snapshot without the others, so
    that a thread can do it (`protocol.Transport.independent_write`).
    """

    driver: str
    uses_mpi_io: bool = False
    independent: bool = False


TRANSPORTS: dict[str, Entry] = {
    "direct": Entry("hpcstencil.io.transports.direct:Direct", uses_mpi_io=True, independent=True),
    "mpio": Entry("hpcstencil.io.transports.mpio:Mpio", uses_mpi_io=True),
    "serial": Entry("hpcstencil.io.transports.serial:Serial"),
    "per_process": Entry("hpcstencil.io.transports.per_process:PerProcess"),
}


def entry(name: str) -> Entry:
    """Return the entry of the transport ``name``. Raises InputError for an unknown name."""
    if name not in TRANSPORTS:
        raise unknown("output.method", "transport", name, (AUTO, *TRANSPORTS))
    return TRANSPORTS[name]


def may_write_behind(method: str) -> bool:
    """Return whether several processes can write snapshots in threads with this ``output.method``."""
    return method == AUTO or entry(method).independent
