"""The command as a user starts it, for the tests that do; an input for it, and what its output files hold."""

import fcntl
import io
import os
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from textwrap import dedent

import h5py

INPUT = """
title = "end to end"
[grid]
shape = [61, 47]
upper = [6.1, 4.7]
[equation]
name = "gray_scott"
D_u = 0.02
D_v = 0.01
[initial]
u = "1 - 0.5*exp(-4*(x - 3)**2 - 4*(y - 2)**2)"
v = "0.25*exp(-4*(x - 3)**2 - 4*(y - 2)**2) + 0.01*noise(3)"
[boundary]
y = { lower = { dirichlet = "0.1*sin(t)" }, upper = { neumann = 0.0 } }
[time]
end = 12.0
dt = 0.1
[output]
path = "run.h5"
every = 2.0
[output.units]
u = "mol"
[diagnostics]
every_steps = 7
mass = "integral(u + v)"
[probes.line]
field = "u"
x = [0.5, 2.04, 3.07, 5.95]
y = [2.36, 2.36, 2.39, 0.01]
[probes.corner]
field = "v"
x = 6.1
y = 4.7
every_steps = 3
[checkpoint]
every_steps = 40
"""
ENVIRONMENT = {
    **os.environ,
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "PYTHONFAULTHANDLER": "1",  # a process that crashes shows its stacks
}
ENVIRONMENT.pop("XLA_FLAGS", None)


def line(processes, *arguments):
    launcher = [] if processes == 0 else [os.environ.get("MPIEXEC", "mpirun"), "-n", str(processes)]
    return [*launcher, sys.executable, "-m", "hpcstencil", *map(str, arguments)]


def hpcstencil(processes, *arguments, folder, status=0, **environment):
    """Run the command (0 processes: without mpirun) and return its result; the status must be as expected."""
    result = subprocess.run(
        line(processes, *arguments),
        cwd=folder,
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == status, result.stdout + result.stderr
    return result


def python(folder, script, processes=0, status=0, **environment):
    """Run a script (0 processes: without mpirun); its result, whose status must be as expected."""
    (folder / "script.py").write_text(dedent(script))
    launcher = [] if processes == 0 else [os.environ.get("MPIEXEC", "mpirun"), "-n", str(processes)]
    result = subprocess.run(
        [*launcher, sys.executable, "script.py"],
        cwd=folder,
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == status, result.stdout + result.stderr
    return result


def here(*arguments):
    """What a command that needs neither jax nor MPI prints; it runs in this process, since each start takes a second."""
    from hpcstencil.cli import cli

    with redirect_stdout(io.StringIO()) as told:
        assert not cli([*map(str, arguments)], standalone_mode=False)
    return told.getvalue()


def started(processes, *arguments, folder, **environment):
    """The command, running; its messages go to ``folder``/told."""
    with (folder / "told").open("w") as told:
        return subprocess.Popen(
            line(processes, *arguments), cwd=folder, env={**ENVIRONMENT, **environment}, stdout=told, stderr=told
        )


def ended(run, folder, within):
    """(status, messages) of a started command. Fails if it does not end by itself ``within`` that many seconds.

    After a kill, mpirun may end before its last rank. So this also waits until the outputs are unlocked, at most 10 s.
    """
    try:
        run.wait(timeout=within)
    except subprocess.TimeoutExpired:
        run.kill()
        raise AssertionError(f"still running after {within} s\n" + (folder / "told").read_text()) from None
    deadline = time.monotonic() + 10
    while not all(map(is_free, folder.glob("*.lock"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return run.returncode, (folder / "told").read_text()


def is_free(lock):
    """Whether no process holds the lock file."""
    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    return True


def ranks(run):
    """The process numbers of a started command's ranks, in order; of the command itself without mpirun."""
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    return sorted(map(int, children)) or [run.pid]


def wait_until(condition, run, seconds=120):
    """Wait for something that a started command does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert run.poll() is None and time.monotonic() < deadline, f"ended or late: {run.poll()}"
        time.sleep(0.01)


def contents(path):
    """Every dataset of an output file, and whether its run is complete."""
    found = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
        return found, file.attrs["complete"]


def assert_same(one, other):
    """Two runs of an INPUT are complete and hold the same, bit for bit."""
    (a, complete_a), (b, complete_b) = contents(one), contents(other)
    assert complete_a == complete_b == 1
    assert a.keys() == b.keys() and {"u", "v", "time", "step", "diagnostics/mass"} <= a.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype and a[name].tobytes() == b[name].tobytes(), name


def uninterrupted(folder, settings, end):
    """Returns a function: the output of a run of INPUT on one process that goes on at least to a given time, ``end`` at
    first; it is run anew when a later time is asked for."""
    (folder / "input.toml").write_text(INPUT)
    reached = []

    def of(time):
        if not reached or reached[-1] < time:
            reached.append(max(end, 2 * time))
            rare = ("--set", "checkpoint.every_steps=1000000", "--set", f"time.end={reached[-1]}")
            hpcstencil(0, "run", "input.toml", "--overwrite", *settings, *rare, folder=folder)
        return folder / "run.h5"

    return of


def assert_same_so_far(one, whole):
    """A complete run holds the same, bit for bit, as a longer one does until then."""
    with h5py.File(one) as file, h5py.File(whole) as longer:
        assert file.attrs["complete"] == 1
        groups = [file[name] for name in ("diagnostics", "probes/line", "probes/corner")]
        for group, names in ((file, ("u", "v", "time", "step")), *((each, tuple(each)) for each in groups)):
            for name in names:
                expected = longer[group[name].name][: len(group["time"])]
                assert group[name].dtype == expected.dtype and group[name][()].tobytes() == expected.tobytes(), name
