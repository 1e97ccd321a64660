"""Settled bytes of an output file: those that no later change modifies, so that the journal can leave them out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import h5py
import numpy as np

from hpcstencil.io.rollback_journal import Span, merged

UNUSED = "unused-bytes"  # attribute of the root: spans that shortened series have left behind


class SettledSpans:
    """The settled bytes of a file, as ``spans``, found incrementally while its series grow."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.chunk_rows: dict[str, int] = {}  # rows per chunk of each dataset that grows
        self.rows: dict[str, int] = {}  # rows whose spans have been found

    def find(self, file: h5py.File) -> None:
        """Add the spans of the open ``file`` that have become settled, while nothing else uses the file.

        These are chunks whose rows are all committed, all values of datasets that do not grow, and unused bytes.
        """
        if not self.chunk_rows:
            self._begin(file)
        groups = {name.rpartition("/")[0] for name in self.chunk_rows}
        committed = {group: min(len(file[f"{group}/{name}"]) for name in ("time", "step")) for group in groups}
        for name, rows in self.chunk_rows.items():
            done = committed[name.rpartition("/")[0]] // rows * rows
            if done > self.rows[name]:
                self.spans += chunks_of(file[name], self.rows[name], done)
                self.rows[name] = done
        self.spans = merged(self.spans)

    def _begin(self, file: h5py.File) -> None:
        """Find the datasets that grow, and the settled bytes of all others."""
        self.spans += [(int(start), int(stop)) for start, stop in file.attrs.get(UNUSED, ())]
        for name, dataset in datasets(file):
            if dataset.chunks is None:
                continue  # coordinates: small
            axis = growing_axis(dataset)
            if dataset.maxshape[axis] is None:
                self.chunk_rows[name], self.rows[name] = dataset.chunks[axis], 0
            else:
                self.spans += chunks_of(dataset, 0, dataset.shape[axis])


def datasets(file: h5py.File) -> list[tuple[str, h5py.Dataset]]:
    """Return (path, dataset) for every dataset in the file."""
    found: list[tuple[str, h5py.Dataset]] = []
    file.visititems(lambda name, item: found.append((name, item)) if isinstance(item, h5py.Dataset) else None)
    return found


def growing_axis(dataset: h5py.Dataset) -> int:
    """Return the axis along which a dataset can grow; 0 if it cannot. In an ensemble the member axis precedes it."""
    return dataset.maxshape.index(None) if None in dataset.maxshape else 0


def chunks_of(dataset: h5py.Dataset, first: int, last: int) -> Iterator[Span]:
    """Yield the byte spans of the allocated chunks that hold the rows [first, last) along the growing axis.

    ``first`` must be the first row of a chunk.
    """
    starts = [range(0, n, chunk) for n, chunk in zip(dataset.shape, dataset.chunks, strict=True)]
    axis = growing_axis(dataset)
    starts[axis] = range(first, last, dataset.chunks[axis])
    for corner in itertools.product(*starts):
        place = dataset.id.get_chunk_info_by_coord(corner)
        if place.byte_offset is not None and place.size:
            yield place.byte_offset, place.byte_offset + place.size


def all_values(file: h5py.File, names: list[str]) -> list[Span]:
    """Return the merged byte spans of all chunks of the datasets ``names``, including rows that are not committed yet."""
    return merged(
        span for name in names for span in chunks_of(file[name], 0, file[name].shape[growing_axis(file[name])])
    )


def sound_unused(file: h5py.File) -> bool:
    """Return whether the attribute ``unused-bytes`` is missing or consists of pairs of integers."""
    if UNUSED not in file.attrs:
        return True
    shape, dtype = file.attrs.get_id(UNUSED).shape, file.attrs.get_id(UNUSED).dtype
    return dtype.kind == "i" and shape is not None and len(shape) == 2 and shape[1] == 2


def remember_unused(file: h5py.File, spans: list[Span]) -> None:
    """Add ``spans``, which no dataset uses any more, to the attribute ``unused-bytes``."""
    before = [(int(start), int(stop)) for start, stop in file.attrs.get(UNUSED, ())]
    if spans:
        file.attrs[UNUSED] = np.array(merged([*before, *spans]), np.int64)
