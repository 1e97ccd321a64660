"""Non-blocking messages that carry the edges of blocks between processes: persistent requests, made here by mpi4py, which
native code starts and tests (edge_exchange.hpp).

Native code needs no MPI header: mpi4py knows the size of a request's handle, and the two functions that it calls,
`MPI_Startall` and `MPI_Testall`, have the same form in every MPI library.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any

from hpcstencil.backends.native.edge_layout import HERE, OFFSETS, Box, EdgeLayout, Offset, strip_axis

Counts = ctypes.c_int64 * 2 * 3
Strips = ctypes.c_void_p * 2 * 3


class Messages(ctypes.Structure):
    """The struct of edge_exchange.hpp, and what must live as long as it (``kept``)."""

    kept: list[Any]
    _fields_ = (
        ("start_all", ctypes.c_void_p),
        ("test_all", ctypes.c_void_p),
        ("statuses", ctypes.c_void_p),
        ("request_bytes", ctypes.c_int64),
        ("receives", ctypes.c_int64),
        ("source", ctypes.c_int64 * len(OFFSETS)),
        ("receive", ctypes.c_void_p * 2),
        ("sends", Counts),
        ("send", Strips * 2),
        ("failed", ctypes.c_int64),
        ("receiving", ctypes.c_int32 * len(OFFSETS) * 2),
        ("sending", ctypes.c_int32 * 2 * 3 * 2),
        ("lock", ctypes.c_int32),
    )


def lack_of_messages() -> str:
    """Why native code cannot send messages in this process, as half a sentence; "" if it can."""
    from mpi4py import MPI

    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        return "the MPI library was started without MPI_THREAD_MULTIPLE"
    try:
        _functions()
    except (OSError, AttributeError) as error:
        return f"the MPI library's functions are out of reach ({error})"
    return ""


def _functions() -> list[int]:
    """The addresses of MPI_Startall and MPI_Testall in the library that mpi4py uses."""
    from mpi4py import MPI

    library = ctypes.CDLL(MPI.__file__)
    found = [ctypes.cast(getattr(library, name), ctypes.c_void_p).value for name in ("MPI_Startall", "MPI_Testall")]
    return [address or 0 for address in found]


def messages_of(
    layout: EdgeLayout,
    own: int,
    mirrors: Mapping[Offset, int],
    blocks: Mapping[Offset, tuple[int, int]],
    device: int,
    communicator: Any,
) -> Messages:
    """The messages of a block: its own edges, at the address ``own``, go to the ``blocks`` (rank, device) at some offsets,
    whose edges arrive in ``mirrors``, addresses of memory with the layout of theirs. ``communicator`` is the mpi4py
    communicator of these messages alone."""
    from mpi4py import MPI

    kind = {4: MPI.FLOAT, 8: MPI.DOUBLE}[layout.itemsize]
    kept: list[Any] = []

    def piece(address: int, offset: Offset, axis: int, side: int, buffer: int, box: Box) -> list[Any]:
        """The message buffer of a box of a strip."""
        sizes, starts, counts = ([entry[n] for entry in box] for n in (0, 1, 2))
        datatype = kind.Create_subarray(sizes, counts, starts).Commit()
        kept.append(datatype)
        strip = MPI.buffer.fromaddress(
            address + layout.start(offset, axis, side, buffer), layout.itemsize * math.prod(sizes)
        )
        return [strip, 1, datatype]

    def receive(offset: Offset, buffer: int) -> Any:
        axis = strip_axis(offset)
        message = piece(mirrors[offset], offset, axis, offset[axis] < 0, buffer, layout.read_here(offset))
        return communicator.Recv_init(message, blocks[offset][0], _tag(device, offset))

    def send(offset: Offset, buffer: int) -> Any:
        axis = strip_axis(offset)
        message = piece(own, HERE, axis, offset[axis] > 0, buffer, layout.read_there(offset))
        rank, its_device = blocks[offset]
        return communicator.Send_init(message, rank, _tag(its_device, (-offset[0], -offset[1], -offset[2])))

    def handles(requests: Sequence[Any]) -> int:
        """The address of the requests' handles, one after the other."""
        size = MPI._sizeof(MPI.Request)
        array = ctypes.create_string_buffer(max(1, len(requests)) * size)
        for n, request in enumerate(requests):
            ctypes.memmove(ctypes.addressof(array) + n * size, MPI._addressof(request), size)
        kept.extend((array, *requests))
        return ctypes.addressof(array)

    messages = Messages()
    messages.start_all, messages.test_all = _functions()
    statuses = ctypes.create_string_buffer(len(OFFSETS) * MPI._sizeof(MPI.Status))
    messages.statuses = ctypes.addressof(statuses)
    messages.request_bytes = MPI._sizeof(MPI.Request)
    offsets = list(blocks)
    messages.receives = len(offsets)
    for m, offset in enumerate(offsets):
        messages.source[m] = OFFSETS.index(offset)
    for buffer in (0, 1):
        messages.receive[buffer] = handles([receive(offset, buffer) for offset in offsets])
        for axis in range(3):
            for side in (0, 1):
                readers = [o for o in offsets if strip_axis(o) == axis and (o[axis] > 0) == bool(side)]
                messages.sends[axis][side] = len(readers)
                messages.send[buffer][axis][side] = handles([send(offset, buffer) for offset in readers])
    messages.kept = [statuses, communicator, *kept]
    return messages


def _tag(device: int, offset: Offset) -> int:
    """The tag of messages to a device of a process from the block at ``offset``."""
    return device * len(OFFSETS) + OFFSETS.index(offset)
