"""The output file of a run: snapshots and diagnostics in one HDF5 file, for any number of processes.

Rank 0 lays the file out alone (attributes, coordinates, empty datasets). Then all processes open it through one of the
`transports` and only extend and fill datasets. A snapshot is committed by two flushes: the fields, then ``time`` and
``step``; readers count snapshots by the length of ``/time``. A `transaction` covers every change, so a run killed at any
moment leaves all committed snapshots readable.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from hpcstencil.io import xdmf
from hpcstencil.io.async_writer import AsyncWriter
from hpcstencil.io.dataset_names import MASK_DATASET
from hpcstencil.io.direct_write import Pieces, placing
from hpcstencil.io.file_layout import Description, chunk_shape, lay_out, write_attributes
from hpcstencil.io.file_read import SCALES, fields_in
from hpcstencil.io.file_spans import UNUSED, sound_unused
from hpcstencil.io.hdf5_access import open_alone
from hpcstencil.io.hdf5_validation import WHOLE, attributes, numbers, refuse_other_files
from hpcstencil.io.rollback_journal import journal_path, living_writer, roll_back
from hpcstencil.io.snapshot_buffers import Copies
from hpcstencil.io.transaction import Transaction
from hpcstencil.io.transports.choice import chosen_transport, open_transport
from hpcstencil.io.transports.protocol import Blocks
from hpcstencil.io.transports.registry import TRANSPORTS
from hpcstencil.io.truncate import Prepared, cut_back
from hpcstencil.numerics.topology import Range
from hpcstencil.runtime.communicator import Communicator, agree, from_rank_0
from hpcstencil.runtime.filesystem import file_errors, prepare_folder
from hpcstencil.symbolic.staggering import Layout
from hpcstencil.validation.errors import InputError

FORMAT_VERSION = 1
RESERVED = ("diagnostics", *SCALES)  # names at the root of the file that no field may have

Rows = tuple[Sequence[int], Sequence[float], Mapping[str, Any]]  # steps, times and values of diagnostics
NO_ROWS: Rows = ((), (), {})


def refuse_existing(path: Path) -> None:
    """Raise InputError where ``path`` exists: an output is never replaced unasked."""
    if path.exists():
        raise InputError(
            f"{path}: exists already; say --overwrite to replace it, --resume to continue its run, or choose another "
            "--output"
        )


class OutputFile:
    """The open output file, with the thread that writes it, its transactions and its XDMF file. All processes call every
    method together, and one thing is written after the other.

    With snapshot ``buffers``, and if the transport allows it, `write_snapshot` may leave the writing to a thread. If that
    fails on any process, the next call raises the error on all. Raises EnvironmentProblem if the file system fails
    (``UnsharedProblem`` if perhaps only one process knows).
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
        """Open a file that ``create`` or ``append`` has prepared, with what they ``found`` in it; not for direct use."""
        self.path = path
        self.communicator = communicator
        self.layout, self.fields = description.layout, tuple(description.fields)
        self.found = found
        self.rows, self.times = len(found.rows), list(found.times)
        self.declared: list[tuple[int, Mapping[str, np.ndarray]]] = []
        self.chunk = chunk_shape(self.layout.grid.shape, found.itemsize)
        self.shared = open_transport(path, communicator, transport, placing(math.prod(self.chunk) * found.itemsize))
        self.transaction = Transaction(path, communicator, self.shared, allocate=not found.compressed)
        self.thread = AsyncWriter(communicator)
        apart = communicator.size == 1 or TRANSPORTS[transport].independent  # else all write together
        self.buffers = buffers if apart else None
        solid = found.solid_axes == self.layout.grid.ndim
        self.xdmf = xdmf.Sidecar(path, communicator, self.layout, self.fields, found.itemsize, solid)
        self.xdmf.update(self.times, at_once=True)

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
        """A new file at ``path``, which replaces an existing one, with ``complete`` = 0 and no snapshot."""
        clash = [name for name in description.fields if name in RESERVED]
        if clash:
            raise InputError(f"field '{clash[0]}': the output file uses this name itself; choose another")
        transport = chosen_transport(method, communicator, path)
        prepare_folder(path, communicator)

        def create() -> None:
            if communicator.rank == 0:
                target = Path(os.path.realpath(path))  # a link, to a larger disk perhaps, stays one
                temporary = target.with_name(target.name + ".tmp")
                with file_errors(path, "create"):
                    temporary.unlink(missing_ok=True)
                    with open_alone(temporary, "w") as file:
                        about = {**description.attributes, "kind": "output", "format_version": FORMAT_VERSION}
                        write_attributes(file, {**about, "complete": 0})
                        lay_out(file, description)
                        xdmf.write_mesh(file, description.layout.grid)
                    journal_path(path).unlink(missing_ok=True)
                    os.replace(temporary, target)  # whoever reads the old file keeps it whole

        agree(communicator, create)
        compressed = description.compression != "none"
        empty = Prepared((), (), (), np.dtype(description.dtype).itemsize, compressed, description.solid_axes)
        return cls(path, communicator, description, transport, empty, buffers)

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
        """Continue an existing file. Snapshots and diagnostics later than ``step`` are cut (None: none), ``complete``
        becomes 0, and the attributes of the ``description`` (a new decomposition, say) replace those of the same names.

        Raises InputError if the file is not an output with these fields in this layout.
        """
        transport = chosen_transport(method, communicator, path)

        def cut() -> Prepared:
            if alive := living_writer(path):
                raise InputError(f"{path}: process {alive} of this host is writing it; go on when that run has ended")
            with file_errors(path, "append to"):
                roll_back(path)
                with open_alone(path, "r") as file:
                    refuse_other_files(file, path)
                    _check_same(file, path, description.layout, description.fields)
                return cut_back(path, description.fields, step, description.attributes)

        found = from_rank_0(communicator, cut)
        return cls(path, communicator, description, transport, found, buffers)

    @property
    def last_step(self) -> int:
        """Step of the last snapshot that the file held before this run wrote; -1 if there was none."""
        return max(self.found.steps, default=-1)

    @property
    def last_row(self) -> int:
        """Step of the last row of diagnostics that the file held before this run wrote; -1 if there was none."""
        return max(self.found.rows, default=-1)

    def had(self, step: int, time: float) -> bool:
        """Whether the file held the snapshot of this step and time before this run wrote."""
        return (step, time) in zip(self.found.steps, self.found.times, strict=True)

    @contextmanager
    def change(self, size: int) -> Iterator[None]:
        """Make the writes inside one change of at most ``size`` bytes of values, which is whole or not made if the run
        is killed. Calls may nest. Nothing begins if there is no space for it."""
        if self.transaction.under_way:
            yield
            return
        self.transaction.begin(size)
        yield
        self._commit()

    def _commit(self) -> None:
        """Commit the change under way: first all values, then the series that declare them."""
        self.shared.apply(lambda file: file.flush())
        for start, series in self.declared:
            self._write_series(series, start)
        self.declared.clear()
        self.shared.apply(lambda file: file.flush())
        self.transaction.end()
        self.xdmf.update(self.times)  # only now: what fails here leaves no unfinished change

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of a snapshot of all fields in the file, in whole chunks."""
        cells = sum(
            math.prod(-(-n // c) * c for n, c in zip(self.layout.shape(name), self.chunk, strict=True))
            for name in self.fields
        )
        return math.prod(self.layout.members) * cells * self.found.itemsize

    def write_solid(self, block: np.ndarray, ranges: Sequence[Range]) -> None:
        """Write the mask, if the file has one: this process's ``block`` (int8, local, without ghost cells) of the
        global index ``ranges``. A continued run writes the same values again, because a kill may have come before they
        were complete."""
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
        rows: Rows = NO_ROWS,
        behind: bool = False,
    ) -> None:
        """Append ``rows`` of diagnostics and the state at ``time``, after ``step`` steps, in one change. With ``behind``
        a thread writes it if it can (see the class), and the caller may change the fields at once.

        ``blocks`` maps every field to this process's block of the global index ``ranges`` (local, without ghost cells,
        C-contiguous, the run's dtype). A field on faces includes the values on an upper boundary, on the processes
        beside it. In an ensemble each block has a first axis of members. A block that is not writeable is taken for a
        view of the fields, and copied where a thread is to write it.
        """
        self.thread.wait()
        given = {name: self._unchanging(name, block) for name, block in blocks.items()}
        if self.communicator.size == 1:  # journal and syncs are the thread's too
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

    def _append(self, step: int, time: float, blocks: Blocks, ranges: Sequence[Range], rows: Rows) -> None:
        """Append rows and a snapshot in one change, on one process."""
        with self.change(self.snapshot_bytes):
            self._extend(step, time, blocks, ranges, rows)()

    def _extend(
        self, step: int, time: float, blocks: Blocks, ranges: Sequence[Range], rows: Rows
    ) -> Callable[[], None]:
        """Append rows, allocate a snapshot and write what all processes write together; returns the function that
        writes the rest, each process by itself."""
        self._append_rows(*rows)
        n, time_axis = len(self.times), len(self.layout.members)
        start = (*(0 for _ in self.layout.members), n, *(first for first, _ in ranges))
        given: Blocks = {name: in_time(blocks[name], time_axis) for name in self.fields}

        def extend(file: h5py.File) -> None:
            for name in self.fields:
                file[name].resize(n + 1, time_axis)

        self.shared.apply(extend)
        self.declared.append((n, {"step": np.array([step], np.int64), "time": np.array([time])}))
        self.times.append(time)
        own = self.shared.independent_write(start, given)
        if own is not None:
            return own
        for name, block in given.items():
            self.shared.write(name, start, block.joined() if isinstance(block, Pieces) else block)
        return lambda: None

    def write_diagnostics(self, steps: Sequence[int], times: Sequence[float], values: Mapping[str, Any]) -> None:
        """Append rows to the time series, in a change of their own. ``steps``, ``times`` and each of ``values``
        have one entry per row, equal on all processes. ``values`` has every diagnostic; in an ensemble each entry is an
        array over the members."""
        self.thread.wait()
        self._append_rows(steps, times, values)

    def _append_rows(self, steps: Sequence[int], times: Sequence[float], values: Mapping[str, Any]) -> None:
        if len(steps) == 0:
            return
        n = self.rows
        series = {
            f"diagnostics/{name}": np.ascontiguousarray(np.asarray(value, np.float64).T)
            for name, value in values.items()
        }
        with self.change(0):
            if series:
                self._write_series(series, n)
            counted = {"step": np.asarray(steps, np.int64), "time": np.asarray(times, np.float64)}
            self.declared.append((n, {f"diagnostics/{name}": values for name, values in counted.items()}))
        self.rows += len(steps)

    def wait(self) -> None:
        """Wait until everything is written."""
        self.thread.wait()

    def poll(self) -> None:
        """Commit a snapshot that the threads of all processes have written by now, and raise its failure. Does not
        wait."""
        self.thread.poll()

    def close(self, complete: bool, **attributes: str) -> None:
        """Mark the run as ``complete`` or not, add ``attributes`` about its end (`truncate.ENDED`), and close."""

        def mark(file: h5py.File) -> None:
            file.attrs.modify("complete", int(complete))
            write_attributes(file, attributes)

        self.thread.close()
        self.transaction.begin(None)
        self.shared.apply(mark)
        self.shared.close()  # this too may change the file's length and its header
        self.transaction.end()
        self.xdmf.update(self.times, at_once=True)

    def _write_series(self, series: Mapping[str, np.ndarray], start: int) -> None:
        """Extend the last axis of datasets and write ``series`` from ``start`` on, with rank 0's values."""

        def extend(file: h5py.File) -> None:
            for name, values in series.items():
                file[name].resize(start + values.shape[-1], values.ndim - 1)

        self.shared.apply(extend)
        for name, values in series.items():
            place = (*(0 for _ in values.shape[1:]), start)
            self.shared.write(name, place, values if self.communicator.rank == 0 else values[..., :0])


