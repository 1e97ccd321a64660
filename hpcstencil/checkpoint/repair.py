"""Repair of files that a killed run left half-written, for `hpcstencil info --repair`."""

from __future__ import annotations

from pathlib import Path

from hpcstencil.checkpoint.paths import remove_locks, remove_stale
from hpcstencil.io.output_lock import claimed
from hpcstencil.io.rollback_journal import living_writer, roll_back
from hpcstencil.runtime.communicator import OneProcess
from hpcstencil.runtime.filesystem import file_errors
from hpcstencil.validation.errors import InputError


def repaired(path: Path) -> list[str]:
    """Undo the unfinished change of the output at ``path``, and remove half-written checkpoints and lock files beside it.

    Returns sentences that say what was done. Raises InputError if the file does not exist, or if the process that writes it
    is alive; EnvironmentProblem if a run, on any host, holds the file, or if the file system fails.
    """
    alone = OneProcess()
    with file_errors(path, "read"):
        if not path.is_file():
            raise InputError(f"{path}: no such file")
    with claimed([path], alone, "before you repair it"):
        if alive := living_writer(path):  # where the file system has no locks
            raise InputError(f"{path}: process {alive} of this host is writing it; repair it when that run has ended")
        with file_errors(path, "write"):
            undone = roll_back(path)
        remove_stale(path, alone)
        remove_locks(path, alone)
    return ["an unfinished change was undone: the file is as before it" if undone else "nothing to repair"]
