"""Attempts to run a member, recorded in its folder, which many hosts may share. Only one attempt runs at a time.

The files ``attempt-001.json``, ``attempt-002.json`` ... serve as locks and as records. A process claims the member by
creating the file with the next number, since the exclusive creation of a file is atomic on every file system. Files are
never deleted, so two processes that find the same dead attempt cannot both replace it. A running process touches its
file regularly. At the end it replaces the file with a record of the outcome.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hpcstencil.runtime.atomic_write import hidden, write_atomically
from hpcstencil.runtime.filesystem import file_errors
from hpcstencil.runtime.hosts import boot, born, host
from hpcstencil.validation.errors import EnvironmentProblem, HpcstencilError

BEAT = 10.0  # seconds between touches of the file of a running attempt
SILENT = 600.0  # seconds without a touch after which an attempt counts as dead; a long collective write delays touches
SILENT_AND_OVER = 40.0  # the same if Slurm reports that the job has ended
HELD = {"RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
ENDS = {0: "done", 75: "stopped"}  # other exit statuses: "failed"


@dataclass(frozen=True)
class Attempt:
    """One attempt to run a member, as recorded in the file ``path``.

    ``status`` is "running", "done", "failed" or "stopped". ``exit_status`` is None while the process runs,
    and ``reason`` the message of a failure. ``overrides`` are the arguments of --set, ``identity`` identifies the input
    of the member (`plan.identity`), and ``processes`` is the number of MPI processes. ``owner`` identifies the process
    (see `process`). ``started`` and ``ended`` are times in ISO 8601, in UTC.
    """

    number: int
    path: Path
    status: str = "running"
    exit_status: int | None = None
    reason: str = ""
    overrides: tuple[str, ...] = ()
    identity: str = ""
    processes: int = 1
    owner: Mapping[str, Any] = field(default_factory=dict)
    started: str = ""
    ended: str = ""

    @property
    def seconds(self) -> float:
        """The duration of the attempt in seconds; until the last touch of its file if it was killed, NaN if unknown."""
        try:
            start = datetime.fromisoformat(self.started).timestamp()
            return (datetime.fromisoformat(self.ended).timestamp() if self.ended else self.path.stat().st_mtime) - start
        except (ValueError, OSError):
            return float("nan")


# ---- reading ---------------------------------------------------------------------------------------------------------


def attempts(folder: Path) -> list[Attempt]:
    """Read all attempts in the folder of a member, ordered by number. Raises EnvironmentProblem if the folder cannot be
    read."""
    with file_errors(folder, "read"):
        names = sorted(name for name in os.listdir(folder) if re.fullmatch(r"attempt-\d{3,}\.json", name))
    return sorted((_read(folder / name) for name in names), key=lambda attempt: attempt.number)


def _read(path: Path) -> Attempt:
    """Read one attempt. A file that cannot be read was just created or damaged in a crash; it has the status "running",
    and its age tells which."""
    number = int(path.stem.removeprefix("attempt-"))
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        known = {name: record[name] for name in Attempt.__dataclass_fields__ if name not in ("path", "number")}
        return Attempt(number=number, path=path, **{**known, "overrides": tuple(known["overrides"])})
    except (OSError, ValueError, KeyError, TypeError):
        return Attempt(number=number, path=path)


def running(attempt: Attempt) -> bool:
    """Whether the process of an attempt is still running, as far as can be determined."""
    if attempt.status != "running":
        return False
    allowed = silence(attempt)
    return allowed > 0 and _age(attempt.path) < allowed


def silence(attempt: Attempt) -> float:
    """The number of seconds without a touch of its file after which an attempt counts as dead.

    It is 0 if the attempt is known to be dead, and infinite if its process is visible from here and alive.
    """
    owner, here = attempt.owner, process()
    if owner.get("space") and (owner["boot"], owner["space"]) == (here["boot"], here["space"]):
        return float("inf") if born(owner["pid"]) == owner["born"] else 0.0
    job = owner.get("job")
    if not job:
        return SILENT
    if job == here["job"] and here["restarts"] > owner["restarts"]:
        return 0.0  # this job was requeued, so its earlier run has ended
    return SILENT_AND_OVER if _over(job) else SILENT


def _over(job: str) -> bool:
    """Whether Slurm reports that a job has ended; False if Slurm does not answer.

    This alone does not prove it: the job may belong to another cluster that shares the file system.
    """
    if shutil.which("squeue") is None:
        return False
    try:
        asked = subprocess.run(
            ["squeue", "--noheader", f"--jobs={job}", "--format=%T"],
            capture_output=True, text=True, timeout=20, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    if asked.returncode:
        return "Invalid job id" in asked.stderr
    return not set(asked.stdout.split()) & HELD


def _age(path: Path) -> float:
    """The number of seconds since a file was touched, by the clock of the file server if possible; 0 if the file cannot
    be read."""
    probe = hidden(path)
    try:
        touched = path.stat().st_mtime
        try:
            probe.touch()
            return probe.stat().st_mtime - touched
        except OSError:
            return time.time() - touched
        finally:
            probe.unlink(missing_ok=True)
    except OSError:
        return 0.0


# ---- this process ----------------------------------------------------------------------------------------------------


def process() -> dict[str, Any]:
    """The identity of this process, unique among hosts, and its Slurm job, as a dictionary of JSON values."""
    environment = os.environ.get
    job, array = environment("SLURM_JOB_ID", ""), environment("SLURM_ARRAY_JOB_ID")
    if array:  # SLURM_JOB_ID is not unique here: for the last task of an array it is the number of the array
        job = f"{array}_{environment('SLURM_ARRAY_TASK_ID', '')}"
    restarts = environment("SLURM_RESTART_COUNT", "0")
    space = ""
    with suppress(OSError):  # without /proc, only touches of the file show whether a process is alive
        space = os.readlink("/proc/self/ns/pid")
    return {
        "host": host(), "boot": boot(), "space": space, "pid": os.getpid(), "born": born(os.getpid()), "job": job,
        "restarts": int(restarts) if restarts.isdigit() else 0,
    }  # fmt: skip


# ---- claiming --------------------------------------------------------------------------------------------------------


def claim(folder: Path, after: int, **what: Any) -> Attempt | None:
    """Claim a member by creating its attempt number ``after + 1``; None if another process created it first.

    ``folder`` is the folder of the member, and ``what`` are further fields of `Attempt`. Raises EnvironmentProblem if the
    file cannot be written.
    """
    path = folder / f"attempt-{after + 1:03d}.json"
    attempt = Attempt(after + 1, path, owner=process(), started=_now(), **what)
    temporary = hidden(path)
    with file_errors(path, "create"):
        try:
            temporary.write_text(_text(attempt), encoding="utf-8")
            return attempt if _place(temporary, path) else None
        finally:
            temporary.unlink(missing_ok=True)


def _place(temporary: Path, path: Path) -> bool:
    """Give a file its final name, and return whether that succeeded; False if the name is taken.

    It uses a hard link, which, unlike a rename, never replaces a file.
    """
    try:
        os.link(temporary, path)
    except FileExistsError:
        return os.stat(temporary).st_nlink == 2  # NFS may report an error for a request that it repeated after success
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES):
            raise
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(temporary.read_text(encoding="utf-8"))
        except FileExistsError:
            return False
    return True


@contextmanager
def recording_outcome(attempt: Attempt) -> Iterator[None]:
    """Context manager that touches the file of an attempt while it runs, and records the outcome at the end.

    The outcome is "done", or the exit status and message of an HpcstencilError, which is raised again. After any other
    exception the record stays "running", and the attempt counts as dead after a while (`silence`).
    """
    over = threading.Event()
    beats = threading.Thread(target=_beat, args=(attempt.path, over), daemon=True)
    beats.start()
    try:
        yield
    except HpcstencilError as error:
        with suppress(EnvironmentProblem):  # the first error is more important
            _finish(attempt, error.status, str(error))
        raise
    finally:
        over.set()
        beats.join()
    _finish(attempt, 0, "")


def _beat(path: Path, over: threading.Event) -> None:
    """Touch the file of an attempt every BEAT seconds until ``over`` is set."""
    while not over.wait(BEAT):
        with suppress(OSError):
            os.utime(path)  # without an argument the file server sets its own time


def _finish(attempt: Attempt, exit_status: int, reason: str) -> None:
    """Replace the file of an attempt by the record of its outcome."""
    status = ENDS.get(exit_status, "failed")
    ended = replace(attempt, status=status, exit_status=exit_status, reason=reason, ended=_now())
    write_atomically(attempt.path, _text(ended))


def _text(attempt: Attempt) -> str:
    """An attempt as JSON text."""
    record = asdict(attempt)
    del record["path"]
    return json.dumps(record, indent=1) + "\n"


def _now() -> str:
    """The current time in UTC, in ISO 8601 with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
