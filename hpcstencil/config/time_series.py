"""Time-dependent parameters, given by equidistant samples in a file or an array; the first sample is at t = 0."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hpcstencil.io.array_file import IMAGE, ArrayFile, ArrayInMemory, array_of
from hpcstencil.validation.messages import at, unknown, wrong
from hpcstencil.validation.schema import ANY_TABLE, POSITIVE, REQUIRED, TEXT, Kind, key, keys_of, read


@dataclass(frozen=True)
class TimeSeries:
    """A time-dependent parameter as the input gives it.

    ``series`` names the samples: "FILE.npy" or "FILE.h5:DATASET" with an absolute path, or the text of an array in
    memory. ``dt`` is the time between two samples, in the time unit of the input.
    """

    series: str = key(TEXT, REQUIRED, 'series = "wavelet.h5:trace"', "the file of the samples")
    dt: float = key(POSITIVE, REQUIRED, "dt = 1e-3", "time between two samples")

    @property
    def array(self) -> ArrayFile | ArrayInMemory:
        """The file or array in memory that holds the samples, which are not read here."""
        array = array_of(self.series)
        assert array is not None, "`time_series_of` refuses other texts"
        return array


LEAST = sys.float_info.min  # the quotient 1 / dt must be a number
ADVICE = "write parameters beside the name of the equation, and stencils in [equation.stencils]"
TIME_SERIES = Kind("a table with the series and dt", ANY_TABLE.convert)


def time_series_of(name: str, given: Mapping[str, object], base: Path) -> TimeSeries:
    """Read the table ``given`` of the time-dependent parameter ``name``.

    The path of the file is relative to ``base``. The file is not opened. Raises InputError for wrong keys and values,
    and if ``series`` is not the name of a .npy file or of a dataset in an HDF5 file.
    """
    keys = keys_of(TimeSeries)
    if not set(given) & set(keys):
        raise wrong(at("equation", name), "a value, or a table with series and dt", given, ADVICE)
    for entry in given:
        if entry not in keys:
            raise unknown(at("equation", name, entry), "key", entry, tuple(keys))
    values = read(("equation", name), given, keys)
    if values["dt"] < LEAST:
        raise wrong(
            at("equation", name, "dt"), f"a number of at least {LEAST:g}", values["dt"], "use another unit of time"
        )
    file = array_of(values["series"])
    if isinstance(file, ArrayInMemory):
        return TimeSeries(str(file), values["dt"])
    if file is None or file.kind == IMAGE:
        expected = 'a file with samples, "FILE.npy" or "FILE.h5:DATASET"'
        raise wrong(at("equation", name, "series"), expected, values["series"], "convert or complete it")
    return TimeSeries(str(replace(file, path=Path(os.path.abspath(base / file.path)))), values["dt"])
