"""Attempts at a task in a folder shared by many hosts: one at a time, each with a record of how it ended.

The files ``attempt-001.json``, ``attempt-002.json`` ... are both claim and record. The process that creates the next
number owns the task: creating a file that must not exist yet is the one operation that is atomic on every file system.
Nothing is ever deleted, so two processes that find the same dead attempt cannot both replace it. While it runs, the
owner touches its file. At its end the owner replaces the file with a record of how it ended.
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

from hpcstencil.runtime.filesystem import file_errors
from hpcstencil.runtime.hosts import host
from hpcstencil.runtime.publish import hidden, write_atomically
from hpcstencil.validation.errors import EnvironmentProblem, HpcstencilError

BEAT = 10.0  # seconds between touches of a running attempt's file
SILENT = (
    600.0  # seconds without a touch after which it is dead. A long collective write may hold up the touching thread
)
SILENT_AND_OVER = 40.0  # the same if Slurm also reports that the job has ended
HELD = {"RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
ENDS = {0: "done", 75: "stopped"}  # other exit statuses: "failed"


@dataclass(frozen=True)
class Attempt:
    """One attempt at a task, as its file ``path`` records it.

    ``status`` is "running", "done", "failed" or "stopped"; ``exit_status`` is None while it runs, and ``reason`` the
    sentence of a failure. ``overrides`` are the texts of --set, ``identity`` is that of the member's input, and
    ``processes`` the number of MPI processes. ``owner`` identifies the process (see `process`). Times are ISO 8601 in
    UTC.
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
        """Duration of the attempt in seconds. For one that was killed, the time until its last sign of life; NaN if
        that is unknown."""
        try:
            start = datetime.fromisoformat(self.started).timestamp()
            return (datetime.fromisoformat(self.ended).timestamp() if self.ended else self.path.stat().st_mtime) - start
        except (ValueError, OSError):
            return float("nan")


# ---- reading ---------------------------------------------------------------------------------------------------------


def attempts(folder: Path) -> list[Attempt]:
    """All attempts recorded in ``folder``, in order of their numbers. Raises EnvironmentProblem if it cannot be read."""
    with file_errors(folder, "read"):
        names = sorted(name for name in os.listdir(folder) if re.fullmatch(r"attempt-\d{3,}\.json", name))
    return sorted((_read(folder / name) for name in names), key=lambda attempt: attempt.number)


def _read(path: Path) -> Attempt:
    """The attempt in the file. An unreadable file was either just created or lost in a crash. It counts as running, and
    is judged by its age."""
    number = int(path.stem.removeprefix("attempt-"))
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        known = {name: record[name] for name in Attempt.__dataclass_fields__ if name not in ("path", "number")}
        return Attempt(number=number, path=path, **{**known, "overrides": tuple(known["overrides"])})
    except (OSError, ValueError, KeyError, TypeError):
        return Attempt(number=number, path=path)


def running(attempt: Attempt) -> bool:
    """Whether the attempt's process is still running, as far as can be determined."""
    if attempt.status != "running":
        return False
    allowed = silence(attempt)
    return allowed > 0 and _age(attempt.path) < allowed


def silence(attempt: Attempt) -> float:
    """Seconds without a sign of life after which an attempt counts as dead: 0 if it is known to be dead, infinite if
    its process can be seen from here and is alive."""
    owner, here = attempt.owner, process()
    if owner.get("boot") and (owner["boot"], owner["space"]) == (here["boot"], here["space"]):
        return float("inf") if born(owner["pid"]) == owner["born"] else 0.0
    job = owner.get("job")
    if not job:
        return SILENT
    if job == here["job"] and here["restarts"] > owner["restarts"]:
        return 0.0  # our own job, requeued
    return SILENT_AND_OVER if _over(job) else SILENT


def _over(job: str) -> bool:
    """Whether Slurm reports that the job has ended; False if Slurm does not answer.

    This alone is not enough: another cluster on the same file system has jobs that this one does not know.
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
    """Seconds since the file was touched, by the file server's clock if possible; 0 if the file cannot be read."""
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
    """The identity of this process, which no process on another host shares, and its Slurm job; as values for JSON."""
    environment = os.environ.get
    job, array = environment("SLURM_JOB_ID", ""), environment("SLURM_ARRAY_JOB_ID")
    if array:  # the last task of an array has the array's own number
        job = f"{array}_{environment('SLURM_ARRAY_TASK_ID', '')}"
    restarts = environment("SLURM_RESTART_COUNT", "0")
    space, boot = "", ""
    with suppress(OSError):  # a system without /proc is judged by signs of life alone
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        space = os.readlink("/proc/self/ns/pid")
    return {
        "host": host(), "boot": boot, "space": space, "pid": os.getpid(), "born": born(os.getpid()), "job": job,
        "restarts": int(restarts) if restarts.isdigit() else 0,
    }  # fmt: skip


def born(pid: int) -> int | None:
    """Start time of process ``pid`` on this machine, in clock ticks since boot; None if there is no such process or it
    is a zombie."""
    try:
        values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if values[0] in "ZX" else int(values[19])


# ---- claiming --------------------------------------------------------------------------------------------------------


def claim(folder: Path, after: int, **what: Any) -> Attempt | None:
    """Create the attempt that follows number ``after`` in ``folder``, owned by this process; None if another process
    created it first. ``what`` are further fields of `Attempt`. Raises EnvironmentProblem if the file cannot be
    written."""
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
    """Give a file its final name unless another file has it. Unlike a rename, a link replaces nothing."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return os.stat(temporary).st_nlink == 2  # NFS may answer a repeated request with an error: ours all the same
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
def kept(attempt: Attempt) -> Iterator[None]:
    """A context that marks the attempt as alive and at its end records how the attempt ended: as done, or with the exit
    status and sentence of an HpcstencilError, which is raised on. After any other exception it stays "running", and
    counts as dead when it is silent."""
    over = threading.Event()
    beats = threading.Thread(target=_beat, args=(attempt.path, over), daemon=True)
    beats.start()
    try:
        yield
    except HpcstencilError as error:
        with suppress(EnvironmentProblem):  # the first error is the one that the user needs
            _finish(attempt, error.status, str(error))
        raise
    finally:
        over.set()
        beats.join()
    _finish(attempt, 0, "")


def _beat(path: Path, over: threading.Event) -> None:
    """Touch the attempt's file every BEAT seconds until ``over`` is set."""
    while not over.wait(BEAT):
        with suppress(OSError):
            os.utime(path)  # no time is passed, so the file server sets its own


def _finish(attempt: Attempt, exit_status: int, reason: str) -> None:
    """Replace the attempt's file with the record of how it ended."""
    status = ENDS.get(exit_status, "failed")
    ended = replace(attempt, status=status, exit_status=exit_status, reason=reason, ended=_now())
    write_atomically(attempt.path, _text(ended))


def _text(attempt: Attempt) -> str:
    """The attempt as JSON."""
    record = asdict(attempt)
    del record["path"]
    return json.dumps(record, indent=1) + "\n"


def _now() -> str:
    """The time in UTC, in ISO 8601 with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
