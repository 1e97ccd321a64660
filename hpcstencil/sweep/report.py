"""The output of `hpcstencil sweep plan` and `sweep status`, as text and as JSON."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcstencil.sweep.folder import Planned
from hpcstencil.sweep.plan import Change
from hpcstencil.sweep.state import STATES, Standing
from hpcstencil.validation.messages import listing
from hpcstencil.validation.printable import printable
from hpcstencil.validation.toml_text import dump_value

MOST_WARNINGS = 3


def array_list(indices: Sequence[int]) -> str:
    """Format sorted numbers as `sbatch --array` takes them: "2,5-7"."""
    parts = []
    for _, run in itertools.groupby(enumerate(indices), key=lambda pair: pair[1] - pair[0]):
        first, *rest = [index for _, index in run]
        parts.append(f"{first}-{rest[-1]}" if len(rest) > 1 else ",".join(map(str, (first, *rest))))
    return ",".join(parts)


def warned(warnings: Mapping[str, Sequence[int]]) -> list[str]:
    """Format warnings as lines of text.

    ``warnings`` maps each message to the sorted numbers of the members that it concerns. The first MOST_WARNINGS
    messages are shown; one more line lists the members with other warnings.
    """
    lines = [
        f"warning: member{'s' if len(who) > 1 else ''} {array_list(who)}: {text}"
        for text, who in list(warnings.items())[:MOST_WARNINGS]
    ]
    rest = sorted({index for who in list(warnings.values())[MOST_WARNINGS:] for index in who})
    return [*lines, f"warning: similar warnings for members {array_list(rest)}"] if rest else lines


def planned_report(planned: Planned, folder: Path, change: Change | None) -> str:
    """A summary of the plan as text, with the commands that run it. ``change`` is as returned by `write_plan`."""
    count = len(planned.members)
    if change is None:
        made = "planned"
    elif not change:
        made = "the same plan exists already, nothing has changed"
    else:
        parts = [(change.added, "added"), (change.changed, "changed"), (change.dropped, "dropped")]
        made = "; ".join(f"{what}: {array_list(who)}" for who, what in parts if who)
    return "\n".join([
        f"members      {count} in {folder} ({made})",
        f"parameters   {listing(planned.parameters)} ({planned.mode})",
        f"run one      hpcstencil sweep run {folder} --index 0",
        f"run all      hpcstencil sweep run {folder} --all --jobs 1",
        f"on Slurm     sbatch --array=0-{count - 1} jobs/array.sbatch {folder}",
        f"watch        hpcstencil sweep status {folder}",
    ])  # fmt: skip


def status_report(planned: Planned, found: Sequence[Standing], folder: Path) -> str:
    """The status of a sweep as text.

    It has the number of members in each state, a line for each member that needs attention, and commands to continue.
    """
    counts = Counter(here.state for here in found)
    in_states = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    lines = [
        f"sweep        {folder} ({planned.mode} of {listing(planned.parameters)})",
        f"members      {len(found)}: {in_states}",
    ]
    rows = [here for here in found if here.state not in ("done", "planned") or here.reason]
    if rows:
        lines += ["", f"{'member':<8}{'state':<13}{'attempts':<10}reason"]
        lines += [
            f"{here.member.index:<8}{here.state:<13}{len(here.attempts):<10}{printable(here.reason)}".rstrip()
            for here in rows
        ]
    waiting = [here.member.index for here in found if here.state == "planned" and not here.reason]
    if waiting:
        lines += ["", f"not begun    {array_list(waiting)}"]
    again = [
        (what, option)
        for what, option, states in (
            ("go on", "--unfinished", ("planned", "stopped", "interrupted")),
            ("retry", "--failed", ("failed",)),
        )
        if any(counts[state] for state in states)
    ]
    if again:
        lines.append("")
    lines += [
        f"{what:<13}sbatch --array=$(hpcstencil sweep status {folder} {option}) jobs/array.sbatch {folder}"
        for what, option in again
    ]
    if counts["failed"]:
        lines.append(f"repair       hpcstencil sweep run {folder} --index N --set KEY=VALUE")
    if counts["done"] == len(found):
        lines.append(f"collect      hpcstencil sweep collect {folder}")
    return "\n".join(lines)


def status_json(planned: Planned, found: Sequence[Standing]) -> str:
    """The status of a sweep as JSON text, with all members and attempts. Settings are converted by `plain`."""
    counts = Counter(here.state for here in found)
    return json.dumps({
        "mode": planned.mode,
        "parameters": planned.parameters,
        "counts": {state: counts[state] for state in STATES},
        "members": [
            {
                "member": here.member.index,
                "state": here.state,
                "reason": here.reason,
                "settings": {key: plain(value) for key, value in here.settings.items()},
                "output": str(here.member.output),
                "wall_time": here.seconds if math.isfinite(here.seconds) else None,
                "attempts": [
                    {
                        "status": one.status, "exit_status": one.exit_status, "reason": one.reason,
                        "set": one.overrides, "host": one.owner.get("host"), "job": one.owner.get("job"),
                        "processes": one.processes, "started": one.started, "ended": one.ended,
                    }
                    for one in here.attempts
                ],
            }
            for here in found
        ],
    })  # fmt: skip


def plain(value: object) -> Any:
    """Convert a value for JSON: finite numbers, booleans, text and None stay unchanged, anything else becomes TOML text."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return dump_value(value)
