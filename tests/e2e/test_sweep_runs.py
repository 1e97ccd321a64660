"""A sweep as a user runs it: five members at once, two of which fail and are repaired; kills; several ranks."""

import csv
import json
import math
import os
import re
import signal
import subprocess
import time

import numpy as np
import pytest
import xarray
from commands import ENVIRONMENT, here, hpcstencil, line

pytestmark = pytest.mark.e2e
INPUT = """
title = "decay of a wave"
[grid]
shape = [32]
upper = [6.283185307179586]
[equation]
name = "heat"
[initial]
u = "sin(x)"
[numerics]
integrator = "euler"
[time]
end = 1.0
dt = 0.01
[diagnostics]
every_steps = 20
wave = "0.5*(max(u) - min(u))"
[checkpoint]
every_steps = 40
"""
# D = 10 and 12 are far beyond the stable step of forward Euler, dt <= dx²/(2D) = 0.0019 and 0.0016: rounding errors grow
# tenfold in each step and leave float32 after some fifty.
SWEEP = """
base = "input.toml"
[parameters]
"equation.D" = [0.1, 0.4, 1.0, 10.0, 12.0]
"""
SLOW = ("--set", "time.end=1e9", "--set", "checkpoint.every_steps=2000", "--set", "diagnostics.every_steps=1000")


def sweep(*arguments, folder, status=0, processes=0, **environment):
    return hpcstencil(processes, "sweep", *arguments, folder=folder, status=status, **environment)


