"""Snapshot copies that native code makes while it steps. Rows that it has just stored are still in a cache; a later
copy would read them from memory again."""

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
    """The struct of snapshot_copies.hpp for one piece: the address that cell (0, 0, 0) of the block would have in it,
    and the bytes between its planes and rows."""

    _fields_ = (("cell", ctypes.c_void_p), ("plane", ctypes.c_int64), ("row", ctypes.c_int64))


class SnapshotCopies(ctypes.Structure):
    """The struct of snapshot_copies.hpp for all buffers: whether they are lent to a thread, whether the last call has
    filled them, how blocks are cut into chunks, and the pieces of each field."""

    _fields_ = (
        ("lent", ctypes.c_int64),
        ("stored", ctypes.c_int64),
        ("first", Three),
        ("chunk", Three),
        ("count", Three),
        ("pieces", ctypes.c_void_p),
    )


class NativeCopies(Copies):
    """Snapshot buffers of which native code fills those of its ``fields``, in the last step of a call. If it cannot (it
    computes in tiles, or a thread still reads the previous snapshot), `copied` copies later."""

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
        """The buffer of a field, laid out like the file. ``block`` is this process's block (local, without ghost
        cells); it is copied now, unless the program has copied it while stepping."""
        return self.pieces[name] if self.results.stored else super().copied(name, block)

    def lend(self, until: Future[None]) -> None:
        """Do not overwrite the buffers before ``until`` completes, since a thread reads them."""

        def give_back(_: Future[None]) -> None:
            self.results.lent = 0

        self.results.lent = 1
        until.add_done_callback(give_back)


def table_of(pieces: Pieces, axes: Sequence[int]) -> ctypes.Array[Piece]:
    """The table of the addresses and strides of the pieces for the C++ code, in the order of the file. ``axes`` are the
    driver's axes of the grid's axes."""
    table = (Piece * len(pieces.cuts))()
    for n, cut in enumerate(pieces.cuts):
        own = pieces.own(n)[0]  # without the axis of time
        before = sum(part.start * stride for part, stride in zip(cut.index[1:], own.strides, strict=True))
        stride = dict(zip(axes, own.strides, strict=True))
        table[n] = Piece(own.ctypes.data - before, stride.get(0, 0), stride.get(1, 0))
    return table
