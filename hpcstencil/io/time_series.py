"""The time series of an output file: rows of diagnostics, and the steps and times of snapshots.

Readers count rows and snapshots by the length of ``time`` and ``step``. These series are therefore only noted while a
change is under way, and written when all other values are in the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import h5py
import numpy as np

from hpcstencil.io.transports.protocol import Transport
from hpcstencil.io.truncate import Prepared

Rows = tuple[Sequence[int], Sequence[float], Mapping[str, Any]]  # steps, times and values of diagnostics
NO_ROWS: Rows = ((), (), {})


class TimeSeries:
    """The series of the open ``file``, which held what was ``found`` in it. All processes call every method together,
    with equal values; ``writes`` is true on the one process that writes them. ``times`` are those of all snapshots."""

    def __init__(self, file: Transport, writes: bool, found: Prepared) -> None:
        self.file, self.writes = file, writes
        self.rows, self.times = len(found.rows), list(found.times)
        self.noted: list[tuple[int, Mapping[str, np.ndarray]]] = []

    def add_rows(self, rows: Rows) -> None:
        """Append rows of diagnostics, see `OutputFile.write_diagnostics`. Readers see them after the `commit`."""
        steps, times, values = rows
        series = {
            f"diagnostics/{name}": np.ascontiguousarray(np.asarray(value, np.float64).T)
            for name, value in values.items()
        }
        if series:
            self._write(series, self.rows)
        counted = {"step": np.asarray(steps, np.int64), "time": np.asarray(times, np.float64)}
        self.noted.append((self.rows, {f"diagnostics/{name}": values for name, values in counted.items()}))
        self.rows += len(steps)

    def add_snapshot(self, step: int, time: float) -> None:
        """Append the step and time of a snapshot. Readers see it after the `commit`."""
        self.noted.append((len(self.times), {"step": np.array([step], np.int64), "time": np.array([time])}))
        self.times.append(time)

    def correct_last_time(self, time: float) -> None:
        """Give the last snapshot another time. Readers see it after the `commit`."""
        self.noted.append((len(self.times) - 1, {"time": np.array([time])}))
        self.times[-1] = time

    def commit(self) -> None:
        """Write the series by which readers count what was added."""
        for start, series in self.noted:
            self._write(series, start)
        self.noted.clear()

    def _write(self, series: Mapping[str, np.ndarray], start: int) -> None:
        """Extend the last axis of datasets and write ``series`` from ``start`` on."""

        def extend(file: h5py.File) -> None:
            for name, values in series.items():
                file[name].resize(start + values.shape[-1], values.ndim - 1)

        self.file.apply(extend)
        for name, values in series.items():
            place = (*(0 for _ in values.shape[1:]), start)
            self.file.write(name, place, values if self.writes else values[..., :0])