def begin(*arguments, folder, **environment):
    """The command, begun and not waited for."""
    return subprocess.Popen(
        line(0, "sweep", *arguments), cwd=folder, env={**ENVIRONMENT, **environment},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def statuses(folder):
    found = json.loads(here("sweep", "status", folder / "runs", "--json"))
    return [member["state"] for member in found["members"]], found


def until(condition, what):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def amplitude(rate, dt, steps):
    """Forward Euler of the heat equation in space steps dx damps sin(x) by the same factor in each step. The greatest of the
    32 cells lies half a cell beside the crest."""
    dx = 2 * math.pi / 32
    return math.cos(dx / 2) * (1 - dt * rate * (2 - 2 * math.cos(dx)) / dx**2) ** steps


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """The sweep's folder after five array tasks at once."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "input.toml").write_text(INPUT)
    (folder / "sweep.toml").write_text(SWEEP)
    planned = sweep("plan", "sweep.toml", "--dir", "runs", folder=folder)
    assert "--array=0-4 " in planned.stdout and "members 3,4" not in planned.stdout
    assert planned.stderr.count("beyond the stable step") == 2
    tasks = [begin("run", "runs", folder=folder, SLURM_ARRAY_TASK_ID=str(i)) for i in range(5)]
    during, _ = statuses(folder)
    assert set(during) <= {"planned", "running", "done", "failed"}
    sweep("collect", "runs", folder=folder)
    told = [task.communicate(timeout=200) for task in tasks]
    assert [task.returncode for task in tasks] == [0] * 3 + [3] * 2, told
    for index in (3, 4):
        assert f"hpcstencil: member {index}: field 'u' is not finite" in told[index][1]
    return folder


def test_only_the_failed_members_are_run_again_and_the_table_is_complete(done):
    states, _ = statuses(done)
    assert states == ["done"] * 3 + ["failed"] * 2
    assert sweep("status", "runs", "--failed", folder=done).stdout == "3,4\n"
    partly = sweep("collect", "runs", folder=done)
    assert "warning: 2 of 5 members are not done" in partly.stderr and "3,4" in partly.stderr
    with xarray.open_dataset(done / "runs" / "table.h5", engine="h5netcdf") as table:
        assert list(np.isnan(table["wave"])) == [False] * 3 + [True] * 2
    untouched = {path: path.stat().st_mtime_ns for path in (done / "runs").glob("000[0-2]/*")}
    for index in (3, 4):
        sweep("run", "runs", "--index", index, "--set", "time.dt=0.001", folder=done)
    assert {path: path.stat().st_mtime_ns for path in untouched} == untouched
    out = sweep("run", "runs", "--index", 4, folder=done).stdout
    assert "member 4 is complete" in out
    assert statuses(done)[0] == ["done"] * 5
    assert sweep("status", "runs", "--failed", "--unfinished", folder=done).stdout == ""
    assert sweep("collect", "runs", folder=done).stderr == ""
    rates, steps = [0.1, 0.4, 1.0, 10.0, 12.0], [0.01] * 3 + [0.001] * 2
    exact = [amplitude(rate, dt, round(1 / dt)) for rate, dt in zip(rates, steps, strict=True)]
    with xarray.open_dataset(done / "runs" / "table.h5", engine="h5netcdf") as table:
        assert dict(table.sizes) == {"member": 5} and "equation.D" in table.coords
        np.testing.assert_array_equal(table["equation.D"], rates)
        np.testing.assert_array_equal(table["time.dt"], steps)
        np.testing.assert_array_equal(table["time"], np.ones(5))
        np.testing.assert_allclose(table["wave"], exact, rtol=1e-3)
        assert list(table["status"].values) == ["done"] * 5 and list(table["attempts"].values) == [1] * 3 + [2] * 2
        assert (table["wall_time"].values > 0).all()
    with (done / "runs" / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    np.testing.assert_allclose([float(row["wave"]) for row in rows], exact, rtol=1e-3)
    assert [float(row["time.dt"]) for row in rows] == steps
    assert (done / "runs" / "table.png").read_bytes().startswith(b"\x89PNG")
    assert not list((done / "runs").rglob(".*"))  # nothing left half written


def test_other_settings_for_a_finished_member_need_overwrite(done):
    before = (done / "runs" / "0000" / "input.h5").read_bytes()
    refused = sweep("run", "runs", "--index", 0, "--set", "time.dt=0.02", folder=done, status=2)
    assert "--overwrite" in refused.stderr and (done / "runs" / "0000" / "input.h5").read_bytes() == before
    # What changes no result is no reason to run again.
    same = sweep("run", "runs", "--index", 0, "--set", "numerics.kernel='shift'", folder=done)
    assert "is complete" in same.stdout


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "input.toml").write_text(INPUT)
    (tmp_path / "sweep.toml").write_text(SWEEP)
    sweep("plan", "sweep.toml", "--dir", "runs", folder=tmp_path)
    return tmp_path


def test_one_of_many_runs_of_a_member_and_after_its_death_one_more(folder):
    """Three tasks for one member: one runs, two are refused. Killed, it is interrupted, and the next goes on."""
    tasks = [begin("run", "runs", "--index", "2", *SLOW, "--quiet", folder=folder) for _ in range(3)]
    until(lambda: sum(task.poll() is not None for task in tasks) == 2, "two of three were not refused")
    refused = [task for task in tasks if task.poll() is not None]
    (winner,) = [task for task in tasks if task.poll() is None]
    assert [task.returncode for task in refused] == [4] * 2
    for task in refused:
        text = task.communicate()[1]
        assert "member 2: is being run already" in text and f"process {winner.pid} " in text
        assert len(text.strip().splitlines()) == 1
    assert len(list((folder / "runs" / "0002").glob("attempt-*"))) == 1
    assert statuses(folder)[0][2] == "running"
    until(lambda: list((folder / "runs" / "0002").glob("*.checkpoint.*.h5")), "no checkpoint")
    os.kill(winner.pid, signal.SIGKILL)
    winner.communicate()
    states, found = statuses(folder)
    assert states[2] == "interrupted" and "killed" in found["members"][2]["reason"]
    assert sweep("status", "runs", "--unfinished", folder=folder).stdout == "0-4\n"

    # It continues from its checkpoint, with the settings it was given, and a signal stops it with a checkpoint.
    again = begin("run", "runs", "--index", "2", "--quiet", folder=folder)
    until(lambda: len(list((folder / "runs" / "0002").glob("attempt-*"))) == 2, "no second attempt")
    first = max(path.name for path in (folder / "runs" / "0002").glob("*.checkpoint.*.h5"))
    until(lambda: max(p.name for p in (folder / "runs" / "0002").glob("*.checkpoint.*.h5")) > first, "no progress")
    again.send_signal(signal.SIGUSR1)
    _, told = again.communicate(timeout=60)
    assert again.returncode == 75 and "member 2: stopped by SIGUSR1" in told and "--resume" not in told
    states, found = statuses(folder)
    assert states[2] == "stopped" and [one["status"] for one in found["members"][2]["attempts"]] == [
        "running",
        "stopped",
    ]
    step = int(re.search(r"at step (\d+)", told)[1])
    finish = ("--set", f"time.end={(step + 5) * 0.01}")
    summary = sweep("run", "runs", "--index", 2, *finish, folder=folder).stdout
    assert f"steps        5 (to step {step + 5}" in summary
    assert statuses(folder)[0][2] == "done"


def test_several_ranks_run_a_member_together_and_speak_once(folder):
    run = sweep("run", "runs", "--index", 2, "--quiet", folder=folder, processes=2)
    assert run.stderr.count("member 2: equation.D = 1.0") == 1
    states, found = statuses(folder)
    assert states[2] == "done" and found["members"][2]["attempts"][0]["processes"] == 2
    again = sweep("run", "runs", folder=folder, processes=2, SLURM_ARRAY_TASK_ID="2")
    assert again.stdout.count("is complete") == 1
    for arguments, status in ((["run", "runs", "--index", 99], 2), (["status", "nowhere"], 2)):
        wrong = sweep(*arguments, folder=folder, processes=2, status=status)
        assert wrong.stderr.count("hpcstencil:") == 1, wrong.stderr
    failed = sweep("run", "runs", "--index", 4, "--quiet", folder=folder, processes=2, status=3)
    assert failed.stderr.count("is not finite in") == 1


def test_all_members_run_here_and_the_worst_status_counts(folder):
    """Two at a time, each with a log of its own; repaired, the command runs the one that is left."""
    (folder / "sweep.toml").write_text(SWEEP.replace("[0.1, 0.4, 1.0, 10.0, 12.0]", "[0.1, 0.4, 12.0]"))
    sweep("plan", "sweep.toml", "--dir", "runs", "--overwrite", folder=folder)
    options = ("run", "runs", "--all", "--jobs", 2)
    told = sweep(*options, folder=folder, status=3).stderr
    for index in range(2):
        assert re.search(rf"member {index}: done in [\d.]+ s \(\d of 3\)", told)
        assert "steps        100 (to step 100" in (folder / "runs" / f"000{index}" / "run.log").read_text()
    assert "member 2: failed with status 3: " in told and "is not finite" in told
    assert told.splitlines()[-1].startswith("hpcstencil: 1 of 3 members are not done (failed: 2); ")
    again = sweep(*options, "--set", "time.dt=0.001", folder=folder)
    assert "2 of 3 members are done already" in again.stderr and "all 3 members of runs are done" in again.stdout
    assert statuses(folder)[0] == ["done"] * 3
    assert sweep(*options, folder=folder).stderr.count("member") == 1


def test_a_signal_is_handed_to_the_members_and_no_more_are_begun(folder):
    everything = begin("run", "runs", "--all", "--jobs", "2", *SLOW, folder=folder)
    logs = [folder / "runs" / f"000{index}" for index in (0, 1)]
    until(lambda: all(list(log.glob("*.checkpoint.*.h5")) for log in logs), "no checkpoints")
    everything.send_signal(signal.SIGTERM)
    _, told = everything.communicate(timeout=60)
    assert everything.returncode == 75
    for index in (0, 1):
        assert f"member {index}: stopped: stopped by SIGTERM" in told
    assert "5 of 5 members are not done (stopped: 0,1; not begun: 2-4)" in told
    assert statuses(folder)[0] == ["stopped"] * 2 + ["planned"] * 3
