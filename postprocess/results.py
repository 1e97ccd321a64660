"""Figures of results: the convergence of a fit and what it found, or the derivatives that a gradient consists of."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from hpcstencil.io.hdf5_validation import attributes, json_attribute
from hpcstencil.validation.printable import printable
from postprocess.figures import LINE, as_text, colour_scale, head, open_frame, value_limits
from postprocess.reader import AXES, RequestProblem, opened, result_dataset

OTHER = "#c8553d"  # colour of the gradient norm
MOST_FIELDS, MOST_NUMBERS = 4, 6


@dataclass(frozen=True)
class Convergence:
    """The ``objective`` and the ``norm`` of its gradient, with a value per iteration of a fit, that of the start first."""

    objective: NDArray[np.float64]
    norm: NDArray[np.float64]


@dataclass(frozen=True)
class Result:
    """The contents of the file of a fit or a gradient that a figure shows.

    ``convergence`` is that of a fit, and ``objective`` the name of what a gradient differentiates, "" for a fit. ``fields`` are
    arrays on the grid, of which those with three axes are cut in the middle of z, and ``numbers`` the numbers. Those in which
    the members of an ensemble differ are named KEY[MEMBER]. ``coordinates`` are those of the cells, by axis. ``series`` are the
    time series, as (times, samples).
    """

    title: str
    convergence: Convergence | None
    objective: str
    numbers: Mapping[str, float]
    fields: Mapping[str, NDArray[np.floating]]
    coordinates: Mapping[str, NDArray[np.float64]]
    series: Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]]


def read_result(path: str | Path) -> Result:
    """Read the file of a fit or a gradient. Raises FileProblem if something in it is missing."""
    path = Path(path)
    with opened(path) as file:
        found = attributes(path, file)
        fields, values, series = dict[str, Any](), dict[str, float](), dict[str, Any]()
        for key in json_attribute(path, found, "unknowns", []):
            dataset = result_dataset(path, file, key)
            if f"{key}.time" in file:
                series[key] = result_dataset(path, file, f"{key}.time")[:], dataset[:]
                continue
            of_members = dataset.ndim > 0 and [*dataset.dims[0].keys()] == ["member"]
            for member in range(len(dataset)) if of_members else (None,):
                name, shape = (key, dataset.shape) if member is None else (f"{key}[{member}]", dataset.shape[1:])
                cut = (slice(None), slice(None), shape[2] // 2) if len(shape) == 3 else tuple(map(slice, shape))
                part = dataset[(*(() if member is None else (member,)), *cut)]
                if shape:
                    fields[name] = part
                else:
                    values[name] = float(part)
        convergence = None
        if found["kind"] == "fit":
            history = (result_dataset(path, file, f"history/{name}")[:] for name in ("objective", "gradient_norm"))
            convergence = Convergence(*history)
        coordinates = {axis: file[axis][:] for axis in AXES if axis in file}
    title = printable(str(found.get("title", "")).strip() or path.stem)
    objective = "" if convergence else printable(str(found.get("name", "objective")))
    return Result(title, convergence, objective, values, fields, coordinates, series)


def result_figure(result: Result) -> Figure:
    """Draw the convergence of a fit, and a panel for each of the first four time series and fields.

    Raises RequestProblem if there is nothing but numbers.
    """
    names = [*result.series, *result.fields][:MOST_FIELDS]
    count = len(names) + (result.convergence is not None)
    if not count:
        raise RequestProblem(f"There is nothing to draw but numbers: {', '.join(_told(result))}.")
    figure = Figure(figsize=(4.4 * max(count, 1.5), 3.9), layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(1, count, squeeze=False)[0])
    title = textwrap.fill(as_text(result.title), 40 * count)
    numbers = "" if result.convergence else textwrap.fill(as_text("; ".join(_told(result))), 48 * count)
    head(panels[0], f"{title}\n{numbers}".strip())
    if result.convergence is not None:
        _convergence(panels.pop(0), result, result.convergence)
    for axes, name in zip(panels, names, strict=True):
        if name in result.series:
            _series(axes, result, name)
        else:
            _field(figure, axes, result, name)
    return figure


def _label(result: Result, key: str) -> str:
    """What a value is: that of an entry of gradient.of, or the derivative with respect to it."""
    return f"d {result.objective} / d {key}" if result.objective else key


def _told(result: Result) -> list[str]:
    """The first numbers of a result, as texts."""
    return [f"{_label(result, key)} = {value:.6g}" for key, value in result.numbers.items()][:MOST_NUMBERS]


def _convergence(axes: Axes, result: Result, found: Convergence) -> None:
    iterations = np.arange(len(found.objective))
    axes.set_title("\n".join(map(as_text, _told(result))), loc="left", fontsize=10, color="0.1")
    for values, name, colour in ((found.objective, "objective", LINE), (found.norm, "gradient norm", OTHER)):
        axes.plot(iterations, values / abs(values[0] or 1.0), "o-", color=colour, markersize=3.5, label=name)
    axes.set_yscale("log" if (found.objective > 0).all() and (found.norm > 0).all() else "symlog")
    axes.set_xlabel("iteration")
    axes.set_ylabel("relative to the start")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(True)
    axes.legend(fontsize=9)
    open_frame(axes)


def _series(axes: Axes, result: Result, name: str) -> None:
    times, samples = result.series[name]
    axes.set_title(as_text(_label(result, name)), loc="left", fontsize=10, color="0.1")
    axes.set_xlabel("t")
    axes.plot(times, samples, color=LINE)
    axes.grid(True)
    open_frame(axes)


def _field(figure: Figure, axes: Axes, result: Result, name: str) -> None:
    values, places = result.fields[name], list(result.coordinates.values())
    axes.set_title(as_text(_label(result, name)), loc="left", fontsize=10, color="0.1")
    axes.set_xlabel("x")
    if values.ndim == 1:
        axes.plot(places[0], values, color=LINE)
        open_frame(axes)
        return
    colours, low, high = colour_scale(value_limits(values), values.dtype)
    image = axes.pcolormesh(places[0], places[1], values.T, cmap=colours, vmin=low, vmax=high, shading="nearest")
    axes.set_aspect("equal")
    axes.set_ylabel("y")
    unit = max(1.0, axes.get_data_ratio())  # of the longer side, in widths
    bar = figure.colorbar(image, cax=axes.inset_axes((1 + 0.03 * unit, 0.0, 0.045 * unit, 1.0)))
    bar.outline.set_linewidth(0.5)
