"""The time at which the run has to stop: the limit in the input, or that of the Slurm job."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time

from hpcstencil.runtime.communicator import Communicator, from_rank_0

CALL = 2.0  # target length of a compiled call in seconds, so that signals and progress are served in time
MARGIN = 5.0  # seconds beyond the expected time of stopping
PATIENCE = 20  # seconds to wait for Slurm's answer


class Walltime:
    """The run's time limit. ``deadline`` is on time.monotonic's clock, None without a limit. Rank 0's clock decides for
    all."""

    def __init__(self, limit: str, communicator: Communicator, started: float) -> None:
        """``limit`` is "HH:MM:SS", counted from ``started`` (of time.monotonic), or "auto" for the time that the Slurm
        job has left. All processes call this together."""
        left = from_rank_0(communicator, lambda: slurm_seconds_left() if limit == "auto" else seconds(limit))
        since = time.monotonic() if limit == "auto" else started
        self.deadline = None if left is None else since + left

    def is_near(self, stopping: float) -> bool:
        """Whether the run must stop now to finish before the limit; a checkpoint is expected to take ``stopping``
        seconds. The answer is this process's own."""
        return self.deadline is not None and time.monotonic() + within(stopping) > self.deadline


def passed(communicator: Communicator, seconds: float, since: float) -> bool:
    """Whether ``seconds`` have passed since the time ``since`` (of time.monotonic) by rank 0's clock. All processes
    call this together and get the same answer."""
    return communicator.broadcast(time.monotonic() - since >= seconds)


def within(stopping: float) -> float:
    """Seconds within which a run stops after a request: the time of the current compiled call, twice the ``stopping``
    seconds that a checkpoint is expected to take, and a few more for the output."""
    return CALL + 2 * stopping + MARGIN


def seconds(text: str) -> float:
    """The duration in seconds of "HH:MM:SS", or of Slurm's "D-HH:MM:SS" and "MM:SS".

    >>> seconds("1-00:00:10"), seconds("02:00:00"), seconds("3:20")
    (86410.0, 7200.0, 200.0)
    """
    days, _, clock = text.rpartition("-")
    total = 0
    for part in clock.split(":"):
        total = 60 * total + int(part)
    return float(int(days or 0) * 86400 + total)


def slurm_seconds_left() -> float | None:
    """Seconds left of this Slurm job's time limit; None outside Slurm, without a limit, or if Slurm does not answer."""
    job = os.environ.get("SLURM_JOB_ID")
    if job is None:
        return None
    end = os.environ.get("SLURM_JOB_END_TIME", "")
    if end.isdigit():
        return float(end) - time.time()
    if shutil.which("squeue") is None:
        return None
    try:
        answer = subprocess.run(
            ["squeue", "--noheader", "--jobs", job, "--format=%L"],
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        ).stdout.strip()  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
    return seconds(answer) if re.fullmatch(r"[\d:-]+", answer) else None
