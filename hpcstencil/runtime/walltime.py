"""The wall-clock limit of a run, from the input or from the Slurm job."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time

from hpcstencil.runtime.communicator import Communicator, from_rank_0

CALL = 2.0  # target duration of a compiled call in seconds; signals and progress are handled between calls
MARGIN = 5.0  # safety margin in seconds, added to the expected time that stopping takes
PATIENCE = 20  # seconds to wait for Slurm's answer


class Walltime:
    """The run's wall-clock limit.

    ``deadline`` is a time of time.monotonic, None without a limit. The remaining time is determined on rank 0.
    """

    def __init__(self, limit: str, communicator: Communicator, started: float) -> None:
        """Determine the limit. Collective.

        ``limit`` is "HH:MM:SS", counted from the time ``started`` of time.monotonic, or "auto" for the time that the Slurm
        job has left.
        """
        left = from_rank_0(communicator, lambda: slurm_seconds_left() if limit == "auto" else seconds(limit))
        since = time.monotonic() if limit == "auto" else started
        self.deadline = None if left is None else since + left

    def is_near(self, stopping: float) -> bool:
        """Return whether the run must stop now to finish before the limit, by this process's clock. Not collective.

        ``stopping`` is the expected duration of a checkpoint in seconds.
        """
        return self.deadline is not None and time.monotonic() + within(stopping) > self.deadline


def has_passed(communicator: Communicator, seconds: float, since: float) -> bool:
    """Return whether ``seconds`` have passed since ``since`` (of time.monotonic) by rank 0's clock. Collective.

    All processes get the same answer.
    """
    return communicator.broadcast(time.monotonic() - since >= seconds)


def within(stopping: float) -> float:
    """Return the seconds within which a run stops after a request.

    They are the duration of the current compiled call, twice the expected duration ``stopping`` of a checkpoint, and a
    margin for the output.
    """
    return CALL + 2 * stopping + MARGIN


def seconds(text: str) -> float | None:
    """Convert "HH:MM:SS", or Slurm's "D-HH:MM:SS" and "MM:SS", to seconds; None if the text is no time, such as "UNLIMITED".

    >>> seconds("1-00:00:10"), seconds("02:00:00"), seconds("3:20")
    (86410.0, 7200.0, 200.0)
    """
    match = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text.strip())
    if match is None:
        return None
    days, hours, minutes, rest = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)


def slurm_seconds_left() -> float | None:
    """Return the seconds left of this Slurm job's time limit; None outside Slurm, without a limit, or without an answer."""
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
        ).stdout  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
    return seconds(answer)
