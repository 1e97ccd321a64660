"""Halo exchange inside the passes of native code (edge_exchange.hpp).

Each device block keeps its edges in a separate area of memory. Blocks of one process, or of processes that share memory,
read each other's edges directly. The edges of other blocks arrive by MPI messages, in a mirror of their memory.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcstencil.backends.native.edge_layout import OFFSETS, EdgeLayout, edge_bytes, neighbours
from hpcstencil.backends.native.edge_messages import Messages, lack_of_messages, messages_of
from hpcstencil.backends.native.passes import AXIS_OF
from hpcstencil.backends.native.shared_memory import shared_memory
from hpcstencil.distributed.exchange import Exchange, Ghosts, Outer, StripsOf
from hpcstencil.numerics.topology import Topology
from hpcstencil.runtime.communicator import Communicator, MpiProcesses
from hpcstencil.runtime.hosts import boot, host
from hpcstencil.runtime.threads import threads_for

Three = ctypes.c_int64 * 3


class EdgeExchange(ctypes.Structure):
    """The C++ struct for the exchange of one device block (edge_exchange.hpp).

    ``kept`` keeps alive the memory to which it points, and ``sending`` the messages, if there are any. ``waited`` is the total
    time, in seconds, for which the block has waited for its neighbours.
    """

    kept: list[Any]
    sending: Messages | None = None
    _fields_ = (
        ("own", ctypes.c_void_p),
        ("neighbour", ctypes.c_void_p * len(OFFSETS)),
        ("cells", Three * 3),
        ("narrowest", Three),
        ("most_threads", ctypes.c_int64),
        ("epoch", ctypes.c_int64),
        ("waited", ctypes.c_double),
        ("messages", ctypes.c_void_p),
        ("threads", ctypes.c_int64),
        ("missing", ctypes.c_int64 * 2 * 3),
        ("writable", ctypes.c_int32 * 2 * 3),
    )


@dataclass(frozen=True)
class InPasses:
    """An `Exchange` that native code performs inside its passes, through the edges of this process's device ``blocks``.

    Compiled XLA code, which also needs halos, exchanges through ``messages``. ``means`` says how edges travel between
    processes, e.g. "shared memory".
    """

    blocks: tuple[EdgeExchange, ...]
    messages: Exchange
    means: str
    communicator: Any  # of mpi4py, for the blocks' messages alone; None if they send none

    @property
    def name(self) -> str:
        return self.means

    @property
    def fused(self) -> bool:
        return self.messages.fused

    def along(self, axis: int, first: Any, last: Any, outer: Outer) -> Ghosts:
        return self.messages.along(axis, first, last, outer)

    def outside(self, widths: Sequence[int], strips_along: Callable[[int], StripsOf]) -> Callable[[Any], Outer]:
        return self.messages.outside(widths, strips_along)

    def waited(self) -> float | None:
        return sum(block.waited for block in self.blocks) / len(self.blocks)

    def free(self) -> None:
        self.messages.free()
        if self.communicator is not None:
            self.communicator.Barrier()  # all have taken their last step
            for block in self.blocks:
                if block.sending is not None:
                    block.sending.free()
            self.communicator.Free()


def blocks_of(exchange: Exchange) -> tuple[EdgeExchange, ...]:
    """Return the edges of this process's device blocks; empty unless native code exchanges inside its passes."""
    return exchange.blocks if isinstance(exchange, InPasses) else ()


def in_passes(
    messages: Exchange,
    topology: Topology,
    widths: Sequence[int],
    fields: int,
    itemsize: int,
    communicator: Communicator,
    share_memory: bool,
) -> Exchange:
    """Set up an exchange inside the passes of native code. Collective.

    ``widths`` is the number of cells exchanged per axis, with ``fields`` values of ``itemsize`` bytes in each cell. Without
    ``share_memory``, processes of one host send each other messages too. The result is ``messages``, unchanged, if there is
    nothing to exchange, or if some process can neither share memory with a neighbour nor send it messages while stepping.
    """
    silent = topology.size > 1 and communicator.size == 1  # a benchmark of the steps alone
    if topology.size * topology.device_count == 1 or not any(widths) or silent:
        return messages
    each = edge_bytes(topology, widths, fields * itemsize)
    memory, places = _memory(each, topology, communicator, share_memory)
    devices = range(topology.device_count)
    around = [neighbours(topology, device, widths) for device in devices]
    far = [{o: block for o, block in found.items() if block not in places} for found in around]
    near = any(block[0] != topology.rank for found in around for block in found.values() if block in places)
    lack = lack_of_messages() if any(far) else ""
    threads = threads_for(topology.device_count)
    most = communicator.maximum(np.array([near, any(far), bool(lack), threads], int))
    shared, sent, lacking, most_threads = map(int, most)
    if lacking:
        return messages
    own_communicator = communicator.mpi.Clone() if sent else None
    blocks = []
    for device in devices:
        layout = EdgeLayout.of(topology, device, widths, fields, itemsize)
        mirrors = {offset: mmap.mmap(-1, each) for offset in far[device]}
        edges = EdgeExchange(own=places[topology.rank, device], narrowest=Three(1, 1, 1), most_threads=most_threads)
        for b, cells in zip(AXIS_OF[topology.ndim], topology.narrowest(), strict=True):
            edges.narrowest[b] = cells
        edges.kept = [memory, *mirrors.values()]
        for offset, block in around[device].items():
            seen = places[block] if block in places else _address(mirrors[offset])
            edges.neighbour[OFFSETS.index(offset)] = seen
        for b in range(3):
            edges.cells[b] = Three(*layout.cells[b])
        if mirrors:
            addresses = {offset: _address(mirror) for offset, mirror in mirrors.items()}
            edges.sending = messages_of(layout, edges.own, addresses, far[device], device, own_communicator)
            edges.messages = ctypes.addressof(edges.sending)
        blocks.append(edges)
    means = [*(["shared memory"] if shared else []), *(["MPI messages"] if sent else [])]
    return InPasses(tuple(blocks), messages, " and ".join(means), own_communicator)


def _memory(
    each: int, topology: Topology, communicator: Communicator, share: bool
) -> tuple[mmap.mmap, dict[tuple[int, int], int]]:
    """Allocate ``each`` bytes per device block; return the memory and the addresses of all visible blocks.

    The addresses are keyed by (rank, device). With ``share``, the blocks of all processes on this host are visible, if
    they can map shared memory; otherwise only those of this process.
    """
    count = topology.device_count
    if communicator.size > 1 and share:
        here, memory = communicator.alike(f"{host()} {boot()}"), None
        if len(here) > 1:
            group = communicator.mpi.Get_group().Incl(here)
            together = communicator.mpi.Create_group(group)  # a split would make a list of all ranks on each
            memory = shared_memory(each * count * len(here), MpiProcesses(together))
            together.Free()
        if memory is not None:
            blocks = [(rank, device) for rank in here for device in range(count)]
            return memory, {block: _address(memory) + n * each for n, block in enumerate(blocks)}
    memory = mmap.mmap(-1, each * count)
    return memory, {(topology.rank, device): _address(memory) + device * each for device in range(count)}


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
