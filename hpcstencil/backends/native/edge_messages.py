"""Non-blocking MPI messages that carry the edges of blocks between processes.

mpi4py creates persistent requests here; native code starts and tests them while it steps (edge_exchange.hpp). Native code
needs no MPI header: mpi4py knows the size of a request handle, and the two functions that are called, `MPI_Startall` and
`MPI_Testall`, have the same signature in every MPI library.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any

from hpcstencil.backends.native.edge_layout import HERE, OFFSETS, Box, EdgeLayout, Offset, strip_axis

# A strip is sent in pieces below Open MPI's eager limit over TCP. A larger message would start with a handshake with the
# receiver, which costs two more network delays.
PIECE_BYTES = 60_000
PIECES = 128  # most pieces of a strip; longer strips have longer pieces, so that tags stay small
Counts = ctypes.c_int64 * 2 * 3
Strips = ctypes.c_void_p * 2 * 3


class Messages(ctypes.Structure):
    """The C++ struct of the same name (edge_exchange.hpp). ``kept`` keeps alive the objects to which it points.

    ``received`` are the mpi4py requests by buffer and number of the offset, ``sent`` and ``datatypes`` lists.
    """

    kept: list[Any]
    received: dict[tuple[int, int], list[Any]]
    sent: list[Any]
    datatypes: list[Any]
    _fields_ = (
        ("start_all", ctypes.c_void_p),
        ("test_all", ctypes.c_void_p),
        ("statuses", ctypes.c_void_p),
        ("receives", ctypes.c_int64 * len(OFFSETS)),
        ("receive", ctypes.c_void_p * len(OFFSETS) * 2),
        ("sends", Counts),
        ("send", Strips * 2),
        ("receiving", ctypes.c_int32 * len(OFFSETS) * 2),
        ("sending", ctypes.c_int32 * 2 * 3 * 2),
        ("lock", ctypes.c_int32),
    )

    def free(self) -> None:
        """Free the requests and datatypes, after all processes have taken their last step."""
        for (buffer, n), requests in self.received.items():
            for request in requests:
                if self.receiving[buffer][n]:
                    request.Cancel()  # it was posted ahead, for a step that does not come
                request.Wait()
                request.Free()
        for request in self.sent:
            request.Wait()
            request.Free()
        for datatype in self.datatypes:
            datatype.Free()
        self.received, self.sent, self.datatypes = {}, [], []


def lack_of_messages() -> str:
    """Return why native code cannot send messages in this process, as a clause; "" if it can."""
    from mpi4py import MPI

    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        return "the MPI library was started without MPI_THREAD_MULTIPLE"
    try:
        _functions()
    except (OSError, AttributeError) as error:
        return f"the MPI library's functions are out of reach ({error})"
    return ""


def _functions() -> list[int]:
    """Return the addresses of MPI_Startall and MPI_Testall in the MPI library that mpi4py uses."""
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
    """Create the messages of one block.

    Its own edges, at the address ``own``, are sent to ``blocks``, which are (rank, device) by offset. The edges of those
    blocks arrive in ``mirrors``: addresses, by offset, of memory with the layout of the sender's edge memory.
    ``communicator`` is an mpi4py communicator that is used for nothing else.
    """
    from mpi4py import MPI

    kind = {4: MPI.FLOAT, 8: MPI.DOUBLE}[layout.itemsize]
    kept: list[Any] = []
    datatypes: list[Any] = []

    def pieces(address: int, offset: Offset, axis: int, side: int, buffer: int, box: Box) -> list[Any]:
        """Return the mpi4py buffers for the part ``box`` of a strip.

        A whole strip is divided into pieces of bytes; a part of a strip is one buffer with a datatype that selects it.
        """
        sizes, starts, counts = ([entry[n] for entry in box] for n in (0, 1, 2))
        size = layout.itemsize * math.prod(sizes)
        strip = MPI.buffer.fromaddress(address + layout.start(offset, axis, side, buffer), size)
        if counts == sizes:
            each = max(PIECE_BYTES, -(-size // PIECES))
            return [[strip[n : n + each], MPI.BYTE] for n in range(0, size, each)]
        datatype = kind.Create_subarray(sizes, counts, starts).Commit()
        datatypes.append(datatype)
        return [[strip, 1, datatype]]

    def receive(offset: Offset, buffer: int) -> list[Any]:
        axis, tag = strip_axis(offset), _first_tag(device, offset)
        buffers = pieces(mirrors[offset], offset, axis, offset[axis] < 0, buffer, layout.read_here(offset))
        return [communicator.Recv_init(piece, blocks[offset][0], tag + n) for n, piece in enumerate(buffers)]

    def send(offset: Offset, buffer: int) -> list[Any]:
        axis, (rank, its_device) = strip_axis(offset), blocks[offset]
        tag = _first_tag(its_device, (-offset[0], -offset[1], -offset[2]))
        buffers = pieces(own, HERE, axis, offset[axis] > 0, buffer, layout.read_there(offset))
        return [communicator.Send_init(piece, rank, tag + n) for n, piece in enumerate(buffers)]

    def handles(requests: Sequence[Any]) -> int:
        """Return the address of an array of the requests' handles."""
        size = MPI._sizeof(MPI.Request)
        array = ctypes.create_string_buffer(max(1, len(requests)) * size)
        for n, request in enumerate(requests):
            ctypes.memmove(ctypes.addressof(array) + n * size, MPI._addressof(request), size)
        kept.append(array)
        return ctypes.addressof(array)

    messages = Messages()
    messages.start_all, messages.test_all = _functions()
    messages.received, messages.sent, messages.datatypes = {}, [], datatypes
    most = 1  # requests that are tested at once
    for buffer in (0, 1):
        for offset in blocks:
            n, requests = OFFSETS.index(offset), receive(offset, buffer)
            messages.received[buffer, n] = requests
            messages.receives[n], messages.receive[buffer][n] = len(requests), handles(requests)
            most = max(most, len(requests))
        for axis in range(3):
            for side in (0, 1):
                readers = [o for o in blocks if strip_axis(o) == axis and (o[axis] > 0) == bool(side)]
                requests = [request for offset in readers for request in send(offset, buffer)]
                messages.sent += requests
                messages.sends[axis][side], messages.send[buffer][axis][side] = len(requests), handles(requests)
                most = max(most, len(requests))
    statuses = ctypes.create_string_buffer(most * MPI._sizeof(MPI.Status))
    messages.statuses = ctypes.addressof(statuses)
    messages.kept = [statuses, communicator, *kept]
    return messages


def _first_tag(device: int, offset: Offset) -> int:
    """Return the tag of the first piece of a strip that ``device`` receives from the block at ``offset``.

    Each piece has its own tag, because MPI_Startall may start requests in any order.
    """
    return (device * len(OFFSETS) + OFFSETS.index(offset)) * PIECES
