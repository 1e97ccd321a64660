"""The layout of a run's files: attributes, coordinates and empty datasets, written by one process."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import h5py
import numpy as np

from hpcstencil.io.dataset_names import DIAGNOSTICS, MASK_DATASET, PROBES, VALUES
from hpcstencil.numerics.grid import Grid, Subgrid
from hpcstencil.symbolic.staggering import FACE, Layout

CHUNK_BYTES = 4 * 2**20  # most bytes in a chunk of a snapshot
ROWS = 1024  # most rows in a chunk of a time series
MOST_VALUES = 2**17  # most values in a chunk of a time series

Attributes = Mapping[str, str | int | float]
Compression = Literal["none", "gzip"]


@dataclass(frozen=True)
class Description:
    """The description of an output file: everything in it except values.

    Attributes
    ----------
    layout, fields, dtype
        The names of the fields, their shapes, and their float type.
    diagnostics
        The names of the time series of diagnostics.
    attributes
        Attributes of the root, in addition to ``kind``, ``format_version`` and ``complete``.
    units, long_names
        Attributes of fields by name; the defaults are "1" and the name.
    solid_axes
        The number of axes of the mask, which `OutputFile.write_solid` writes; 0 without a mask.
    receivers
        The coordinates of the receivers of each table of [probes]: float64 of shape (receivers, axes).
    probed
        The field that each table of [probes] records.
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
    receivers: Mapping[str, np.ndarray] = field(default_factory=dict)
    probed: Mapping[str, str] = field(default_factory=dict)


def lay_out(file: h5py.File, description: Description) -> None:
    """Write the coordinates, and create all datasets of the description without values."""
    layout = description.layout
    lay_out_axes(file, layout)
    lay_out_fields(file, description)
    if description.solid_axes:
        lay_out_solid(file, layout, of_members=description.solid_axes > layout.grid.ndim)
    lay_out_diagnostics(file, description.diagnostics, layout.members)
    for name in description.receivers:
        lay_out_probes(file.create_group(f"{PROBES}/{name}"), description, name)


