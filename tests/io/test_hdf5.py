"""The output file: what h5py, xarray and an XDMF reader find in it, after an orderly end and after a kill."""

import errno
import math
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import h5py
import numpy as np
import pytest
from output_files import ATTRIBUTES, append, create, described, everything, field, grid_of, write_snapshots, written

from hpcstencil.io.direct_write import PAGE, DirectWriter, Pieces, cuts, places
from hpcstencil.io.file_layout import chunk_shape
from hpcstencil.io.file_read import inspect, read_block
from hpcstencil.io.output_file import OutputFile
from hpcstencil.io.output_lock import claimed
from hpcstencil.io.output_preparation import refuse_existing
from hpcstencil.io.rollback_journal import journal_path
from hpcstencil.io.snapshot_buffers import pieces_of
from hpcstencil.io.transports.choice import chosen_transport
from hpcstencil.io.xdmf import write_mesh
from hpcstencil.numerics.grid import Grid
from hpcstencil.runtime.communicator import OneProcess
from hpcstencil.runtime.filesystem import reserve
from hpcstencil.symbolic.staggering import Layout
from hpcstencil.validation.errors import EnvironmentProblem, InputError

SHAPES = [(11,), (7, 13), (5, 6, 9)]


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("shape", SHAPES)
def test_holds_what_the_contract_says(tmp_path, shape, compression):
    grid = grid_of(shape)
    path = written(
        tmp_path / "run.h5", grid, compression=compression, units={"u": "mol"}, long_names={"u": "substance"}
    )
    with h5py.File(path) as file:
        assert dict(file.attrs) == {**ATTRIBUTES, "kind": "output", "format_version": 1, "complete": 1}
        assert file["time"].dtype == np.float64 and file["time"][()].tolist() == [0, 1, 2]
        assert file["step"].dtype == np.int64 and file["step"][()].tolist() == [0, 10, 20]
        assert "units" not in file["time"].attrs
        for axis, name in enumerate(grid.axes):
            assert file[name].dtype == np.float64 and np.array_equal(file[name], grid.centres(axis))
        for name, sign in (("u", 1), ("v", -1)):
            assert file[name].dtype == np.float32 and file[name].shape == (3, *shape)
            assert file[name].maxshape == (None, *shape)
            assert all(np.array_equal(file[name][index], sign * field(grid, index)) for index in range(3))
            scales = [dimension.keys() for dimension in file[name].dims]
            assert scales == [[axis] for axis in ("time", *grid.axes)]
        assert (file["u"].attrs["units"], file["u"].attrs["long_name"]) == ("mol", "substance")
        assert (file["v"].attrs["units"], file["v"].attrs["long_name"]) == ("1", "v")
        assert file["step"].dims[0].keys() == ["time"]
        assert file["diagnostics/time"][()].tolist() == [0, 0.5, 1, 1.5, 2, 2.5]
        assert file["diagnostics/step"][()].tolist() == [0, 5, 10, 15, 20, 25]
        assert file["diagnostics/mass"][()].tolist() == [0, 0, 1, -1, 2, -2]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("shape", SHAPES)
def test_xarray_opens_it_as_it_stands(tmp_path, shape):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("h5netcdf")
    grid = grid_of(shape)
    path = written(tmp_path / "run.h5", grid)
    with xarray.open_dataset(path, engine="h5netcdf") as data:
        assert data["u"].dims == ("time", *grid.axes)
        assert set(data.coords) == {"time", *grid.axes}
        assert data["time"].dtype == np.float64
        assert np.array_equal(data["u"].sel(time=2.0), field(grid, 2))
        assert np.array_equal(data["x"], grid.centres(0))
    with xarray.open_dataset(path, engine="h5netcdf", group="diagnostics") as data:
        assert data["mass"].dims == ("time",) and data["mass"].sel(time=1.5) == -1


def test_float64_fields_without_snapshots_or_diagnostics(tmp_path):
    grid = grid_of((4,))
    create(tmp_path / "run.h5", grid, dtype=np.float64, diagnostics=[]).close(False)
    contents = inspect(tmp_path / "run.h5")
    assert (contents.kind, contents.complete, contents.steps, contents.step, contents.time) == (
        "output",
        False,
        (),
        None,
        None,
    )
    assert contents.fields == {"u": np.float64, "v": np.float64} and contents.shape == (4,)
    assert contents.diagnostics == () and contents.input_sha256 == "00ff" and contents.title == "a test"


