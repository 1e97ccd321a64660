"""Files of runs as xarray datasets, and a picture of an array."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcstencil.io.dataset_names import PROBES, VALUES
from hpcstencil.io.file_read import inspect, open_for_reading
from hpcstencil.io.hdf5_validation import groups_in, numbers
from hpcstencil.io.rollback_journal import Before, pending
from hpcstencil.numerics.grid import AXES
from hpcstencil.runtime.filesystem import file_errors
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import listing, shown

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes


def open(path: str | os.PathLike[str]) -> xr.Dataset:
    """The fields of an output file as an xarray.Dataset, whose values are read on use.

    Dimensions (time, x, y, z), in an ensemble (member, time, x, y, z); fields in the run's dtype, coordinates float64.
    Close it, or use it as a context manager, before another run replaces the file. A file with an unfinished change
    opens in the state before that change. The call is not collective. Raises InputError if the file does not exist or
    was not written by a run, EnvironmentProblem if it cannot be read.
    """
    return _opened(path, None)


def diagnostics(path: str | os.PathLike[str]) -> xr.Dataset:
    """The time series of a run as an xarray.Dataset along ``time`` (in an ensemble member and time), float64, in memory.
    Raises as `open`."""
    with _opened(path, "diagnostics") as dataset:
        return dataset.load()


def probes(path: str | os.PathLike[str], name: str) -> xr.Dataset:
    """The samples of the table [probes.NAME] of a run as an xarray.Dataset, in memory: ``values`` (time, receiver) in the
    run's dtype, ``step``, and the places of the receivers as coordinates. Raises as `open`, and InputError if the file
    has no such probes."""
    place = Path(path)
    with open_for_reading(place) as file:
        known = groups_in(file, PROBES)
        if name not in known:
            raise InputError(f"{path}: has no probes {shown(name)}; it has {listing(known) or 'none'}")
        own = file[f"{PROBES}/{name}"]
        samples, *rows = numbers(place, own, VALUES, 2), numbers(place, own, "time", 1), numbers(place, own, "step", 1)
        places = [numbers(place, own, axis, 1) for axis in AXES if axis in own]
        if {each.shape for each in rows} != {samples.shape[:1]} or {each.shape for each in places} != {
            samples.shape[1:]
        }:
            raise InputError(
                f"{path}: expected a time for each sample of {PROBES}/{name} and a place for each receiver, but they do not "
                "fit the values; run its input again"
            )
    with _opened(path, f"{PROBES}/{name}") as dataset:
        return dataset.load()


def _opened(path: str | os.PathLike[str], group: str | None) -> xr.Dataset:
    """The dataset of a group of a file, or of its root."""
    import xarray as xr

    place = Path(path)
    contents = inspect(place)  # refuses files that no run wrote, and those that would make HDF5 read other files
    if contents.kind == "checkpoint":
        raise InputError(
            f"{place}: expected the output of a run, but this is a checkpoint; continue from it with hpcstencil run --restart"
        )
    unfinished = pending(place)
    source: Any = place if unfinished is None else Before(place, unfinished)
    options: dict[str, Any] = {"driver_kwds": {"locking": False}} if unfinished is None else {}
    with file_errors(place, "read"):
        return xr.open_dataset(source, engine="h5netcdf", group=group, **options)


def plot(array: Any, **options: Any) -> Axes:
    """Draw an array of one or two dimensions and return matplotlib's axes: a line, or an image with x to the right and
    equal scales. ``array`` is an xarray.DataArray, or a numpy or jax array, which is drawn over its indices.
    ``options`` such as ``ax``, ``vmin``, ``vmax`` and ``cmap`` go to xarray's plotting. Raises InputError for other
    objects and other numbers of dimensions.
    """
    array = _labelled(array).squeeze()
    if array.ndim not in (1, 2):
        left = ", ".join(map(str, array.dims)) or "none"
        raise InputError(
            f"plot: expected an array with one or two dimensions, but got {left}; select the others first, for example with "
            '.isel(time=-1) or .sel(z=0.5, method="nearest")'
        )
    if "ax" not in options:
        import matplotlib.pyplot as plt

        options["ax"] = plt.subplots()[1]
    if array.ndim == 1:
        array.plot.line(**options)
        return options["ax"]
    horizontal, vertical = array.dims
    array.plot.imshow(x=horizontal, y=vertical, **options)
    if "time" not in array.dims:
        options["ax"].set_aspect("equal")
    return options["ax"]


def _labelled(array: Any) -> xr.DataArray:
    """The array as an xarray.DataArray, with dimension names if it had none."""
    import numpy as np
    import xarray as xr

    if isinstance(array, xr.DataArray):
        return array
    if isinstance(array, xr.Dataset) or not hasattr(array, "__array__"):
        raise InputError(
            f'plot: expected an array, but got {type(array).__name__}; give one field, for example sim.state["u"]'
        )
    values = np.asarray(array)
    names = ("x", "y", "z") if values.ndim <= 3 else tuple(f"dim_{axis}" for axis in range(values.ndim))
    return xr.DataArray(values, dims=names[: values.ndim])
