"""Repair of files that a killed run left half-written, for `hpcstencil info --repair`."""

from __future__ import annotations

from pathlib import Path

from hpcstencil.checkpoint.paths import remove_locks, remove_stale
from hpcstencil.io.rollback_journal import living_writer, roll_back
from hpcstencil.runtime.communicator import OneProcess
from hpcstencil.runtime.filesystem import file_errors
from hpcstencil.validation.errors import InputError


def repaired(path: Path) -> list[str]:
    """Undo the unfinished change of the output at ``path``, and remove half-written checkpoints and lock files beside it.

    Returns sentences that say what was done. Raises InputError if the file does not exist, or if the process that writes it
    is alive; EnvironmentProblem if the file system fails.
    """
    with file_errors(path, "read"):
        if not path.is_file():
            raise InputError(f"{path}: no such file")
    if alive := living_writer(path):
        raise InputError(f"{path}: process {alive} of this host is writing it; repair it when that run has ended")
    with file_errors(path, "write"):
        undone = roll_back(path)
    remove_stale(path, OneProcess())
    remove_locks(path, OneProcess())
    return ["an unfinished change was undone: the file is as before it" if undone else "nothing to repair"]
