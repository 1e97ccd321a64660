"""Disks, folders, calls and clocks that fail under a run: it is told in one sentence, and nothing is lost.

Every case ends alike: the status, one sentence, the output sound up to its last snapshot, the newest checkpoint sound,
and a resumed run that equals one that was never interrupted.
"""

import itertools
import os
import re
import signal
import time

import h5py
import numpy as np
import pytest
from commands import INPUT, ended, hpcstencil, started, wait_until
from faults import failing, fill, library, mount, remount, small_disk

from hpcstencil.checkpoint import verify
from hpcstencil.checkpoint_names import list_checkpoints, step_of
from hpcstencil.hdf5_read import open_for_reading
from hpcstencil.parallel import OneProcess

pytestmark = pytest.mark.e2e
# A snapshot every 10 steps and a checkpoint every 30: much of the time goes into writing.
BUSY = ("--set", "output.every=1.0", "--set", "checkpoint.every_steps=30")
FOREVER = (*BUSY, "--set", "time.end=1e5")
PERIOD = 7.0  # snapshots, diagnostics and the end fall together at its multiples: runs of any length can be compared
SERIES = ("u", "v", "time", "step")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A run without faults that reaches at least a given time; made anew when a longer one is asked for."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    (folder / "input.toml").write_text(INPUT)
    reached = []

    def of(end):
        if not reached or reached[-1] < end:
            reached.append(max(20 * PERIOD, 2 * end))
            rare = ("--set", "checkpoint.every_steps=1000000")
            end = ("--set", f"time.end={reached[-1]}")
            hpcstencil(0, "run", "input.toml", "--overwrite", *BUSY, *rare, *end, folder=folder)
        return folder / "run.h5"

    return of


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "input.toml").write_text(INPUT)
    return tmp_path


def busy(processes, folder, *more, output="run.h5", **environment):
    """A run without an end that has written two checkpoints."""
    run = started(processes, "run", "input.toml", *FOREVER, *more, "--output", output, folder=folder, **environment)
    wait_until(lambda: len(list_checkpoints(folder / output)) > 1, run)
    return run


def told_once(told):
    """The one sentence of the run; progress and warnings do not count."""
    said = [line for line in told.splitlines() if line.startswith("hpcstencil: ") and "warning" not in line]
    assert len(said) == 1 and "Traceback" not in told, told
    return said[0]


def sound(output, every=10):
    """The output is sound up to its last snapshot, and its newest checkpoint too; returns the number of snapshots."""
    before = hpcstencil(0, "info", output.name, folder=output.parent).stdout
    assert "all finite" in before and re.search(r"sound +(yes|no: A change to the file was begun)", before), before
    info = hpcstencil(0, "info", "--repair", output.name, folder=output.parent).stdout
    assert "all finite" in info and re.search(r"sound +yes", info), info
    assert re.findall("snapshots.*", info) == re.findall("snapshots.*", before)
    verify(list_checkpoints(output)[0], OneProcess())
    with open_for_reading(output) as file:
        steps = file["step"][()].tolist()
    assert steps == list(range(0, every * len(steps), every))
    return len(steps)


