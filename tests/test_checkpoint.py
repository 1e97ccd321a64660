"""Checkpoints of one process: names, what is kept, what counts as whole."""

import os
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcstencil import checkpoint
from hpcstencil.checkpoint import list_checkpoints, newest_checkpoint, read_checkpoint, remove_stale, write_checkpoint
from hpcstencil.errors import EnvironmentProblem, InputError
from hpcstencil.grid import Grid
from hpcstencil.hdf5_read import inspect
from hpcstencil.parallel import OneProcess

ONE = OneProcess()
ATTRIBUTES = {"title": "t", "input": "text", "input_sha256": "00ff", "hpcstencil_version": "0.1"}
SHAPES = [(11,), (7, 13), (5, 6, 9)]


def grid_of(shape):
    return Grid(shape, (0.0,) * len(shape), (1.0,) * len(shape))


def state(grid, step):
    u = np.random.default_rng(step).random(grid.shape)
    return {"u": u, "previous_u": u.astype(np.float32)}


def write(output: Path, grid: Grid, step: int, keep: int = 2, **changes) -> Path:
    settings = {
        "step": step,
        "time": step / 3,
        "arrays": state(grid, step),
        "ranges": [(0, n) for n in grid.shape],
        "scalars": {"dt": 0.1 + 0.2, "rejected": 3, "integrator": "rk4"},
        "attributes": ATTRIBUTES,
        "keep": keep,
    }
    return write_checkpoint(output, ONE, grid, **{**settings, **changes})


