"""Changes of the output file, made by all processes together. Each is made as a whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from hpcstencil.io import rollback_journal
from hpcstencil.io.rollback_journal import Span, journal_path
from hpcstencil.runtime.communicator import Communicator, agree
from hpcstencil.runtime.filesystem import file_errors
from hpcstencil.validation.errors import EnvironmentProblem


class Change:
    """The changes of the file at ``path``, one after the other. All processes call every method together.

    Raises EnvironmentProblem if the file system fails, or somebody else has changed the file.
    """

    def __init__(self, path: Path, communicator: Communicator) -> None:
        self.path, self.communicator = path, communicator
        self.under_way = False
        self.left: os.stat_result | None = None  # the file as it was when a change last began or ended

    def begin(self, untouched: Iterable[Span]) -> None:
        """Begin a change: until `end`, the journal can undo it if the run is killed. The journal leaves out the
        ``untouched`` bytes."""

        def begin() -> None:
            if self.communicator.rank == 0:
                self.left = self._looked_at()
                with file_errors(journal_path(self.path), "write"):
                    rollback_journal.begin(self.path, untouched)
                self._looked_at()  # again: the journal must not keep what somebody has changed meanwhile

        agree(self.communicator, begin)
        self.under_way = True

    def _looked_at(self, ended: bool = False) -> os.stat_result:
        """The file's status, on rank 0 alone. Raises EnvironmentProblem if it is another file than before, or has
        another length although no change has just ``ended``. It then removes the journal, which does not belong to the
        file that is there."""
        with file_errors(self.path, "write"):
            now, left = self.path.stat(), self.left
        if left is None or (left.st_ino == now.st_ino and (ended or left.st_size == now.st_size)):
            return now
        journal_path(self.path).unlink(missing_ok=True)
        what = f"cut or changed ({left.st_size} bytes were written, {now.st_size} are there)"
        raise EnvironmentProblem(
            f"{self.path}: was {what if left.st_ino == now.st_ino else 'replaced'} by somebody else while this run was "
            "writing it; the checkpoints beside it stand: go on from one with --restart and another --output"
        )

    def end(self) -> None:
        """Commit the change, which all processes have written."""

        def commit() -> None:
            if self.communicator.rank == 0:
                left = self._looked_at(ended=True)  # before it counts as committed: from then on somebody may cut it
                with file_errors(self.path, "write"):
                    rollback_journal.commit(self.path)
                self.left = left

        self.communicator.barrier()
        agree(self.communicator, commit)
        self.under_way = False
