"""Changes to the output file that all processes make together, each there as a whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from hpcstencil import journal
from hpcstencil.errors import EnvironmentProblem
from hpcstencil.files import file_errors
from hpcstencil.journal import Span, journal_path
from hpcstencil.parallel import Communicator, agree


class Change:
    """The change that is being made to the file at ``path``, one after the other; every method is called by all processes
    together. Raises EnvironmentProblem where the file system fails, or somebody else has changed the file."""

    def __init__(self, path: Path, communicator: Communicator) -> None:
        self.path, self.communicator = path, communicator
        self.under_way = False
        self.left: os.stat_result | None = None  # the file as the last change has left it

    def begin(self, untouched: Iterable[Span]) -> None:
        """From here to `end` the journal undoes it, should the run be killed; it leaves the ``untouched`` bytes alone."""

        def begin() -> None:
            if self.communicator.rank == 0:
                self._check_untouched()
                with file_errors(journal_path(self.path), "write"):
                    journal.begin(self.path, untouched)
                try:
                    self._check_untouched()  # again: the journal must not keep what somebody has changed meanwhile
                except EnvironmentProblem:
                    journal_path(self.path).unlink()
                    raise

        agree(self.communicator, begin)
        self.under_way = True

    def _check_untouched(self) -> None:
        """Raise EnvironmentProblem where the file is not the one that the last change has left; rank 0 alone."""
        with file_errors(self.path, "write"):
            now = self.path.stat()
        if self.left is None or ((self.left.st_ino, self.left.st_size) == (now.st_ino, now.st_size)):
            return
        what = f"cut or changed ({self.left.st_size} bytes were written, {now.st_size} are there)"
        raise EnvironmentProblem(
            f"{self.path}: was {what if self.left.st_ino == now.st_ino else 'replaced'} by somebody else while this run was "
            "writing it; the checkpoints beside it stand: go on from one with --restart and another --output"
        )

    def end(self) -> None:
        """All processes have written: the change stands."""

        def commit() -> None:
            if self.communicator.rank == 0:
                with file_errors(self.path, "write"):
                    left = self.path.stat()  # before it counts as committed: from then on somebody may cut it
                    journal.commit(self.path)
                    self.left = left

        self.communicator.barrier()
        agree(self.communicator, commit)
        self.under_way = False
