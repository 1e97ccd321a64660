"""Run all members of a sweep on this machine, several at a time, each in a separate process as in an array job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpcstencil.runtime.filesystem import file_errors
from hpcstencil.runtime.signals import Request
from hpcstencil.sweep.attempts import attempts
from hpcstencil.sweep.folder import Member, Planned
from hpcstencil.sweep.report import array_list
from hpcstencil.sweep.state import standing
from hpcstencil.validation.errors import EnvironmentProblem, HpcstencilError, InputError, NumericsError, StoppedEarly

LOG = "run.log"  # in the folder of a member: the output of its runs, one after the other
LOOK = 0.05  # seconds between polls of the processes
WORST = (
    EnvironmentProblem,
    NumericsError,
    InputError,
    StoppedEarly,
)  # if members end with different statuses, the first of these is raised


@dataclass
class Child:
    """A running member: its process, which runs on share number ``slot`` of the cores.

    ``began`` is its start in seconds of time.monotonic().
    """

    member: Member
    slot: int
    process: subprocess.Popen[bytes]
    began: float


def run_all(
    planned: Planned, options: Sequence[str], overwrite: bool, jobs: int, request: Request, say: Callable[[str], None]
) -> str:
    """Run all members that are not done, or with ``overwrite`` all members, ``jobs`` at a time. Returns a summary.

    ``options`` are passed to the command `sweep run` of each member. ``say`` is called with a line of text for each
    event. A signal recorded in ``request`` is passed on to the running members, and no more members are started. If not
    all members are done at the end, the worst of their failures is raised: status 4 before 3, 2 and 75. If a member cannot be
    started or its record not be read, the running members get SIGTERM, and EnvironmentProblem is raised when they have ended.
    """
    waiting = [member for member in planned.members if overwrite or standing(planned, member).state != "done"]
    done, total = len(planned.members) - len(waiting), len(planned.members)
    ended: dict[int, int] = {}
    children: list[Child] = []
    handed = 0
    if done:
        say(f"{done} of {total} members are done already")
    request.at_once = lambda: _end_at_once(children)
    try:
        while children or (waiting and not request.number):
            while waiting and len(children) < jobs and not request.number:
                free = next(slot for slot in range(jobs) if slot not in [child.slot for child in children])
                children.append(_begun(planned, waiting.pop(0), options, free, jobs))
            if request.number and not handed:
                handed = request.number
                say(f"{signal.Signals(handed).name}: passed on to {len(children)} running members; no more are started")
                for child in children:
                    child.process.send_signal(handed)
            time.sleep(LOOK)
            for child in [child for child in children if child.process.poll() is not None]:
                children.remove(child)
                ended[child.member.index] = child.process.returncode
                say(f"member {child.member.index}: {_outcome(child)} ({len(ended) + done} of {total})")
    except BaseException:
        # In their sessions of their own the members would go on with nobody to look after them.
        for child in children:
            child.process.terminate()
        for child in children:
            child.process.wait()
        raise
    return _verdict(planned, ended, [member.index for member in waiting])


def _begun(planned: Planned, member: Member, options: Sequence[str], slot: int, jobs: int) -> Child:
    """Start the process of a member on one of ``jobs`` shares of the cores of this process. Its output is appended to
    its log."""
    line = [sys.executable, "-m", "hpcstencil", "sweep", "run", str(planned.folder), "--index", str(member.index)]
    cores = sorted(os.sched_getaffinity(0))
    share = cores[slot::jobs] or [cores[slot % len(cores)]]
    log = member.folder / LOG
    with file_errors(log, "write"), log.open("ab") as file:
        os.sched_setaffinity(0, share)  # inherited by the process started below
        try:
            # In a new session: otherwise it would get Ctrl-C twice, from the terminal and from this process.
            process = subprocess.Popen(
                [*line, *options], stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )
        finally:
            os.sched_setaffinity(0, cores)
    return Child(member, slot, process, time.monotonic())


def _end_at_once(children: Sequence[Child]) -> None:
    """Kill all members and exit, at a second interrupt. It is called from another thread."""
    for child in children:
        child.process.kill()
    os._exit(128 + signal.SIGINT)


def _outcome(child: Child) -> str:
    """The outcome of a member whose process has ended, in words."""
    status, log = child.process.returncode, child.member.folder / LOG
    if status == 0:
        return f"done in {time.monotonic() - child.began:.1f} s"
    if status < 0:
        return f"ended by {signal.Signals(-status).name}; see {log}"
    reason = next((one.reason for one in attempts(child.member.folder)[::-1] if one.exit_status == status), "")
    what = "stopped" if status == StoppedEarly.status else f"failed with status {status}"
    return f"{what}: {reason or f'see {log}'}"


def _verdict(planned: Planned, ended: dict[int, int], waiting: Sequence[int]) -> str:
    """The summary at the end, in words. Raises the worst failure if not all members are done.

    ``ended`` maps members to the exit statuses of their processes, and ``waiting`` lists those that were not started.
    """
    statuses = set(ended.values()) | ({StoppedEarly.status} if waiting else set())
    if not statuses - {0}:
        return f"all {len(planned.members)} members of {planned.folder} are done"
    known = {kind.status: kind for kind in WORST}
    kinds: set[type[HpcstencilError]] = {known.get(status, EnvironmentProblem) for status in statuses - {0}}
    stopped = [index for index, status in ended.items() if status == StoppedEarly.status]
    failed = [index for index, status in ended.items() if status not in (0, StoppedEarly.status)]
    lists = (("failed", failed), ("stopped", stopped), ("not begun", waiting))
    parts = "; ".join(f"{what}: {array_list(sorted(who))}" for what, who in lists if who)
    count = len(failed) + len(stopped) + len(waiting)
    raise next(kind for kind in WORST if kind in kinds)(
        f"{count} of {len(planned.members)} members are not done ({parts}); see hpcstencil sweep status {planned.folder}, "
        "and run the same command to continue"
    )
