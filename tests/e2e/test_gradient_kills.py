"""Gradients with killed ranks, after a signal, or on a full disk: they continue, and end with the same bits."""

import os
import random
import signal
import time
from functools import partial

import h5py
import numpy as np
import pytest
from commands import ended, hpcstencil, ranks, started, wait_until
from faults import fill, small_disk

from hpcstencil.checkpoint.paths import list_checkpoints, step_of
from hpcstencil.gradient.stored_states import list_states

pytestmark = pytest.mark.e2e

INPUT = """
grid = { shape = [40, 36] }
equation = { name = "custom", A = 0.1, rhs = { u = "A*laplacian(u) - u**3 + s", s = "0*s" } }
initial = { u = "sin(0.3*x)", s = 0.0 }
time = { end = 50.0, dt = 0.1 }
objective = { J = { sum = "mean((u - cos(0.2*y))**2) + 1e-3*mean(s**2)", every_steps = 7 } }
gradient = { of = ["initial.s", "equation.A"], checkpoints = 8 }
checkpoint = { every_steps = 50 }
"""


def found(path):
    with h5py.File(path) as file:
        return file.attrs["objective"], {name: np.asarray(file[name]).tobytes() for name in file}


def newest(output):
    """The number of steps that the newest checkpoint has reversed; -1 if there is none."""
    return max(map(step_of, list_checkpoints(output)), default=-1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    (folder / "input.toml").write_text(INPUT)
    hpcstencil(0, "gradient", "input.toml", folder=folder)
    return found(folder / "input.gradient.h5")


def has_advanced(output, since):
    return newest(output) > since


@pytest.mark.parametrize("processes, storage", [
    (2, "disk"), *(pytest.param(*row, marks=pytest.mark.long) for row in ((1, "disk"), (3, "disk"), (2, "memory")))
])  # fmt: skip
def test_killed_gradients_continue(tmp_path, whole, processes, storage):
    (tmp_path / "input.toml").write_text(INPUT)
    output, rng, before = tmp_path / "input.gradient.h5", random.Random(processes), -1
    command = ("gradient", "input.toml", "--resume", "--set", f'gradient.storage="{storage}"')
    for _ in range(2):
        run = started(processes, *command, folder=tmp_path)
        wait_until(partial(has_advanced, output, before), run)
        time.sleep(rng.uniform(0, 0.1))
        os.kill(rng.choice(ranks(run)), signal.SIGKILL)
        status, _ = ended(run, tmp_path, within=30)
        assert status != 0 and newest(output) > before
        before = newest(output)
    hpcstencil(processes % 3 + 1, *command, folder=tmp_path)
    assert found(output) == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["input.gradient.h5", "input.toml", "told"]


def test_a_signal_stops_it_and_it_continues(tmp_path, whole):
    """The gradient is to replace that of another input."""
    (tmp_path / "input.toml").write_text(INPUT)
    hpcstencil(0, "gradient", "input.toml", "--set", "equation.A=0.2", "--set", "time.end=1.4", folder=tmp_path)
    command = ("gradient", "input.toml", "--set", 'gradient.storage="disk"')
    run = started(2, *command, "--overwrite", folder=tmp_path)
    wait_until(lambda: list_states(tmp_path / "input.gradient.h5"), run)  # on the way forwards
    os.kill(ranks(run)[1], signal.SIGUSR1)
    status, told = ended(run, tmp_path, within=30)
    assert status == 75 and "stopped by SIGUSR1 after" in told and told.count("hpcstencil: stopped") == 1, told
    hpcstencil(0, *command, "--resume", folder=tmp_path)
    assert found(tmp_path / "input.gradient.h5") == whole


@pytest.mark.parametrize("processes", [2, pytest.param(0, marks=pytest.mark.long)])
def test_a_disk_that_is_filled_up(tmp_path, whole, processes):
    """Another program takes the space that was free at the beginning; later there is more, and the gradient continues."""
    (tmp_path / "input.toml").write_text(INPUT)
    with small_disk(tmp_path / "disk", 1) as disk:
        command = ("gradient", "input.toml", "--set", 'gradient.storage="disk"', "-o", "disk/g.h5")
        run = started(processes, *command, folder=tmp_path)
        wait_until(lambda: list_states(disk / "g.h5"), run)
        fill(disk)
        status, told = ended(run, tmp_path, within=60)
        said = [line for line in told.splitlines() if line.startswith("hpcstencil: ") and "steps" not in line]
        assert status == 4 and len(said) == 1 and "No space left" in said[0] and "Traceback" not in told, told
        (disk / "somebody else's").unlink()
        hpcstencil(3 - max(processes, 1), *command, "--resume", folder=tmp_path)
        assert found(disk / "g.h5") == whole
