"""What the files of a run look like inside: attributes, coordinates and empty datasets, laid out by one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import h5py
import numpy as np

from hpcstencil.grid import Grid
from hpcstencil.hyperslabs import chunk_shape
from hpcstencil.positions import FACE, Layout

ROWS = 1024  # chunk of a time series

Attributes = Mapping[str, str | int | float]
Compression = Literal["none", "gzip"]


def write_attributes(file: h5py.File, attributes: Attributes) -> None:
    for name, value in attributes.items():
        file.attrs[name] = value


def _series(group: h5py.Group, name: str, dtype: Any, fillvalue: float | int) -> h5py.Dataset:
    """An empty, unlimited, one-dimensional dataset."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((ROWS,))
    # Space for a further chunk is made when the series grows, on all ranks alike: made by the write instead, as a file laid
    # out serially would have it, the second chunk fails with MPI_ERR_TYPE on several ranks (HDF5 1.10.8).
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_value(np.array(fillvalue, dtype))
    space = h5py.h5s.create_simple((0,), (h5py.h5s.UNLIMITED,))
    kind = h5py.h5t.py_create(np.dtype(dtype), logical=True)
    return h5py.Dataset(h5py.h5d.create(group.id, name.encode(), kind, space, dcpl=properties))


def lay_out_axes(file: h5py.File, layout: Layout) -> None:
    """``time`` and ``step``, the cell centres, and faces that fields live on; all but ``step`` are dimension scales."""
    time = _series(file, "time", np.float64, np.nan)
    time.make_scale("time")
    time.attrs["long_name"] = "time"
    step = _series(file, "step", np.int64, -1)
    step.dims[0].attach_scale(time)
    write_coordinates(file, layout.grid)
    for name in layout.positions:
        for axis, scale in enumerate(layout.dimensions(name)):
            if scale.endswith(FACE) and scale not in file:
                file[scale] = layout.grid.faces(axis, layout.shape(name)[axis])
                file[scale].make_scale(scale)
                file[scale].attrs["long_name"] = f"faces across {layout.grid.axes[axis]}"


def write_coordinates(file: h5py.File, grid: Grid) -> None:
    """``/x``, ``/y``, ``/z``: cell centres, float64, dimension scales."""
    for axis, name in enumerate(grid.axes):
        file[name] = grid.centres(axis)
        file[name].make_scale(name)
        file[name].attrs["long_name"] = name


def lay_out_fields(
    file: h5py.File,
    layout: Layout,
    fields: Sequence[str],
    dtype: np.dtype,
    units: Mapping[str, str],
    long_names: Mapping[str, str],
    compression: Compression,
) -> None:
    """One dataset (time, x, y, z) per field, without snapshots, its dimension scales attached; ``x_face`` instead of ``x``
    where it lives on these faces.

    The chunks depend on the grid alone, so that the file is the same for every decomposition. They are allocated when
    the dataset grows: several processes could not write them otherwise, compressed ones least of all (HDF5 1.10.8 then
    hangs). Uncompressed ones are never filled, since every cell is written; a compressed one may be read back before it
    is whole, and must then hold something.
    """
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((1, *chunk_shape(layout.grid.shape, dtype.itemsize)))
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    if compression == "gzip":
        properties.set_fill_time(h5py.h5d.FILL_TIME_ALLOC)
        properties.set_shuffle()
        properties.set_deflate(1)
    else:
        properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    for name in fields:
        shape = layout.shape(name)
        space = h5py.h5s.create_simple((0, *shape), (h5py.h5s.UNLIMITED, *shape))
        h5py.h5d.create(file.id, name.encode(), h5py.h5t.py_create(dtype), space, properties)
        for dimension, scale in zip(file[name].dims, ("time", *layout.dimensions(name)), strict=True):
            dimension.attach_scale(file[scale])
        file[name].attrs["units"] = units.get(name, "1")
        file[name].attrs["long_name"] = long_names.get(name, name)


def lay_out_diagnostics(file: h5py.File, names: Sequence[str]) -> None:
    group = file.create_group("diagnostics")
    time = _series(group, "time", np.float64, np.nan)
    time.make_scale("time")
    series = [_series(group, "step", np.int64, -1), *(_series(group, name, np.float64, np.nan) for name in names)]
    for dataset in series:
        dataset.dims[0].attach_scale(time)
