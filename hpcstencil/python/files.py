"""Open the files of runs, gradients and fits as xarray datasets, and plot arrays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcstencil.io.dataset_names import MASK_DATASET, PROBES
from hpcstencil.io.file_read import inspect, open_for_reading
from hpcstencil.io.hdf5_validation import RESULTS, attributes, groups_in, json_attribute, numbers, probe_datasets
from hpcstencil.io.rollback_journal import Before, pending
from hpcstencil.runtime.filesystem import file_errors
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import listing, shown

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr
    from matplotlib.axes import Axes


def open(path: str | os.PathLike[str]) -> xr.Dataset:
    """Open the fields of an output file as an xarray.Dataset, whose values are read when they are used.

    The dimensions are (time, x, y, z), or (member, time, x, y, z) for an ensemble. Fields have the dtype of the run,
    and coordinates are float64. With a mask, the coordinate ``solid`` is 1 in solid cells. Close the
    dataset, or use it as a context manager, before another run replaces the file. A file with an incomplete write
    opens in the state before that write. Any process may call this by itself.

    The file of a gradient or a fit has a variable for each entry of gradient.of, with the dimensions (x, y, z), those of a
    number (), or those of a time series (its time); an axis member comes first where the members differ. That of a fit also has
    ``objective``, ``gradient_norm``, ``step`` and ``evaluations`` with the dimension iteration.

    Raises InputError if the file does not exist or is of another kind, EnvironmentProblem if it cannot be read.
    """
    place = Path(path)
    if _kind(place) in RESULTS:
        return _opened_result(place)
    dataset = _opened(path, None)
    if MASK_DATASET not in dataset:
        return dataset
    with_mask = dataset.set_coords(MASK_DATASET)
    with_mask.set_close(dataset.close)
    return with_mask


def diagnostics(path: str | os.PathLike[str]) -> xr.Dataset:
    """Read the diagnostics of an output file into an xarray.Dataset of float64 time series.

    The dimension is time, or (member, time) for an ensemble, whose coordinates are the numbers of the members and the values in
    which they differ. ``step`` is there too. Raises the errors of `open`, and InputError for the file of a stream.
    """
    with _opened(path, "diagnostics") as dataset:
        return _with_members(path, dataset.load())


def probes(path: str | os.PathLike[str], name: str) -> xr.Dataset:
    """Read the samples of the table [probes.NAME] of an output file into an xarray.Dataset.

    ``values`` has the dimensions (time, receiver), in an ensemble (member, time, receiver), and the dtype of the run. ``step``
    and the positions of the receivers are there too. Raises the errors of `open`, and InputError if the file has no such probes
    or they are damaged.
    """
    place = Path(path)
    with open_for_reading(place) as file:
        known = groups_in(file, PROBES)
        if name not in known:
            raise InputError(f"{path}: has no probes {shown(name)}; it has {listing(known) or 'none'}")
        samples, _ = probe_datasets(place, file, name)
        for series in ("time", "step"):
            if len(numbers(place, samples.parent, series, 1)) != samples.shape[-2]:
                raise InputError(f"{path}: expected a {series} for each sample of {PROBES}/{name}; run its input again")
    with _opened(path, f"{PROBES}/{name}") as dataset:
        return _with_members(path, dataset.load())


def _with_members(path: str | os.PathLike[str], series: xr.Dataset) -> xr.Dataset:
    """The series with the coordinates of an ensemble's members, as those of the fields in the same file."""
    if "member" not in series.dims:
        return series
    with _opened(path, None) as fields:
        of_members = {name: each.load() for name, each in fields.coords.items() if each.dims == ("member",)}
    return series.assign_coords({name: each for name, each in of_members.items() if name not in series.variables})


def _kind(path: Path) -> Any:
    """The kind of file, as its attribute says. Refuses files with links to other files."""
    with open_for_reading(path) as file:
        return attributes(path, file).get("kind")


