"""The output file of a run: snapshots and diagnostics in one HDF5 file, for any number of processes.

Rank 0 lays the file out alone (attributes, coordinates, empty datasets). Then all processes open it through
`shared_file` and only extend and fill datasets. A snapshot is committed by two flushes: the fields, then ``time`` and
``step``; readers count snapshots by the length of ``/time``. A `rollback_journal` covers every change, so a run killed
at any moment leaves all committed snapshots readable.
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
from hpcstencil.io.dataset_names import MASK_DATASET
from hpcstencil.io.direct_write import Pieces, placing
from hpcstencil.io.file_layout import (
    Attributes,
    Compression,
    lay_out_axes,
    lay_out_diagnostics,
    lay_out_fields,
    lay_out_solid,
    write_attributes,
)
from hpcstencil.io.file_read import SCALES, fields_in
from hpcstencil.io.file_spans import UNUSED, SettledSpans, sound_unused
from hpcstencil.io.hdf5_validation import WHOLE, attributes, numbers, refuse_other_files
from hpcstencil.io.rollback_journal import journal_path, living_writer, roll_back
from hpcstencil.io.shared_file import Blocks, Method, Way, chosen_method, chunk_shape, open_alone, open_shared
from hpcstencil.io.transaction import Change
from hpcstencil.io.truncate import Prepared, cut_back
from hpcstencil.numerics.topology import Range
from hpcstencil.runtime.communicator import Communicator, agree, from_rank_0
from hpcstencil.runtime.filesystem import file_errors, prepare_folder, reserve
from hpcstencil.symbolic.staggering import Layout
from hpcstencil.validation.errors import InputError

FORMAT_VERSION = 1
MARGIN = 2**20  # bytes kept free for HDF5's own bookkeeping
RESERVED = ("diagnostics", *SCALES)  # names at the root of the file that no field may have

Rows = tuple[Sequence[int], Sequence[float], Mapping[str, Any]]  # steps, times and values of diagnostics


def refuse_existing(path: Path) -> None:
    """Raise InputError where ``path`` exists: an output is never replaced unasked."""
    if path.exists():
        raise InputError(
            f"{path}: exists already; say --overwrite to replace it, --resume to continue its run, or choose another "
            "--output"
        )


class OutputFile:
    """The open output file. All processes call every method together.

    Raises EnvironmentProblem if the file system fails (``UnsharedProblem`` if perhaps only one process knows).
    """

    def __init__(
        self, path: Path, communicator: Communicator, layout: Layout, fields: Sequence[str], way: Way, state: Prepared
    ) -> None:
        """Open a file that ``create`` or ``append`` has prepared; not for direct use."""
        self.path = path
        self.communicator = communicator
        self.layout, self.grid = layout, layout.grid
        self.fields = tuple(fields)
        self.state = state
        self.rows = len(state.rows)
        self.times = list(state.times)
        self.changed, self.settled = Change(path, communicator), SettledSpans()
        self.declared: list[tuple[int, Mapping[str, np.ndarray]]] = []
        self.can_write_behind = communicator.size == 1 or way == "direct"  # else all write together in `begin_snapshot`
        self.chunk = chunk_shape(self.grid.shape, state.itemsize)
        self.shared = open_shared(path, communicator, way, placing(math.prod(self.chunk) * state.itemsize))
        self._describe()

    @classmethod
    def create(
        cls,
        path: Path,
        communicator: Communicator,
        layout: Layout,
        *,
        fields: Sequence[str],
        dtype: Any,
        diagnostics: Sequence[str] = (),
        attributes: Attributes,
        units: Mapping[str, str] | None = None,
        long_names: Mapping[str, str] | None = None,
        compression: Compression = "none",
        method: Method = "auto",
        solid_axes: int = 0,
    ) -> OutputFile:
        """A new file at ``path``, which replaces an existing one, with ``complete`` = 0 and no snapshot.

        ``fields`` are the names of float arrays of ``dtype``, of the shapes of ``layout``; ``units`` and ``long_names``
        describe some of them (default "1" and the name). ``solid_axes`` is the number of axes of the mask, which
        `write_solid` writes; 0 without a mask. ``attributes`` go to the root, beside ``kind``, ``format_version``,
        ``complete``.
        """
        clash = [name for name in fields if name in RESERVED]
        if clash:
            raise InputError(f"field '{clash[0]}': the output file uses this name itself; choose another")
        way = chosen_method(method, communicator, path)
        prepare_folder(path, communicator)

        def lay_out() -> None:
            if communicator.rank == 0:
                target = Path(os.path.realpath(path))  # a link, to a larger disk perhaps, stays one
                temporary = target.with_name(target.name + ".tmp")
                with file_errors(path, "create"):
                    temporary.unlink(missing_ok=True)
                    with open_alone(temporary, "w") as file:
                        write_attributes(file, {**attributes, "kind": "output", "format_version": FORMAT_VERSION})
                        file.attrs["complete"] = 0
                        lay_out_axes(file, layout)
                        lay_out_fields(
                            file, layout, fields, np.dtype(dtype), units or {}, long_names or {}, compression
                        )
                        if solid_axes:
                            lay_out_solid(file, layout, of_members=solid_axes > layout.grid.ndim)
                        lay_out_diagnostics(file, diagnostics, layout.members)
                        xdmf.write_mesh(file, layout.grid)
                    journal_path(path).unlink(missing_ok=True)
                    os.replace(temporary, target)  # whoever reads the old file keeps it whole

        agree(communicator, lay_out)
        return cls(
            path,
            communicator,
            layout,
            fields,
            way,
            Prepared((), (), (), np.dtype(dtype).itemsize, compression != "none", solid_axes),
        )

    @classmethod
    def append(
        cls,
        path: Path,
        communicator: Communicator,
        layout: Layout,
        *,
        fields: Sequence[str],
        step: int | None,
        attributes: Attributes | None = None,
        method: Method = "auto",
    ) -> OutputFile:
        """Continue an existing file. Snapshots and diagnostics later than ``step`` are cut (None: none), ``complete``
        becomes 0, and ``attributes`` (a new decomposition, say) replace those of the same names.

        Raises InputError if the file is not an output with these fields in this layout.
        """
        way = chosen_method(method, communicator, path)

        def cut() -> Prepared:
            if alive := living_writer(path):
                raise InputError(f"{path}: process {alive} of this host is writing it; go on when that run has ended")
            with file_errors(path, "append to"):
                roll_back(path)
                with open_alone(path, "r") as file:
                    refuse_other_files(file, path)
                    _check_same(file, path, layout, fields)
                return cut_back(path, fields, step, attributes or {})

        state = from_rank_0(communicator, cut)
        return cls(path, communicator, layout, fields, way, state)

    @property
    def last_step(self) -> int:
        """Step of the last snapshot that the file held before this run wrote; -1 if there was none."""
        return max(self.state.steps, default=-1)

    @property
    def last_row(self) -> int:
        """Step of the last row of diagnostics that the file held before this run wrote; -1 if there was none."""
        return max(self.state.rows, default=-1)

    def had(self, step: int, time: float) -> bool:
        """Whether the file held the snapshot of this step and time before this run wrote."""
        return (step, time) in zip(self.state.steps, self.state.times, strict=True)

    @contextmanager
    def change(self, size: int) -> Iterator[None]:
        """Make the writes inside one change of at most ``size`` bytes of values, which is whole or not made if the run
        is killed. Calls may nest. Nothing begins if there is no space for it."""
        if self.changed.under_way:
            yield
            return
        self._start(size)
        yield
        self._finish()

    def _start(self, size: int) -> None:
        """Begin a change. The size after compression is unknown, and space reserved for all values would stay with the
        file; so compressed files only check for it."""
        reserve(self.path, size + size // 100 + MARGIN, self.communicator, allocate=not self.state.compressed)
        self._begin()

    def _begin(self) -> None:
        def find(file: h5py.File) -> None:
            if self.communicator.rank == 0:  # which writes the journal
                self.settled.find(file)

        self.shared.apply(find)
        self.changed.begin(self.settled.spans)

    def _finish(self) -> None:
        """Commit the change: first all values, then the series that declare them."""
        self.shared.apply(lambda file: file.flush())
        for start, series in self.declared:
            self._write_series(series, start)
        self.declared.clear()
        self.shared.apply(lambda file: file.flush())
        self.changed.end()
        # Only now: what fails here leaves no unfinished change. Rewriting costs more the more snapshots there are: from
        # 100 on, only with every further hundredth.
        if len(self.times) - self.described >= max(1, len(self.times) // 100):
            self._describe()

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of a snapshot of all fields in the file, in whole chunks."""
        cells = sum(
            math.prod(-(-n // c) * c for n, c in zip(self.layout.shape(name), self.chunk, strict=True))
            for name in self.fields
        )
        return math.prod(self.layout.members) * cells * self.state.itemsize

    def write_solid(self, block: np.ndarray, ranges: Sequence[Range]) -> None:
        """Write the mask, if the file has one: this process's ``block`` (int8, local, without ghost cells) of the
        global index ``ranges``. A continued run writes the same values again, because a kill may have come before they
        were complete."""
        if block.ndim != self.state.solid_axes:
            return
        with self.change(0):
            start = [0] * (block.ndim - len(ranges)) + [first for first, _ in ranges]
            self.shared.write(MASK_DATASET, start, block)

    def write_snapshot(self, step: int, time: float, blocks: Blocks, ranges: Sequence[Range]) -> None:
        """Append the state at ``time``, after ``step`` steps. ``blocks`` maps every field to this process's block of
        the global index ``ranges`` (local, without ghost cells, C-contiguous, the run's dtype).

        A field on faces includes the values on an upper boundary, on the processes beside it. In an ensemble each block
        has a first axis of members.
        """
        with self.change(self.snapshot_bytes):
            agree(self.communicator, self._extend(step, time, blocks, ranges))

    def begin_snapshot(
        self, step: int, time: float, blocks: Blocks, ranges: Sequence[Range], rows: Rows
    ) -> tuple[Callable[[], None], Callable[[], None]]:
        """Write the ``rows`` of diagnostics and then a snapshot, in two parts: a function that each process calls by
        itself, perhaps in a thread, and one that all call together when all have returned from the first. Nothing else
        may use the file until then."""
        if self.communicator.size == 1:

            def alone() -> None:
                with self.change(self.snapshot_bytes):
                    self.write_diagnostics(*rows)
                    self.write_snapshot(step, time, blocks, ranges)

            return alone, lambda: None
        self._start(self.snapshot_bytes)
        self.write_diagnostics(*rows)
        return self._extend(step, time, blocks, ranges), self._finish

    def _extend(self, step: int, time: float, blocks: Blocks, ranges: Sequence[Range]) -> Callable[[], None]:
        """Allocate a snapshot and write what all processes write together; returns the function that writes the rest,
        each process by itself."""
        n, time_axis = len(self.times), len(self.layout.members)
        start = (*(0 for _ in self.layout.members), n, *(first for first, _ in ranges))
        given: Blocks = {name: in_time(blocks[name], time_axis) for name in self.fields}

        def extend(file: h5py.File) -> None:
            for name in self.fields:
                file[name].resize(n + 1, time_axis)

        self.shared.apply(extend)
        self.declared.append((n, {"step": np.array([step], np.int64), "time": np.array([time])}))
        self.times.append(time)
        own = self.shared.apart(start, given)
        if own is not None:
            return own
        for name, block in given.items():
            self.shared.write(name, start, block.joined() if isinstance(block, Pieces) else block)
        return lambda: None

    def write_diagnostics(
        self, steps: Sequence[int], times: Sequence[float], values: Mapping[str, Sequence[float]]
    ) -> None:
        """Append rows to the time series. ``steps``, ``times`` and each of ``values`` have one entry per row, equal on
        all processes. ``values`` has every diagnostic; in an ensemble each entry is an array over the members."""
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

    def close(self, complete: bool, **attributes: str) -> None:
        """Mark the run as ``complete`` or not, add ``attributes`` about its end (`truncate.ENDED`), and close."""

        def mark(file: h5py.File) -> None:
            file.attrs.modify("complete", int(complete))
            write_attributes(file, attributes)

        self._begin()
        self.shared.apply(mark)
        self.shared.close()  # this too may change the file's length and its header
        self.changed.end()
        self._describe()

    def _write_series(self, series: Mapping[str, np.ndarray], start: int) -> None:
        """Extend the last axis of datasets and write ``series`` from ``start`` on, with rank 0's values."""

        def extend(file: h5py.File) -> None:
            for name, values in series.items():
                file[name].resize(start + values.shape[-1], values.ndim - 1)

        self.shared.apply(extend)
        for name, values in series.items():
            place = (*(0 for _ in values.shape[1:]), start)
            self.shared.write(name, place, values if self.communicator.rank == 0 else values[..., :0])

    def _describe(self) -> None:
        """Write the XDMF file beside the output, on rank 0."""

        def describe() -> None:
            if self.communicator.rank == 0:
                with file_errors(self.path.with_suffix(".xdmf"), "write"):
                    solid = self.state.solid_axes == self.grid.ndim
                    xdmf.write(self.path, self.layout, self.fields, self.state.itemsize, self.times, solid)

        agree(self.communicator, describe)
        self.described = len(self.times)


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
