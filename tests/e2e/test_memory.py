"""The memory that a run takes is what `check` says."""

import re
import subprocess
import time
from pathlib import Path

import pytest
from commands import ENVIRONMENT, line

from hpcstencil.config.reader import load
from hpcstencil.problem.build import build
from hpcstencil.simulation.backend_choice import foreseen
from hpcstencil.simulation.memory_estimate import memory
from hpcstencil.simulation.prepared import Decomposed

pytestmark = pytest.mark.e2e
INPUT = """
[grid]
shape = [16, 16, 16]
[equation]
name = "gray_scott"
D_u = 0.1
D_v = 0.05
[initial]
u = "1 - 0.5*exp(-(x - 8)**2)"
v = "0.25*exp(-(x - 8)**2)"
[numerics]
kernel = "native"
integrator = "euler"
[time]
end = 4.0
dt = 1.0
[checkpoint]
every_steps = 2
[diagnostics]
mass = "integral(u + v)"
"""
FOLLOWING = """
grid.shape = [16, 16, 16]
equation = { name = "burgers", nu = 0.01 }
initial.u = "0.1*sin(x)"
numerics.kernel = "native"
time = { end = 2.0, cfl = 0.2 }
"""
LARGE = "grid.shape=[208, 208, 208]"
SNAPSHOTS = "output.every_steps=2"
STREAMS = "output.streams={mean={every_steps=2, average=true}, all={every_steps=2}, two={fields=['u'], every_steps=2}}"
SLACK = 2e7  # bytes: JAX's own compiler, and tiles


def peak(folder, *settings):
    """Peak resident bytes of a run's own process: its compiler's do not count, which may be more."""
    options = [part for setting in settings for part in ("--set", setting)]
    run = subprocess.Popen(
        line(0, "run", "input.toml", "--overwrite", "--quiet", *options), cwd=folder, env=ENVIRONMENT
    )
    found = 0
    while run.poll() is None:
        if peaks := re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{run.pid}/status").read_text()):
            found = 1024 * int(peaks[0])
        time.sleep(0.005)
    assert run.returncode == 0
    return found


def planned(path, *settings):
    problem = build(load(path, settings))
    return memory(foreseen(Decomposed.of(problem, 1, 1)))


def test_a_run_takes_the_memory_that_check_says(tmp_path):
    (tmp_path / "input.toml").write_text(INPUT)
    own = peak(tmp_path, SNAPSHOTS)
    field = 4 * 208**3
    for settings, shown in (((LARGE,), 0), ((LARGE, SNAPSHOTS), 2)):
        said = planned(tmp_path / "input.toml", *settings)
        assert 4 <= said / field - shown < 6, "the state twice, and ghost cells"
        found = peak(tmp_path, *settings) - own
        assert 0.85 * said < found < 1.15 * said + SLACK, (found / field, said / field)


def test_two_arrays_in_turn_take_the_memory_that_check_says(tmp_path):
    """The second array takes the place of the memory in which longer calls step."""
    (tmp_path / "input.toml").write_text(FOLLOWING)
    own, said = peak(tmp_path), planned(tmp_path / "input.toml", LARGE)
    assert 0.85 * said < peak(tmp_path, LARGE) - own < 1.15 * said + SLACK


@pytest.mark.long
def test_streams_take_the_memory_that_check_says(tmp_path):
    (tmp_path / "input.toml").write_text(INPUT)
    own = peak(tmp_path, SNAPSHOTS)
    for settings in ((LARGE,), (LARGE, STREAMS)):
        said, found = planned(tmp_path / "input.toml", *settings), peak(tmp_path, *settings) - own
        assert 0.85 * said < found < 1.15 * said + SLACK
