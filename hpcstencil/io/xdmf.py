"""The XDMF file beside an output, for ParaView, with x displayed along x.

XDMF takes the last, fastest index of a regular mesh as x, while our arrays are indexed [x, y, z], so a regular mesh would
display swapped axes. In two and three dimensions the mesh is therefore curvilinear: the HDF5 file stores the coordinates of
every cell centre once. Their chunks repeat, so each distinct chunk is compressed only once and the cost is small. In one
dimension, a regular mesh suffices.

A field on lower faces is displayed at cell centres, half a cell from its true position.

Reference: XDMF Model and Format, https://www.xdmf.org/index.php/XDMF_Model_and_Format
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

import h5py
import numpy as np

from hpcstencil.io.dataset_names import MASK_DATASET
from hpcstencil.io.file_layout import chunk_shape
from hpcstencil.io.file_names import xdmf_path
from hpcstencil.numerics.grid import Grid, Subgrid
from hpcstencil.numerics.topology import positions
from hpcstencil.runtime.communicator import Communicator, agree
from hpcstencil.runtime.filesystem import file_errors
from hpcstencil.symbolic.staggering import Layout

MESH = "xdmf-mesh"  # no field can have this name, because of the hyphen
HEAD = '<?xml version="1.0" encoding="utf-8"?>\n<Xdmf Version="2.0">\n<Domain>\n<Grid Name="output" '  # of each file
LONGEST_RUN = 4096  # cells of a coordinate per chunk: repetitions must lie within deflate's window of 32 KiB


def mesh_dtype(grid: Grid | Subgrid) -> np.dtype:
    """Return the dtype of the mesh coordinates: float32 if it resolves a hundredth of a cell width, else float64."""
    resolved = all(
        dx > 100 * np.spacing(np.float32(max(abs(a), abs(b))))
        for dx, a, b in zip(grid.spacing, grid.lower, grid.upper, strict=True)
    )
    return np.dtype(np.float32 if resolved else np.float64)


def write_mesh(file: h5py.File, grid: Grid | Subgrid) -> None:
    """Write ``/xdmf-mesh/x``, ``y`` (and ``z``): the coordinates of every cell centre, as arrays of the grid's full shape.

    ``file`` is open in this process alone and already has ``/x``, ``/y``, ``/z``. In one dimension nothing is written.
    """
    if grid.ndim == 1:
        return
    group = file.create_group(MESH)
    for axis, name in enumerate(grid.axes):
        run = min(grid.shape[axis], LONGEST_RUN)
        others = chunk_shape(grid.shape[:axis] + grid.shape[axis + 1 :], run * mesh_dtype(grid).itemsize)
        chunk = (*others[:axis], run, *others[axis:])
        dataset = group.create_dataset(
            name, grid.shape, mesh_dtype(grid), chunks=chunk, compression="gzip", compression_opts=9
        )
        _fill_with_coordinate(dataset, grid.centres(axis), axis)
        for dimension, scale in zip(dataset.dims, grid.axes, strict=True):
            dimension.attach_scale(file[scale])


def _fill_with_coordinate(dataset: h5py.Dataset, centres: np.ndarray, axis: int) -> None:
    """Write ``centres`` along ``axis``, repeated for all indices of the other axes.

    All chunks at the same position along the axis are equal, so each is compressed only once. This includes edge chunks,
    because their cells beyond the dataset are never read.
    """
    chunk = dataset.chunks
    counts = [-(-n // c) for n, c in zip(dataset.shape, chunk, strict=True)]
    run = chunk[axis]
    along = tuple(-1 if a == axis else 1 for a in range(dataset.ndim))
    packed = []
    for place in range(counts[axis]):
        values = np.resize(centres[place * run : (place + 1) * run], run).astype(dataset.dtype)
        packed.append(zlib.compress(np.broadcast_to(values.reshape(along), chunk).tobytes(), 9))
    for position in positions(counts):
        offset = tuple(p * c for p, c in zip(position, chunk, strict=True))
        dataset.id.write_direct_chunk(offset, packed[position[axis]])


class Sidecar:
    """The XDMF file beside the output at ``path``, which describes the committed snapshots; rank 0 writes it.

    ``itemsize`` is the size of a field value in bytes. ``solid`` says whether the output has a mask that all members share.
    """

    def __init__(
        self,
        path: Path,
        communicator: Communicator,
        layout: Layout,
        fields: Sequence[str],
        itemsize: int,
        solid: bool,
    ) -> None:
        self.path, self.communicator, self.layout, self.fields = path, communicator, layout, fields
        self.itemsize, self.solid = itemsize, solid
        self.described = 0  # snapshots in the file

    def update(self, times: Sequence[float], at_once: bool = False) -> None:
        """Update the file to the snapshots at ``times``. Collective.

        The cost of rewriting the file grows with the number of snapshots. Unless ``at_once``, it is therefore rewritten only
        when their number has grown by 1 percent and at least by one. Raises EnvironmentProblem on all processes if the file
        system fails.
        """
        if not at_once and len(times) - self.described < max(1, len(times) // 100):
            return

        def describe() -> None:
            if self.communicator.rank == 0:
                with file_errors(xdmf_path(self.path), "write"):
                    write(self.path, self.layout, self.fields, self.itemsize, times, self.solid)

        agree(self.communicator, describe)
        self.described = len(times)


def write(
    path: Path, layout: Layout, fields: Sequence[str], itemsize: int, times: Sequence[float], solid: bool = False
) -> Path:
    """Write ``NAME.xdmf`` beside the output ``NAME.h5`` at ``path``, atomically, and return its path. Raises OSError.

    ``itemsize`` is the size of a field value in bytes, ``times`` are those of the committed snapshots, and ``solid`` says
    whether there is a mask. The file refers to the output by file name only, so that both can be moved together.
    """
    target = xdmf_path(path)
    temporary = target.with_suffix(".xdmf.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(_document(path.name, layout, fields, itemsize, times, solid))
        os.replace(temporary, target)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return target


def _document(
    name: str, layout: Layout, fields: Sequence[str], itemsize: int, times: Sequence[float], solid: bool
) -> Iterator[str]:
    grid = layout.grid
    mesh = _regular_mesh(grid) if grid.ndim == 1 else _curvilinear_mesh(name, grid)
    # In one dimension the mesh is (1, 1, nx): x is the last index.
    shape = _text((1, 1, *grid.shape)) if grid.ndim == 1 else _text(grid.shape)
    members = layout.members
    zeros, ones = _text([0] * grid.ndim), _text([1] * (grid.ndim + 1 + len(members)))
    one = _text((*(1 for _ in members), 1, *grid.shape))
    yield f'{HEAD}GridType="Collection" CollectionType="Temporal">\n'
    for index, time in enumerate(times):
        yield f'<Grid Name="snapshot {index}" GridType="Uniform">\n<Time Value="{float(time)!r}"/>\n{mesh}'
        for field in fields:
            data, whole = escape(f"{name}:/{field}"), _text((*members, len(times), *layout.shape(field)))
            for member in range(*members) if members else (None,):
                label = field if member is None else f"{field} (member {member})"
                start = f"{index}" if member is None else f"{member} {index}"
                yield (
                    f'<Attribute Name={quoteattr(label)} AttributeType="Scalar" Center="Node">\n'
                    f'<DataItem ItemType="HyperSlab" Dimensions="{shape}">\n'
                    f'<DataItem Dimensions="3 {grid.ndim + 1 + len(members)}" NumberType="Int" Format="XML">'
                    f"{start} {zeros} {ones} {one}</DataItem>\n"
                    f'<DataItem Dimensions="{whole}" NumberType="Float" Precision="{itemsize}" Format="HDF">'
                    f"{data}</DataItem>\n"
                    "</DataItem>\n</Attribute>\n"
                )
        if solid:
            yield (
                '<Attribute Name="solid" AttributeType="Scalar" Center="Node">\n'
                f'<DataItem Dimensions="{shape}" NumberType="Char" Precision="1" Format="HDF">'
                f"{escape(f'{name}:/{MASK_DATASET}')}</DataItem>\n</Attribute>\n"
            )
        yield "</Grid>\n"
    yield "</Grid>\n</Domain>\n</Xdmf>\n"


def _regular_mesh(grid: Grid | Subgrid) -> str:
    first, (dx,) = grid.centres(0)[0].item(), grid.spacing
    return (
        f'<Topology TopologyType="3DCoRectMesh" Dimensions="1 1 {grid.shape[0]}"/>\n'
        '<Geometry GeometryType="ORIGIN_DXDYDZ">\n'
        f'<DataItem Dimensions="3" NumberType="Float" Precision="8" Format="XML">0 0 {first!r}</DataItem>\n'
        f'<DataItem Dimensions="3" NumberType="Float" Precision="8" Format="XML">1 1 {dx!r}</DataItem>\n'
        "</Geometry>\n"
    )


def _curvilinear_mesh(name: str, grid: Grid | Subgrid) -> str:
    shape, precision = _text(grid.shape), mesh_dtype(grid).itemsize
    coordinates = "".join(
        f'<DataItem Dimensions="{shape}" NumberType="Float" Precision="{precision}" Format="HDF">'
        f"{escape(f'{name}:/{MESH}/{axis}')}</DataItem>\n"
        for axis in grid.axes
    )
    return (
        f'<Topology TopologyType="{grid.ndim}DSMesh" Dimensions="{shape}"/>\n'
        f'<Geometry GeometryType="{"_".join(grid.axes).upper()}">\n{coordinates}</Geometry>\n'
    )


def _text(numbers: Sequence[int]) -> str:
    return " ".join(map(str, numbers))
