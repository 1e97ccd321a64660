"""Names of checkpoint files beside the output, and functions that list and remove them."""

from __future__ import annotations

import glob
import re
from pathlib import Path

from hpcstencil.io.file_names import base_name
from hpcstencil.runtime.communicator import Communicator, agree
from hpcstencil.runtime.filesystem import file_errors


def checkpoint_path(output: Path, step: int) -> Path:
    """Return the path of the checkpoint of ``step``: ``NAME.checkpoint.STEP.h5`` beside the output ``NAME.h5``."""
    return output.with_name(f"{base_name(output)}.checkpoint.{step:012d}.h5")


def checkpoint_pattern(output: Path) -> str:
    """Return the pattern, for `glob.glob`, of the checkpoints of the run that writes ``output``; without temporary files."""
    return str(Path(glob.escape(str(output.parent)), f"{glob.escape(base_name(output))}.checkpoint.*.h5"))


def list_checkpoints(output: Path) -> list[Path]:
    """Return all checkpoints of the run that writes ``output``, newest first, valid or not, without temporary files."""
    return _siblings(output, r"\.h5")


def step_of(path: Path) -> int:
    """Return the step number in the name of a checkpoint."""
    return int(path.name.split(".checkpoint.")[-1].split(".")[0])


def remove_stale(output: Path, communicator: Communicator, after: int | None = None) -> None:
    """Remove half-written checkpoints of a killed run beside ``output``, and those of steps ``after`` this. Collective.

    A run that starts anew under an old name passes ``after=-1``, and one that continues from step n passes ``after=n``.
    Otherwise a later checkpoint of the abandoned run would count as the newest. With None, only half-written checkpoints are
    removed. Raises EnvironmentProblem if a file cannot be removed.
    """

    def remove() -> None:
        if communicator.rank == 0:
            later = [] if after is None else [path for path in list_checkpoints(output) if step_of(path) > after]
            for path in _siblings(output, r"\.h5\.tmp") + later:
                with file_errors(path, "remove"):
                    path.unlink(missing_ok=True)

    agree(communicator, remove)


def remove_locks(output: Path, communicator: Communicator) -> None:
    """Remove the lock files of MPI-IO that a killed run left beside ``output`` and its checkpoints. Collective.

    Raises EnvironmentProblem if one cannot be removed.
    """
    checkpoints = rf"{re.escape(base_name(output))}\.checkpoint\.\d{{12,}}\.h5(\.tmp)?"
    pattern = re.compile(rf"({re.escape(output.name)}|{checkpoints})-\d+-\d+\.lock")

    def remove() -> None:
        if communicator.rank == 0:
            for path in [path for path in output.parent.iterdir() if pattern.fullmatch(path.name)]:
                with file_errors(path, "remove"):
                    path.unlink(missing_ok=True)

    agree(communicator, remove)


def keep_newest(output: Path, newest: Path, keep: int) -> None:
    """Remove all checkpoints of the run that writes ``output``, except ``newest`` and the ``keep`` - 1 latest others.

    Not collective. Raises EnvironmentProblem if one cannot be removed.
    """
    for old in [path for path in list_checkpoints(output) if path != newest][max(keep - 1, 0) :]:
        with file_errors(old, "remove"):
            old.unlink(missing_ok=True)


def _siblings(output: Path, ending: str) -> list[Path]:
    pattern = re.compile(rf"{re.escape(base_name(output))}\.checkpoint\.\d{{12,}}{ending}")
    folder = output.parent
    found = [path for path in folder.iterdir() if pattern.fullmatch(path.name)] if folder.is_dir() else []
    return sorted(found, key=step_of, reverse=True)
