"""Streams on several processes, killed and resumed: the files of a run on one process that was never interrupted."""

import os
import random
import signal
import time

import h5py
import pytest
from commands import INPUT, ended, hpcstencil, ranks, started, wait_until

pytestmark = pytest.mark.e2e
STREAMS = """
[output.streams.part]
every = 0.3
region = { x = [0.5, 2.3], y = 1.2 }
[output.streams.coarse]
every_steps = 5
stride = [7, 3]
expressions = { w = "u*v + dx(u)" }
[output.streams.mean]
every = 1.5
average = true
stride = 2
[output.streams.flux]
every_steps = 9
average = true
expressions = { w = "u*v + x*dx(u)" }
"""
NAMES = ("part", "coarse", "mean", "flux")


def given(folder):
    (folder / "input.toml").write_text(INPUT.replace("[diagnostics]", STREAMS + "[diagnostics]"))


def contents(path):
    with h5py.File(path) as file:
        assert file.attrs["complete"] == 1, path
        return {name: (item.dtype, item[()].tobytes()) for name, item in file.items() if isinstance(item, h5py.Dataset)}


@pytest.mark.parametrize("ways", [
    [(2, "direct"), (3, "mpio")], pytest.param([(3, "serial"), (2, "per_process")], marks=pytest.mark.long),
])  # fmt: skip
def test_streams_are_the_same_on_every_decomposition(tmp_path, ways):
    given(tmp_path)
    hpcstencil(0, "run", "input.toml", "--output", "one.h5", folder=tmp_path)
    for processes, method in ways:
        settings = ("--set", f"output.method={method}", "--overwrite", "--output", "some.h5")
        hpcstencil(processes, "run", "input.toml", *settings, folder=tmp_path)
        for name in NAMES:
            assert contents(tmp_path / f"some.{name}.h5") == contents(tmp_path / f"one.{name}.h5"), (name, method)


@pytest.mark.parametrize("ways", [[(1, "serial"), (2, "direct"), (3, "mpio")]])
def test_kills_lose_no_record(tmp_path, ways):
    """Killed at a random moment, resumed on another decomposition, and again."""
    given(tmp_path)
    rng, busy = random.Random(1), ("--set", "checkpoint.every_steps=13")
    hpcstencil(0, "run", "input.toml", *busy, "--set", "time.end=3.9", folder=tmp_path)
    for processes, method in ways:
        before = (tmp_path / "run.part.h5").stat().st_mtime_ns
        run = started(processes, "run", "input.toml", "--resume", *busy, "--set", "time.end=1e5",
                      "--set", f"output.method={method}", folder=tmp_path)  # fmt: skip
        wait_until(lambda before=before: (tmp_path / "run.part.h5").stat().st_mtime_ns != before, run)
        time.sleep(rng.uniform(0.2, 1.0))
        os.kill(rng.choice(ranks(run)), signal.SIGKILL)
        assert ended(run, tmp_path, within=30)[0] != 0
    checkpoints = sorted(tmp_path.glob("run.checkpoint.*.h5"))
    end = int(checkpoints[-1].name.split(".")[2]) / 10 + 20
    hpcstencil(2, "run", "input.toml", "--resume", *busy, "--set", f"time.end={end}", folder=tmp_path)
    hpcstencil(0, "run", "input.toml", *busy, "--set", f"time.end={end}", "--output", "whole.h5", folder=tmp_path)
    for name in NAMES:
        assert contents(tmp_path / f"run.{name}.h5") == contents(tmp_path / f"whole.{name}.h5"), name
