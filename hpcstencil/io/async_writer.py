"""Snapshots written behind the computation: copied, and written by a thread while the next steps are taken."""

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
    """Writes the output file of a run, one thing after the other; all processes call each method together. With ``behind``, if
    the file can, what is written of a state while the run goes on is written in a thread of each process; where that fails on
    any, the next call raises on all what the thread raised. ``copies`` are those of views of fields."""

    def __init__(self, file: OutputFile, behind: bool, communicator: Communicator, copies: Copies) -> None:
        self.file, self.behind, self.communicator = file, behind and file.can_write_behind, communicator
        self.thread = ThreadPoolExecutor(max_workers=1)
        self.under_way: tuple[Future[None], Callable[[], None]] | None = None  # and what is to be done afterwards
        self.copies = copies

    def write_rows(self, rows: Rows) -> None:
        """Rows of diagnostics, as `OutputFile.write_diagnostics` takes them."""
        self.wait()
        self.file.write_diagnostics(*rows)

    def write_snapshot(
        self, step: int, time: float, blocks: Mapping[str, np.ndarray], ranges: Sequence[Range], rows: Rows, last: bool
    ) -> None:
        """A snapshot, as `OutputFile.write_snapshot` takes it, and rows of diagnostics; after the ``last`` one there is
        nothing to do meanwhile."""
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
        """The block as it stays when the fields change, and as it is written fastest: where something is written behind, a view
        of the fields, which is not writeable, is copied."""
        if block.flags.writeable or not self.behind:
            return block
        return self.copies.copied(name, block)

    def wait(self) -> None:
        """Until everything is written."""
        if self.under_way is not None:
            (own, together), self.under_way = self.under_way, None
            agree(self.communicator, own.result)
            together()

    def look(self) -> None:
        """Finish what all processes have written by now, and raise what has failed, without waiting."""
        if self.under_way is None:
            return
        busy = int(not self.under_way[0].done())
        if not self.communicator.total(np.array([busy]))[0]:
            self.wait()

    def close(self, complete: bool, **attributes: str) -> None:
        """As `OutputFile.close`."""
        self.wait()
        self.file.close(complete, **attributes)
