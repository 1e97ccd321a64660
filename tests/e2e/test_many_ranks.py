"""Runs on 16 ranks, where the monitors are a tree of three levels: 0 above 1 to 8, and 1 above 9 to 15."""

import os
import re
import signal
import time

import pytest
from commands import ended, ranks, started, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600)]  # the ranks start in a minute on two cores
COUNT = 16
ROOT, INNER, LEAF = 0, 1, 12
INPUT = f"""
[grid]
shape = [160, 16]
[equation]
name = "heat"
D = 0.1
[initial]
u = "sin(x/20)"
[numerics]
integrator = "euler"
kernel = "shift"
[decomposition]
processes = [{COUNT}, 1]
[time]
end = 1e5
dt = 1.0
[output]
path = "run.h5"
[checkpoint]
every_steps = 200
"""
IMPATIENT = """
from hpcstencil.runtime import watchdog

IMPATIENT = "; import hpcstencil.runtime.monitor_node as node; node.PATIENCE = 8.0; main()"
watchdog.MONITOR = watchdog.MONITOR.replace("; main()", IMPATIENT)
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "input.toml").write_text(INPUT)
    (tmp_path / "sitecustomize.py").write_text(IMPATIENT)
    path = os.pathsep.join([str(tmp_path), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    begun = started(COUNT, "run", "input.toml", folder=tmp_path, PYTHONPATH=path, JAX_PLATFORMS="cpu")
    yield begun
    begun.kill()


def nothing_is_left(folder):
    """No rank or monitor is, whose environment names the folder; waits for the last of them."""
    deadline = time.monotonic() + 20
    while left := [pid for pid in os.listdir("/proc") if pid.isdigit() and str(folder).encode() in environment_of(pid)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def environment_of(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:
        return b""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
@pytest.mark.parametrize("victims", [[ROOT], [INNER], [LEAF], [INNER, LEAF]], ids=str)
def test_a_lost_rank_of_many_ends_all(tmp_path, run, victims, number):
    wait_until(lambda: list(tmp_path.glob("run.checkpoint.*.h5")), run, seconds=300)
    of_rank = ranks(run)
    assert len(of_rank) == COUNT
    for victim in victims:
        os.kill(of_rank[victim], number)
    status, told = ended(run, tmp_path, within=60)
    assert status == (4 if number == signal.SIGSTOP else 128 + number), told
    found = re.findall(r"hpcstencil: rank (\d+) on \S+ (.*?), at step (\d+)", told)
    assert len(found) == 1 and int(found[0][0]) in victims, told
    assert ("stopped for 8 s" if number == signal.SIGSTOP else "ended without a message") in found[0][1]
    assert "newest call first" in told and "run.checkpoint." in told and "--resume" in told and "Traceback" not in told
    nothing_is_left(tmp_path)


@pytest.mark.parametrize("seconds", [0.5, 2.0, 8.0])
@pytest.mark.parametrize("victim", [ROOT, INNER, LEAF])
def test_a_rank_of_many_that_is_killed_during_the_start_ends_all(tmp_path, run, victim, seconds):
    wait_until(lambda: len(ranks(run)) == COUNT, run)
    time.sleep(seconds)
    of_rank = ranks(run)
    os.kill(of_rank[victim], signal.SIGKILL)
    status, told = ended(run, tmp_path, within=60)
    assert status != 0 and told.count("hpcstencil: rank") <= 1 and "Traceback" not in told, told
    nothing_is_left(tmp_path)
