"""Truncation of an output file to the step from which a run continues, in transactions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np

from hpcstencil.io import rollback_journal
from hpcstencil.io.dataset_names import DIAGNOSTICS, MASK_DATASET, PROBES, VALUES
from hpcstencil.io.file_layout import Attributes, write_attributes
from hpcstencil.io.file_spans import all_values, growing_axis, remember_unused
from hpcstencil.io.hdf5_access import open_alone
from hpcstencil.io.hdf5_validation import groups_in
from hpcstencil.io.rollback_journal import Span, complement

ENDED = ("failure", "clock")  # attributes that describe the end of a run, see `OutputFile.close`


@dataclass(frozen=True)
class Prepared:
    """The contents of a prepared output.

    ``steps`` and ``times`` are those of the snapshots. ``rows`` holds the steps of the rows of each group of time series.
    ``itemsize`` is the size in bytes of a value of a field, and ``compressed`` says whether fields are compressed.
    """

    steps: tuple[int, ...]
    times: tuple[float, ...]
    rows: Mapping[str, tuple[int, ...]]
    itemsize: int
    compressed: bool
    solid_axes: int = 0  # number of axes of the mask in the file; 0 without a mask


def cut_back(path: Path, fields: Sequence[str], step: int | None, attributes: Attributes) -> Prepared:
    """Truncate all series of the file after ``step``, and return the remaining contents. For rank 0 only.

    If ``step`` is None, series are only truncated to equal lengths. There are three transactions. The first truncates the
    short series, by whose lengths readers count; the second the fields, whose space HDF5 may free at once; the third records
    the space that remains unused. Raises OSError or RuntimeError if the file system or HDF5 fails.
    """

    def shorten_series(file: h5py.File) -> None:
        file.attrs["complete"] = 0
        for name in ENDED:
            file.attrs.pop(name, None)
        write_attributes(file, attributes)
        _cut(file, ["time", "step"], step)
        for group, names in series_of(file).items():
            _cut(file[group], names, step)

    def shorten_fields(file: h5py.File) -> None:
        for name in fields:
            file[name].resize(len(file["time"]), growing_axis(file[name]))
        for group, name in sampled(file):
            file[group][name].resize(len(file[group]["time"]), growing_axis(file[group][name]))

    names = list(fields)
    with open_alone(path, "r") as file:
        mask = file.get(MASK_DATASET)
        solid_axes = mask.ndim if isinstance(mask, h5py.Dataset) and mask.dtype == np.int8 and mask.chunks else 0
        names += [*([MASK_DATASET] if solid_axes else []), *("/".join(each) for each in sampled(file))]
        before = all_values(file, names)
    _changed(path, before, shorten_series)
    _changed(path, before, shorten_fields)
    with open_alone(path, "r") as file:
        kept = all_values(file, names)
    size = path.stat().st_size
    lost = [span for start, stop in before for span in _within(complement(kept, size), start, stop)]
    _changed(path, [*kept, *lost], lambda file: remember_unused(file, lost))
    with open_alone(path, "r") as file:
        field = file[fields[0]]
        steps, times = (tuple(file[name][()].tolist()) for name in ("step", "time"))
        rows = {group: tuple(file[group]["step"][()].tolist()) for group in series_of(file)}
        return Prepared(steps, times, rows, field.dtype.itemsize, field.compression is not None, solid_axes)


def series_of(file: h5py.File) -> dict[str, list[str]]:
    """Return the short time series of each group, all except those of `sampled`."""
    probes = {f"{PROBES}/{name}": ["time", "step"] for name in groups_in(file, PROBES)}
    return {DIAGNOSTICS: list(file[DIAGNOSTICS]), **probes}


def sampled(file: h5py.File) -> list[tuple[str, str]]:
    """Return (group, name) of the long time series: the values of probes."""
    return [(f"{PROBES}/{name}", VALUES) for name in groups_in(file, PROBES)]


def _changed(path: Path, untouched: list[Span], action: Callable[[h5py.File], None]) -> None:
    """Change the file by ``action`` in one transaction, whose journal leaves out the ``untouched`` bytes. For rank 0."""
    rollback_journal.begin(path, untouched)
    with open_alone(path, "r+") as file:
        action(file)
    rollback_journal.commit(path)


def _within(spans: list[Span], start: int, stop: int) -> list[Span]:
    """Return the parts of the spans that lie in [start, stop)."""
    parts = [(max(a, start), min(b, stop)) for a, b in spans]
    return [(a, b) for a, b in parts if a < b]


def _cut(group: h5py.Group, names: Sequence[str], step: int | None) -> None:
    """Truncate series of ``group`` after ``step``, and to equal lengths, which may differ if a run was killed."""
    keep = committed = min(group["time"].shape[0], group["step"].shape[0])
    if step is not None:
        keep = int(np.searchsorted(group["step"][:committed], step, side="right"))
    for name in names:
        group[name].resize(keep, growing_axis(group[name]))
