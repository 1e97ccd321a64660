"""Write the plan of a sweep into its folder, and change it later.

Each file is written under a temporary name and then renamed, so that readers find a complete plan or none.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hpcstencil import __version__
from hpcstencil.config.provenance import to_tables, to_toml
from hpcstencil.config.settings import Config
from hpcstencil.runtime.atomic_write import hidden, write_atomically
from hpcstencil.runtime.filesystem import file_errors, sync
from hpcstencil.sweep.folder import (
    FORMAT_VERSION,
    INPUT,
    PLAN,
    Member,
    Planned,
    checksum,
    input_text,
    read_plan,
    refuse_link,
)
from hpcstencil.sweep.members import Sweep, described
from hpcstencil.validation.errors import EnvironmentProblem, InputError
from hpcstencil.validation.messages import at, listing
from hpcstencil.validation.toml_text import dump_value, dumps


@dataclass(frozen=True)
class Change:
    """The difference between a new plan and the one in the folder, as numbers of members. It is false if there is no
    difference."""

    changed: tuple[int, ...] = ()
    added: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.changed or self.added or self.dropped)


def write_plan(
    sweep: Sweep, configs: Sequence[Config], folder: Path, overwrite: bool, busy: Callable[[Member], bool]
) -> tuple[Planned, Change | None]:
    """Write the plan of a sweep into ``folder``. Returns (the recorded plan, the change, or None for a new plan).

    ``configs`` are the inputs of the members, and ``busy`` tells whether a member is running. A new folder is created
    under a temporary name and then renamed, so if two processes plan at once, the second finds the plan of the first.
    Members may be added to an existing plan. Changing or dropping members requires ``overwrite``, and is refused while
    one of them is running.

    Raises InputError if the plan is refused, EnvironmentProblem if writing fails.
    """
    folder = Path(os.path.realpath(folder))  # renaming would replace a link, not the folder that it points to
    configs = [_at_home(config, folder, index) for index, config in enumerate(configs)]
    if not os.path.exists(folder / PLAN):  # False also for a path that is too long
        _refuse_foreign(folder)
        if _make_new(sweep, configs, folder):
            return read_plan(folder), None
    with _locked(folder):
        there = read_plan(folder)
        change = _difference(there, sweep, configs)
        if change:
            _refuse_change(there, sweep, change, overwrite, busy)
        if change or _damaged(there):
            _write_members(sweep, configs, folder)
            write_atomically(folder / PLAN, _record(sweep, configs))
    return read_plan(folder), change


def _at_home(config: Config, folder: Path, index: int) -> Config:
    """The input of a member with its output in the folder of the member. Raises InputError for output paths that a sweep
    cannot have."""
    name = config.output.path.name
    if name in (INPUT, PLAN):
        raise InputError(
            f"output.path: expected a name other than {name}, which a sweep needs itself; rename the output"
        )
    for stream, given in config.output.streams.items():
        if given.path is not None:
            raise InputError(
                f"{at('output', 'streams', stream, 'path')}: each member's streams lie beside its output; remove the key"
            )
    return replace(config, output=replace(config.output, path=folder / f"{index:04d}" / name))


def _refuse_foreign(folder: Path) -> None:
    """Raise InputError if ``folder`` cannot hold a new sweep, because it is a file or holds other files."""
    if os.path.exists(folder) and not folder.is_dir():
        raise InputError(f"{folder}: expected a folder for the sweep, but it is a file; choose another --dir")
    with file_errors(folder, "read"):
        names = [path.name for path in folder.iterdir()] if os.path.isdir(folder) else []
    if names and PLAN not in names:
        raise InputError(
            f"{folder}: expected a new or empty folder, or one of a sweep, but it holds other files; choose another --dir"
        )


def _make_new(sweep: Sweep, configs: Sequence[Config], folder: Path) -> bool:
    """Write a new folder under a temporary name and rename it. Returns False if another process was first."""
    temporary = hidden(folder)
    with file_errors(folder, "create"):
        try:
            temporary.mkdir(parents=True)
            _write_members(sweep, configs, temporary)
            write_atomically(temporary / PLAN, _record(sweep, configs))
            os.rename(temporary, folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return False
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        sync(folder.parent)
    return True


def _write_members(sweep: Sweep, configs: Sequence[Config], folder: Path) -> None:
    """Create the folder of each member, and write its input unless that is up to date."""
    for index in range(len(configs)):
        home, text = folder / f"{index:04d}", _input(sweep, configs, index)
        refuse_link(home)
        with file_errors(home, "create"):
            home.mkdir(exist_ok=True)
            kept = (home / INPUT).is_file() and (home / INPUT).read_bytes() == text.encode()
        if not kept:
            write_atomically(home / INPUT, text)


def _input(sweep: Sweep, configs: Sequence[Config], index: int) -> str:
    """The text of the input file of a member."""
    return f"# Member {index} of a sweep: {described(sweep.members[index])}\n{to_toml(configs[index])}"


def _record(sweep: Sweep, configs: Sequence[Config]) -> str:
    """The text of plan.json."""
    record = {
        "format_version": FORMAT_VERSION,
        "hpcstencil_version": __version__,
        "mode": sweep.mode,
        "parameters": sweep.parameters,
        "output": configs[0].output.path.name,
        "sweep": {"path": os.path.abspath(sweep.path), "text": sweep.texts["sweep"]},
        "base": {
            "path": os.path.abspath(sweep.base),
            "text": sweep.texts["base"],
            "sha256": checksum(sweep.texts["base"]),
        },
        "members": [
            {
                "settings": {key: dump_value(value) for key, value in settings.items()},
                "input_sha256": checksum(_input(sweep, configs, index)),
                "identity": identity(configs[index]),
            }
            for index, settings in enumerate(sweep.members)
        ],
    }
    return json.dumps(record, indent=1) + "\n"


# ---- planning again --------------------------------------------------------------------------------------------------


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Context manager that locks ``folder``, so that one process at a time changes a plan.

    On file systems without locks it does nothing, and the last process wins.
    """
    with file_errors(folder, "change"):
        descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF, errno.EINVAL):
                raise EnvironmentProblem(f"cannot lock {folder}: {error.strerror}") from error
        yield
    finally:
        os.close(descriptor)


