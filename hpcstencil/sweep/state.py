"""The state of each member of a sweep, and the next run of a member.

The member's output file decides what is done: it has `complete` and the input from which it was made. The record of
attempts only adds what the output cannot say: why a run failed, and whether one is running now.
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
    """The present state of one member: one of STATES, the reason for it, and its attempts. ``overrides`` are the
    settings given with --set since it was planned, and ``config`` is its input with them."""

    member: Member
    state: str
    reason: str
    attempts: tuple[Attempt, ...]
    overrides: tuple[str, ...]
    config: Config

    @property
    def settings(self) -> Settings:
        """The settings with which this member is run, by dotted key: as planned, or as changed since."""
        return repaired(self.member.settings, self.overrides)

    def value(self, key: str) -> Any:
        """The value of any dotted key of the member's input; None if the key is absent."""
        if key in self.settings:
            return self.settings[key]
        node: Any = to_tables(self.config)
        for name in key_path(key):
            node = node.get(name) if isinstance(node, dict) else None
        return node

    @property
    def seconds(self) -> float:
        """Wall time in seconds of all attempts with the present settings; NaN if none is known."""
        spent = [
            one.seconds for one in self.attempts if _same_start(one, self.member) and one.overrides == self.overrides
        ]
        known = [value for value in spent if value == value]
        return round(sum(known), 3) if known else float("nan")


def repaired(settings: Settings, overrides: Sequence[str]) -> Settings:
    """The settings with every ``--set`` applied. A setting that one of them displaces becomes None."""
    result = dict(settings)
    for text in overrides:
        path, value = parse_override(text)
        for displaced in map(dotted, alternatives(path)):
            if displaced in result:
                result[displaced] = None
        result[dotted(path)] = value
    return result


# ---- standing --------------------------------------------------------------------------------------------------------


def standing(planned: Planned, member: Member) -> Standing:
    """The present state of a member. Raises InputError if its input is not as planned, EnvironmentProblem if it cannot
    be read."""
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
    """The member's newest attempt; None if there is none."""
    return next(iter(attempts(member.folder)[::-1]), None)


def _same_start(attempt: Attempt, member: Member) -> bool:
    """Whether an attempt was made with the member's current plan."""
    return attempt.identity in ("", member.identity)


def effective(member: Member, overrides: Sequence[str]) -> Config:
    """The member's input with ``overrides``, the settings changed since it was planned, applied. Raises InputError if
    the input is not as planned or a setting is wrong."""
    tables = parse(input_text(member), str(member.input))
    config = from_mapping(tables, member.folder.absolute(), overrides, member.output.stem)
    return replace(config, output=replace(config.output, path=member.output))


def _state(planned: Planned, member: Member, config: Config, newest: Attempt | None) -> tuple[str, str]:
    """The state of a member, and the reason for it."""
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
    """The process, host and job of an attempt, in words."""
    owner = attempt.owner
    job = f", job {owner['job']}" if owner.get("job") else ""
    return (
        f"process {owner.get('pid', '?')} on {owner.get('host', '?')}{job}, since {attempt.started or 'a moment ago'}"
    )


def result(planned: Planned, config: Config) -> tuple[bool, str]:
    """(whether the output of ``config`` is complete and made from exactly this input, what is wrong with the output).
    The second is "" if nothing is wrong, as for an output that is missing or not complete yet."""
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
    """The keys in which an output's input differs from ``config`` so that results differ.

    Keys that a continued run may change (cadences, decomposition ...) do not count, unless the sweep varies them.
    """
    try:
        origin = from_mapping(parse(contents.input, "the attribute 'input'"), Path("."))
    except InputError:
        return ["input"]
    return [key for key in differences(origin, config) if key in parameters or not allowed(key)]


# ---- the next run ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """What to do with a member: nothing (``attempt`` is None), or run it as ``attempt`` with these ``overrides``,
    either from the beginning (``fresh``) or from its newest checkpoint. ``note`` is a message for the user."""

    attempt: Attempt | None
    overrides: tuple[str, ...] = ()
    fresh: bool = False
    note: str = ""


def start(
    planned: Planned, member: Member, sets: Sequence[str], overwrite: bool, processes: int, say: Callable[[str], None]
) -> Start:
    """Claim a member for this process if it needs a run, and say how to run it. ``sets`` are the texts of --set, and
    ``processes`` is the number of MPI processes. May wait for an attempt that seems to be dead. Call it on one process.

    Raises InputError if the settings are wrong, or would replace a finished result without ``overwrite``. Raises
    EnvironmentProblem if another living process runs the member.
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
    """Whether two inputs of a member give different results."""
    return any(key == "time.end" or key in planned.parameters or not allowed(key) for key in differences(old, new))


def merged(before: Sequence[str], now: Sequence[str]) -> tuple[str, ...]:
    """The texts of --set that hold after those of earlier runs (``before``) and new ones (``now``). Of the texts for
    the same key, or for keys that displace each other, only the last is kept."""
    texts: dict[tuple[str, ...], str] = {}
    for text in (*before, *now):
        path, _ = parse_override(text)
        for other in [path, *alternatives(path)]:
            texts.pop(other, None)
        texts[path] = text
    return tuple(texts.values())


def _wait_for_verdict(member: Member, say: Callable[[str], None]) -> None:
    """If Slurm reports that the job of a running attempt has ended, wait until the attempt has been silent long enough
    to count as dead."""
    newest = _newest(member)
    if newest is None or not running(newest) or silence(newest) != SILENT_AND_OVER:
        return
    say(f"an earlier attempt's job is over; making sure that it is dead, which takes up to {SILENT_AND_OVER:g} s")
    deadline = time.monotonic() + SILENT_AND_OVER + BEAT
    touched = newest.path.stat().st_mtime
    while running(newest) and time.monotonic() < deadline and newest.path.stat().st_mtime == touched:
        time.sleep(1.0)


def _afresh(planned: Planned, config: Config, overwrite: bool) -> tuple[bool, str]:
    """Whether the run starts from the beginning instead of the newest checkpoint, and a message about it."""
    path = config.output.path
    if overwrite or not path.exists():
        return overwrite, ""
    try:
        contents = inspect(path)
    except HpcstencilError as error:
        if list_checkpoints(path):
            return False, ""  # `run --resume` decides whether anything can be saved
        return True, f"its output cannot be read and it has no checkpoint ({error}): it begins afresh"
    other = [key for key in other_input(contents, config, planned.parameters) if key != "time.end"]
    if contents.time is not None and contents.time > config.time.end:
        other.append("time.end")  # a later end is reached by continuing
    if other:
        return True, f"its settings have changed since its last run ({', '.join(other)}): it begins afresh"
    return contents.complete and not can_be_extended(path, contents), ""
