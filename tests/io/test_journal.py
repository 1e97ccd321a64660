"""The output of a run that was killed: every committed snapshot is there, however the kill fell."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from output_files import append, everything, field, grid_of, write_snapshots, written

from hpcstencil.checkpoint.repair import repaired
from hpcstencil.io import rollback_journal
from hpcstencil.io.file_read import inspect, open_for_reading, read_block
from hpcstencil.io.file_spans import SettledSpans
from hpcstencil.io.hdf5_access import open_alone
from hpcstencil.io.output_lock import claimed
from hpcstencil.io.rollback_journal import complement, journal_path, living_writer, merged, roll_back
from hpcstencil.runtime.communicator import OneProcess
from hpcstencil.validation.errors import EnvironmentProblem, InputError

DYING = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import h5py
from output_files import create, grid_of, write_snapshots
from hpcstencil.io import rollback_journal
grid = grid_of({shape})
output = create(Path({path!r}), grid, compression={compression!r})

def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

def journal_and_die(path, untouched, begin=rollback_journal.begin):
    begin(path, untouched)
    die()

def flush_and_die(file, flush=h5py.File.flush):
    flush(file)
    die()

for index in range(10**6):
    if index == {last}:
        {fate}
        with output.change(10**4):
            write_snapshots(output, grid, [index])
        sys.exit("alive")
    write_snapshots(output, grid, [index])
    os.write(1, b"%d\\n" % (index + 1))
"""


def dying(path: Path, compression: str, shape: tuple[int, ...], last: int = -1, fate: str = "pass") -> str:
    """A program that writes snapshots for ever, or meets its fate while it writes number ``last``."""
    tests = str(Path(__file__).parents[1])
    return DYING.format(tests=tests, path=str(path), compression=compression, shape=shape, last=last, fate=fate)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def killed(path: Path, compression: str, snapshots: int, shape=(40, 60, 50)) -> int:
    """Write snapshots until that many are committed, and be killed soon after; returns how many were committed."""
    script = dying(path, compression, shape)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment()) as child:
        told = [child.stdout.readline() for _ in range(snapshots)]
        time.sleep(random.uniform(0, 0.02))
        child.send_signal(signal.SIGKILL)
        told += child.stdout.readlines()
    return int(told[-1])


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("snapshots", [1, 4])
def test_killed_run_leaves_its_committed_snapshots(tmp_path, compression, snapshots):
    xarray = pytest.importorskip("xarray")
    path = tmp_path / "run.h5"
    committed = killed(path, compression, snapshots)
    grid = grid_of((40, 60, 50))
    contents = inspect(path)
    assert not contents.complete
    assert len(contents.steps) >= committed >= snapshots
    assert np.array_equal(read_block(path, "u", everything(grid)), field(grid, len(contents.steps) - 1))
    roll_back(path)
    assert inspect(path) == contents
    with h5py.File(path) as file:
        for index in range(len(contents.steps)):
            assert file["step"][index] == 10 * index
            assert np.array_equal(file["u"][index], field(grid, index))
    with xarray.open_dataset(path, engine="h5netcdf") as data:
        assert data["time"].values[:committed].tolist() == list(range(committed))
    output = append(path, grid, contents.step)
    write_snapshots(output, grid, [len(contents.steps)])
    output.close(True)
    assert inspect(path).steps == tuple(range(0, 10 * len(contents.steps) + 1, 10))


FATES = {
    "before the first byte": "rollback_journal.begin = journal_and_die",
    "between values and series": "h5py.File.flush = flush_and_die",
    "after the last byte": "rollback_journal.commit = die",
}


@pytest.mark.parametrize("compression", ("none", "gzip"))
@pytest.mark.parametrize("fate", FATES)
def test_a_change_is_undone_if_its_writer_dies(tmp_path, fate, compression):
    path, grid = tmp_path / "run.h5", grid_of((4, 3))
    script = dying(path, compression, grid.shape, 3, FATES[fate])
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment())
    assert done.returncode == -signal.SIGKILL and done.stdout.split()[-1] == b"3"
    before = inspect(path)
    assert roll_back(path) and inspect(path) == before
    assert before.steps == (0, 10, 20)
    with h5py.File(path) as file:
        assert [np.array_equal(u, field(grid, index)) for index, u in enumerate(file["u"])] == [True] * 3
        assert [len(file[name]) for name in ("time", "step", "v", "diagnostics/mass")] == [3, 3, 3, 6]


def check_killed_amid_changes(path: Path, kills: int) -> int:
    """How many of the kills hit a change. Snapshots of few cells: nearly all of the time goes into changing the file."""
    unfinished = 0
    for kill in range(kills):
        committed = killed(path, ("none", "gzip")[kill % 2], 1 + kill % 7, (4, 3))
        contents = inspect(path)
        assert len(contents.steps) >= committed
        unfinished += roll_back(path)
        with h5py.File(path) as file:
            for index in range(len(file["time"])):
                assert np.array_equal(file["u"][index], field(grid_of((4, 3)), index))
    print(f"kills {kills}, amid a change {unfinished}, snapshots lost 0")
    return unfinished


