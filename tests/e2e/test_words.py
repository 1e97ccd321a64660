"""What happens to words, and to signals before there are any: neither decides what becomes of a run."""

import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from commands import ENVIRONMENT, INPUT, contents, ended, hpcstencil, line, ranks, started

pytestmark = pytest.mark.e2e
SHORT = ("--set", "time.end=2.0")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "input.toml").write_text(INPUT)
    return tmp_path


def in_shell(folder, command, redirections):
    text = f"set -o pipefail; {shlex.join(command)} {redirections}"
    return subprocess.run(
        ["bash", "-c", text], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(
    "processes, redirections",
    [
        pytest.param(0, "2>&-", marks=pytest.mark.long),  # the next two cases close it too
        (0, ">&- 2>&- <&-"),
        (2, "2>&-"),
        (0, ">/dev/full 2>/dev/full"),
        (0, "| true"),
    ],
)
def test_words_that_cannot_be_written_decide_nothing(folder, processes, redirections):
    result = in_shell(folder, line(processes, "run", "input.toml", *SHORT), redirections)
    assert result.returncode == 0, result.stdout + result.stderr
    data, complete = contents(folder / "run.h5")
    assert complete == 1 and data["step"].tolist() == [0, 20]


def test_results_that_cannot_be_written_are_a_failure_of_the_environment(folder):
    told = in_shell(folder, line(0, "equations", "heat"), ">/dev/full")
    assert told.returncode == 4 and told.stderr.count("\n") == 1 and "No space left" in told.stderr
    assert in_shell(folder, line(0, "equations", "heat"), "| true").returncode == 0


def catches(process):
    """Whether a Python process has a handler for SIGUSR1."""
    with suppress(OSError):
        if not os.path.samefile(f"/proc/{process}/exe", sys.executable):  # the launcher's, which has yet to become it
            return False
        for row in Path(f"/proc/{process}/status").read_text().splitlines():
            if row.startswith("SigCgt"):
                return bool(int(row.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1)
    return False


@pytest.mark.parametrize(
    "processes, number",
    [
        (0, signal.SIGTERM),
        (0, signal.SIGINT),
        (2, signal.SIGUSR1),
        pytest.param(0, signal.SIGUSR1, marks=pytest.mark.long),  # by the handler of SIGTERM
    ],
)
def test_a_signal_as_soon_as_there_is_a_handler(folder, processes, number):
    run = started(processes, "run", "input.toml", folder=folder)
    victim, until = None, time.monotonic() + 60
    while victim is None and time.monotonic() < until:
        started_so_far = ranks(run)
        if len(started_so_far) == max(processes, 1) and (processes == 0 or run.pid not in started_so_far):
            victim = next((rank for rank in started_so_far[-1:] if catches(rank)), None)
        time.sleep(0.001)
    os.kill(victim, number)
    status, told = ended(run, folder, within=60)
    said = [row for row in told.splitlines() if row.startswith("hpcstencil: ")]
    assert status == 75 and len(said) == 1 and "Traceback" not in told, told
    assert f"stopped by {number.name} before the first step" in said[0] and "run the same command again" in said[0]
    assert not (folder / "run.h5").exists()
    if number == signal.SIGTERM:
        hpcstencil(0, "run", "input.toml", *SHORT, "--resume", folder=folder)
        assert contents(folder / "run.h5")[1] == 1


def test_handlers_are_there_before_anything_is_imported_that_takes_long():
    code = (
        "import sys, hpcstencil.__main__; print(sorted({'numpy', 'click', 'jax', 'h5py', 'mpi4py'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
