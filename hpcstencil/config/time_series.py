"""Parameters that follow time: samples in a file or an array, the first at t = 0."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hpcstencil.io.array_file import IMAGE, ArrayFile, ArrayInMemory, array_of
from hpcstencil.validation.messages import at, unknown, wrong
from hpcstencil.validation.schema import ANY_TABLE, POSITIVE, REQUIRED, TEXT, Kind, key, keys_of, read


@dataclass(frozen=True)
class TimeSeries:
    """The file of the samples, "FILE.npy" or "FILE.h5:DATASET" with its absolute path, and the time between two
    samples, in the input's unit. The first sample is at t = 0."""

    series: str = key(TEXT, REQUIRED, 'series = "wavelet.h5:trace"', "the file of the samples")
    dt: float = key(POSITIVE, REQUIRED, "dt = 1e-3", "time between two samples")

    @property
    def array(self) -> ArrayFile | ArrayInMemory:
        """The samples."""
        array = array_of(self.series)
        assert array is not None, "`time_series_of` refuses other texts"
        return array


ADVICE = "write parameters beside the name of the equation, and stencils in [equation.stencils]"
TIME_SERIES = Kind("a table with the series and dt", ANY_TABLE.convert)


def time_series_of(name: str, given: Mapping[str, object], base: Path) -> TimeSeries:
    """The time series that the table ``given`` describes, for the parameter ``name`` of an equation. The path of its
    file is relative to ``base``. The file is not opened.

    Raises InputError for wrong keys and values, and for a text that names no such file.
    """
    keys = keys_of(TimeSeries)
    if not set(given) & set(keys):
        raise wrong(at("equation", name), "a value, or a table with series and dt", given, ADVICE)
    for entry in given:
        if entry not in keys:
            raise unknown(at("equation", name, entry), "key", entry, tuple(keys))
    values = read(("equation", name), given, keys)
    file = array_of(values["series"])
    if isinstance(file, ArrayInMemory):
        return TimeSeries(str(file), values["dt"])
    if file is None or file.kind == IMAGE:
        expected = 'a file with samples, "FILE.npy" or "FILE.h5:DATASET"'
        raise wrong(at("equation", name, "series"), expected, values["series"], "convert or complete it")
    return TimeSeries(str(replace(file, path=Path(os.path.abspath(base / file.path)))), values["dt"])
