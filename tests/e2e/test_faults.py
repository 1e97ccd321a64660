"""Disks, folders, calls and clocks that fail under a run: it is told in one sentence, and nothing is lost.

Every case ends alike: the status, one sentence, the output sound up to its last snapshot, the newest checkpoint sound,
and a resumed run that equals one that was never interrupted.
"""

import errno
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from commands import (
    ENVIRONMENT,
    INPUT,
    assert_same_so_far,
    ended,
    here,
    hpcstencil,
    python,
    ranks,
    started,
    uninterrupted,
    wait_until,
)
from faults import failing, family, fill, library, mount, remount, small_disk
from output_files import field, grid_of

from hpcstencil.checkpoint.checkpoint import verify
from hpcstencil.checkpoint.paths import list_checkpoints, step_of
from hpcstencil.io.file_read import inspect, open_for_reading
from hpcstencil.runtime.communicator import OneProcess

pytestmark = pytest.mark.e2e
# A snapshot every 10 steps and a checkpoint every 30: much of the time goes into writing.
BUSY = ("--set", "output.every=1.0", "--set", "checkpoint.every_steps=30")
FOREVER = (*BUSY, "--set", "time.end=1e5")
PERIOD = 7.0  # snapshots, diagnostics and the end fall together at its multiples: runs of any length can be compared
SERIES = ("u", "v", "time", "step")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run without faults that reaches at least a given time."""
    return uninterrupted(tmp_path_factory.mktemp("uninterrupted"), BUSY, 40 * PERIOD)


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
    before = here("info", output)
    assert "all finite" in before and re.search(r"sound +(yes|no: A change to the file is unfinished)", before), before
    info = here("info", "--repair", output)
    assert "all finite" in info and re.search(r"sound +yes", info), info
    assert re.findall("snapshots.*", info) == re.findall("snapshots.*", before)
    verify(list_checkpoints(output)[0], OneProcess())
    with open_for_reading(output) as file:
        steps = file["step"][()].tolist()
    assert steps == list(range(0, every * len(steps), every))
    return len(steps)


def resumes(output, whole, folder, processes=1, *more):
    """Go on for a while; what is then in the file is what an uninterrupted run has written."""
    end = PERIOD * (step_of(list_checkpoints(output)[0]) // (10 * PERIOD) + 2)
    more = (*BUSY, *more, "--set", f"time.end={end}", "--output", output)
    hpcstencil(processes, "run", "input.toml", "--resume", *more, folder=folder)
    assert_same_so_far(output, whole(end))
    with h5py.File(output) as file:
        assert file["time"][-1] == end
    left = [name for name in os.listdir(output.parent) if re.search(r"journal|tmp|lock", name)]
    assert not left


# ---- full disks --------------------------------------------------------------------------------------------------------

WAYS = [(0, "serial"), (2, "direct"), (2, "mpio"), (2, "serial"), (2, "per_process")]
# The rest is for the long suite: one process writes as one of two does, and a call of MPI-IO fails below.
COMMON = {("the output", 0, "serial", "gzip"), ("somebody else", 2, "direct", "none")}


def every_way():
    for by, (processes, method), compression in itertools.product(
        ("the output", "somebody else"), WAYS, ("none", "gzip")
    ):
        common = (by, processes, method, compression) in COMMON
        yield pytest.param(by, processes, method, compression, marks=() if common else pytest.mark.long)


def written_by(method, compression):
    return "--set", f"output.method={method}", "--set", f"output.compression={compression}"


@pytest.mark.parametrize("by, processes, method, compression", list(every_way()))
def test_a_disk_that_is_filled_up(folder, whole, by, processes, method, compression):
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
        resumes(disk / "run.h5", whole, folder, 3 - max(processes, 1), *way)


@pytest.mark.parametrize(
    "processes, method", [(0, "serial"), *(pytest.param(*way, marks=pytest.mark.long) for way in WAYS[1:])]
)
def test_a_disk_that_checkpoints_fill_up(folder, whole, processes, method):
    # Between two snapshots checkpoints take 1.6 MB: at the first there is room for its change, and at the second none is left.
    few = ("--set", "output.every=91.0", "--set", f"output.method={method}", "--output", "disk/run.h5")
    few = (*few, "--set", "probes={}")  # whose rows checkpoints would write into the output
    often = ("--set", "checkpoint.every_steps=20", "--set", "checkpoint.keep=1000")
    many = (*often, "--set", "diagnostics.every_steps=910")
    with small_disk(folder / "disk", 3) as disk:
        run = busy(processes, folder, *few, *many, output="disk/run.h5")
        status, told = ended(run, folder, within=60)
        assert status == 4 and "No space left" in told_once(told), told
        assert ".checkpoint." in told, told
        remount(disk, "size=64m")
        sound(disk / "run.h5", 910)
        hpcstencil(
            2,
            "run",
            "input.toml",
            "--resume",
            *BUSY,
            *few,
            "--set",
            "time.end=273.0",
            "--output",
            "disk/run.h5",
            folder=folder,
        )
        with h5py.File(disk / "run.h5") as file, h5py.File(whole(273.0)) as expected:
            for name in SERIES:
                assert np.array_equal(file[name][()], expected[name][0:274:91]), name


# ---- folders and calls -------------------------------------------------------------------------------------------------


def test_a_disk_that_becomes_read_only(folder, whole):
    with small_disk(folder / "disk", 64) as disk:
        run = busy(2, folder, output="disk/run.h5")
        remount_when_idle(run, disk)
        status, told = ended(run, folder, within=60)
        assert status == 4 and ("Read-only" in told_once(told) or "disk/run" in told_once(told)), told
        remount(disk, "rw")
        sound(disk / "run.h5")
        resumes(disk / "run.h5", whole, folder)


def remount_when_idle(run, disk):
    """A file system with files open for writing cannot be made read-only in the usual way; its mount can."""
    assert mount("--bind", str(disk), str(disk)).returncode == 0
    assert mount("-o", "remount,bind,ro", str(disk)).returncode == 0


WRITES = [
    ("/run.h5", "write", 2, "direct"),
    ("/run.h5", "write", 2, "mpio"),
    (".checkpoint.", "write fsync", 2, "mpio"),
    pytest.param("run.h5", "write", 0, "serial", marks=pytest.mark.long),
    pytest.param("run.h5.journal", "fsync", 2, "serial", marks=pytest.mark.long),
]


@pytest.mark.parametrize("name, calls, processes, method", WRITES)
def test_calls_that_fail_with_eio(folder, whole, name, calls, processes, method):
    run = busy(processes, folder, "--set", f"output.method={method}", **failing(folder, name, calls))
    (folder / "broken").touch()
    status, told = ended(run, folder, within=60)
    assert status == 4 and "run." in told_once(told), told
    sound(folder / "run.h5")
    resumes(folder / "run.h5", whole, folder)


def test_the_wall_clock_may_jump(folder, whole):
    jump = folder / "jump"
    clock = {"LD_PRELOAD": str(library(folder)), "CLOCK_JUMP": str(jump)}
    run = busy(2, folder, "--set", "checkpoint.walltime=00:10:00", **clock)
    for seconds in (86400, -86400, 0):
        jump.write_text(str(seconds))
        for _ in range(2):
            newest = list_checkpoints(folder / "run.h5")[0]
            wait_until(lambda newest=newest: list_checkpoints(folder / "run.h5")[0] > newest, run)
    run.send_signal(signal.SIGUSR1)
    status, told = ended(run, folder, within=30)
    assert status == 75 and "SIGUSR1" in told
    resumes(folder / "run.h5", whole, folder)


WRITING = """
import os, sys, traceback
sys.path.insert(0, {tests!r})
from pathlib import Path
from output_files import create, grid_of, write_snapshots
from hpcstencil.validation.errors import EnvironmentProblem

