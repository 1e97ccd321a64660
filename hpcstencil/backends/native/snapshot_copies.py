"""Snapshot copies that native code makes during the last step before an output.

Rows that the step has just stored are still in cache. A copy made later would have to read them from memory again.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

import numpy as np

from hpcstencil.backends.native.edge_exchange import Three
from hpcstencil.backends.native.passes import AXIS_OF
from hpcstencil.io.direct_write import Pieces
from hpcstencil.io.snapshot_buffers import Copies


class Piece(ctypes.Structure):
    """The C++ struct for one piece of a snapshot buffer (snapshot_copies.hpp).

    ``cell`` is the address that cell (0, 0, 0) of the block would have in the piece; ``plane`` and ``row`` are strides in
    bytes.
    """

    _fields_ = (("cell", ctypes.c_void_p), ("plane", ctypes.c_int64), ("row", ctypes.c_int64))


class SnapshotCopies(ctypes.Structure):
    """The C++ struct for all snapshot buffers (snapshot_copies.hpp).

    ``lent`` says that a thread is reading the buffers, and ``stored`` that the last call has filled them. ``first``,
    ``chunk`` and ``count`` describe how a block is divided into file chunks, per axis of the driver. ``pieces`` points to
    the pieces of each field.
    """

    _fields_ = (
        ("lent", ctypes.c_int64),
        ("stored", ctypes.c_int64),
        ("first", Three),
        ("chunk", Three),
        ("count", Three),
        ("pieces", ctypes.c_void_p),
    )


class NativeCopies(Copies):
    """Snapshot buffers that native code fills with its ``fields`` in the last step of a call.

    If it cannot, because it computes in tiles or a thread still reads the previous snapshot, `copied` makes the copy.
    """

    def __init__(self, pieces: Mapping[str, Pieces], library: ctypes.CDLL, fields: Sequence[str]) -> None:
        super().__init__(pieces)
        one = next(iter(pieces.values()))  # all fields are cut alike
        axes = AXIS_OF[len(one.shape) - 1]  # the first axis is time
        assert all(len(each.cuts) == len(one.cuts) for each in pieces.values())
        self.tables = {name: table_of(each, axes) for name, each in pieces.items()}
        self.places = (ctypes.c_void_p * len(fields))()  # null for those that are not copied
        for name, table in self.tables.items():
            self.places[fields.index(name)] = ctypes.addressof(table)
        self.results = SnapshotCopies(
            first=Three(0, 0, 0), chunk=Three(1, 1, 1), count=Three(1, 1, 1), pieces=ctypes.addressof(self.places)
        )
        for k, axis in enumerate(axes, start=1):
            self.results.first[axis] = one.cuts[0].inside[k].start
            self.results.chunk[axis] = one.cuts[0].chunk[k]
            self.results.count[axis] = len({cut.corner[k] for cut in one.cuts})
        self.library = library
        weakref.finalize(self, library.set_snapshot_copies, None)

    def expect(self, wanted: bool) -> None:
        """Tell the program whether its next call is to copy its results to the buffers."""
        self.results.stored = 0
        self.library.set_snapshot_copies(ctypes.byref(self.results) if wanted else None)

    def copied(self, name: str, block: np.ndarray) -> Pieces:
        """Return the buffer of a field, laid out like the file.

        ``block`` is this process's block (local, without ghost cells). It is copied now, unless the program has already
        copied it while stepping.
        """
        return self.pieces[name] if self.results.stored else super().copied(name, block)

    def lend(self, until: Future[None]) -> None:
        """Keep the buffers unchanged until ``until`` completes, because a thread reads them."""

        def give_back(_: Future[None]) -> None:
            self.results.lent = 0

        self.results.lent = 1
        until.add_done_callback(give_back)


def table_of(pieces: Pieces, axes: Sequence[int]) -> ctypes.Array[Piece]:
    """Return the addresses and strides of the pieces as a C++ table, in file order.

    ``axes`` has, for each axis of the grid, the corresponding axis of the driver.
    """
    table = (Piece * len(pieces.cuts))()
    for n, cut in enumerate(pieces.cuts):
        own = pieces.own(n)[0]  # without the axis of time
        before = sum(part.start * stride for part, stride in zip(cut.index[1:], own.strides, strict=True))
        stride = dict(zip(axes, own.strides, strict=True))
        table[n] = Piece(own.ctypes.data - before, stride.get(0, 0), stride.get(1, 0))
    return table
