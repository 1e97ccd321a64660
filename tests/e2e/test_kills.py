"""SIGKILL of a random rank at a random moment, again and again: nothing that was committed is lost.

One run is killed, looked at, and resumed on another decomposition, until it has had all its kills; then it goes on to its
end, which must equal that of a run that was never interrupted.
"""

import os
import random
import re
import signal
import time
from dataclasses import dataclass

import h5py
import numpy as np
import pytest
from commands import INPUT, assert_same, ended, hpcstencil, ranks, started, wait_until

from hpcstencil.checkpoint.checkpoint import verify
from hpcstencil.checkpoint.repair import repaired
from hpcstencil.io.file_read import inspect, open_for_reading
from hpcstencil.runtime.communicator import OneProcess
from hpcstencil.validation.errors import HpcstencilError

pytestmark = pytest.mark.e2e
# A snapshot every 10 steps and a checkpoint every 30: much of the time goes into writing.
BUSY = ("--set", "output.every=1.0", "--set", "checkpoint.every_steps=30", "--set", "checkpoint.keep=3")


@dataclass
class Tally:
    kills: int = 0
    resumes: int = 0
    unfinished: int = 0  # kills amid a change of the output, which had to be undone
    checkpoints: int = 0  # kills that left a half-written checkpoint
    torn: int = 0  # outputs that HDF5 could not have opened as they lay there
    lost: int = 0  # committed snapshots that could not be read back


def kill_once(folder, rng, processes, method, end, tally):
    """Resume, kill a random rank at a random moment, and look at what is left."""
    run = started(processes, "run", "input.toml", "--resume", *BUSY, "--set", f"time.end={end}",
                  "--set", f"output.method={method}", folder=folder)  # fmt: skip
    journal, output = folder / "run.h5.journal", folder / "run.h5"
    before = output.stat().st_mtime_ns if output.exists() else 0
    wait_until(lambda: output.exists() and output.stat().st_mtime_ns != before, run)
    time.sleep(rng.uniform(0, 1))
    if tally.kills % 2:  # half of the kills are aimed at changes
        wait_until(journal.exists, run)
        time.sleep(rng.uniform(0, 0.01))
    steps_before = known_steps(output)
    os.kill(rng.choice(ranks(run)), signal.SIGKILL)
    status, told = ended(run, folder, within=30)
    assert status != 0, told
    tally.kills += 1
    tally.unfinished += journal.exists()
    tally.checkpoints += bool(list(folder.glob("*.tmp")))
    try:
        with h5py.File(output) as file:
            file["u"][-1:], file["time"][()]
    except OSError:
        tally.torn += 1
    steps = known_steps(output)
    tally.lost += len(set(steps_before) - set(steps))
    if tally.kills % 3 == 2:
        repaired(output)
        assert known_steps(output) == steps
    assert steps == list(range(0, 10 * len(steps), 10))
    assert any(is_sound(path) for path in folder.glob("run.checkpoint.*.h5"))


def known_steps(output):
    return list(inspect(output).steps)


def is_sound(path):
    try:
        verify(path, OneProcess())
    except HpcstencilError:
        return False
    return True


def kill_many(folder, ways, compression):
    rng = random.Random(1)
    text = INPUT.replace('path = "run.h5"', f'path = "run.h5"\ncompression = "{compression}"')
    (folder / "input.toml").write_text(text)
    tally = Tally()
    # So that the first kill, too, finds a checkpoint; its end is a step at which snapshots and diagnostics are due.
    hpcstencil(0, "run", "input.toml", *BUSY, "--set", "time.end=14.0", folder=folder)
    for processes, method in ways:
        kill_once(folder, rng, processes, method, 1e5, tally)
        tally.resumes += 1
    with open_for_reading(folder / "run.h5") as file:
        reached, values = file["step"][-1], file["u"][()]
    end = float(reached) / 10 + 5
    hpcstencil(2, "run", "input.toml", "--resume", *BUSY, "--set", f"time.end={end}", folder=folder)
    hpcstencil(0, "run", "input.toml", *BUSY, "--set", f"time.end={end}", "--output", "whole.h5", folder=folder)
    assert_same(folder / "run.h5", folder / "whole.h5")
    with h5py.File(folder / "whole.h5") as file:
        tally.lost += int((file["u"][: len(values)] != values).any(axis=(1, 2)).sum())
    assert not re.search("journal|tmp", " ".join(os.listdir(folder)))
    print(tally)
    assert tally.lost == 0 and tally.kills == tally.resumes == len(ways)
    assert np.isfinite(values).all()


def test_four_kills_lose_nothing(tmp_path):
    """One for each way to write; those of direct and mpio fall amid a change."""
    kill_many(tmp_path, [(1, "serial"), (2, "direct"), (2, "per_process"), (3, "mpio")], "gzip")


@pytest.mark.long  # the same on up to four processes, at more moments
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_a_hundred_kills_lose_nothing(tmp_path, compression):
    rng = random.Random(2)
    methods = ["direct", "direct", "mpio", "mpio", "serial", "per_process"]
    ways = [(rng.choice([1, 2, 3, 4]), rng.choice(methods)) for _ in range(60)]
    kill_many(tmp_path, ways, compression)