def resumes(output, uninterrupted, folder, processes=1, *more):
    """Go on for a while; what is then in the file is what an uninterrupted run has written."""
    end = PERIOD * (step_of(list_checkpoints(output)[0]) // (10 * PERIOD) + 2)
    more = (*BUSY, *more, "--set", f"time.end={end}", "--output", output)
    hpcstencil(processes, "run", "input.toml", "--resume", *more, folder=folder)
    with h5py.File(output) as file, h5py.File(uninterrupted(end)) as whole:
        assert file.attrs["complete"] == 1 and file["time"][-1] == end
        for name in SERIES:
            if name in file:
                assert np.array_equal(file[name][()], whole[name][: len(file["time"])]), name
        rows = len(file["diagnostics/time"])
        for name in file["diagnostics"]:
            assert np.array_equal(file["diagnostics"][name][()], whole["diagnostics"][name][:rows]), name
    left = [name for name in os.listdir(output.parent) if re.search(r"journal|tmp|lock", name)]
    assert not left


# ---- full disks --------------------------------------------------------------------------------------------------------

WAYS = [(0, "serial"), (2, "mpio"), (2, "serial"), (2, "per_process")]
COMMON = {("the output", 0, "gzip"), ("somebody else", 2, "none")}  # the rest is for the long suite


def every_way():
    for by, (processes, method), compression in itertools.product(
        ("the output", "somebody else"), WAYS, ("none", "gzip")
    ):
        common = (by, processes, compression) in COMMON and method != "per_process"
        yield pytest.param(by, processes, method, compression, marks=() if common else pytest.mark.long)


def written_by(method, compression):
    return "--set", f"output.method={method}", "--set", f"output.compression={compression}"


@pytest.mark.parametrize("by, processes, method, compression", list(every_way()))
def test_a_disk_that_is_filled_up(folder, uninterrupted, by, processes, method, compression):
    way = written_by(method, compression)
    with small_disk(folder / "disk", 3) as disk:
        run = busy(processes, folder, *way, output="disk/run.h5")
        if by == "somebody else":
            wait_until((disk / "run.h5.journal").exists, run)  # amid a change, mostly
            fill(disk)
        status, told = ended(run, folder, within=60)
        assert status == 4 and "No space left" in told_once(told), told
        remount(disk, "size=64m")
        sound(disk / "run.h5")
        resumes(disk / "run.h5", uninterrupted, folder, 3 - max(processes, 1), *way)


@pytest.mark.parametrize(
    "processes, method", [(0, "serial"), *(pytest.param(*way, marks=pytest.mark.long) for way in WAYS[1:])]
)
def test_a_disk_that_checkpoints_fill_up(folder, uninterrupted, processes, method):
    few = ("--set", "output.every=70.0", "--set", f"output.method={method}", "--output", "disk/run.h5")
    many = ("--set", "checkpoint.keep=1000", "--set", "diagnostics.every_steps=700")
    with small_disk(folder / "disk", 3) as disk:
        run = busy(processes, folder, *few, *many, output="disk/run.h5")
        status, told = ended(run, folder, within=60)
        assert status == 4 and "No space left" in told_once(told), told
        assert ".checkpoint." in told, told
        remount(disk, "size=64m")
        sound(disk / "run.h5", 700)
        whole = uninterrupted(280.0)
        hpcstencil(
            2,
            "run",
            "input.toml",
            "--resume",
            *BUSY,
            *few,
            "--set",
            "time.end=280.0",
            "--output",
            "disk/run.h5",
            folder=folder,
        )
        with h5py.File(disk / "run.h5") as file, h5py.File(whole) as expected:
            for name in SERIES:
                assert np.array_equal(file[name][()], expected[name][0:281:70]), name


# ---- folders and calls -------------------------------------------------------------------------------------------------


def test_a_disk_that_becomes_read_only(folder, uninterrupted):
    with small_disk(folder / "disk", 64) as disk:
        run = busy(2, folder, output="disk/run.h5")
        remount_when_idle(run, disk)
        status, told = ended(run, folder, within=60)
        assert status == 4 and ("Read-only" in told_once(told) or "disk/run" in told_once(told)), told
        remount(disk, "rw")
        sound(disk / "run.h5")
        resumes(disk / "run.h5", uninterrupted, folder)


def remount_when_idle(run, disk):
    """A file system with files open for writing cannot be made read-only in the usual way; its mount can."""
    assert mount("--bind", str(disk), str(disk)).returncode == 0
    assert mount("-o", "remount,bind,ro", str(disk)).returncode == 0


WRITES = [
    ("/run.h5", "write", 2, "mpio"),
    (".checkpoint.", "write fsync", 2, "mpio"),
    pytest.param("run.h5", "write", 0, "serial", marks=pytest.mark.long),
    pytest.param("run.h5.journal", "fsync", 2, "serial", marks=pytest.mark.long),
]


@pytest.mark.parametrize("name, calls, processes, method", WRITES)
def test_calls_that_fail_with_eio(folder, uninterrupted, name, calls, processes, method):
    run = busy(processes, folder, "--set", f"output.method={method}", **failing(folder, name, calls))
    (folder / "broken").touch()
    status, told = ended(run, folder, within=60)
    assert status == 4 and "run." in told_once(told), told
    sound(folder / "run.h5")
    resumes(folder / "run.h5", uninterrupted, folder)


def test_the_wall_clock_may_jump(folder, uninterrupted):
    jump = folder / "jump"
    clock = {"LD_PRELOAD": str(library(folder)), "CLOCK_JUMP": str(jump)}
    run = busy(2, folder, "--set", "checkpoint.walltime=00:10:00", **clock)
    for seconds in (86400, -86400, 0):
        jump.write_text(str(seconds))
        newest = list_checkpoints(folder / "run.h5")[0]
        wait_until(lambda newest=newest: list_checkpoints(folder / "run.h5")[0] > newest, run)
        time.sleep(1)
    run.send_signal(signal.SIGUSR1)
    status, told = ended(run, folder, within=30)
    assert status == 75 and "SIGUSR1" in told
    resumes(folder / "run.h5", uninterrupted, folder)


# ---- signals at any time, and what cannot be resumed -------------------------------------------------------------------


@pytest.mark.parametrize(
    "seconds", [1.7, *(pytest.param(seconds, marks=pytest.mark.long) for seconds in (1.0, 2.5, 4.0))]
)
def test_a_signal_at_any_time_is_obeyed(folder, seconds):
    """While packages are loaded, while the program is compiled, while it runs."""
    run = started(0, "run", "input.toml", *FOREVER, folder=folder)
    time.sleep(seconds)
    run.send_signal(signal.SIGUSR1)
    status, told = ended(run, folder, within=60)
    assert status == 75 and "stopped by SIGUSR1 at step" in told_once(told), told
    assert list_checkpoints(folder / "run.h5")


def test_nothing_is_begun_anew_over_damaged_checkpoints(folder):
    hpcstencil(0, "run", "input.toml", "--set", "time.end=9.0", folder=folder)
    with h5py.File(folder / "run.h5", "r+") as file:
        file.attrs["complete"] = 0
    for path in list_checkpoints(folder / "run.h5"):
        os.truncate(path, path.stat().st_size // 2)
    before = (folder / "run.h5").read_bytes()
    result = hpcstencil(2, "run", "input.toml", "--resume", folder=folder, status=2)
    assert "none of its checkpoints is sound" in result.stderr and "--overwrite" in result.stderr
    assert (folder / "run.h5").read_bytes() == before


def test_an_end_before_the_checkpoint_is_told(folder):
    hpcstencil(0, "run", "input.toml", "--set", "time.end=9.0", folder=folder)
    with h5py.File(folder / "run.h5", "r+") as file:
        file.attrs["complete"] = 0
    result = hpcstencil(0, "run", "input.toml", "--resume", "--set", "time.end=2.0", folder=folder, status=2)
    assert "time.end" in result.stderr and "t = 8" in result.stderr
