"""A figure of a sweep's table: final diagnostics against parameters.

One varied parameter gives lines. Two parameters give maps if their values form a grid, else coloured points. More parameters
give a panel of points for each. Also a script: `python -m postprocess.sweep TABLE.h5`.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from numpy.typing import NDArray

from hpcstencil.validation.printable import echo, printable
from postprocess.figures import LINE, STYLE, as_text, colour_scale, head, is_constant, open_frame, value_limits
from postprocess.reader import FileProblem, opened

DPI = 200
MOST_ROWS, MOST_COLUMNS = 12, 6  # most rows and columns of panels; the table has the rest
LOST = "0.55"  # colour of members that are not done


@dataclass(frozen=True)
class Parameter:
    """A varied parameter: one position on its axis per member, and labels if the values are not numbers."""

    name: str
    places: NDArray[np.float64]
    labels: tuple[str, ...] = ()

    @property
    def logarithmic(self) -> bool:
        """Whether its values span decades, so that the axis should be logarithmic."""
        return not self.labels and _spans_decades(self.places)


def _spans_decades(values: NDArray[np.float64]) -> bool:
    low, high = value_limits(values)
    return low > 0 and high >= 50 * low


@dataclass(frozen=True)
class SweepTable:
    """The contents of a sweep's table that a figure shows."""

    title: str
    parameters: tuple[Parameter, ...]
    diagnostics: Mapping[str, NDArray[np.float64]]
    done: NDArray[np.bool_]


def read_table(path: str | Path) -> SweepTable:
    """Read the table at ``path``. Raises FileProblem if it is not the table of a sweep."""
    path = Path(path)
    with opened(path) as file:
        if file.attrs.get("kind") != "sweep":
            raise FileProblem(
                f"{path} is not the table of a sweep: give the .h5 that `hpcstencil sweep collect` wrote."
            )
        varied = [_parameter(name, file[name.replace("/", "_")][()]) for name in json.loads(file.attrs["varied"])]
        parameters = tuple(one for one in varied if len(np.unique(one.places[np.isfinite(one.places)])) > 1)
        diagnostics = {name: file[name][()].astype(np.float64) for name in json.loads(file.attrs["diagnostics"])}
        done = np.array([text == "done" for text in file["status"].asstr()[()]])
        number = Parameter("member", file["member"][()].astype(np.float64))
        title = str(file.attrs.get("title", "")).strip() or path.absolute().parent.name
        return SweepTable(title, parameters or (number,), diagnostics, done)


def _parameter(name: str, values: NDArray[Any]) -> Parameter:
    if values.dtype.kind in "if":
        return Parameter(name, values.astype(np.float64))
    texts = [value.decode() if isinstance(value, bytes) else str(value) for value in values]
    labels = tuple(dict.fromkeys(texts))
    return Parameter(name, np.array([labels.index(text) for text in texts], np.float64), labels)


@rc_context(STYLE)
def save_sweep_figure(table: str | Path, output: str | Path) -> None:
    """Draw the table file and write the figure to ``output``, whose suffix selects the format.

    Raises FileProblem if the table cannot be read, OSError if the figure cannot be written.
    """
    sweep_figure(read_table(table)).savefig(output, dpi=DPI, bbox_inches="tight", pad_inches=0.12)


