"""Transactions of the output file: after a crash, each change of the file is either complete or undone."""

from __future__ import annotations

import os
from pathlib import Path

import h5py

from hpcstencil.io import rollback_journal
from hpcstencil.io.file_spans import SettledSpans
from hpcstencil.io.rollback_journal import journal_path
from hpcstencil.io.transports.protocol import Transport
from hpcstencil.runtime.communicator import Communicator, agree
from hpcstencil.runtime.filesystem import file_errors, reserve
from hpcstencil.validation.errors import EnvironmentProblem

MARGIN = 2**20  # bytes reserved for HDF5's own metadata


class Transaction:
    """The transactions, one after the other, of the file at ``path``, open as ``file``. All methods are collective.

    Space is reserved before a change. A compressed file has ``allocate`` = False: its size is not known in advance, and
    reserved space would stay with the file, so free space is only checked. Methods raise EnvironmentProblem if the file
    system fails, or if another process has changed the file.
    """

    def __init__(self, path: Path, communicator: Communicator, file: Transport, allocate: bool) -> None:
        self.path, self.communicator, self.file, self.allocate = path, communicator, file, allocate
        self.settled = SettledSpans()
        self.under_way = False
        self.left: os.stat_result | None = None  # the file as it was when a change last began or ended

    def begin(self, size: int | None) -> None:
        """Begin a change of at most ``size`` bytes of values; with None, no space is reserved.

        Until `end`, the journal can undo the change if the run is killed.
        """
        if size is not None:
            reserve(self.path, size + size // 100 + MARGIN, self.communicator, allocate=self.allocate)

        def find(file: h5py.File) -> None:
            if self.communicator.rank == 0:  # only rank 0 writes the journal
                self.settled.find(file)

        def begin() -> None:
            if self.communicator.rank == 0:
                self.left = self._looked_at()
                with file_errors(journal_path(self.path), "write"):
                    rollback_journal.begin(self.path, self.settled.spans)
                self._looked_at()  # again, since another process may have changed the file while the journal was written

        self.file.apply(find)
        agree(self.communicator, begin)
        self.under_way = True

    def _looked_at(self, ended: bool = False) -> os.stat_result:
        """Check, on rank 0, that no other process has changed the file, and return the file's status.

        Raises EnvironmentProblem if the file has been replaced, or if its length differs although no change has just
        ``ended``. The journal is then removed, because it does not belong to this file.
        """
        with file_errors(self.path, "write"):
            now, left = self.path.stat(), self.left
        if left is None or (left.st_ino == now.st_ino and (ended or left.st_size == now.st_size)):
            return now
        journal_path(self.path).unlink(missing_ok=True)
        what = f"cut or changed ({left.st_size} bytes were written, {now.st_size} are there)"
        raise EnvironmentProblem(
            f"{self.path}: was {what if left.st_ino == now.st_ino else 'replaced'} by somebody else while this run was "
            "writing it; the checkpoints beside it are valid: continue from one with --restart and another --output"
        )

    def end(self) -> None:
        """Commit the change after all processes have written it."""

        def commit() -> None:
            if self.communicator.rank == 0:
                left = self._looked_at(ended=True)  # before the commit, after which another run may truncate the file
                with file_errors(self.path, "write"):
                    rollback_journal.commit(self.path)
                self.left = left

        self.communicator.barrier()
        agree(self.communicator, commit)
        self.under_way = False
