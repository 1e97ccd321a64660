"""The state of each member of a sweep, and how to run it next.

The output file of a member decides whether the member is done: it records the input and whether it is complete. The
records of attempts add why a run failed, and whether one is running.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcstencil.checkpoint.checkpoint import can_be_extended
from hpcstencil.checkpoint.paths import list_checkpoints
from hpcstencil.config.provenance import allowed, differences, to_tables
from hpcstencil.config.reader import from_mapping
from hpcstencil.config.settings import Config
from hpcstencil.io.file_read import Contents, inspect
from hpcstencil.problem.build import build
from hpcstencil.sweep.attempts import BEAT, SILENT_AND_OVER, Attempt, attempts, claim, running, silence
from hpcstencil.sweep.folder import Member, Planned, input_text
from hpcstencil.sweep.members import Settings, key_path
from hpcstencil.validation.errors import EnvironmentProblem, HpcstencilError, InputError
from hpcstencil.validation.overrides import alternatives, parse_override
from hpcstencil.validation.toml_text import dotted, parse

STATES = ("done", "running", "planned", "stopped", "interrupted", "failed")
UNFINISHED = ("planned", "stopped", "interrupted")


@dataclass(frozen=True)
class Standing:
    """The current state of one member: one of STATES, the reason for it in words, and its attempts.

    ``overrides`` are the arguments of --set that were given since the member was planned, and ``config`` is its input
    with these applied.
    """

    member: Member
    state: str
    reason: str
    attempts: tuple[Attempt, ...]
    overrides: tuple[str, ...]
    config: Config

    @property
    def settings(self) -> Settings:
        """The settings of this member by dotted key, as planned or as changed by --set since."""
        return repaired(self.member.settings, self.overrides)

    def value(self, key: str) -> Any:
        """The value of any dotted key in the input of the member; None if the key is missing."""
        if key in self.settings:
            return self.settings[key]
        node: Any = to_tables(self.config)
        for name in key_path(key):
            node = node.get(name) if isinstance(node, dict) else None
        return node

    @property
    def seconds(self) -> float:
        """The wall time in seconds of all attempts with the current settings; NaN if unknown."""
        spent = [
            one.seconds for one in self.attempts if _same_start(one, self.member) and one.overrides == self.overrides
        ]
        known = [value for value in spent if value == value]
        return round(sum(known), 3) if known else float("nan")


def repaired(settings: Settings, overrides: Sequence[str]) -> Settings:
    """The settings with the ``overrides`` of --set applied. A setting that one of them excludes becomes None."""
    result = dict(settings)
    for text in overrides:
        path, value = parse_override(text)
        for displaced in map(dotted, alternatives(path)):
            if displaced in result:
                result[displaced] = None
        result[dotted(path)] = value
    return result


# ---- the current state -----------------------------------------------------------------------------------------------


def standing(planned: Planned, member: Member) -> Standing:
    """Determine the current state of a member from its files.

    Raises InputError if its input is not as planned, EnvironmentProblem if its files cannot be read.
    """
    found = tuple(attempts(member.folder))
    newest = found[-1] if found else None
    readable = [attempt for attempt in found if attempt.identity]
    overrides = readable[-1].overrides if readable and readable[-1].identity == member.identity else ()
    config = effective(member, overrides)
    state, reason = _state(planned, member, config, newest)
    if state == "interrupted" and newest != _newest(member):  # it ended between two checks
        return standing(planned, member)
    return Standing(member, state, reason, found, overrides, config)


def _newest(member: Member) -> Attempt | None:
    """The newest attempt of a member, or None."""
    return next(iter(attempts(member.folder)[::-1]), None)


def _same_start(attempt: Attempt, member: Member) -> bool:
    """Whether an attempt was made with the current plan of the member, or its record cannot be read."""
    return attempt.identity in ("", member.identity)


def effective(member: Member, overrides: Sequence[str]) -> Config:
    """The input of a member with the ``overrides`` of --set applied.

    Raises InputError if the input file is not as planned or an override is wrong.
    """
    tables = parse(input_text(member), str(member.input))
    config = from_mapping(tables, member.folder.absolute(), overrides, member.output.stem)
    return replace(config, output=replace(config.output, path=member.output))


def _state(planned: Planned, member: Member, config: Config, newest: Attempt | None) -> tuple[str, str]:
    """(state, reason in words) of a member, where ``config`` is its input and ``newest`` its newest attempt."""
    if newest is not None and running(newest):
        return "running", _whereabouts(newest)
    finished, problem = result(planned, config)
    if finished:
        return "done", ""
    if newest is None or not _same_start(newest, member):
        return "planned", problem or ("" if newest is None else "changed since its last run")
    if newest.status == "running":
        return "interrupted", problem or "ended without a message: killed, or the program failed (see its log)"
    if newest.status == "done":
        return "planned", problem or f"its output {member.output} is gone"
    return newest.status, newest.reason


def _whereabouts(attempt: Attempt) -> str:
    """The process, host, Slurm job and start of an attempt, in words."""
    owner = attempt.owner
    job = f", job {owner['job']}" if owner.get("job") else ""
    return (
        f"process {owner.get('pid', '?')} on {owner.get('host', '?')}{job}, since {attempt.started or 'a moment ago'}"
    )


def result(planned: Planned, config: Config) -> tuple[bool, str]:
    """Check the output of the input ``config``. Returns (whether it is finished, problem in words).

    It is finished if it is complete and was made from this input. The problem is "" also for an output that is missing
    or not complete yet.
    """
    path = config.output.path
    if not path.exists():
        return False, ""
    try:
        contents = inspect(path)
    except HpcstencilError as error:
        return False, f"its output cannot be read: {error}"
    if not contents.complete:
        return False, ""
    if contents.time != config.time.end or other_input(contents, config, planned.parameters):
        return False, "its output was made with other settings"
    return True, ""


def other_input(contents: Contents, config: Config, parameters: Sequence[str]) -> list[str]:
    """The dotted keys in which the input recorded in an output differs from ``config``.

    Keys that a continued run may change, such as output intervals and the decomposition, count only if the sweep varies
    them (``parameters``).
    """
    try:
        origin = from_mapping(parse(contents.input, "the attribute 'input'"), Path("."))
    except InputError:
        return ["input"]
    return [key for key in differences(origin, config) if key in parameters or not allowed(key)]


# ---- the next run ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """How to run a member.

    If ``attempt`` is None, nothing is to be done. Otherwise run it as that attempt with the ``overrides``, from the
    beginning (``fresh``) or from its newest checkpoint. ``note`` is a message for the user.
    """

    attempt: Attempt | None
    overrides: tuple[str, ...] = ()
    fresh: bool = False
    note: str = ""


def start(
    planned: Planned, member: Member, sets: Sequence[str], overwrite: bool, processes: int, say: Callable[[str], None]
) -> Start:
    """Claim a member for this launch if it needs a run, and return how to run it. Call it on one process only.

    ``sets`` are the arguments of --set, and ``processes`` is the number of MPI processes. If an earlier attempt seems
    to be dead, the call waits until that is certain.

    Raises InputError if the settings are wrong, or would replace a finished result without ``overwrite``. Raises
    EnvironmentProblem if another process is running the member.
    """
    if any(parse_override(text)[0] == ("output", "path") for text in sets):
        raise InputError(
            f"--set output.path: expected no other output, since this member's is {member.output}; remove it"
        )
    while True:
        _wait_for_verdict(member, say)
        here = standing(planned, member)
        if here.state == "running":
            raise EnvironmentProblem(f"is being run already ({here.reason}); wait until that has ended")
        wanted = merged(here.overrides, sets)
        config = effective(member, wanted)
        build(config)
        if here.state == "done" and not overwrite:
            if _result_differs(planned, here.config, config):
                raise InputError(
                    f"--set: expected the settings that {member.output} was made with, as this member is done, but got "
                    f"{', '.join(sets)}; add --overwrite to run it anew"
                )
            return Start(None, note=f"is complete: {member.output}; nothing to do")
        after = here.attempts[-1].number if here.attempts else 0
        attempt = claim(member.folder, after, overrides=wanted, identity=member.identity, processes=processes)
        if attempt is not None:
            fresh, note = _afresh(planned, config, overwrite)
            return Start(attempt, wanted, fresh, note)


def _result_differs(planned: Planned, old: Config, new: Config) -> bool:
    """Whether two inputs of a member may give different results."""
    return any(key == "time.end" or key in planned.parameters or not allowed(key) for key in differences(old, new))


def merged(before: Sequence[str], now: Sequence[str]) -> tuple[str, ...]:
    """Combine the arguments of --set of earlier runs (``before``) with new ones (``now``).

    Of arguments for the same key, or for keys that exclude each other, only the last is kept.
    """
    texts: dict[tuple[str, ...], str] = {}
    for text in (*before, *now):
        path, _ = parse_override(text)
        for other in [path, *alternatives(path)]:
            texts.pop(other, None)
        texts[path] = text
    return tuple(texts.values())


def _wait_for_verdict(member: Member, say: Callable[[str], None]) -> None:
    """If Slurm reports that the job of a running attempt has ended, wait until the attempt counts as dead, or touches
    its file."""
    newest = _newest(member)
    if newest is None or not running(newest) or silence(newest) != SILENT_AND_OVER:
        return
    say(f"an earlier attempt's job is over; making sure that it is dead, which takes up to {SILENT_AND_OVER:g} s")
    deadline = time.monotonic() + SILENT_AND_OVER + BEAT
    touched = newest.path.stat().st_mtime
    while running(newest) and time.monotonic() < deadline and newest.path.stat().st_mtime == touched:
        time.sleep(1.0)


def _afresh(planned: Planned, config: Config, overwrite: bool) -> tuple[bool, str]:
    """(whether the run starts from the beginning instead of its newest checkpoint, message for the user)."""
    path = config.output.path
    if overwrite or not path.exists():
        return overwrite, ""
    try:
        contents = inspect(path)
    except HpcstencilError as error:
        if list_checkpoints(path):
            return False, ""  # `run --resume` decides whether anything can be saved
        return True, f"its output cannot be read and it has no checkpoint ({error}): it starts from the beginning"
    other = [key for key in other_input(contents, config, planned.parameters) if key != "time.end"]
    if contents.time is not None and contents.time > config.time.end:
        other.append("time.end")  # a later end is reached by continuing
    if other:
        return True, f"its settings have changed since its last run ({', '.join(other)}): it starts from the beginning"
    return contents.complete and not can_be_extended(path, contents), ""
