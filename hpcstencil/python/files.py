"""Files of runs as xarray datasets, and a picture of an array."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcstencil.io.dataset_names import MASK_DATASET, PROBES
from hpcstencil.io.file_read import inspect, open_for_reading
from hpcstencil.io.hdf5_validation import groups_in
from hpcstencil.io.rollback_journal import Before, pending
from hpcstencil.runtime.filesystem import file_errors
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import listing, shown

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes


GREY = "0.72"  # solid cells, as in the pictures of `hpcstencil plot`


def open(path: str | os.PathLike[str]) -> xr.Dataset:
    """The fields of an output file as an xarray.Dataset, whose values are read on use.

    Dimensions (time, x, y, z), in an ensemble (member, time, x, y, z); fields in the run's dtype, coordinates float64.
    The mask, if there is one, is the coordinate ``solid``, 1 in solid cells.
    Close it, or use it as a context manager, before another run replaces the file. A file with an unfinished change
    opens in the state before that change. The call is not collective. Raises InputError if the file does not exist or
    was not written by a run, EnvironmentProblem if it cannot be read.
    """
    dataset = _opened(path, None)
    if MASK_DATASET not in dataset:
        return dataset
    with_mask = dataset.set_coords(MASK_DATASET)
    with_mask.set_close(dataset.close)
    return with_mask


def diagnostics(path: str | os.PathLike[str]) -> xr.Dataset:
    """The time series of a run as an xarray.Dataset along ``time`` (in an ensemble member and time), float64, in memory.
    Raises as `open`."""
    with _opened(path, "diagnostics") as dataset:
        return dataset.load()


def probes(path: str | os.PathLike[str], name: str) -> xr.Dataset:
    """The samples of the table [probes.NAME] of a run as an xarray.Dataset, in memory: ``values`` (time, receiver) in the
    run's dtype, ``step``, and the places of the receivers as coordinates. Raises as `open`, and InputError if the file
    has no such probes."""
    with open_for_reading(Path(path)) as file:
        known = groups_in(file, PROBES)
    if name not in known:
        raise InputError(f"{path}: has no probes {shown(name)}; it has {listing(known) or 'none'}")
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
    equal scales. ``array`` is an xarray.DataArray, or a numpy or jax array, which is drawn over its indices. Cells that
    its coordinate ``solid`` marks stay empty, in an image grey.
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
    solid = MASK_DATASET in array.coords and array.ndim >= array.coords[MASK_DATASET].ndim > 0
    if solid:
        dims = array.dims
        array = array.where(array.coords[MASK_DATASET] == 0).transpose(*dims)
    if "ax" not in options:
        import matplotlib.pyplot as plt

        options["ax"] = plt.subplots()[1]
    if array.ndim == 1:
        array.plot.line(**options)
        return options["ax"]
    if solid:
        options["ax"].set_facecolor(GREY)
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