def in_time(block: np.ndarray | Pieces, axis: int) -> np.ndarray | Pieces:
    """The block with an axis of time added, which pieces already have."""
    return block if isinstance(block, Pieces) else np.expand_dims(block, axis)


def _check_same(file: h5py.File, path: Path, layout: Layout, fields: Sequence[str]) -> None:
    """Raise InputError if ``file`` is not an output with these fields in this layout, or its series cannot grow."""
    if attributes(path, file).get("kind") != "output":
        raise InputError(f"{path}: not an output file of hpcstencil; choose another --output")
    there = fields_in(file)
    if set(there) != set(fields):
        raise InputError(
            f"{path}: holds the fields {sorted(there)}, this run has {sorted(fields)}; choose another --output"
        )
    for name in fields:
        shape, members = there[name].shape, len(layout.members)
        found, expected = (*shape[:members], *shape[members + 1 :]), (*layout.members, *layout.shape(name))
        if found != expected:
            raise InputError(f"{path}: its grid has shape {found}, this run's {expected}")
    counted = [numbers(path, file, f"{group}{name}", 1, kinds=kinds) for group in ("", "diagnostics/")
               for name, kinds in (("time", "f"), ("step", WHOLE))]  # fmt: skip
    measured = [numbers(path, file["diagnostics"], name, 1, 2) for name in file["diagnostics"]]
    for dataset in (*counted, *measured, *(there[name] for name in fields)):
        if dataset.maxshape.count(None) != 1 or dataset.dtype.kind not in "fi" or dataset.dtype.itemsize not in (4, 8):
            raise InputError(
                f"{path}: expected a series that can grow in '{dataset.name}', as a run lays it out; choose another --output"
            )
    if not sound_unused(file):
        raise InputError(f"{path}: its attribute '{UNUSED}' is damaged; choose another --output")