def _opened_result(path: Path) -> xr.Dataset:
    """Open the file of a gradient or a fit; its history is read at once."""
    import xarray as xr

    options: dict[str, Any] = {"engine": "h5netcdf", "driver_kwds": {"locking": False}}
    with file_errors(path, "read"):
        dataset = xr.open_dataset(path, **options)
        if dataset.attrs["kind"] != "fit":
            return dataset
        with xr.open_dataset(path, group="history", phony_dims="sort", **options) as history:
            whole = dataset.merge(history.load())
    whole.set_close(dataset.close)
    return whole


def _opened(path: str | os.PathLike[str], group: str | None) -> xr.Dataset:
    """Open the ``group`` of an output file, or its root if that is None.

    Raises the errors of `open`, and InputError for a group of the file of a stream.
    """
    import xarray as xr

    place = Path(path)
    contents = inspect(place)  # refuses files that are not from a run, and files with links to other files
    if contents.kind == "checkpoint":
        raise InputError(
            f"{place}: expected the output of a run, but this is a checkpoint; continue from it with hpcstencil run --restart"
        )
    if group is not None and (stream := json_attribute(place, contents.attributes, "stream", {})):
        raise InputError(
            f"{path}: expected the main output of a run, but this is the file of its stream {shown(stream.get('name'))}, which "
            f"has no {group}; open [output] path instead"
        )
    unfinished = pending(place)
    source: Any = place if unfinished is None else Before(place, unfinished)
    options: dict[str, Any] = {"driver_kwds": {"locking": False}} if unfinished is None else {}
    with file_errors(place, "read"):
        return xr.open_dataset(source, engine="h5netcdf", group=group, **options)


def plot(array: Any, **options: Any) -> Axes | np.ndarray:
    """Plot an array with one dimension as a line, or with two as an image, and return the Matplotlib axes.

    ``col`` and ``row`` name one dimension more each, such as "member" or "time", whose values get a picture each, with one
    colour scale; the result is then the array of all axes.

    ``array`` is an xarray.DataArray, or a NumPy or JAX array, which is plotted against its indices. In an image the
    first dimension is horizontal, and both have the same scale unless one is time. Cells that the coordinate ``solid``
    marks are left out of a line and grey in an image. ``options`` such as ``ax``, ``vmin``, ``vmax`` and ``cmap`` are passed to
    xarray. Raises InputError for other objects and numbers of dimensions.
    """
    import numpy as np

    from postprocess.figures import SOLID

    array = _labelled(array)
    facets = [options[name] for name in ("row", "col") if options.get(name) is not None]
    if unknown := [name for name in facets if name not in array.dims]:
        raise InputError(
            f"plot: expected one of {listing(array.dims, 'or')} for row and col, but got {unknown[0]!r}; choose one"
        )
    array = array.squeeze([dim for dim in array.dims if array.sizes[dim] == 1 and dim not in facets])
    if array.attrs.get("units") == "1":
        array = array.copy(deep=False)
        del array.attrs["units"]  # xarray would label it `u [1]`
    dims = [dim for dim in array.dims if dim not in facets]
    if len(dims) not in (1, 2):
        left = ", ".join(map(str, dims)) or "none"
        raise InputError(
            f"plot: expected an array with one or two dimensions, but got {left}; select the others first, for example with "
            '.isel(time=-1) or .sel(z=0.5, method="nearest")'
        )
    solid = MASK_DATASET in array.coords and array.ndim >= array.coords[MASK_DATASET].ndim > 0
    if solid:
        array = array.where(array.coords[MASK_DATASET] == 0).transpose(*array.dims)
    if not facets and "ax" not in options:
        import matplotlib.pyplot as plt

        options["ax"] = plt.subplots()[1]
    if len(dims) == 1:
        drawn = array.plot.line(**({"x": dims[0]} if facets else {}), **options)
    else:
        drawn = array.plot.imshow(x=dims[0], y=dims[1], **options)
    axes = drawn.axs if facets else options["ax"]
    for each in np.ravel(axes) if len(dims) == 2 else ():
        if solid:
            each.set_facecolor(SOLID)
        if "time" not in dims:
            each.set_aspect("equal")
    return axes


def _labelled(array: Any) -> xr.DataArray:
    """Convert an array to an xarray.DataArray, with dimensions x, y, z if it has no names. Raises InputError for other
    objects."""
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
