"""The time series of an output file: rows of diagnostics and probes, and the steps and times of snapshots.

Readers count rows and snapshots by the lengths of ``time`` and ``step``. These two are therefore written last, when all
other values of a change are in the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import h5py
import numpy as np

from hpcstencil.io.transports.protocol import Transport
from hpcstencil.io.truncate import Prepared

# (steps, times, values of each series by name); the first axis of an array of values is that of the rows
Rows = tuple[Sequence[int] | np.ndarray, Sequence[float] | np.ndarray, Mapping[str, Any]]
RowsOf = Mapping[str, Rows]  # keys are groups of the file: "diagnostics" or "probes/NAME"
NO_ROWS: RowsOf = {}


def _floats(values: Any) -> np.ndarray:
    """Return the values as an array, in their own dtype if it is a float type, else in float64."""
    array = np.asarray(values)
    return array if array.dtype.kind == "f" else array.astype(np.float64)


class TimeSeries:
    """The time series of the open ``file``. Its methods are collective, with equal arguments on all processes.

    ``found`` describes the file as this run opened it. ``writes`` is true on the one process that writes values. ``members``
    is the number of member axes (0 or 1), which precede the axis of the rows in the file. The attribute ``times`` lists the
    times of all snapshots.
    """

    def __init__(self, file: Transport, writes: bool, found: Prepared, members: int) -> None:
        self.file, self.writes, self.members = file, writes, members
        self.rows, self.times = {group: len(steps) for group, steps in found.rows.items()}, list(found.times)
        self.noted: list[tuple[int, Mapping[str, np.ndarray]]] = []

    def add_rows(self, rows: RowsOf) -> None:
        """Append rows, see `OutputFile.write_rows`. Readers see them after `commit`."""
        for group, (steps, times, values) in rows.items():
            series = {f"{group}/{name}": _floats(value) for name, value in values.items()}
            if series:
                self._write(series, self.rows[group])
            counted = {"step": np.asarray(steps, np.int64), "time": np.asarray(times, np.float64)}
            self.noted.append((self.rows[group], {f"{group}/{name}": values for name, values in counted.items()}))
            self.rows[group] += len(steps)

    def add_snapshots(self, steps: Sequence[int], times: Sequence[float]) -> None:
        """Append the steps and times of snapshots. Readers see them after `commit`."""
        self.noted.append((len(self.times), {"step": np.array(steps, np.int64), "time": np.array(times, np.float64)}))
        self.times += times

    def correct_last_time(self, time: float) -> None:
        """Replace the time of the last snapshot. Readers see it after `commit`."""
        self.noted.append((len(self.times) - 1, {"time": np.array([time])}))
        self.times[-1] = time

    def commit(self) -> None:
        """Write the steps and times of all added rows and snapshots, which makes them visible to readers."""
        for start, series in self.noted:
            self._write(series, start)
        self.noted.clear()

    def _write(self, series: Mapping[str, np.ndarray], start: int) -> None:
        """Extend datasets along the axis of their rows, and write the new rows of ``series`` from row ``start`` on."""
        axes = {name: min(self.members, values.ndim - 1) for name, values in series.items()}

        def extend(file: h5py.File) -> None:
            for name, values in series.items():
                file[name].resize(start + len(values), axes[name])

        self.file.apply(extend)
        for name, values in series.items():
            place = [start if axis == axes[name] else 0 for axis in range(values.ndim)]
            mine = np.moveaxis(values if self.writes else values[:0], 0, axes[name])
            self.file.write(name, place, np.ascontiguousarray(mine))