@pytest.mark.parametrize("shape", SHAPES)
def test_round_trip_is_exact(tmp_path, shape):
    grid = grid_of(shape)
    path = write(tmp_path / "run.h5", grid, 7)
    assert path == tmp_path / "run.checkpoint.000000000007.h5"
    assert sorted(os.listdir(tmp_path)) == [path.name]
    ranges = [(n // 3, n) for n in shape]
    step, time, arrays, scalars, attributes = read_checkpoint(path, ranges)
    assert (step, time) == (7, 7 / 3) and type(step) is int and type(time) is float
    assert scalars == {"dt": 0.1 + 0.2, "rejected": 3, "integrator": "rk4"}
    assert type(scalars["dt"]) is float and type(scalars["rejected"]) is int
    assert attributes.items() >= {**ATTRIBUTES, "kind": "checkpoint", "format_version": 1, "complete": 1}.items()
    inner = tuple(slice(*pair) for pair in ranges)
    assert list(arrays) == ["previous_u", "u"]
    for name, expected in state(grid, 7).items():
        assert arrays[name].dtype == expected.dtype and np.array_equal(arrays[name], expected[inner])
    assert list(read_checkpoint(path, ranges, ["u"])[2]) == ["u"]


def test_inspect_and_xarray_open_it(tmp_path):
    xarray = pytest.importorskip("xarray")
    grid = grid_of((7, 13))
    path = write(tmp_path / "run.h5", grid, 7)
    contents = inspect(path)
    assert (contents.kind, contents.complete, contents.step, contents.time) == ("checkpoint", True, 7, 7 / 3)
    assert contents.shape == (7, 13) and set(contents.fields) == {"u", "previous_u"}
    with xarray.open_dataset(path, engine="h5netcdf") as data:
        assert data["u"].dims == ("x", "y") and np.array_equal(data["u"], state(grid, 7)["u"])


@pytest.mark.parametrize("keep, kept", [(1, [30]), (2, [30, 20]), (9, [30, 20, 10])])
def test_keeps_the_newest_of_its_own_run(tmp_path, keep, kept):
    grid = grid_of((4,))
    others = ["run2.checkpoint.000000000001.h5", "xrun.checkpoint.000000000001.h5", "run.checkpoint.1.h5", "run.h5"]
    for name in others:
        (tmp_path / name).write_text("not ours")
    for step in (10, 20, 30):
        write(tmp_path / "run.h5", grid, step, keep)
    assert [checkpoint.step_of(path) for path in list_checkpoints(tmp_path / "run.h5")] == kept
    assert set(others) < set(os.listdir(tmp_path)) and len(os.listdir(tmp_path)) == len(others) + len(kept)


def test_output_names_with_special_characters(tmp_path):
    output = tmp_path / "a[1].b+c.h5"
    write(output, grid_of((4,)), 10)
    assert list_checkpoints(output) == [tmp_path / "a[1].b+c.checkpoint.000000000010.h5"]
    assert list_checkpoints(tmp_path / "none" / "run.h5") == []


def damage(path: Path, how: str) -> None:
    if how == "cut short":
        os.truncate(path, path.stat().st_size - 100)
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "not HDF5":
        path.write_bytes(b"something else" * 1000)
    elif how == "unreadable header":
        data = bytearray(path.read_bytes())
        data[8:2048] = bytes(2040)
        path.write_bytes(data)
    else:
        with h5py.File(path, "r+") as file:
            if how == "unfinished":
                file.attrs["complete"] = 0
            elif how == "another version":
                file.attrs["format_version"] = 99
            elif how == "an output":
                file.attrs["kind"] = "output"
            elif how == "another shape":
                del file["u"]
                file["u"] = np.zeros((3, 3))


@pytest.mark.parametrize(
    "how",
    [
        "cut short",
        "empty",
        "not HDF5",
        "unreadable header",
        "unfinished",
        "another version",
        "an output",
        "another shape",
    ],
)
def test_newest_is_the_newest_whole_one(tmp_path, how):
    grid = grid_of((7, 13))
    output = tmp_path / "run.h5"
    older, newer = write(output, grid, 10), write(output, grid, 20)
    assert newest_checkpoint(output, ONE) == newer
    damage(newer, how)
    assert newest_checkpoint(output, ONE) == older
    with pytest.raises((InputError, EnvironmentProblem), match=str(newer)):
        read_checkpoint(newer, [(0, 7), (0, 13)])
    damage(older, how)
    assert newest_checkpoint(output, ONE) is None


def test_stale_files_are_removed(tmp_path):
    output = tmp_path / "run.h5"
    for step in (10, 20, 30):
        write(output, grid_of((4,)), step, keep=9)
    for name in ("run.checkpoint.000000000040.h5.tmp", "other.checkpoint.000000000040.h5.tmp"):
        (tmp_path / name).write_text("half")
    remove_stale(output, ONE)
    assert (tmp_path / "other.checkpoint.000000000040.h5.tmp").exists()
    assert not (tmp_path / "run.checkpoint.000000000040.h5.tmp").exists()
    assert len(list_checkpoints(output)) == 3
    remove_stale(output, ONE, after=10)
    assert [checkpoint.step_of(path) for path in list_checkpoints(output)] == [10]
    remove_stale(output, ONE, after=-1)
    assert list_checkpoints(output) == []


def test_reading_what_does_not_fit_is_told(tmp_path):
    path = write(tmp_path / "run.h5", grid_of((7, 13)), 10)
    for problem, arguments in (
        ("no array 'w'; it holds previous_u, u", ([(0, 7), (0, 13)], ["w"])),
        (r"shape \(7, 13\)", ([(0, 8), (0, 13)],)),
        (r"shape \(7, 13\)", ([(0, 7)],)),
    ):
        with pytest.raises(InputError, match=problem):
            read_checkpoint(path, *arguments)
    with pytest.raises(InputError, match="no such file"):
        read_checkpoint(tmp_path / "none.h5", [(0, 7)])


def test_a_failed_write_leaves_the_older_checkpoint(tmp_path):
    output = tmp_path / "run.h5"
    older = write(output, grid_of((4,)), 10)
    blocked = tmp_path / "run.checkpoint.000000000020.h5"
    blocked.mkdir()  # a folder in the way of the rename
    with pytest.raises(EnvironmentProblem, match=str(blocked)) as failure:
        write(output, grid_of((4,)), 20)
    assert failure.value.status == 4
    assert newest_checkpoint(output, ONE) == older


def test_unwritable_folder(tmp_path):
    (tmp_path / "file").write_text("a regular file")
    with pytest.raises(EnvironmentProblem, match="cannot create"):
        write(tmp_path / "file" / "run.h5", grid_of((4,)), 10)
