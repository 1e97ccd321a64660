"""Layout of the files of a run: attributes, coordinates and empty datasets, written by one process."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import h5py
import numpy as np

from hpcstencil.io.dataset_names import MASK_DATASET
from hpcstencil.numerics.grid import Grid, Subgrid
from hpcstencil.symbolic.staggering import FACE, Layout

ROWS = 1024  # chunk of a time series

Attributes = Mapping[str, str | int | float]
Compression = Literal["none", "gzip"]


@dataclass(frozen=True)
class Description:
    """The description of an output file: all that is in it beside values.

    ``fields`` are the names of float arrays of ``dtype``, of the shapes of ``layout``; ``units`` and ``long_names``
    describe some of them (default "1" and the name). ``diagnostics`` are the names of time series. ``attributes`` go to
    the root, beside ``kind``, ``format_version``, ``complete``. ``solid_axes`` is the number of axes of the mask, which
    `OutputFile.write_solid` writes; 0 without a mask.
    """

    layout: Layout
    fields: Sequence[str]
    dtype: Any
    diagnostics: Sequence[str] = ()
    attributes: Attributes = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    long_names: Mapping[str, str] = field(default_factory=dict)
    compression: Compression = "none"
    solid_axes: int = 0


def lay_out(file: h5py.File, description: Description) -> None:
    """The coordinates and all datasets that the description names, empty."""
    layout = description.layout
    lay_out_axes(file, layout)
    lay_out_fields(file, description)
    if description.solid_axes:
        lay_out_solid(file, layout, of_members=description.solid_axes > layout.grid.ndim)
    lay_out_diagnostics(file, description.diagnostics, layout.members)


def chunk_shape(shape: Sequence[int], itemsize: int, target: int = 4 * 2**20) -> tuple[int, ...]:
    """The chunk of one snapshot of ``shape`` cells, at most ``target`` bytes. It depends on the grid alone.

    The longest axis is halved until the chunk fits. The last axis counts an eighth of its length, because contiguous
    runs make writing fast. Chunk edges then lie on the cuts into 2, 4, 8 ... blocks, and no chunk reaches far beyond
    the grid.
    """
    chunk = list(shape)
    while itemsize * math.prod(chunk) > target:
        weights = [n / 8 if axis == len(chunk) - 1 else n for axis, n in enumerate(chunk)]
        axis = weights.index(max(weights))
        chunk[axis] = -(-chunk[axis] // 2)
    return tuple(chunk)


def write_attributes(file: h5py.File, attributes: Attributes) -> None:
    """Set attributes of the root."""
    for name, value in attributes.items():
        file.attrs[name] = value


def _series(
    group: h5py.Group, name: str, dtype: Any, fillvalue: float | int, members: tuple[int, ...] = ()
) -> h5py.Dataset:
    """An empty, unlimited series, of numbers or, where there are members, of one per member."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((*members, ROWS))
    # Space for a further chunk is made when the series grows, on all ranks alike: made by the write instead, as a file laid
    # out serially would have it, the second chunk fails with MPI_ERR_TYPE on several ranks (HDF5 1.10.8).
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_value(np.array(fillvalue, dtype))
    space = h5py.h5s.create_simple((*members, 0), (*members, h5py.h5s.UNLIMITED))
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
    if layout.members:
        file["member"] = np.arange(*layout.members)
        file["member"].make_scale("member")
        for key, values in layout.ensemble.items():
            name = coordinate_name(key)
            file[name] = list(values)
            file[name].dims[0].attach_scale(file["member"])
            file[name].attrs["long_name"] = key
    for name in layout.positions:
        for axis, scale in enumerate(layout.dimensions(name)):
            if scale.endswith(FACE) and scale not in file:
                file[scale] = layout.grid.faces(axis, layout.shape(name)[axis])
                file[scale].make_scale(scale)
                file[scale].attrs["long_name"] = f"faces across {layout.grid.axes[axis]}"


