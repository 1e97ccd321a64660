"""Copies of what is written while it changes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from hpcstencil.hdf5_direct import Pieces, cuts, scattered
from hpcstencil.hyperslabs import chunk_shape
from hpcstencil.positions import Layout
from hpcstencil.topology import Range


class Copies:
    """Memory for copies of this process's blocks of some fields. Native code has it filled as it computes (`native.twice`)."""

    def __init__(self, pieces: Mapping[str, Pieces]) -> None:
        self.pieces = pieces

    def expect(self, wanted: bool) -> None:
        """Fields are about to change; afterwards copies of all of them are ``wanted`` or not."""

    def copied(self, name: str, block: np.ndarray) -> Pieces:
        """A copy of a field, whose block is this."""
        self.pieces[name].take(block)
        return self.pieces[name]

    def lend(self, until: Future[None]) -> None:
        """A thread reads the copies until then."""


def pieces_of(
    layout: Layout, fields: Sequence[str], ranges: Sequence[Range], dtype: Any, compressed: bool
) -> dict[str, Pieces]:
    """Memory for this process's blocks of some fields, cut as they will lie in a file of this layout."""
    members = layout.members
    start = [0] * (len(members) + 1) + [first for first, _ in ranges]
    shape = (*members, 1, *(stop - first for first, stop in ranges))
    size = np.dtype(dtype).itemsize * math.prod(shape)
    result = {}
    for name in fields:
        chunk = (*(1 for _ in members), 1, *chunk_shape(layout.grid.shape, np.dtype(dtype).itemsize))
        ends = (*members, 1, *layout.shape(name))
        parts = cuts(start, shape, chunk, ends)
        if compressed or scattered(parts, size):
            parts = cuts(start, shape, ends, ends)  # it will not be written chunk by chunk
        result[name] = Pieces(dtype, shape, parts)
    return result
