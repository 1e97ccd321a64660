"""Asynchronous output: snapshots are copied, and a thread writes the copies while the next steps are computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from hpcstencil.io.direct_write import Pieces
from hpcstencil.io.output_file import OutputFile, Rows
from hpcstencil.io.shared_file import Blocks
from hpcstencil.io.snapshot_buffers import Copies
from hpcstencil.numerics.topology import Range
from hpcstencil.runtime.communicator import Communicator, agree


class Writer:
    """The writer of a run's output file, which does one thing after the other. All processes call each method together.

    With ``behind``, and if the file allows it, a thread of each process writes the snapshots while the run goes on. If
    that fails on any process, the next call raises the error on all. ``copies`` are the snapshot buffers.
    """

    def __init__(self, file: OutputFile, behind: bool, communicator: Communicator, copies: Copies) -> None:
        self.file, self.behind, self.communicator = file, behind and file.can_write_behind, communicator
        self.thread = ThreadPoolExecutor(max_workers=1)
        self.under_way: tuple[Future[None], Callable[[], None]] | None = None  # writing; then `together`
        self.copies = copies

    def write_rows(self, rows: Rows) -> None:
        """Write rows of diagnostics, as `OutputFile.write_diagnostics` takes them."""
        self.wait()
        self.file.write_diagnostics(*rows)

    def write_snapshot(
        self, step: int, time: float, blocks: Mapping[str, np.ndarray], ranges: Sequence[Range], rows: Rows, last: bool
    ) -> None:
        """Write a snapshot, as `OutputFile.write_snapshot` takes it, and rows of diagnostics. The ``last`` snapshot is
        written at once, because nothing is left to compute meanwhile."""
        self.wait()
        given: Blocks = {name: self._own(name, block) for name, block in blocks.items()}
        own, together = self.file.begin_snapshot(step, time, given, ranges, rows)
        if self.behind and not last:
            written = self.thread.submit(own)
            self.copies.lend(written)
            self.under_way = written, together
        else:
            agree(self.communicator, own)
            together()

    def _own(self, name: str, block: np.ndarray) -> np.ndarray | Pieces:
        """The block in a form that stays unchanged while the fields change. A view of the fields, which is not
        writeable, is copied if a thread is to write it; other blocks are returned as they are."""
        if block.flags.writeable or not self.behind:
            return block
        return self.copies.copied(name, block)

    def wait(self) -> None:
        """Wait until everything is written."""
        if self.under_way is not None:
            (own, together), self.under_way = self.under_way, None
            agree(self.communicator, own.result)
            together()

    def look(self) -> None:
        """Finish a snapshot that all processes have written by now, and raise its failure. Does not wait."""
        if self.under_way is None:
            return
        busy = int(not self.under_way[0].done())
        if not self.communicator.total(np.array([busy]))[0]:
            self.wait()

    def close(self, complete: bool, **attributes: str) -> None:
        """Close the file, as `OutputFile.close`."""
        self.wait()
        self.file.close(complete, **attributes)
