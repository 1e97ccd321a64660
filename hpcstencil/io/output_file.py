"""The output file of a run: snapshots and diagnostics in one HDF5 file, for any number of processes.

Rank 0 prepares the file alone (`output_preparation`). Then all processes open it through one of the `transports` and only
extend and fill datasets. A snapshot is committed by two flushes: the fields, then the `time_series` by which readers count
snapshots. A `transaction` covers every change, so a run killed at any moment leaves all committed snapshots readable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
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


class OutputFile:
    """The open output file of a run, with the thread that writes it, its transactions and its XDMF file. All processes
    call every method together; one thing is written after the other.

    With snapshot ``buffers``, and if the transport allows it, `write_snapshot` may leave the writing to a thread. If
    that fails on any process, the next call raises the error on all. Methods raise EnvironmentProblem if the file
    system fails (``UnsharedProblem`` if perhaps only one process knows).
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
        """Open a file that `create` or `append` has prepared, with what they ``found`` in it. Use one of these
        instead."""
        self.path = path
        self.communicator = communicator
        self.layout, self.fields = description.layout, tuple(description.fields)
        self.found = found
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
        """A new output at ``path``, which replaces an existing file, with ``complete`` = 0 and no snapshot. ``method``
        is the `output.method` of the input. Raises InputError if a field has a name that the file uses itself."""
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
        """Continue the existing output at ``path``. Snapshots and diagnostics later than ``step`` are cut (None: none
        are). ``complete`` becomes 0, and the attributes of the ``description`` (a new decomposition, say) replace those
        of the same names.

        Raises InputError if the file is not an output with these fields in this layout.
        """
        transport = chosen_transport(method, communicator, path)
        found = from_rank_0(communicator, lambda: cut_to_continue(path, description, step))
        return cls(path, communicator, description, transport, found, buffers)

    @property
    def last_step(self) -> int:
        """The step of the last snapshot that the file held before this run wrote; -1 if there was none."""
        return max(self.found.steps, default=-1)

    def last_row(self, group: str) -> int:
        """The step of the last row of a group (`time_series.RowsOf`) that the file held before this run wrote; -1 if
        there was none."""
        return max(self.found.rows[group], default=-1)

    def had(self, step: int, time: float) -> bool:
        """Whether the file held the snapshot of this step and time before this run wrote."""
        return (step, time) in zip(self.found.steps, self.found.times, strict=True)

    @contextmanager
    def change(self, size: int) -> Iterator[None]:
        """A context whose writes form one change of at most ``size`` bytes of values: if the run is killed, the file
        holds all of it or nothing. Contexts may nest. Raises EnvironmentProblem at the start if the disk lacks the
        space."""
        if self.transaction.under_way:
            yield
            return
        self.transaction.begin(size)
        yield
        self._commit()

    def _commit(self) -> None:
        """Commit the change under way: first all values, then the series that declare them."""
        self.shared.apply(lambda file: file.flush())
        self.series.commit()
        self.shared.apply(lambda file: file.flush())
        self.transaction.end()
        self.xdmf.update(self.series.times)  # only now: what fails here leaves no unfinished change

    @property
    def snapshot_bytes(self) -> int:
        """The size in bytes of a snapshot of all fields in the file, in whole chunks."""
        cells = sum(
            math.prod(-(-n // c) * c for n, c in zip(self.layout.shape(name), self.chunk, strict=True))
            for name in self.fields
        )
        return math.prod(self.layout.members) * cells * self.found.itemsize

    def write_solid(self, block: np.ndarray, ranges: Sequence[Range]) -> None:
        """Write the mask, if the file has one: this process's ``block`` (int8, local, without ghost cells) of the
        global index ``ranges``, with a first axis of members if they differ in it. A continued run writes the same
        values again, because a kill may have come before they were complete."""
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
        """Append ``rows``, as in `write_rows`, and the state at ``time``, after ``step`` steps, in one change. With
        ``behind`` a thread writes it if possible (see the class), and the caller may change the fields at once.

        ``blocks`` maps every field to this process's block of the global index ``ranges`` (local, without ghost cells,
        C-contiguous, in the run's dtype). A field on faces includes the values on an upper boundary, on the processes
        next to it. In an ensemble each block has a first axis of members. A block that is not writeable counts as a
        view of the fields, and is copied if a thread is to write it.
        """
        self.thread.wait()
        given = {name: self._unchanging(name, block) for name, block in blocks.items()}
        if self.communicator.size == 1:  # the thread also writes the journal and syncs
            own, together = lambda: self._append(step, time, given, ranges, rows), lambda: None
        else:
            self.transaction.begin(self.snapshot_bytes)
            own, together = self._extend(step, time, given, ranges, rows), self._commit
        if behind and self.buffers is not None:
            self.buffers.lend(self.thread.begin(own, together))
        else:
            agree(self.communicator, own)
            together()

    def _unchanging(self, name: str, block: np.ndarray | Pieces) -> np.ndarray | Pieces:
        """The block in a form that stays the same while the fields change."""
        if self.buffers is None or isinstance(block, Pieces) or block.flags.writeable:
            return block
        return self.buffers.copied(name, block)

    def _append(self, step: int, time: float, blocks: Blocks, ranges: Sequence[Range], rows: RowsOf) -> None:
        """Append rows and a snapshot in one change, on one process."""
        with self.change(self.snapshot_bytes):
            self._extend(step, time, blocks, ranges, rows)()

    def _extend(
        self, step: int, time: float, blocks: Blocks, ranges: Sequence[Range], rows: RowsOf
    ) -> Callable[[], None]:
        """Append rows, allocate a snapshot and write what all processes write together; returns the function that
        writes the rest, each process by itself."""
        self._append_rows(rows)
        n, time_axis = len(self.series.times), len(self.layout.members)
        start = (*(0 for _ in self.layout.members), n, *(first for first, _ in ranges))
        given: Blocks = {name: in_time(blocks[name], time_axis) for name in self.fields}

        def extend(file: h5py.File) -> None:
            for name in self.fields:
                file[name].resize(n + 1, time_axis)

        self.shared.apply(extend)
        self.series.add_snapshot(step, time)
        own = self.shared.independent_write(start, given)
        if own is not None:
            return own
        for name, block in given.items():
            self.shared.write(name, start, block.joined() if isinstance(block, Pieces) else block)
        return lambda: None

    def correct_last_time(self, time: float) -> None:
        """Give the last snapshot this ``time``, in a change of its own."""
        self.thread.wait()
        if self.series.times[-1] != time:
            with self.change(0):
                self.series.correct_last_time(time)
            self.found = replace(self.found, times=tuple(self.series.times))

    def write_rows(self, rows: RowsOf) -> None:
        """Append rows to the time series of each group, in a change of their own. Steps, times and values have one
        entry per row. They are equal on all processes, except that rank 0 alone needs the values. A group has all of its
        series by name; in an ensemble each entry is an array of shape (members,)."""
        self.thread.wait()
        self._append_rows(rows)

    def _append_rows(self, rows: RowsOf) -> None:
        if any(len(steps) for steps, _, _ in rows.values()):
            with self.change(
                sum(np.asarray(value).nbytes for _, _, series in rows.values() for value in series.values())
            ):
                self.series.add_rows(rows)

    def wait(self) -> None:
        """Wait until everything is written. Raises the failure of a write in a thread, on all processes."""
        self.thread.wait()

    def poll(self) -> None:
        """Commit a snapshot if the threads of all processes have written it by now, and raise its failure. Does not
        wait."""
        self.thread.poll()

    def close(self, complete: bool, **attributes: str) -> None:
        """Mark the run as ``complete`` or not, add ``attributes`` about its end (named in `truncate.ENDED`), and close
        the file."""

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
    """The block with an axis of time, of length 1, inserted at ``axis``; pieces already have one."""
    return block if isinstance(block, Pieces) else np.expand_dims(block, axis)