def write(spare):
    os.chdir(spare)
    os.environ.update(FAULT_SPARE=spare, FAULT_FLAG=os.path.abspath("broken"))
    grid = grid_of((4, 3))
    output = create(Path("run.h5"), grid, compression={compression!r})
    Path("broken").touch()
    try:
        for index in range(40):
            write_snapshots(output, grid, [index])
            print(spare, index + 1, flush=True)
        output.close(True)
    except EnvironmentProblem as error:
        assert "No space left" in str(error) or "Input/output error" in str(error), error
        return 4
    return 0

for spare in sys.argv[1:]:  # each in a process of its own, which has imported all
    os.mkdir(spare)
    child = os.fork()
    if child == 0:
        try:
            os._exit(write(spare))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4, spare
"""


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("calls, error", [("write", errno.ENOSPC), ("fsync truncate", errno.EIO)])
def test_any_one_call_may_fail(tmp_path, compression, calls, error):
    """Whichever of the calls that change the file fails, the file holds what it says to hold."""
    script = WRITING.format(tests=str(Path(__file__).parent.parent), compression=compression)
    environment = {**ENVIRONMENT, **failing(tmp_path, "run.h5", calls, error), "FAULT_TIMES": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    spared = [*range(3), *random.Random(3).sample(range(3, 80), 5)]
    command = [sys.executable, "-c", script, *map(str, spared)]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == 0 and run.stderr == "", run.stderr
    grid = grid_of((4, 3))
    written = [line.split()[0] for line in run.stdout.splitlines()]
    for spare in spared:
        output = tmp_path / str(spare) / "run.h5"
        steps = inspect(output).steps
        assert len(steps) >= written.count(str(spare))
        with open_for_reading(output) as file:
            for index in range(len(steps)):
                assert np.array_equal(file["u"][index], field(grid, index)), (spare, index)


# ---- somebody else's hands ---------------------------------------------------------------------------------------------


def between_changes(run, output, action):
    """Do something to the output while the run stands still and has begun no change of it: that would go on as it may."""
    rank = ranks(run)[0]
    while True:
        os.kill(rank, signal.SIGSTOP)
        try:
            if not list(output.parent.glob(f"{output.name}.journal*")):
                return action()
        finally:
            os.kill(rank, signal.SIGCONT)
        time.sleep(0.01)


@pytest.mark.parametrize("processes", [0, pytest.param(2, marks=pytest.mark.long)])
def test_an_output_that_somebody_cuts(folder, processes):
    run = busy(processes, folder)
    between_changes(run, folder / "run.h5", lambda: os.truncate(folder / "run.h5", 1000))
    status, told = ended(run, folder, within=30)
    assert status == 4 and "was cut or changed" in told_once(told), told
    assert (folder / "run.h5").stat().st_size == 1000  # and is left for somebody to look at
    verify(list_checkpoints(folder / "run.h5")[0], OneProcess())


def test_one_run_at_a_time_writes_an_output(folder, whole):
    run = busy(2, folder)
    (folder / "link.h5").symlink_to(folder / "run.h5")
    for more in (("--resume", *FOREVER), ("--overwrite", "--output", "link.h5")):
        result = hpcstencil(0, "run", "input.toml", *more, folder=folder, status=4)
        assert "another run is writing it (process" in result.stderr and result.stderr.count("hpcstencil: ") == 1
    os.kill(ranks(run)[0], signal.SIGKILL)  # which leaves the lock lying, held by nobody
    ended(run, folder, within=30)
    assert (folder / "run.h5.lock").exists()
    sound(folder / "run.h5")
    resumes(folder / "run.h5", whole, folder)


def test_an_output_may_be_a_link_and_have_a_long_path(folder):
    there = folder.joinpath(*5 * ["a rather long name, with spaces and ünïcödé, for a folder"])
    there.mkdir(parents=True)
    assert len(str(there)) > 256  # Open MPI has room for fewer
    (folder / "link.h5").symlink_to(there / "target.h5")
    short = ("--set", "checkpoint.every_steps=10", "--output", "link.h5", "--quiet")
    hpcstencil(0, "run", "input.toml", *short, "--set", "time.end=4.0", folder=folder)
    hpcstencil(2, "run", "input.toml", *short, "--set", "time.end=6.0", "--resume", folder=folder)
    assert (folder / "link.h5").is_symlink() and os.listdir(there) == ["target.h5"]
    with open_for_reading(folder / "link.h5") as file:
        assert file["time"][-1] == 6.0
    mpio = ("--output", there / "more.h5", "--set", "output.method=mpio")
    result = hpcstencil(2, "run", "input.toml", *mpio, folder=folder, status=4)
    assert "takes paths of at most 200 bytes" in told_once(result.stderr) and not (there / "more.h5").exists()


@pytest.mark.long
def test_a_job_that_is_suspended_goes_on(folder, whole):
    """The whole job, monitors and all, for longer than any of them waits for another."""
    run = busy(2, folder)
    members = family(run.pid)
    for process in members:
        os.kill(process, signal.SIGSTOP)
    time.sleep(30)
    for process in reversed(members):
        os.kill(process, signal.SIGCONT)
    newest = list_checkpoints(folder / "run.h5")[0]
    wait_until(lambda: list_checkpoints(folder / "run.h5")[0] > newest, run)
    time.sleep(5)
    first, second = ranks(run)
    os.kill(first, signal.SIGUSR1)
    os.kill(second, signal.SIGTERM)  # whichever comes first, all stop together, once
    status, told = ended(run, folder, within=30)
    assert status == 75 and "stopped by SIG" in told_once(told), told
    resumes(folder / "run.h5", whole, folder)


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
    begun = (folder / "run.h5").exists()
    assert status == 75 and f"stopped by SIGUSR1 {'at' if begun else 'before the first'} step" in told_once(told), told
    assert bool(list_checkpoints(folder / "run.h5")) == begun


def test_nothing_is_begun_anew_over_damaged_checkpoints(folder, begun):
    shutil.copytree(begun, folder, dirs_exist_ok=True)
    with h5py.File(folder / "run.h5", "r+") as file:
        file.attrs["complete"] = 0
    for path in list_checkpoints(folder / "run.h5"):
        os.truncate(path, path.stat().st_size // 2)
    before = (folder / "run.h5").read_bytes()
    result = hpcstencil(2, "run", "input.toml", "--resume", folder=folder, status=2)
    assert "none of its checkpoints is sound" in result.stderr and "--overwrite" in result.stderr
    assert (folder / "run.h5").read_bytes() == before


def test_an_end_before_the_checkpoint_is_told(folder, begun):
    shutil.copytree(begun, folder, dirs_exist_ok=True)
    with h5py.File(folder / "run.h5", "r+") as file:
        file.attrs["complete"] = 0
    result = hpcstencil(0, "run", "input.toml", "--resume", "--set", "time.end=2.0", folder=folder, status=2)
    assert "time.end" in result.stderr and "t = 8" in result.stderr


def test_a_semaphore_of_somebody_else_with_the_name_of_the_output(folder):
    """Open MPI's for a shared file pointer has that name; a folder cannot be opened as a semaphore even by root."""
    planted = Path("/dev/shm/sem.OMPIO_planted.h5")
    planted.mkdir()
    try:
        hpcstencil(2, "run", "input.toml", "--set", "output.method=mpio", "--output", "planted.h5", folder=folder)
    finally:
        planted.rmdir()
    assert inspect(folder / "planted.h5").complete
    assert not list(folder.glob("*.lock"))


FULL = """
import sys
from pathlib import Path
import h5py
from faults import fill
from hpcstencil.io.hdf5_access import LIBVER
from hpcstencil.io.transports.mpio import Mpio
from hpcstencil.runtime.communicator import connect
from hpcstencil.validation.errors import EnvironmentProblem

communicator, path = connect(), Path("disk/run.h5")
if communicator.rank == 0:
    h5py.File(path, "w", libver=LIBVER).close()
communicator.mpi.Barrier()
Mpio(path, communicator, None).close()
communicator.mpi.Barrier()
if communicator.rank == 0:
    fill(path.parent)
communicator.mpi.Barrier()
try:
    Mpio(path, communicator, None)
except EnvironmentProblem as error:
    sys.stdout.write(f"{error}\\n")
"""


def test_a_file_on_a_full_disk_is_not_opened_by_mpi_io(tmp_path):
    """Open MPI would wait for ever."""
    with small_disk(tmp_path / "disk", 1):
        told = python(tmp_path, FULL, 2, PYTHONPATH=str(Path(__file__).parent)).stdout.splitlines()
    assert len(told) == 2 and all("cannot open disk/run.h5: No space left on device" in line for line in told), told
