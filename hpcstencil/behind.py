"""Snapshots written behind the computation: copied, and written by a thread while the next steps are taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from hpcstencil.hdf5 import OutputFile
from hpcstencil.topology import Range

Rows = tuple[Sequence[int], Sequence[float], Mapping[str, Any]]


class Writer:
    """Writes the output file of a run, one thing after the other. With ``behind`` (of one process alone) what is written of a
    state while the run goes on is written in a thread; where that fails, the next call raises what the thread raised."""

    def __init__(self, file: OutputFile, behind: bool) -> None:
        self.file, self.behind = file, behind
        self.thread = ThreadPoolExecutor(max_workers=1)
        self.under_way: Future[None] | None = None
        self.copies: dict[str, np.ndarray] = {}

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

        def write(blocks: Mapping[str, np.ndarray]) -> None:
            with self.file.change(self.file.snapshot_bytes):
                self.file.write_diagnostics(*rows)
                self.file.write_snapshot(step, time, blocks, ranges)

        if self.behind and not last:
            self.under_way = self.thread.submit(write, {name: self._own(name, blocks[name]) for name in blocks})
        else:
            write(blocks)

    def _own(self, name: str, block: np.ndarray) -> np.ndarray:
        """The block as it stays when the fields change. A view of the fields, which is not writeable, is copied to where those
        before it were: fresh memory costs more than copying does."""
        if block.flags.writeable:
            return block
        if name not in self.copies:
            self.copies[name] = np.empty_like(block)
        np.copyto(self.copies[name], block)
        return self.copies[name]

    def wait(self) -> None:
        """Until everything is written."""
        if self.under_way is not None:
            last, self.under_way = self.under_way, None
            last.result()

    def look(self) -> None:
        """Raise what has failed by now, without waiting."""
        if self.under_way is not None and self.under_way.done():
            self.wait()

    def close(self, complete: bool, failure: str = "") -> None:
        """As `OutputFile.close`."""
        self.wait()
        self.file.close(complete, failure)
