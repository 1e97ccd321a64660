"""SIGKILL of a rank of a fit, again and again: it loses the iteration in progress at most, and ends with the same bits."""

import os
import random
import signal
import time
from functools import partial

import h5py
import numpy as np
import pytest
from commands import ended, hpcstencil, ranks, started, wait_until

from hpcstencil.checkpoint.paths import list_checkpoints, step_of

pytestmark = [pytest.mark.e2e, pytest.mark.long]

INPUT = """
grid = { shape = [40, 36] }
equation = { name = "custom", A = 0.1, rhs = { u = "A*laplacian(u) - u**3 + s", s = "0*s" } }
initial = { u = "sin(0.3*x)", s = 0.0 }
time = { end = 10.0, dt = 0.1 }
objective = { J = "mean((u - cos(0.2*y))**2) + 1e-3*mean(s**2)" }
gradient = { of = ["initial.s", "equation.A"] }
[fit]
steps = 40
tolerance = 1e-12
lower = { "equation.A" = 0.0 }
"""


def found(path):
    with h5py.File(path) as file:
        names = ("initial.s", "equation.A", "history/objective", "history/gradient_norm", "history/evaluations")
        return {name: np.asarray(file[name]).tobytes() for name in names}


@pytest.mark.parametrize("processes", [1, 2])
def test_killed_fits_continue(tmp_path, processes):
    (tmp_path / "input.toml").write_text(INPUT)
    hpcstencil(1, "fit", "input.toml", "-o", "whole.h5", folder=tmp_path)
    output, rng, before = tmp_path / "killed.h5", random.Random(processes), -1

    def has_advanced(since):
        return newest(output) >= since + 2

    for _ in range(3):
        run = started(processes, "fit", "input.toml", "-o", "killed.h5", "--resume", folder=tmp_path)
        wait_until(partial(has_advanced, before), run)
        time.sleep(rng.uniform(0, 0.2))
        least = newest(output)
        os.kill(rng.choice(ranks(run)), signal.SIGKILL)
        status, _ = ended(run, tmp_path, within=30)
        assert status != 0 and newest(output) >= least
        before = newest(output)
    hpcstencil(3 - processes, "fit", "input.toml", "-o", "killed.h5", "--resume", folder=tmp_path)
    assert found(output) == found(tmp_path / "whole.h5")


def newest(output):
    """The number of the newest iteration that is stored; -1 if there is none."""
    return max(map(step_of, list_checkpoints(output)), default=-1)
