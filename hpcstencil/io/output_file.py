"""The output file of a run: snapshots and diagnostics in one HDF5 file, for any number of processes.

Rank 0 prepares the file alone (`output_preparation`). Then all processes open it through one of the `transports`, and only
extend and fill datasets. A snapshot is committed by two flushes: first the fields, then the `time_series` by which readers
count snapshots. Every change is a `transaction`, so if a run is killed at any moment, all committed snapshots remain
readable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from hpcstencil.io import xdmf
from hpcstencil.io.async_writer import AsyncWriter
from hpcstencil.io.dataset_names import MASK_DATASET
from hpcstencil.io.direct_write import Pieces, placing
from hpcstencil.io.file_layout import Description, chunk_shape, write_attributes
from hpcstencil.io.output_preparation import cut_to_continue, lay_out_anew, refuse_reserved
from hpcstencil.io.snapshot_buffers import Copies
from hpcstencil.io.time_series import NO_ROWS, RowsOf, TimeSeries
from hpcstencil.io.transaction import Transaction
from hpcstencil.io.transports.choice import chosen_transport, open_transport
from hpcstencil.io.transports.protocol import Blocks
from hpcstencil.io.transports.registry import TRANSPORTS
from hpcstencil.io.truncate import Prepared
from hpcstencil.numerics.topology import Range
from hpcstencil.runtime.communicator import Communicator, agree, from_rank_0
from hpcstencil.runtime.filesystem import prepare_folder

Snapshot = tuple[int, float, Blocks]  # its step, its time, and this process's blocks by field


class OutputFile:
    """The open output file of a run, with its writer thread, its transactions and its XDMF file. Methods are collective.

    With snapshot ``buffers``, and if the transport allows it, `write_snapshot` can leave the writing to a thread. If that
    fails on any process, the next call raises the error on all. Methods raise EnvironmentProblem if the file system fails
    (``UnsharedProblem`` if perhaps only one process knows of it).
    """

    def __init__(
        self,
        path: Path,
        communicator: Communicator,
        description: Description,
        transport: str,
        found: Prepared,
        buffers: Copies | None,
    ) -> None:
        """Open a file that is already prepared and has the contents ``found``. Use `create` or `append` instead."""
        self.path = path
        self.communicator = communicator
        self.layout, self.fields = description.layout, tuple(description.fields)
        self.found = found
        self.last_step = max(found.steps, default=-1)  # of the snapshots before this run wrote; -1 if there was none
        self._had = set(zip(found.steps, found.times, strict=True))
        self.chunk = chunk_shape(self.layout.grid.shape, found.itemsize)
        self.shared = open_transport(path, communicator, transport, placing(math.prod(self.chunk) * found.itemsize))
        self.series = TimeSeries(self.shared, communicator.rank == 0, found, len(self.layout.members))
        self.transaction = Transaction(path, communicator, self.shared, allocate=not found.compressed)
        self.thread = AsyncWriter(communicator)
        apart = communicator.size == 1 or TRANSPORTS[transport].independent  # else all write together
        self.buffers = buffers if apart else None
        solid = found.solid_axes == self.layout.grid.ndim
        self.xdmf = xdmf.Sidecar(path, communicator, self.layout, self.fields, found.itemsize, solid)
        self.xdmf.update(self.series.times, at_once=True)

    @classmethod
    def create(
        cls,
        path: Path,
        communicator: Communicator,
        description: Description,
        *,
        method: str = "auto",
        buffers: Copies | None = None,
    ) -> OutputFile:
        """Create a new output at ``path``, with ``complete`` = 0 and no snapshot, replacing an existing file.

        ``method`` is the `output.method` of the input. Raises InputError if a field has a name that the file uses itself.
        """
        refuse_reserved(description.fields)
        transport = chosen_transport(method, communicator, path)
        prepare_folder(path, communicator)
        found = from_rank_0(communicator, lambda: lay_out_anew(path, description))
        return cls(path, communicator, description, transport, found, buffers)

    @classmethod
    def append(
        cls,
        path: Path,
        communicator: Communicator,
        description: Description,
        *,
        step: int | None,
        method: str = "auto",
        buffers: Copies | None = None,
    ) -> OutputFile:
        """Open the existing output at ``path`` to continue it.

        Snapshots and time series after ``step`` are removed; with None, nothing is. ``complete`` becomes 0, and attributes of
        the ``description``, such as a new decomposition, replace those of the same names. Raises InputError if the file is
        not an output with these fields in this layout.
        """
        transport = chosen_transport(method, communicator, path)
        found = from_rank_0(communicator, lambda: cut_to_continue(path, description, step))
        return cls(path, communicator, description, transport, found, buffers)

    def last_row(self, group: str) -> int:
        """Return the step of the last row of a group (`time_series.RowsOf`) before this run wrote; -1 if there was none."""
        return max(self.found.rows[group], default=-1)

    def had(self, step: int, time: float) -> bool:
        """Return whether the file held a snapshot of this step and time before this run wrote."""
        return (step, time) in self._had

    @contextmanager
    def change(self, size: int) -> Iterator[None]:
        """Make the writes inside the context one transaction of at most ``size`` bytes of values.

        If the run is killed, the file holds all of these writes or none. Contexts may be nested. Raises EnvironmentProblem
        at the start if the disk does not have the space.
        """
        if self.transaction.under_way:
            yield
            return
        self.transaction.begin(size)
        yield
        self._commit()

    def _commit(self) -> None:
        """Commit the current transaction: first all values, then the series by which readers count them."""
        self.shared.apply(lambda file: file.flush())
        self.series.commit()
        self.shared.apply(lambda file: file.flush())
        self.transaction.end()
        self.xdmf.update(self.series.times)  # last, so that a failure here leaves no unfinished change

    @property
    def snapshot_bytes(self) -> int:
        """The size in bytes of a snapshot of all fields in the file, in whole chunks."""
        cells = sum(
            math.prod(-(-n // c) * c for n, c in zip(self.layout.shape(name), self.chunk, strict=True))
            for name in self.fields
        )
        return math.prod(self.layout.members) * cells * self.found.itemsize

    def write_solid(self, block: np.ndarray, ranges: Sequence[Range]) -> None:
        """Write this process's part of the mask, if the file has one.

        ``block`` is int8, local, without ghost cells, of the global index ``ranges``. It has a leading member axis if the
        members' masks differ. A continued run writes the same values again, because the earlier run may have been killed
        before they were complete.
        """
        if block.ndim != self.found.solid_axes:
            return
        with self.change(0):
            start = [0] * (block.ndim - len(ranges)) + [first for first, _ in ranges]
            self.shared.write(MASK_DATASET, start, block)

    def write_snapshot(
        self,
        step: int,
        time: float,
        blocks: Mapping[str, np.ndarray | Pieces],
        ranges: Sequence[Range],
        rows: RowsOf = NO_ROWS,
        behind: bool = False,
    ) -> None:
        """Append a snapshot of the state after ``step`` steps, at ``time``, and ``rows``; see `write_snapshots`."""
        self.write_snapshots([(step, time, blocks)], ranges, rows, behind)

    def write_snapshots(
        self,
        snapshots: Sequence[Snapshot],
        ranges: Sequence[Range],
        rows: RowsOf = NO_ROWS,
        behind: bool = False,
    ) -> None:
        """Append snapshots, in the order of their steps, and ``rows`` (`write_rows`), in one transaction.

        The blocks of a snapshot are a mapping of every field to this process's block of the global index ``ranges``: local,
        without ghost cells, C-contiguous, in the run's dtype. A staggered field includes the values on an upper boundary, on
        the processes next to it. In an ensemble, each block has a leading member axis.

        With ``behind``, a thread writes if possible (see the class), and the caller may change the fields at once. A block
        that is not writeable counts as a view of the fields, and is copied before a thread writes it.
        """
        self.thread.wait()
        given = [
            (step, time, {name: self._unchanging(name, block) for name, block in blocks.items()})
            for step, time, blocks in snapshots
        ]
        if self.communicator.size == 1:  # the thread also writes the journal and syncs
            own, together = lambda: self._append(given, ranges, rows), lambda: None
        else:
            self.transaction.begin(len(given) * self.snapshot_bytes)
            own, together = self._extend(given, ranges, rows), self._commit
        if behind and self.buffers is not None:
            self.buffers.lend(self.thread.begin(own, together))
        else:
            agree(self.communicator, own)
            together()

    def _unchanging(self, name: str, block: np.ndarray | Pieces) -> np.ndarray | Pieces:
        """Return the block, or a copy of it if it is a view of the fields and a thread may write it."""
        if self.buffers is None or isinstance(block, Pieces) or block.flags.writeable:
            return block
        return self.buffers.copied(name, block)

    def _append(self, snapshots: Sequence[Snapshot], ranges: Sequence[Range], rows: RowsOf) -> None:
        """Append rows and snapshots in one transaction, in a run with a single process."""
        with self.change(len(snapshots) * self.snapshot_bytes):
            self._extend(snapshots, ranges, rows)()

    def _extend(self, snapshots: Sequence[Snapshot], ranges: Sequence[Range], rows: RowsOf) -> Callable[[], None]:
        """Append rows, allocate snapshots, and do all collective writes.

        Returns the function that writes the rest, on each process independently.
        """
        self._append_rows(rows)
        before, time_axis = len(self.series.times), len(self.layout.members)

        def extend(file: h5py.File) -> None:
            for name in self.fields:
                file[name].resize(before + len(snapshots), time_axis)

        self.shared.apply(extend)
        steps, times, written = zip(*snapshots, strict=True)
        self.series.add_snapshots(steps, times)
        mine = list[Callable[[], None]]()
        for n, blocks in enumerate(written, before):
            start = (*(0 for _ in self.layout.members), n, *(first for first, _ in ranges))
            given: Blocks = {name: in_time(blocks[name], time_axis) for name in self.fields}
            own = self.shared.independent_write(start, given)
            if own is not None:
                mine.append(own)
                continue
            for name, block in given.items():
                self.shared.write(name, start, block.joined() if isinstance(block, Pieces) else block)

        def write_mine() -> None:
            for write in mine:
                write()

        return write_mine

    def correct_last_time(self, time: float) -> None:
        """Replace the time of the last snapshot, in a separate transaction."""
        self.thread.wait()
        if self.series.times[-1] != time:
            with self.change(0):
                self.series.correct_last_time(time)
            self._had.add((self.last_step, time))

    def write_rows(self, rows: RowsOf) -> None:
        """Append rows to the time series of each group, in a separate transaction.

        Steps, times and values have one entry per row and are equal on all processes, except that only rank 0 needs the
        values. Each group must have all of its series. In an ensemble, an entry of a series is an array of shape (members,).
        """
        self.thread.wait()
        self._append_rows(rows)

    def _append_rows(self, rows: RowsOf) -> None:
        if any(len(steps) for steps, _, _ in rows.values()):
            with self.change(
                sum(np.asarray(value).nbytes for _, _, series in rows.values() for value in series.values())
            ):
                self.series.add_rows(rows)

    def wait(self) -> None:
        """Wait until everything is written. If a write in a thread failed, raises its error on all processes."""
        self.thread.wait()

    def poll(self) -> None:
        """Commit a snapshot if the threads of all processes have written it by now; raise its error if that failed.

        Does not wait.
        """
        self.thread.poll()

    def close(self, complete: bool, **attributes: str) -> None:
        """Set ``complete``, add ``attributes`` that describe the end of the run (`truncate.ENDED`), and close the file."""

        def mark(file: h5py.File) -> None:
            file.attrs.modify("complete", int(complete))
            write_attributes(file, attributes)

        self.thread.close()
        self.transaction.begin(None)
        self.shared.apply(mark)
        self.shared.close()  # this too may change the file's length and its header
        self.transaction.end()
        self.xdmf.update(self.series.times, at_once=True)


def in_time(block: np.ndarray | Pieces, axis: int) -> np.ndarray | Pieces:
    """Return the block with a time axis of length 1 inserted at ``axis``; pieces already have one."""
    return block if isinstance(block, Pieces) else np.expand_dims(block, axis)