def sweep_figure(table: SweepTable) -> Figure:
    """Draw the table, with a row of panels for each of the first twelve diagnostics."""
    names = list(table.diagnostics)[:MOST_ROWS]
    plane = len(table.parameters) == 2
    draw = (_map if _is_grid(table.parameters) else _plane) if plane else _line
    columns = 1 if len(table.parameters) <= 2 else min(len(table.parameters), MOST_COLUMNS)
    rows = len(names)
    if columns == 1 and rows > 3:
        across, down = 2, -(-rows // 2)
    else:
        across, down = columns, rows
    size = (5.0 if columns == 1 else 3.1) * across + 0.9, (3.4 if plane else 2.5) * down + 0.6
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
    FigureCanvasAgg(figure)
    panels = figure.subplots(down, across, squeeze=False)
    head(panels[0, 0], _title(table))
    if columns == 1:
        flat = panels.ravel()
        for axes, name in zip(flat, names, strict=False):
            draw(axes, table, name)
        for axes in flat[rows:]:
            axes.remove()
        return figure
    for row, name in zip(panels, names, strict=True):
        for axes, parameter in zip(row, table.parameters, strict=False):
            _points(axes, table, parameter, name)
            if axes is not row[0]:
                axes.tick_params(labelleft=False)
            else:
                axes.set_ylabel(as_text(_values(table, name)[0]))
    return figure


def _title(table: SweepTable) -> str:
    done, count = int(table.done.sum()), len(table.done)
    missing = f", {count - done} not done" if done < count else ""
    title = as_text(textwrap.shorten(table.title, 60, placeholder=" ..."))
    return f"{title}: {count} members{missing}"


def _is_grid(parameters: Sequence[Parameter]) -> bool:
    """Return whether the values of two parameters form a complete grid, with each pair once."""
    a, b = (np.unique(parameter.places[np.isfinite(parameter.places)]) for parameter in parameters)
    pairs = {(x, y) for x, y in zip(*(parameter.places for parameter in parameters), strict=True)}
    return len(pairs) == len(parameters[0].places) == len(a) * len(b)


def _line(axes: Axes, table: SweepTable, name: str) -> None:
    (parameter,) = table.parameters
    label, values = _values(table, name)
    order = np.argsort(parameter.places, kind="stable")
    places, values = parameter.places[order], values[order]
    known = np.isfinite(values)
    # Draw the line through the existing points: a gap would hide a single point between two missing ones.
    axes.plot(places[known], values[known], color=LINE, marker="o", markersize=4.5)
    _missing(axes, places[~table.done[order]])
    axes.set_title(as_text(label), loc="left", fontsize=10, color="0.1")
    _dress(axes, parameter, values)


def _points(axes: Axes, table: SweepTable, parameter: Parameter, name: str) -> None:
    _, values = _values(table, name)
    axes.plot(parameter.places, values, color=LINE, linestyle="none", marker="o", markersize=4, alpha=0.75)
    _missing(axes, parameter.places[~table.done])
    _dress(axes, parameter, values)


def _values(table: SweepTable, name: str) -> tuple[str, NDArray[np.float64]]:
    """Return a diagnostic's values and label.

    If it hardly varies, its difference from a round number is shown, unless it is constant up to rounding.
    """
    values = table.diagnostics[name]
    low, high = value_limits(values)
    if not is_constant((low, high), values.dtype) and high - low < 1e-3 * max(abs(low), abs(high)):
        base = float(f"{low:.{int(np.ceil(np.log10(abs(low) / (high - low)))) + 1}g}")
        return f"{name} − {base:.12g}", values - base
    return name, values


def _missing(axes: Axes, places: NDArray[np.float64]) -> None:
    """Draw a cross at the lower edge for each member without a value."""
    if len(places):
        axes.plot(
            places, np.full(len(places), 0.03), color=LOST, linestyle="none", marker="x", markersize=5,
            markeredgewidth=1.2, transform=axes.get_xaxis_transform(),
        )  # fmt: skip


def _dress(axes: Axes, parameter: Parameter, upward: NDArray[np.float64]) -> None:
    """Set the scales, labels and frame of axes along a parameter; ``upward`` are the values that are drawn."""
    if parameter.logarithmic:
        axes.set_xscale("log")
    if _spans_decades(upward):
        axes.set_yscale("log")
    if parameter.labels:
        axes.set_xticks(range(len(parameter.labels)), [as_text(_short(label)) for label in parameter.labels])
    axes.set_xlabel(as_text(parameter.name))
    axes.margins(0.06, 0.12)
    if is_constant(value_limits(upward), upward.dtype):
        axes.set_ylim(colour_scale(value_limits(upward), upward.dtype)[1:])
    open_frame(axes)


def _map(axes: Axes, table: SweepTable, name: str) -> None:
    """Draw one cell per pair of values. All cells have the same size; cells without a value are grey."""
    across, up = table.parameters
    label, shown = _values(table, name)
    xs, ys = np.unique(across.places), np.unique(up.places)
    values = np.full((len(ys), len(xs)), np.nan)
    values[np.searchsorted(ys, up.places), np.searchsorted(xs, across.places)] = shown
    colours, low, high = colour_scale(value_limits(values), values.dtype)
    image = axes.pcolormesh(values, cmap=colours, vmin=low, vmax=high, edgecolors="white", linewidth=0.6)
    image.set_cmap(image.get_cmap().with_extremes(bad="0.8"))
    for row, column in zip(*np.nonzero(~np.isfinite(values)), strict=True):
        axes.plot(column + 0.5, row + 0.5, color=LOST, marker="x", markersize=6, markeredgewidth=1.2)
    _bar(axes, image, label)
    for axis, parameter, places in ((axes.xaxis, across, xs), (axes.yaxis, up, ys)):
        step = -(-len(places) // 8)
        labels = [_short(parameter.labels[int(p)]) if parameter.labels else f"{p:.4g}" for p in places]
        axis.set_ticks(np.arange(len(places))[::step] + 0.5, labels=[as_text(text) for text in labels[::step]])
        axis.set_label_text(as_text(parameter.name))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _plane(axes: Axes, table: SweepTable, name: str) -> None:
    """Draw points in the plane of two parameters, coloured by the diagnostic."""
    across, up = table.parameters
    label, values = _values(table, name)
    known = np.isfinite(values)
    colours, low, high = colour_scale(value_limits(values), values.dtype)
    image = axes.scatter(
        across.places[known], up.places[known], c=values[known], cmap=colours, vmin=low, vmax=high, s=55,
        edgecolors="0.3", linewidths=0.4,
    )  # fmt: skip
    axes.plot(
        across.places[~table.done], up.places[~table.done], color=LOST, linestyle="none", marker="x", markersize=6
    )
    _bar(axes, image, label)
    _dress(axes, across, up.places)
    if up.labels:
        axes.set_yticks(range(len(up.labels)), [as_text(_short(text)) for text in up.labels])
    axes.set_ylabel(as_text(up.name))


def _bar(axes: Axes, image: ScalarMappable, label: str) -> None:
    bar = axes.figure.colorbar(image, ax=axes, pad=0.02)
    bar.outline.set_linewidth(0.5)
    bar.long_axis.get_offset_text().set(x=1, horizontalalignment="left")  # on the left it would shift the bar
    axes.set_title(as_text(label), loc="left", fontsize=10, color="0.1")


def _short(text: str) -> str:
    return text if len(text) <= 16 else text[:14] + "…"


@click.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Picture to write; default: beside TABLE.")
def main(table: Path, output: Path | None) -> None:
    """Plot TABLE.h5, which `hpcstencil sweep collect` wrote."""
    output = output or table.with_suffix(".png")
    try:
        save_sweep_figure(table, output)
    except FileProblem as problem:
        click.echo(printable(problem), err=True)
        sys.exit(2)
    except OSError as error:
        click.echo(printable(f"{output} could not be written: {error.strerror or error}."), err=True)
        sys.exit(4)
    echo(output)


if __name__ == "__main__":
    main()