def write_coordinates(file: h5py.File, grid: Grid | Subgrid) -> None:
    """``/x``, ``/y``, ``/z``: cell centres, float64, dimension scales."""
    for axis, name in enumerate(grid.axes):
        file[name] = grid.centres(axis)
        file[name].make_scale(name)
        file[name].attrs["long_name"] = name


def lay_out_fields(file: h5py.File, description: Description) -> None:
    """One dataset (time, x, y, z) per field, of an ensemble (member, time, x, y, z), without snapshots, its dimension scales
    attached; ``x_face`` instead of ``x`` where it lives on these faces.

    The chunks depend on the grid alone, so that the file is the same for every decomposition. They are allocated when
    the dataset grows: several processes could not write them otherwise, compressed ones least of all (HDF5 1.10.8 then
    hangs). Uncompressed ones are never filled, since every cell is written; a compressed one may be read back before it
    is whole, and must then hold something.
    """
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout, dtype = description.layout, np.dtype(description.dtype)
    members = layout.members
    properties.set_chunk((*(1 for _ in members), 1, *chunk_shape(layout.grid.shape, dtype.itemsize)))
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    if description.compression == "gzip":
        properties.set_fill_time(h5py.h5d.FILL_TIME_ALLOC)
        properties.set_shuffle()
        properties.set_deflate(1)
    else:
        properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    scales = ("member",) if members else ()
    for name in description.fields:
        shape = layout.shape(name)
        space = h5py.h5s.create_simple((*members, 0, *shape), (*members, h5py.h5s.UNLIMITED, *shape))
        h5py.h5d.create(file.id, name.encode(), h5py.h5t.py_create(dtype), space, properties)
        for dimension, scale in zip(file[name].dims, (*scales, "time", *layout.dimensions(name)), strict=True):
            dimension.attach_scale(file[scale])
        if members:  # as the CF conventions have it, for what is no dimension
            file[name].attrs["coordinates"] = " ".join(coordinate_name(key) for key in layout.ensemble)
        file[name].attrs["units"] = description.units.get(name, "1")
        file[name].attrs["long_name"] = description.long_names.get(name, name)


def lay_out_solid(file: h5py.File, layout: Layout, of_members: bool) -> None:
    """The mask, int8, along the axes of the grid; if the members of an ensemble differ in it, (member, x, y, z).
    Allocated, never filled, and chunked because journals leave out chunks."""
    members = layout.members if of_members else ()
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((*(1 for _ in members), *chunk_shape(layout.grid.shape, 1)))
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    space = h5py.h5s.create_simple((*members, *layout.grid.shape))
    h5py.h5d.create(file.id, MASK_DATASET.encode(), h5py.h5t.py_create(np.dtype(np.int8)), space, properties)
    for dimension, scale in zip(
        file[MASK_DATASET].dims, (*(["member"] if members else []), *layout.grid.axes), strict=True
    ):
        dimension.attach_scale(file[scale])
    file[MASK_DATASET].attrs["units"] = "1"
    file[MASK_DATASET].attrs["long_name"] = "solid cells (1), fluid (0)"


def coordinate_name(key: str) -> str:
    """The last part of a dotted key, or all of it if that is the name of a field."""
    table, _, name = key.rpartition(".")
    return key if table == "initial" else name


def lay_out_diagnostics(file: h5py.File, names: Sequence[str], members: tuple[int, ...]) -> None:
    """The group ``diagnostics`` with one empty series per name, float64, and with its own ``time`` and ``step``."""
    group = file.create_group("diagnostics")
    time = _series(group, "time", np.float64, np.nan)
    time.make_scale("time")
    series = [
        _series(group, "step", np.int64, -1),
        *(_series(group, name, np.float64, np.nan, members) for name in names),
    ]
    for dataset in series:
        dataset.dims[dataset.ndim - 1].attach_scale(time)
        if dataset.ndim > 1:
            dataset.dims[0].attach_scale(file["member"])
