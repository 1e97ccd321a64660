"""Half an hour under 4 ranks, with output, checkpoints and signals: neither memory nor file handles may grow."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from commands import INPUT, assert_same, ended, hpcstencil, ranks, started

pytestmark = [pytest.mark.e2e, pytest.mark.long]
MINUTES = float(os.environ.get("SOAK_MINUTES", "30"))
SETTLED = 0.2  # of a session: what the first part of it allocates is no leak
GROWTH = (
    3.0  # MB per hour that a rank may seem to grow; HDF5's cache of metadata takes 0.6 KB per snapshot up to its limit
)
SETTINGS = (
    "--set",
    "output.every=500.0",
    "--set",
    "checkpoint.every_steps=10000",
    "--set",
    "diagnostics.every_steps=50",
)


def sample(process):
    """(resident MB, open files) of a rank."""
    status = Path(f"/proc/{process}/status").read_text()
    resident = int(status.split("VmRSS:")[1].split()[0]) / 1000
    return resident, len(os.listdir(f"/proc/{process}/fd"))


def session(folder, minutes):
    """Run for a while and stop by a signal; (seconds, MB, files) of each rank at every sample, and what was told."""
    run = started(4, "run", "input.toml", "--resume", *SETTINGS, "--set", "time.end=1e7", folder=folder)
    began, samples = time.monotonic(), []
    while time.monotonic() - began < 60 * minutes:
        time.sleep(2)
        assert run.poll() is None, (folder / "told").read_text()
        samples.append([(time.monotonic() - began, *sample(process)) for process in ranks(run)])
    run.send_signal(signal.SIGUSR1)
    status, told = ended(run, folder, within=30)
    assert status == 75, told
    return np.array(samples[int(SETTLED * len(samples)) :])


@pytest.mark.timeout(60 * 60 * 3)
def test_nothing_grows(tmp_path):
    (tmp_path / "input.toml").write_text(INPUT)
    for minutes in (MINUTES / 2, MINUTES / 2):
        samples = session(tmp_path, minutes)
        seconds, memory, files = samples[..., 0], samples[..., 1], samples[..., 2]
        slopes = [3600 * np.polyfit(seconds[:, rank], memory[:, rank], 1)[0] for rank in range(4)]
        print(f"{minutes:g} min: MB at the end {memory[-1].tolist()}, MB per hour {np.round(slopes, 2).tolist()}, "
              f"files {files.min(axis=0).tolist()} to {files.max(axis=0).tolist()}")  # fmt: skip
        assert max(slopes) < GROWTH
        assert (np.median(files[-10:], axis=0) == np.median(files[:10], axis=0)).all()
    end = float(max(tmp_path.glob("*.checkpoint.*")).name.split(".")[2]) / 10 + 1
    to_end = ("run", "input.toml", *SETTINGS, "--set", f"time.end={end}")
    hpcstencil(2, *to_end, "--resume", folder=tmp_path)
    whole = started(0, *to_end, "--output", "whole.h5", folder=tmp_path)
    status, told = ended(whole, tmp_path, within=60 * MINUTES)
    assert status == 0, told
    assert_same(tmp_path / "run.h5", tmp_path / "whole.h5")