def test_killed_amid_changes(tmp_path):
    check_killed_amid_changes(tmp_path / "run.h5", 6)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_killed_amid_changes_many_times(tmp_path):
    assert check_killed_amid_changes(tmp_path / "run.h5", 300) > 300 / 20


def settled_in(path):
    found = SettledSpans()
    with open_alone(path, "r") as file:
        found.find(file)
    return found.spans


def test_a_change_may_be_cut_anywhere(tmp_path):
    """Whatever bytes of the file a change has reached, and in whatever order, undoing it gives back the file."""
    grid = grid_of((7, 13))
    path = written(tmp_path / "run.h5", grid, complete=False)
    before = path.read_bytes()
    settled = settled_in(path)
    rollback_journal.begin(path, settled)
    with open_alone(path, "r+") as file:
        for name in ("u", "v", "time", "step"):
            file[name].resize(4, 0)
            file[name][3] = 5
        file.attrs["complete"] = 1
    after = path.read_bytes()
    kept = journal_path(path).read_bytes()
    reached = max(stop for _, stop in settled)
    rng = np.random.default_rng(2)
    for _ in range(50):
        mixed = bytearray(after[: rng.integers(reached, len(after))])
        for _ in range(5):  # pages that have not been written yet
            start = int(rng.integers(0, len(before)))
            mixed[start : start + 512] = before[start : start + 512]
        path.write_bytes(mixed)
        journal_path(path).write_bytes(kept)
        with open_for_reading(path) as file:
            assert file["time"].shape == (3,) and np.array_equal(file["u"][2], field(grid, 2))
        assert path.read_bytes() == mixed
        assert roll_back(path)
        assert path.read_bytes() == before and not journal_path(path).exists()


def test_spans():
    assert merged([(5, 7), (0, 2), (2, 3), (6, 9)]) == [(0, 3), (5, 9)]
    assert complement([(5, 7), (0, 2), (6, 9)], 12) == [(2, 5), (9, 12)]
    assert complement([(0, 12)], 12) == complement([(0, 20)], 12) == []
    assert complement([], 3) == [(0, 3)]


def test_a_damaged_journal_is_not_believed(tmp_path):
    path = written(tmp_path / "run.h5", grid_of((4, 3)), complete=False)
    before = path.read_bytes()
    rollback_journal.begin(path, [])
    content = bytearray(journal_path(path).read_bytes())
    content[-1] ^= 1
    journal_path(path).write_bytes(content)
    assert rollback_journal.pending(path) is None and not roll_back(path)
    assert path.read_bytes() == before


def test_space_that_a_cut_leaves_is_not_kept_in_journals(tmp_path):
    """Values that a resumed run has cut would otherwise be copied before every change that follows."""
    grid = grid_of((64, 64, 64))
    path = written(tmp_path / "run.h5", grid, snapshots=4, complete=False)
    output = append(path, grid, 0)
    with output.change(0):
        assert journal_path(path).stat().st_size < 10**5 < 2 * 4 * grid.cells
    write_snapshots(output, grid, range(1, 3))
    output.close(True)
    assert not journal_path(path).exists()
    with h5py.File(path) as file:
        for index in range(3):
            assert np.array_equal(file["u"][index], field(grid, index))


def test_repair_waits_for_the_writer(tmp_path, monkeypatch):
    path = written(tmp_path / "run.h5", grid_of((4, 3)), complete=False)
    assert repaired(path) == ["nothing to repair"]
    rollback_journal.begin(path, [])
    monkeypatch.setattr("hpcstencil.checkpoint.repair.living_writer", lambda path: living_writer(path, patience=0.1))
    with pytest.raises(InputError, match=f"process {os.getpid()} of this host is writing it"):
        repaired(path)
    assert journal_path(path).exists()


@pytest.mark.parametrize("place", ["within a change, on another host", "between two changes"])
def test_repair_leaves_the_files_of_a_live_run_alone(place, tmp_path, monkeypatch):
    path = written(tmp_path / "run.h5", grid_of((4, 3)), complete=False)
    if place != "between two changes":
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr("socket.gethostname", lambda: "another")
            rollback_journal.begin(path, [])
    half = tmp_path / "run.checkpoint.000000000010.h5.tmp"
    half.write_bytes(b"unfinished")
    with claimed([path], OneProcess()):
        before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
        words = rf"another run is writing it \(process {os.getpid()} on .*\); wait for its end before you repair it"
        with pytest.raises(EnvironmentProblem, match=words):
            repaired(path)
        assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    repaired(path)
    assert sorted(os.listdir(tmp_path)) == ["run.h5", "run.xdmf"]
