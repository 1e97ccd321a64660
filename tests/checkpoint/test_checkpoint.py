"""Checkpoints of one process: names, what is kept, what counts as whole."""

import os
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcstencil.checkpoint.checkpoint import newest_checkpoint, read_checkpoint, verify, write_checkpoint
from hpcstencil.checkpoint.paths import checkpoint_path, list_checkpoints, remove_locks, remove_stale, step_of
from hpcstencil.io.file_names import xdmf_path
from hpcstencil.io.file_read import inspect
from hpcstencil.numerics.checksum import checksum
from hpcstencil.numerics.grid import Grid
from hpcstencil.runtime.communicator import OneProcess
from hpcstencil.validation.errors import EnvironmentProblem, InputError

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
    ranges = [(0, n) for n in shape]
    arrays, scalars, attributes = read_checkpoint(path, ranges, ONE)
    assert scalars == {"dt": 0.1 + 0.2, "rejected": 3, "integrator": "rk4"}
    assert type(scalars["dt"]) is float and type(scalars["rejected"]) is int
    assert attributes.items() >= {**ATTRIBUTES, "kind": "checkpoint", "complete": 1, "step": 7, "time": 7 / 3}.items()
    assert list(arrays) == ["u", "previous_u"]
    for name, expected in state(grid, 7).items():
        assert arrays[name].dtype == expected.dtype and np.array_equal(arrays[name], expected)
    assert list(read_checkpoint(path, ranges, ONE, ["u"])[0]) == ["u"]


@pytest.mark.parametrize("shape", SHAPES)
def test_arrays_may_have_more_axes_and_stand_in_groups(tmp_path, shape):
    """Histories of a multistep method, members of an ensemble: whatever comes to have state."""
    rng = np.random.default_rng(3)
    arrays = {
        "u": rng.random(shape),
        "history/0/u": rng.random((2, *shape)).astype(np.float32),
        "members": rng.integers(0, 2**62, (3, 2, *shape)),
    }
    path = write(tmp_path / "run.h5", grid_of(shape), 7, arrays=arrays)
    found, _, _ = read_checkpoint(path, [(0, n) for n in shape], ONE)
    assert {name: block.tobytes() for name, block in found.items()} == {n: a.tobytes() for n, a in arrays.items()}


@pytest.mark.parametrize("shape", [(40,), (13, 17), (7, 9, 11), (2, 3, 5, 7)])
@pytest.mark.parametrize("dtype", ["f4", "f8", "i8"])
def test_the_checksum_is_that_of_the_array_however_it_is_cut(shape, dtype):
    rng = np.random.default_rng(1)
    array = (rng.random(shape) * 100).astype(dtype)
    whole = checksum(array, [0] * array.ndim)
    for axis, n in enumerate(shape):
        for cut in (0, 1, n // 2, n):
            parts = np.split(array, [cut], axis)
            starts = [[0] * array.ndim, [cut if a == axis else 0 for a in range(array.ndim)]]
            shares = [checksum(np.ascontiguousarray(p), s) for p, s in zip(parts, starts, strict=True)]
            assert (sum(shares) - whole) % 2**64 == 0
    swapped = array.copy()
    swapped[0], swapped[1] = array[1], array[0]
    assert checksum(swapped, [0] * array.ndim) != whole


FLIPS = 200


def test_every_flipped_bit_is_detected_or_does_no_harm(tmp_path):
    grid = grid_of((9, 8))
    path = write(tmp_path / "run.h5", grid, 7)
    ranges = [(0, n) for n in grid.shape]
    arrays, scalars, attributes = read_checkpoint(path, ranges, ONE)
    whole = path.read_bytes()
    rng = np.random.default_rng(5)
    detected = 0
    for position in rng.integers(0, 8 * len(whole), FLIPS).tolist():
        flipped = bytearray(whole)
        flipped[position // 8] ^= 1 << position % 8
        path.write_bytes(flipped)
        try:
            found, other_scalars, other_attributes = read_checkpoint(path, ranges, ONE)
        except (InputError, EnvironmentProblem) as error:
            assert str(path) in str(error)
            detected += 1
            continue
        assert other_scalars == scalars and {n: b.tobytes() for n, b in found.items()} == {
            n: b.tobytes() for n, b in arrays.items()
        }
        assert other_attributes == attributes
    assert detected >= FLIPS - 1  # a blank before the length of the seal may become a 0


def test_a_checkpoint_cut_short_anywhere_is_detected(tmp_path):
    path = write(tmp_path / "run.h5", grid_of((9, 8)), 7)
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        with pytest.raises((InputError, EnvironmentProblem)):
            verify(path, ONE)


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
    assert [step_of(path) for path in list_checkpoints(tmp_path / "run.h5")] == kept
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
def test_newest_is_the_newest_sound_one(tmp_path, how, capsys):
    grid = grid_of((7, 13))
    output = tmp_path / "run.h5"
    older, newer = write(output, grid, 10), write(output, grid, 20)
    assert newest_checkpoint(output, ONE) == newer
    damage(newer, how)
    assert newest_checkpoint(output, ONE) == older
    assert str(newer) in capsys.readouterr().err
    with pytest.raises((InputError, EnvironmentProblem), match=str(newer)):
        read_checkpoint(newer, [(0, 7), (0, 13)], ONE)
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
    assert [step_of(path) for path in list_checkpoints(output)] == [10]
    remove_stale(output, ONE, after=-1)
    assert list_checkpoints(output) == []


def test_locks_that_a_killed_run_left_are_removed(tmp_path):
    left = ("run.h5-1810104321-1825.lock", "run.checkpoint.000000000040.h5.tmp-7-18.lock")
    others = ("run.h5.lock", "other.h5-1810104321-1825.lock", "run.h5-x.lock")
    for name in (*left, *others):
        (tmp_path / name).write_text("")
    remove_locks(tmp_path / "run.h5", ONE)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


def test_reading_what_does_not_fit_is_told(tmp_path):
    path = write(tmp_path / "run.h5", grid_of((7, 13)), 10)
    for problem, arguments in (
        ("no array 'w'; it holds u, previous_u", ([(0, 7), (0, 13)], ONE, ["w"])),
        (r"shape \(7, 13\)", ([(0, 8), (0, 13)], ONE)),
        (r"shape \(7, 13\)", ([(0, 7)], ONE)),
    ):
        with pytest.raises(InputError, match=problem):
            read_checkpoint(path, *arguments)
    with pytest.raises(InputError, match="no such file"):
        read_checkpoint(tmp_path / "none.h5", [(0, 7)], ONE)


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


def test_outputs_with_other_endings_have_files_of_their_own(tmp_path):
    """A new run of one keeps the checkpoints of the other."""
    outputs = [tmp_path / name for name in ("run.h5", "run.nc", "run")]
    assert [xdmf_path(output).name for output in outputs] == ["run.xdmf", "run.nc.output.xdmf", "run.output.xdmf"]
    for output in outputs:
        checkpoint_path(output, 7).touch()
    for output in outputs[1:]:
        remove_stale(output, ONE, after=-1)
        assert not list_checkpoints(output)
    assert [path.name for path in list_checkpoints(outputs[0])] == ["run.checkpoint.000000000007.h5"]