def test_a_block_of_another_precision_is_our_own_mistake(tmp_path):
    grid = grid_of((4,))
    output = create(tmp_path / "run.h5", grid)
    block = np.zeros(4, np.float64)
    with pytest.raises(TypeError, match="float32"):
        output.write_snapshot(0, 0.0, {"u": block, "v": block}, everything(grid))


def test_space_is_set_aside_for_whole_chunks(tmp_path):
    """The last chunk of an axis may reach beyond the grid."""
    grid = grid_of((1001, 2003))
    output = create(tmp_path / "run.h5", grid, fields=["u"])
    output.write_snapshot(0, 0.0, {"u": field(grid, 0)}, everything(grid))
    taken = output.shared.file["u"].id.get_storage_size()
    assert output.snapshot_bytes == taken > 4 * grid.cells
    output.close(True)


@pytest.mark.parametrize("rows, few", [(96, True), (4000, False)])
def test_many_short_runs_are_left_to_mpi_and_few_are_not(tmp_path, rows, few):
    """A row of faces beyond the last cell is in chunks of its own, of which each process has single cells."""
    with h5py.File(tmp_path / "run.h5", "w") as file:
        dataset = file.create_dataset("u", (1, 2 * rows, 33), np.float32, chunks=(1, 2 * rows, 32))
        dataset[...] = 0
        found = places(dataset, (0, rows, 0), (1, rows, 33))
        assert (found is not None) == few
        assert places(dataset, (0, 0, 0), dataset.shape) is not None  # alone it has whole chunks


@pytest.mark.parametrize(
    "shape, cut, in_place", [((512, 1024), True, True), ((512, 1023), True, False), ((64, 32768), False, False)]
)
def test_chunks_of_whole_pages_are_written_from_where_they_are(tmp_path, shape, cut, in_place):
    """Others would leave gaps in the file, and are put together in a buffer; so are those of a copy that is not cut as the
    file is."""
    grid = grid_of(shape)
    output = create(tmp_path / "run.h5", grid, fields=["u"])
    copy = pieces_of(Layout(grid), ["u"], everything(grid), np.float32, compressed=not cut)["u"]
    for index in (1, 2):
        copy.take(field(grid, index))
        output.write_snapshot(index, float(index), {"u": copy}, everything(grid))
    output.close(True)
    assert (len(output.shared.writer.buffer) == PAGE) == in_place
    with h5py.File(tmp_path / "run.h5") as file:
        chunks = [file["u"].id.get_chunk_info(n) for n in range(2)]
        assert all(chunk.byte_offset % PAGE == 0 for chunk in chunks) == (math.prod(shape) % PAGE == 0)
        assert all(np.array_equal(file["u"][n], field(grid, n + 1)) for n in range(2))


@pytest.mark.parametrize("method", ("direct", "mpio"))
def test_an_h5py_without_mpi_is_told_where_mpi_io_is_asked_for(tmp_path, monkeypatch, method):
    monkeypatch.setattr(h5py, "get_config", lambda: SimpleNamespace(mpi=False))
    with pytest.raises(EnvironmentProblem, match=f"method '{method}' needs an h5py built with MPI"):
        chosen_transport(method, OneProcess(), tmp_path / "run.h5")
    assert chosen_transport("auto", OneProcess(), tmp_path / "run.h5") == "serial"


def test_read_only_blocks_are_written(tmp_path):
    """What numpy makes of a jax array is read-only."""
    grid = grid_of((4,))
    block = field(grid, 7)
    block.setflags(write=False)
    output = create(tmp_path / "run.h5", grid, fields=["u"])
    output.write_snapshot(0, 0.0, {"u": block}, everything(grid))
    output.close(True)
    assert np.array_equal(read_block(tmp_path / "run.h5", "u", everything(grid)), block)


@pytest.mark.parametrize("step, snapshots, rows", [(-1, 0, 0), (0, 1, 1), (12, 2, 3), (20, 3, 5), (99, 3, 6)])
def test_append_cuts_what_is_later_and_goes_on(tmp_path, step, snapshots, rows):
    grid = grid_of((7, 13))
    path = written(tmp_path / "run.h5", grid)
    output = OutputFile.append(path, OneProcess(), described(grid, attributes={"title": "new"}), step=step)
    with h5py.File(path, locking=False) as file:
        assert file.attrs["complete"] == 0 and file.attrs["title"] == "new" and file.attrs["input_sha256"] == "00ff"
        assert {file[name].shape[0] for name in ("time", "step", "u", "v")} == {snapshots}
        assert {item.shape[0] for item in file["diagnostics"].values()} == {rows}
    write_snapshots(output, grid, [8])
    output.close(True)
    contents = inspect(path)
    assert contents.complete and contents.steps == (*[0, 10, 20][:snapshots], 80)
    with h5py.File(path) as file:
        assert np.array_equal(file["u"][-1], field(grid, 8))
        assert all(np.array_equal(file["u"][index], field(grid, index)) for index in range(snapshots))
        assert file["diagnostics/mass"][()].tolist() == [*[0, 0, 1, -1, 2, -2][:rows], 8, -8]
    assert len(snapshots_in(path.with_suffix(".xdmf"))) == snapshots + 1


def test_append_equals_an_uninterrupted_run(tmp_path):
    grid = grid_of((5, 6, 9))
    whole = written(tmp_path / "whole.h5", grid, 4)
    path = written(tmp_path / "run.h5", grid, 3, complete=False)
    output = append(path, grid, 5)
    write_snapshots(output, grid, [1, 2, 3])
    output.close(True)
    with h5py.File(path) as file, h5py.File(whole) as reference:
        names: list[str] = []
        reference.visit(names.append)
        for name in names:
            if isinstance(reference[name], h5py.Dataset) and not name.startswith("diagnostics"):
                assert np.array_equal(file[name], reference[name]), name


def test_append_refuses_another_file(tmp_path):
    grid = grid_of((7, 13))
    path = written(tmp_path / "run.h5", grid)
    with pytest.raises(InputError, match=r"fields \['u', 'v'\], this run has \['w'\]"):
        append(path, grid, 0, fields=["w"])
    with pytest.raises(InputError, match=r"\(7, 13\), this run's \(7, 14\)"):
        append(path, grid_of((7, 14)), 0)
    h5py.File(tmp_path / "other.h5", "w").close()
    with pytest.raises(InputError, match="not an output"):
        append(tmp_path / "other.h5", grid, 0)
    assert inspect(path).complete


FULL = """
import os, resource, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from output_files import create, grid_of, write_snapshots
from hpcstencil.validation.errors import EnvironmentProblem
resource.setrlimit(resource.RLIMIT_FSIZE, (4 * 10**6, 4 * 10**6))
grid = grid_of((40, 60, 10))
output = create(Path({path!r}), grid)
try:
    write_snapshots(output, grid, range(100))
except EnvironmentProblem as problem:
    print(problem, flush=True)
    sys.exit(problem.status)
"""


def test_a_full_disk_leaves_the_committed_snapshots(tmp_path):
    """A limit on the size of files stands for the full disk. Reserved in advance, the space that is missing is noticed
    before HDF5 has begun to change the file, which would be unreadable otherwise."""
    path = tmp_path / "run.h5"
    script = FULL.format(tests=str(Path(__file__).parents[1]), path=str(path))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert child.returncode == 4, child.stderr
    assert child.stdout.count("\n") == 1 and str(path) in child.stdout and "File too large" in child.stdout
    contents = inspect(path)
    assert not contents.complete and len(contents.steps) >= 3
    with h5py.File(path) as file:
        for index in range(len(contents.steps)):
            assert np.array_equal(file["u"][index], field(grid_of((40, 60, 10)), index))


@pytest.mark.parametrize("allocate", [True, False])
def test_space_that_is_not_there_cannot_be_reserved(tmp_path, allocate):
    path = tmp_path / "file"
    path.write_text("1234")
    reserve(path, 10**4, OneProcess(), allocate)
    assert path.read_text() == "1234"
    with pytest.raises(EnvironmentProblem, match=f"cannot extend {path}"):
        reserve(path, 2**60, OneProcess(), allocate)


def test_space_for_holes_is_that_of_the_file(tmp_path):
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(10**6)
    reserve(path, 10**6, OneProcess(), hollow=True)
    assert path.stat().st_size == 10**6 <= 512 * path.stat().st_blocks < 1.1 * 10**6


@pytest.mark.filterwarnings("error")
def test_killed_between_the_two_flushes(tmp_path):
    """Fields one longer than time: the file opens, the uncommitted snapshot shows as time NaN, append removes it."""
    xarray = pytest.importorskip("xarray")
    grid = grid_of((7, 13))
    path = written(tmp_path / "run.h5", grid, complete=False)
    with h5py.File(path, "r+") as file:
        for name in ("u", "v"):
            file[name].resize(4, 0)
        file["diagnostics/mass"].resize(9, 0)
    with xarray.open_dataset(path, engine="h5netcdf") as data:
        assert data["time"].values[:3].tolist() == [0, 1, 2] and math.isnan(data["time"].values[3])
        assert np.array_equal(data["u"][2], field(grid, 2))
    assert inspect(path).steps == (0, 10, 20)
    assert np.array_equal(read_block(path, "u", everything(grid)), field(grid, 2))
    append(path, grid, 20).close(False)
    with h5py.File(path) as file:
        assert file["u"].shape[0] == 3 and file["diagnostics/mass"].shape[0] == 5


def test_existing_output_is_refused(tmp_path):
    path = tmp_path / "run.h5"
    refuse_existing(path, "--output")
    path.write_text("precious")
    with pytest.raises(InputError, match="--overwrite.*--resume.*another --output") as failure:
        refuse_existing(path, "--output")
    assert str(path) in str(failure.value) and failure.value.status == 2
    assert path.read_text() == "precious"


def test_files_of_others_are_never_replaced(tmp_path):
    path, beside, communicator = tmp_path / "run.h5", tmp_path / "run.xdmf", OneProcess()
    written(path, grid_of((4,)), 1)
    for ours in (path.read_bytes(), b"", b"\0" * 100):
        path.write_bytes(ours)
        with claimed([path], communicator):
            pass
    path.write_text("my thesis")
    with (
        pytest.raises(InputError, match="run.h5: exists already, and is not an HDF5 file"),
        claimed([path], communicator),
    ):
        pass
    path.unlink()
    beside.write_text("precious")
    with (
        pytest.raises(InputError, match="run.xdmf: exists already, and is not the XDMF file"),
        claimed([path], communicator),
    ):
        pass
    assert [each.name for each in tmp_path.iterdir()] == ["run.xdmf"]


def test_missing_folders_are_made_and_an_old_file_replaced(tmp_path):
    grid = grid_of((4,))
    path = tmp_path / "a" / "b" / "run.h5"
    written(path, grid, 3)
    with h5py.File(path) as old:
        written(path, grid, 1)
        assert old["time"].shape == (3,)  # whoever reads the old file keeps it
    assert inspect(path).steps == (0,)


@pytest.mark.parametrize("folder", ["/proc/none", "file"])
def test_unwritable_folder_is_found_before_anything_is_written(tmp_path, folder):
    """As root permissions do not bind; below a regular file and in /proc nobody can write."""
    (tmp_path / "file").write_text("a regular file")
    path = tmp_path / folder / "run.h5"
    with pytest.raises(EnvironmentProblem) as failure:
        create(path, grid_of((4,)))
    assert failure.value.status == 4 and str(path) in str(failure.value) and "\n" not in str(failure.value)
    assert os.listdir(tmp_path) == ["file"]


def test_a_field_may_not_be_named_like_a_part_of_the_file(tmp_path):
    with pytest.raises(InputError, match="'diagnostics'"):
        create(tmp_path / "run.h5", grid_of((4,)), fields=["diagnostics"])


def test_read_block(tmp_path):
    """Of a plain dataset, of the last snapshot of a series; and what does not fit is told."""
    path = tmp_path / "start.h5"
    values = np.arange(35.0).reshape(5, 7)
    with h5py.File(path, "w") as file:
        file["u"] = values
    block = read_block(path, "u", [(1, 4), (2, 7)], (5, 7), np.float32)
    assert block.dtype == np.float32 and block.flags.c_contiguous and np.array_equal(block, values[1:4, 2:7])
    grid = grid_of((7, 13))
    written(tmp_path / "run.h5", grid)
    assert np.array_equal(read_block(tmp_path / "run.h5", "u", [(3, 5), (0, 13)], grid.shape), field(grid, 2)[3:5])
    for problem, arguments in (
        (r"no such file", (tmp_path / "none.h5", "u", [(0, 5), (0, 7)])),
        (r"no dataset 'w'; it holds u", (path, "w", [(0, 5), (0, 7)])),
        (r"shape \(5, 7\), expected \(5, 8\)", (path, "u", [(0, 5), (0, 7)], (5, 8))),
        (r"shape \(5, 7\), expected \(5, 7, 1\)", (path, "u", [(0, 5), (0, 7), (0, 1)], (5, 7, 1))),
        (r"not an HDF5 file", (Path(__file__), "u", [(0, 5)])),
    ):
        with pytest.raises(InputError, match=problem):
            read_block(*arguments)


@pytest.mark.parametrize(
    "shape", [(1,), (10**9,), (512, 512), (16384, 16384), (512, 512, 512), (37, 29, 23), (3, 3, 10**7)]
)
@pytest.mark.parametrize("itemsize", [4, 8])
def test_chunks_are_one_to_four_megabytes(shape, itemsize):
    chunk = chunk_shape(shape, itemsize)
    size = itemsize * math.prod(chunk)
    assert size <= 4 * 2**20
    assert chunk == shape or size >= 2**20
    # Rounding up must not make the file much larger than the grid.
    assert math.prod(-(-n // c) * c for n, c in zip(shape, chunk, strict=True)) <= 1.2 * math.prod(shape)


def snapshots_in(xdmf: Path) -> list[ElementTree.Element]:
    return ElementTree.parse(xdmf).getroot().findall("./Domain/Grid[@CollectionType='Temporal']/Grid")


def numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split()))


def referred(item: ElementTree.Element, folder: Path) -> h5py.Dataset:
    """The dataset that a DataItem names, checked against the shape and precision it claims."""
    name, dataset = item.text.strip().split(":")
    assert "/" not in name, "must be relative, so that the files can be moved together"
    found = h5py.File(folder / name)[dataset]
    assert found.shape == numbers(item.get("Dimensions"))
    assert found.dtype.itemsize == int(item.get("Precision"))
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_xdmf_fits_the_file_and_puts_x_along_x(tmp_path, shape):
    """Every value of every field must come to lie at the coordinates of its cell."""
    grid = grid_of(shape)
    path = written(tmp_path / "run & <more>.h5", grid)
    snapshots = snapshots_in(path.with_suffix(".xdmf"))
    assert [float(snapshot.find("Time").get("Value")) for snapshot in snapshots] == [0, 1, 2]
    coordinates = np.meshgrid(*map(grid.centres, range(grid.ndim)), indexing="ij")
    for index, snapshot in enumerate(snapshots):
        topology, geometry = snapshot.find("Topology"), snapshot.find("Geometry")
        points = numbers(topology.get("Dimensions"))
        if grid.ndim == 1:
            assert points == (1, 1, *shape)
            (origin, spacing) = ([float(part) for part in item.text.split()] for item in geometry)
            assert origin[2] == grid.centres(0)[0] and spacing[2] == grid.spacing[0]  # listed as z y x
        else:
            assert points == shape and topology.get("TopologyType") == f"{grid.ndim}DSMesh"
            assert geometry.get("GeometryType") == "_".join(grid.axes).upper()
            for item, expected in zip(geometry, coordinates, strict=True):
                assert np.array_equal(referred(item, tmp_path), expected.astype(np.float32))
        attributes = snapshot.findall("Attribute")
        assert [attribute.get("Name") for attribute in attributes] == ["u", "v"]
        for attribute, sign in zip(attributes, (1, -1), strict=True):
            assert attribute.get("Center") == "Node"
            slab = attribute.find("DataItem")
            selection, whole = slab.findall("DataItem")
            start, stride, count = np.reshape(numbers(selection.text), numbers(selection.get("Dimensions")))
            assert stride.tolist() == [1] * (grid.ndim + 1)
            values = referred(whole, tmp_path)[tuple(map(slice, start, start + count))]
            assert values.size == math.prod(points) and numbers(slab.get("Dimensions")) == points
            assert np.array_equal(values.reshape(shape), sign * field(grid, index))


@pytest.mark.parametrize("shape", [(600, 5000), (3, 9000), (130, 90, 150), (2, 2, 5000), (300, 300, 2)])
def test_mesh_of_several_chunks(tmp_path, shape):
    """The compressed chunks that are written directly hold the coordinates, at the edges too."""
    grid = Grid(shape, (0.0,) * len(shape), (1.0,) * len(shape))
    with h5py.File(tmp_path / "mesh.h5", "w") as file:
        for axis, name in enumerate(grid.axes):
            file[name] = grid.centres(axis)
            file[name].make_scale(name)
        write_mesh(file, grid)
    coordinates = np.meshgrid(*map(grid.centres, range(grid.ndim)), indexing="ij")
    with h5py.File(tmp_path / "mesh.h5") as file:
        for name, expected in zip(grid.axes, coordinates, strict=True):
            assert np.array_equal(file["xdmf-mesh"][name], expected.astype(np.float32)), name


def test_mesh_far_from_the_origin_is_stored_in_double_precision(tmp_path):
    grid = Grid((4, 4), (1e6, 0.0), (1e6 + 1e-3, 1.0))
    path = written(tmp_path / "run.h5", grid)
    with h5py.File(path) as file:
        assert np.array_equal(file["xdmf-mesh/x"][:, 0], grid.centres(0))
    assert all(item.get("Precision") == "8" for item in snapshots_in(path.with_suffix(".xdmf"))[0].find("Geometry"))


@pytest.mark.parametrize("most", (PAGE, 2**20))
def test_chunks_come_to_their_places_however_little_is_written_at_once(tmp_path, monkeypatch, most):
    """Whole pages past the system's cache, those that follow each other together; others not."""
    asked = []

    def pwritev(descriptor, buffers, byte, write=os.pwritev):
        asked.append(sum(map(len, buffers)))
        return write(descriptor, [memoryview(b"".join(buffers))[:most]] if asked[-1] > most else buffers, byte)

    monkeypatch.setattr("os.pwritev", pwritev)
    monkeypatch.setattr("hpcstencil.io.direct_write.LEAST_PAST", PAGE)
    block = np.random.default_rng(1).random((64, 128), np.float32)
    parts = cuts((0, 0), block.shape, (16, 64), block.shape)
    pieces = Pieces(block.dtype, block.shape, parts)
    pieces.take(block)
    bytes_ = [n * PAGE + skew for n, skew in ((3, 0), (4, 0), (5, 0), (0, 0), (9, 0), (8, 0), (11, 100), (15, 4))]
    path = tmp_path / "file"
    path.write_bytes(bytes(20 * PAGE))
    DirectWriter(path).write([(pieces, list(zip(parts, bytes_, strict=True)))])
    content = path.read_bytes()
    for cut, byte in zip(parts, bytes_, strict=True):
        assert content[byte : byte + PAGE] == block[cut.index].tobytes()
    assert content.count(0) >= 12 * PAGE
    assert max(asked) == 3 * PAGE


def test_a_process_opens_the_file_once_for_all_its_writes(tmp_path, monkeypatch):
    grid, opened, as_ever = grid_of((512, 1024)), [], DirectWriter._open_past

    def counted(writer):
        opened.append(as_ever(writer))
        return opened[-1]

    monkeypatch.setattr(DirectWriter, "_open_past", counted)
    output = create(tmp_path / "run.h5", grid, fields=["u"])
    for n in range(3):
        output.write_snapshot(n, float(n), {"u": field(grid, n)}, everything(grid))
    assert len(opened) == 1
    assert any(str(tmp_path / "run.h5") in target for target in open_files())
    output.close(complete=True)
    assert not any(str(tmp_path) in target for target in open_files())


def open_files():
    """The paths of this process's open files."""
    with os.scandir("/proc/self/fd") as found:
        names = [entry.path for entry in found]
    return [os.readlink(name) for name in names if os.path.lexists(name)]


def test_another_file_in_place_of_the_output_is_left_alone(tmp_path):
    """Whoever puts it there amid a change."""
    grid = grid_of((512, 1024))
    path = tmp_path / "run.h5"

    def replaced():
        (tmp_path / "other").write_bytes(b"other")
        os.replace(tmp_path / "other", path)

    def snapshot(output, index):
        output.write_snapshot(index, float(index), {"u": field(grid, index)}, everything(grid))

    output = create(path, grid, fields=["u"])
    with pytest.raises(EnvironmentProblem, match="was replaced by somebody else"), output.change(0):
        replaced()
    assert path.read_bytes() == b"other" and not journal_path(path).exists()
    output = create(path, grid, fields=["u"])
    snapshot(output, 0)
    with pytest.raises(EnvironmentProblem, match="replaced by somebody else"), output.change(output.snapshot_bytes):
        replaced()
        snapshot(output, 1)
    assert path.read_bytes() == b"other"


def test_memory_that_is_not_there_is_told_as_that(monkeypatch):
    def refused(*_, **__):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr("mmap.mmap", refused)
    with pytest.raises(MemoryError, match="4096 bytes for what is written"):
        Pieces(np.float32, (3,), cuts((0,), (3,), (3,), (3,)))