def chunk_shape(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Return the shape of the chunks of a snapshot of ``shape`` cells, each of at most `CHUNK_BYTES`.

    The longest axis is halved until the chunk fits. The last axis counts only an eighth of its length, because long
    contiguous runs make writing fast. Chunk edges then coincide with the edges of a decomposition into 2, 4, 8, ... blocks,
    and no chunk extends far beyond the grid. The result depends on the grid alone, not on the decomposition.
    """
    chunk = list(shape)
    while itemsize * math.prod(chunk) > CHUNK_BYTES:
        weights = [n / 8 if axis == len(chunk) - 1 else n for axis, n in enumerate(chunk)]
        axis = weights.index(max(weights))
        chunk[axis] = -(-chunk[axis] // 2)
    return tuple(chunk)


def write_attributes(file: h5py.File, attributes: Attributes) -> None:
    """Set attributes of the file's root, or of a group."""
    for name, value in attributes.items():
        file.attrs[name] = value


def _series(
    group: h5py.Group,
    name: str,
    dtype: Any,
    fillvalue: float | int,
    members: tuple[int, ...] = (),
    receivers: tuple[int, ...] = (),
) -> h5py.Dataset:
    """Create an empty series that can grow, with the axes (members, rows, receivers); the first and last are optional."""
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    own = math.prod(receivers)
    rows = max(1, min(ROWS, MOST_VALUES // own))
    apart = tuple(1 for _ in members) if receivers else members
    properties.set_chunk((*apart, rows, *(min(n, MOST_VALUES) for n in receivers)))
    # Space for a new chunk is allocated when the series grows, on all ranks alike. The default in a file that one process has
    # laid out is to allocate it on writing; the second chunk would then fail with MPI_ERR_TYPE on several ranks (HDF5 1.10.8).
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_value(np.array(fillvalue, dtype))
    space = h5py.h5s.create_simple((*members, 0, *receivers), (*members, h5py.h5s.UNLIMITED, *receivers))
    kind = h5py.h5t.py_create(np.dtype(dtype), logical=True)
    return h5py.Dataset(h5py.h5d.create(group.id, name.encode(), kind, space, dcpl=properties))


def lay_out_axes(file: h5py.File, layout: Layout) -> None:
    """Write ``time`` and ``step``, the cell centres, the members of an ensemble, and the faces of staggered fields.

    All but ``step`` and the members' values are dimension scales.
    """
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
    """Write ``/x``, ``/y``, ``/z``: the cell centres in float64, as dimension scales."""
    for axis, name in enumerate(grid.axes):
        file[name] = grid.centres(axis)
        file[name].make_scale(name)
        file[name].attrs["long_name"] = name


def lay_out_fields(file: h5py.File, description: Description) -> None:
    """Create a dataset for each field, without snapshots, and attach its dimension scales.

    Its axes are (time, x, y, z), or (member, time, x, y, z) in an ensemble. For a staggered field, ``x_face`` replaces ``x``.

    The chunks depend on the grid alone, so that the file is the same for every decomposition. They are allocated when the
    dataset grows; otherwise several processes could not write them (with compression, HDF5 1.10.8 hangs). Uncompressed
    chunks are not filled, because every cell is written. A compressed chunk may be read back before it is complete, so it
    is filled.
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
        if members:  # the attribute of the CF conventions for coordinates that are no dimensions
            file[name].attrs["coordinates"] = " ".join(coordinate_name(key) for key in layout.ensemble)
        file[name].attrs["units"] = description.units.get(name, "1")
        file[name].attrs["long_name"] = description.long_names.get(name, name)


def lay_out_solid(file: h5py.File, layout: Layout, of_members: bool) -> None:
    """Create the dataset of the mask, int8 with the axes of the grid.

    If the mask differs between the members of an ensemble (``of_members``), a member axis comes first. The dataset is
    allocated but not filled. It is chunked because journals can leave out chunks.
    """
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
    """Return the name of the dataset for the values of a dotted key in which the members of an ensemble differ.

    It is the last part of the key. For a key of [initial] it is the whole key, because the last part is the name of a field.
    """
    table, _, name = key.rpartition(".")
    return key if table == "initial" else name


def lay_out_diagnostics(file: h5py.File, names: Sequence[str], members: tuple[int, ...]) -> None:
    """Create the group ``diagnostics`` with its own ``time`` and ``step``, and one empty float64 series per name.

    ``members`` is the shape of an entry: (), or (members,) in an ensemble.
    """
    group = file.create_group(DIAGNOSTICS)
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


def lay_out_probes(group: h5py.Group, description: Description, name: str) -> None:
    """Create the datasets of a table of [probes] in its group.

    They are ``values`` with the axes (time, receiver), in an ensemble (member, time, receiver), empty and in the run's dtype;
    ``time`` and ``step``; and the coordinates ``x``, ``y``, ``z`` of the receivers, float64 of shape (receiver,).
    """
    places, probed = description.receivers[name], description.probed[name]
    time = _series(group, "time", np.float64, np.nan)
    time.make_scale("time")
    time.attrs["long_name"] = "time"
    step = _series(group, "step", np.int64, -1)
    group["receiver"] = np.arange(len(places))
    group["receiver"].make_scale("receiver")
    members = description.layout.members
    values = _series(group, VALUES, description.dtype, np.nan, members, receivers=(len(places),))
    for series in (step, values):
        series.dims[len(members) if series is values else 0].attach_scale(time)
    values.dims[values.ndim - 1].attach_scale(group["receiver"])
    if members:
        values.dims[0].attach_scale(group.file["member"])
    for axis, along in zip(description.layout.grid.axes, places.T, strict=True):
        group[axis] = along
        group[axis].dims[0].attach_scale(group["receiver"])
        group[axis].attrs["long_name"] = axis
    values.attrs["coordinates"] = " ".join(description.layout.grid.axes)  # as the CF conventions have it
    values.attrs["units"] = description.units.get(probed, "1")
    values.attrs["long_name"] = description.long_names.get(probed, probed)
