"""Snapshot buffers for asynchronous output.

A process copies its blocks of the fields into these buffers; a thread then writes the buffers while the run continues.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from hpcstencil.io.direct_write import Pieces, cuts, scattered
from hpcstencil.io.file_layout import chunk_shape
from hpcstencil.numerics.topology import Range
from hpcstencil.symbolic.staggering import Layout


class Copies:
    """Snapshot buffers for this process's blocks, one `Pieces` per field name.

    The subclass in `native.snapshot_copies` is filled by native code.
    """

    def __init__(self, pieces: Mapping[str, Pieces]) -> None:
        self.pieces = pieces

    def expect(self, wanted: bool) -> None:
        """Announce that the fields are about to change, and whether copies of their new values are ``wanted``."""

    def copied(self, name: str, block: np.ndarray) -> Pieces:
        """Copy ``block`` to the buffer of the field ``name``, and return the buffer.

        ``block`` is this process's block, local and without ghost cells.
        """
        self.pieces[name].take(block)
        return self.pieces[name]

    def lend(self, until: Future[None]) -> None:
        """Keep the buffers unchanged until ``until`` completes, because a thread reads them."""


def pieces_of(
    layout: Layout, fields: Sequence[str], ranges: Sequence[Range], dtype: Any, compressed: bool
) -> dict[str, Pieces]:
    """Return buffers for this process's blocks of ``fields``, by name, divided like the chunks of a file of this ``layout``.

    ``ranges`` is the global index range of the block per axis, and ``dtype`` the type of the values. If the file is
    ``compressed``, or the blocks would be scattered in it, each buffer is a single piece. All fields have the same number of
    pieces.
    """
    members, itemsize = layout.members, np.dtype(dtype).itemsize
    start = [0] * (len(members) + 1) + [first for first, _ in ranges]
    shape = (*members, 1, *(stop - first for first, stop in ranges))
    chunk = (*(1 for _ in members), 1, *chunk_shape(layout.grid.shape, itemsize))
    ends = {name: (*members, 1, *layout.shape(name)) for name in fields}
    parts = {name: cuts(start, shape, chunk, ends[name]) for name in fields}
    if compressed or any(scattered(each, itemsize * math.prod(shape)) for each in parts.values()):
        parts = {name: cuts(start, shape, ends[name], ends[name]) for name in fields}  # not written chunk by chunk
    return {name: Pieces(dtype, shape, parts[name]) for name in fields}