def _difference(there: Planned, sweep: Sweep, configs: Sequence[Config]) -> Change:
    """The members that a new plan changes, adds or drops, compared with the plan ``there``."""
    old, new = len(there.members), len(configs)
    changed = [
        index
        for index, (member, config) in enumerate(zip(there.members, configs, strict=False))
        if (member.output.name, member.settings, member.identity)
        != (config.output.path.name, sweep.members[index], identity(config))
    ]
    return Change(tuple(changed), tuple(range(old, new)), tuple(range(new, old)))


def identity(config: Config) -> str:
    """A checksum of the settings of an input, except for the path of its output, since a sweep folder may be moved."""
    tables = to_tables(config)
    return checksum(dumps({**tables, "output": {**tables["output"], "path": ""}}))


def _damaged(there: Planned) -> bool:
    """Whether the input file of any member is missing or differs from the plan."""
    try:
        for member in there.members:
            input_text(member)
    except InputError:
        return True
    return False


def _refuse_change(
    there: Planned, sweep: Sweep, change: Change, overwrite: bool, busy: Callable[[Member], bool]
) -> None:
    """Raise InputError if a plan would change or drop members without ``overwrite``, or members that are running."""
    touched = [*change.changed, *change.dropped]
    if touched and not overwrite:
        first = touched[0]
        before, after = there.members[first].settings, None if first in change.dropped else sweep.members[first]
        how = "be dropped" if after is None else f"become {described(after)}"
        how = "change, as the base did" if before == after else how
        raise InputError(
            f"{there.folder}: holds another plan: member {first} ({described(before)}) would {how}, and so would "
            f"{len(touched) - 1} other members; use --overwrite to change the plan, which keeps the results of those that "
            f"stay as they are, or choose another --dir"
        )
    running = [index for index in touched if busy(there.members[index])]
    if running:
        raise InputError(f"{there.folder}: member {listing(running)} is running; plan again when it has ended")
