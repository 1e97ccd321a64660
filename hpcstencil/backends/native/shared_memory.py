"""Shared memory of the processes of a host, through which native code exchanges the edges of blocks (see
shared_edges.hpp)."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hpcstencil.backends.native.passes import AXIS_OF
from hpcstencil.distributed.exchange import Exchange, Ghosts, Outer, StripsOf
from hpcstencil.numerics.topology import Topology, split
from hpcstencil.runtime.communicator import Communicator
from hpcstencil.runtime.hosts import boot, host

PAGE = 4096
Three = ctypes.c_int64 * 3


class SharedEdges(ctypes.Structure):
    """The struct of shared_edges.hpp, and the ``memory`` itself. ``waited`` counts the seconds in which this process
    has waited for its neighbours."""

    memory: mmap.mmap
    _fields_ = (
        ("base", ctypes.c_void_p),
        ("bytes", ctypes.c_int64),
        ("epoch", ctypes.c_int64),
        ("blocks", Three),
        ("place", Three),
        ("cells", Three * 3),
        ("waited", ctypes.c_double),
    )


@dataclass(frozen=True)
class SharedMemory:
    """An `Exchange` through shared memory: native code writes its own edges there and reads its neighbours' edges,
    inside its passes. Other code exchanges through ``messages``."""

    edges: SharedEdges
    messages: Exchange
    name = "shared memory"
    fused = True

    def along(self, axis: int, first: Any, last: Any, outer: Outer) -> Ghosts:
        return self.messages.along(axis, first, last, outer)

    def outside(self, widths: Sequence[int], strips_along: Callable[[int], StripsOf]) -> Callable[[Any], Outer]:
        return self.messages.outside(widths, strips_along)

    def waited(self) -> float | None:
        return self.edges.waited


def edges_of(exchange: Exchange) -> SharedEdges | None:
    """The shared edges of an exchange; None for other kinds of exchange."""
    return exchange.edges if isinstance(exchange, SharedMemory) else None


def with_shared_memory(
    messages: Exchange, topology: Topology, widths: Sequence[int], cell_bytes: int, communicator: Communicator
) -> Exchange:
    """An exchange through shared memory if `shared_edges_for` provides it, else ``messages``. Every process calls
    this."""
    edges = shared_edges_for(topology, widths, cell_bytes, communicator)
    return messages if edges is None else SharedMemory(edges, messages)


def shared_edges_for(
    topology: Topology, widths: Sequence[int], cell_bytes: int, communicator: Communicator
) -> SharedEdges | None:
    """The shared memory for the edges of a block; None if the processes are not on one host, have several devices, or
    lack memory. Every process calls this.

    ``widths`` are the cells per axis that are exchanged, and ``cell_bytes`` is the size of all fields in one cell.
    """
    alone = topology.size == 1 or communicator.size == 1
    if alone or topology.device_count > 1 or not any(widths):
        return None
    if len(set(communicator.allgather((host(), boot())))) > 1:
        return None
    largest = [-(-n // p) for n, p in zip(topology.shape, topology.processes, strict=True)]
    edges = sum(2 * w * math.prod(largest) // n for w, n in zip(widths, largest, strict=True))
    each = -(-(PAGE + 2 * edges * cell_bytes) // PAGE) * PAGE
    memory = _shared(each * topology.size, communicator)
    if memory is None:
        return None
    shared_edges = SharedEdges(ctypes.addressof(ctypes.c_char.from_buffer(memory)), each)
    shared_edges.memory = memory
    shared_edges.blocks, shared_edges.place = Three(1, 1, 1), Three(0, 0, 0)
    for b in range(3):
        shared_edges.cells[b] = Three(1, 1, 1)
    for axis, b in enumerate(AXIS_OF[topology.ndim]):
        n, parts, place = topology.shape[axis], topology.processes[axis], topology.place()[axis]
        shared_edges.blocks[b], shared_edges.place[b] = parts, place
        for d in (-1, 0, 1):
            start, stop = split(n, parts, (place + d) % parts)
            shared_edges.cells[b][1 + d] = stop - start
    return shared_edges


def _shared(size: int, communicator: Communicator) -> mmap.mmap | None:
    """``size`` bytes, initially zero, that all processes see; None if one of them cannot map them. The memory has no
    name, so nothing of it remains when the last process ends, however it ends."""
    descriptor, place, memory = None, None, None
    if communicator.rank == 0:
        try:
            descriptor = os.memfd_create("hpcstencil", os.MFD_CLOEXEC)
            os.posix_fallocate(descriptor, 0, size)
            place = (f"/proc/{os.getpid()}/fd/{descriptor}", _identity(descriptor))
        except OSError:
            pass  # no room
    place = communicator.broadcast(place)
    if place is not None:
        try:
            with open(place[0], "r+b") as file:
                # Where processes are counted apart, as in containers, the number may be another process's.
                if _identity(file.fileno()) == place[1]:
                    memory = mmap.mmap(file.fileno(), size)
        except (OSError, ValueError):
            memory = None
    everyone = all(communicator.allgather(memory is not None))
    if descriptor is not None:
        os.close(descriptor)
    return memory if everyone else None


def _identity(descriptor: int) -> tuple[int, int]:
    """The device and inode of an open file, which are equal for the same memory."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino
