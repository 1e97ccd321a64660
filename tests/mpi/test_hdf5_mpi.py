"""Files written by several processes, in every way, equal those of one process."""

import os
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from support import dealt

from hpcstencil.checkpoint.checkpoint import newest_checkpoint, read_checkpoint, write_checkpoint
from hpcstencil.checkpoint.paths import list_checkpoints
from hpcstencil.io.direct_write import DirectWriter
from hpcstencil.io.file_layout import Description
from hpcstencil.io.file_read import read_block
from hpcstencil.io.output_file import OutputFile
from hpcstencil.io.snapshot_buffers import Copies, pieces_of
from hpcstencil.numerics.grid import Grid
from hpcstencil.numerics.topology import best_parts, split, unravel
from hpcstencil.runtime.communicator import MpiProcesses, OneProcess
from hpcstencil.symbolic.staggering import Layout
from hpcstencil.validation.errors import EnvironmentProblem, InputError

pytestmark = pytest.mark.mpi

SHAPES = [(11,), (101, 67), (37, 29, 23), (3, 400, 300)]
METHODS = ["serial", "per_process", "direct", "mpio"]


@pytest.fixture
def processes():
    mpi = pytest.importorskip("mpi4py.MPI")
    return MpiProcesses(mpi.COMM_WORLD)


@pytest.fixture
def folder(processes, tmp_path_factory) -> Path:
    """One folder for all processes."""
    return processes.broadcast(tmp_path_factory.mktemp("shared") if processes.rank == 0 else None)


def grid_of(shape) -> Grid:
    return Grid(shape, (0.0,) * len(shape), tuple(1.0 + n for n in range(len(shape))))


def values(grid: Grid, index: int, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng(index).random(grid.shape).astype(dtype)


def block_of(processes, shape, cut_last: bool):
    """This process's ranges; ``cut_last`` cuts the last axis alone, the worst for contiguity."""
    ones = (1,) * (len(shape) - 1)
    fewest = min(processes.size, shape[-1])
    parts = (*ones, fewest) if cut_last else best_parts(processes.size, shape, [False] * len(shape), [1] * len(shape))
    if processes.rank >= np.prod(parts):
        return tuple((0, 0) for _ in shape)
    return tuple(map(split, shape, parts, unravel(processes.rank, parts)))


def write_run(
    path,
    processes,
    grid,
    ranges,
    method,
    compression="none",
    dtype=np.float32,
    snapshots=(0, 1, 2),
    step=None,
    behind=False,
):
    inner = tuple(slice(*pair) for pair in ranges)
    described = Description(
        Layout(grid),
        ["u", "v"],
        dtype,
        diagnostics=["mass", "peak"],
        attributes={"title": "t", "input": "x" * 100_000, "decomposition": "{}"},
        compression=compression,
        solid_axes=grid.ndim,
    )
    buffers = Copies(pieces_of(Layout(grid), ["u", "v"], ranges, dtype, compression != "none")) if behind else None
    how = {"method": method, "buffers": buffers}
    if step is None:
        output = OutputFile.create(path, processes, described, **how)
    else:
        output = OutputFile.append(path, processes, replace(described, attributes={}), step=step, **how)
    output.write_solid(np.ascontiguousarray(values(grid, 9)[inner] < 0.3, np.int8), ranges)
    for index in snapshots:
        u = values(grid, index, dtype)
        blocks = {"u": np.ascontiguousarray(u[inner]), "v": np.ascontiguousarray(-u[inner])}
        rows = {"diagnostics": ([index, index + 1], [0.1, 0.2], {"mass": [index, 1.5], "peak": [3, index]})}
        if behind:
            copied = {name: buffers.copied(name, block) for name, block in blocks.items()}
            output.write_snapshot(10 * index, index / 3, copied, ranges, rows, behind=True)
            output.wait()
        else:
            output.write_snapshot(10 * index, index / 3, blocks, ranges)
            output.write_rows(rows)
    output.close(True)
    processes.barrier()


def contents(path) -> dict:
    """Every dataset's bytes, shape, type and dimension scales, and every attribute, by name."""
    found: dict = {}

    def note(name, item):
        if isinstance(item, h5py.Dataset):
            scales = [dimension.keys() for dimension in item.dims]
            found[name] = (item.shape, item.maxshape, item.chunks, item.dtype.str, scales, item[()].tobytes())
        for attribute, value in item.attrs.items():
            if attribute not in ("DIMENSION_LIST", "REFERENCE_LIST"):
                found[name, attribute] = value if not isinstance(value, np.ndarray) else value.tobytes()

    with h5py.File(path, "r") as file:
        note("/", file)
        file.visititems(note)
    return found


@pytest.mark.parametrize(
    "method, shape, cut_last, compression", dealt(METHODS, SHAPES, [False, True], ["none", "gzip"])
)
def test_output_equals_that_of_one_process(processes, folder, shape, method, cut_last, compression):
    grid = grid_of(shape)
    write_run(folder / "many.h5", processes, grid, block_of(processes, shape, cut_last), method, compression)
    compare_with_one_process(processes, folder, grid, compression)


@pytest.mark.parametrize("method, shape, compression", dealt(METHODS, SHAPES, ["none", "gzip"]))
def test_copies_in_pieces_give_the_same_file(processes, folder, shape, method, compression):
    grid = grid_of(shape)
    write_run(folder / "many.h5", processes, grid, block_of(processes, shape, True), method, compression, behind=True)
    compare_with_one_process(processes, folder, grid, compression)


@pytest.mark.parametrize("shape, cut_last, behind", dealt(SHAPES, [False, True], [False, True]))
def test_direct_writes_equal_those_of_one_process(processes, folder, shape, cut_last, behind, monkeypatch):
    """However short the runs of cells are that follow each other in the file."""
    written = []

    def write(writer, parts):
        written.append(parts)
        as_ever(writer, parts)

    as_ever = DirectWriter.write
    monkeypatch.setattr(DirectWriter, "write", write)
    monkeypatch.setattr("hpcstencil.io.direct_write.SHORTEST_RUN", 0)
    monkeypatch.setattr("hpcstencil.io.direct_write.LEAST_PAST", 1000)
    grid, ranges = grid_of(shape), block_of(processes, shape, cut_last)
    write_run(folder / "many.h5", processes, grid, ranges, "direct", behind=behind)
    assert len(written) == 3
    compare_with_one_process(processes, folder, grid, "none")


def compare_with_one_process(processes, folder, grid, compression):
    """Whether many.h5 equals what one process writes."""
    if processes.rank == 0:
        write_run(folder / "one.h5", OneProcess(), grid, tuple((0, n) for n in grid.shape), "auto", compression)
        many, one = contents(folder / "many.h5"), contents(folder / "one.h5")
        assert many.keys() == one.keys()
        assert [name for name in one if many[name] != one[name]] == []
        with h5py.File(folder / "many.h5") as file:
            assert all(np.array_equal(file["u"][index], values(grid, index)) for index in range(3))
            assert file["diagnostics/peak"][()].tolist() == [3, 0, 3, 1, 3, 2]
            assert file["time"][()].tolist() == [0, 1 / 3, 2 / 3] and file.attrs["complete"] == 1
        text = (folder / "many.xdmf").read_text()
        assert text.replace("many.h5", "one.h5") == (folder / "one.xdmf").read_text()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_blocks_of_several_chunks(processes, folder, dtype):
    """Chunks that are shared between processes, and several of them per process."""
    shape = (150, 90, 130)
    grid = grid_of(shape)
    ranges = block_of(processes, shape, cut_last=False)
    for method in ("auto", "serial"):
        write_run(folder / f"{method}.h5", processes, grid, ranges, method, dtype=dtype, snapshots=[0])
    if processes.rank == 0:
        with h5py.File(folder / "auto.h5") as file, h5py.File(folder / "serial.h5") as other:
            assert np.prod(file["u"].chunks) < grid.cells
            assert np.array_equal(file["u"][0], values(grid, 0, dtype))
            assert np.array_equal(other["u"][0], values(grid, 0, dtype))


@pytest.mark.parametrize("method, compression", dealt(METHODS, ["none", "gzip"]))
def test_append_equals_an_uninterrupted_run(processes, folder, method, compression):
    shape = (37, 29, 23)
    grid, ranges = grid_of(shape), block_of(processes, shape, cut_last=False)
    write_run(folder / "whole.h5", processes, grid, ranges, method, compression)
    write_run(folder / "cut.h5", processes, grid, ranges, "serial", compression, snapshots=[0, 2])
    # Step 1 keeps snapshot 0 (step 0) and the diagnostics of steps 0 and 1.
    write_run(folder / "cut.h5", processes, grid, ranges, method, compression, snapshots=[1, 2], step=1)
    if processes.rank == 0:
        assert contents(folder / "cut.h5") == contents(folder / "whole.h5")


@pytest.mark.parametrize("method, shape", dealt(METHODS, SHAPES))
def test_checkpoint_is_read_on_any_decomposition(processes, folder, shape, method):
    grid, ranges = grid_of(shape), block_of(processes, shape, cut_last=False)
    inner = tuple(slice(*pair) for pair in ranges)
    arrays = {"u": values(grid, 1)[inner], "momentum": values(grid, 2, np.float64)[inner]}
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    for step in (5, 6, 7):
        path = write_checkpoint(
            folder / "run.h5",
            processes,
            grid,
            step=step,
            time=0.1 * step,
            arrays=arrays,
            ranges=ranges,
            scalars={"dt": 1 / 3},
            attributes={"input_sha256": "00ff"},
            keep=2,
            method=method,
        )
    assert newest_checkpoint(folder / "run.h5", processes) == path == list_checkpoints(folder / "run.h5")[0]
    assert sorted(os.listdir(folder)) == [f"run.checkpoint.00000000000{step}.h5" for step in (6, 7)]
    whole = [(0, n) for n in shape]
    for others, readers in ((whole, OneProcess()), (block_of(processes, shape, cut_last=True), processes)):
        blocks, scalars, attributes = read_checkpoint(path, others, readers)
        there = tuple(slice(*pair) for pair in others)
        assert (scalars, attributes["step"], attributes["input_sha256"]) == ({"dt": 1 / 3}, 7, "00ff")
        assert np.array_equal(blocks["u"], values(grid, 1)[there])
        assert np.array_equal(blocks["momentum"], values(grid, 2, np.float64)[there])


@pytest.mark.parametrize("method", METHODS)
def test_checkpoints_of_one_and_of_many_are_alike(processes, folder, method):
    grid = grid_of((37, 29))
    same = {"step": 3, "time": 0.3, "attributes": {"title": "t"}, "keep": 1}
    ranges = block_of(processes, grid.shape, cut_last=False)
    block = np.ascontiguousarray(values(grid, 1)[tuple(slice(*pair) for pair in ranges)])
    many = write_checkpoint(
        folder / "many.h5", processes, grid, arrays={"u": block}, ranges=ranges, method=method, **same
    )
    if processes.rank == 0:
        whole = [(0, n) for n in grid.shape]
        one = write_checkpoint(
            folder / "one.h5", OneProcess(), grid, arrays={"u": values(grid, 1)}, ranges=whole, **same
        )
        assert contents(many) == contents(one)


def test_each_process_reads_its_own_block(processes, folder):
    grid = grid_of((37, 29))
    if processes.rank == 0:
        with h5py.File(folder / "start.h5", "w") as file:
            file["u"] = values(grid, 4)
    processes.barrier()
    ranges = block_of(processes, grid.shape, cut_last=False)
    block = read_block(folder / "start.h5", "u", ranges, grid.shape)
    assert np.array_equal(block, values(grid, 4)[tuple(slice(*pair) for pair in ranges)])


@pytest.mark.parametrize("method", METHODS)
def test_all_processes_fail_together(processes, folder, method):
    """The error arises on rank 0 alone, and everybody hears of it; nobody hangs."""
    grid, ranges = grid_of((37, 29)), block_of(processes, (37, 29), cut_last=False)
    if processes.rank == 0:
        (folder / "file").write_text("a regular file")
    with pytest.raises(EnvironmentProblem, match="Not a directory|File exists") as failure:
        write_run(folder / "file" / "run.h5", processes, grid, ranges, method)
    assert failure.value.status == 4
    described = Description(Layout(grid), ["u"], np.float32)
    with pytest.raises(EnvironmentProblem):
        OutputFile.append(folder / "file", processes, described, step=0, method=method)
    write_run(folder / "run.h5", processes, grid, ranges, method, snapshots=[0])
    with pytest.raises(InputError, match="this run has"):
        OutputFile.append(folder / "run.h5", processes, replace(described, fields=["other"]), step=0, method=method)
    assert int(processes.total(np.array([1]))[0]) == processes.size


def test_long_series_cross_the_edges_of_their_chunks(processes, folder):
    """Rows beyond the first chunk of a time series, written in pieces that do not fit the chunks."""
    path = folder / "series.h5"
    grid = Grid((16, 12), (0.0, 0.0), (1.0, 1.0))
    output = OutputFile.create(path, processes, Description(Layout(grid), ["u"], np.float32, diagnostics=["m"]))
    rows = np.arange(40 * 60)
    for part in rows.reshape(60, 40):
        output.write_rows({"diagnostics": (part.tolist(), (0.5 * part).tolist(), {"m": (2.0 * part).tolist()})})
    output.close(complete=True)
    processes.barrier()
    with h5py.File(path, "r") as file:
        assert np.array_equal(file["diagnostics/step"][()], rows)
        assert np.array_equal(file["diagnostics/m"][()], 2.0 * rows)
