"""Figures of fields, diagnostics and probes, as matplotlib objects made without pyplot's global state.

The layout is computed in inches. An image with equal scales, its colour bar and its title therefore fit tightly for any shape
of the domain, and all frames of a movie have the same size.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis, YAxis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.mathtext import MathTextParser
from matplotlib.transforms import blended_transform_factory
from numpy.typing import NDArray

from hpcstencil.validation.printable import printable
from postprocess.reader import FileView, RequestProblem
from postprocess.selection import Selection, cell_bounds, member_text

STYLE: Any = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 10, "mathtext.fontset": "dejavusans",
    "axes.labelsize": 10.5, "axes.linewidth": 0.7, "axes.edgecolor": "0.25", "axes.labelcolor": "0.1",
    "xtick.direction": "out", "ytick.direction": "out", "xtick.color": "0.25", "ytick.color": "0.25",
    "xtick.labelcolor": "0.1", "ytick.labelcolor": "0.1", "xtick.major.width": 0.7, "ytick.major.width": 0.7,
    "grid.color": "0.9", "grid.linewidth": 0.7, "axes.axisbelow": True, "lines.linewidth": 1.7,
    "axes.formatter.limits": (-4, 5), "axes.formatter.use_mathtext": True, "figure.facecolor": "white",
    "legend.edgecolor": "none", "legend.framealpha": 0.7,  # hides grid lines, not curves
}  # fmt: skip
LINE = "#1f5fa8"
SOLID = "0.72"  # grey of solid cells
SEQUENTIAL, DIVERGING = "viridis", "RdBu_r"  # RdBu_r is white at zero, which readers take for rest
LONGEST_TEXT = 300  # characters of a label
LONGEST_NAME = 40  # characters of a member's name in a legend
MOST_LINES = 8  # receivers that are drawn as lines, and members in a legend
BESIDE = 1.8  # inches for a legend beside the axes, where it hides no line
LARGEST = 5.2, 4.9  # inches, width and height, of an image or of a line plot's axes
WIDEST = 10.0  # images with a larger aspect ratio are stretched
LETTERS = 12  # of a heading, per inch
SHORT = 3  # characters of a label that is horizontal beside a vertical axis

Limits = tuple[float, float]
Draw = Callable[[NDArray[np.floating], float], None]


def value_limits(values: NDArray[np.floating]) -> Limits:
    """Return the smallest and the largest finite value of an array of any shape; (nan, nan) if no value is finite."""
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (np.nan, np.nan)


def is_constant(limits: Limits, dtype: np.dtype) -> bool:
    """Return whether values within `limits` are equal up to rounding; false if the limits are not finite."""
    low, high = limits
    return bool(high - low <= 16 * np.finfo(dtype).eps * max(abs(low), abs(high)))


def colour_scale(limits: Limits, dtype: np.dtype) -> tuple[str, float, float]:
    """Return the name of the colour map and its two ends for values within `limits`.

    The map is diverging and symmetric about 0 if the values change sign and the smaller side is at least a tenth of the larger
    one; otherwise it is sequential. If the values are constant up to rounding, the ends are 1 % apart, so that rounding errors
    are not visible.
    """
    low, high = limits
    if not (np.isfinite(low) and np.isfinite(high)):
        return SEQUENTIAL, 0.0, 1.0
    largest = max(abs(low), abs(high))
    if is_constant(limits, dtype):
        half = 0.005 * largest or 0.5
        return SEQUENTIAL, low - half, high + half
    if low < 0 < high and min(-low, high) >= 0.1 * largest:
        return DIVERGING, -largest, largest
    return SEQUENTIAL, low, high


def field_figure(selection: Selection) -> Figure:
    """Draw the selection: a line for one dimension, an image for two, with the first dimension horizontal."""
    values = selection.values()
    figure, draw = field_canvas(selection, value_limits(selection.fluid(values)))
    draw(values, selection.time)
    return figure


def field_canvas(selection: Selection, limits: Limits) -> tuple[Figure, Draw]:
    """Return an empty figure for the selection, and a function `draw(values, time)`, which may be called repeatedly.

    `limits` is the range of all values that will be drawn; it fixes the colours or the vertical axis.
    """
    return (_line if len(selection.dims) == 1 else _image)(selection, limits)


def _line(selection: Selection, limits: Limits) -> tuple[Figure, Draw]:
    (dim,) = selection.dims
    width, height = LARGEST[0] + 0.6, 3.3
    figure, axes = _figure(width, height, right=0.35, lines=len(_title_lines(selection, width)))
    (line,) = axes.plot([], [], color=LINE, solid_joinstyle="round")
    axes.set_xlim(selection.bounds(dim))
    _, low, high = colour_scale(limits, selection.field.dtype)
    low, high = limits if low == -high and np.isfinite(limits[0]) else (low, high)
    axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    axes.set_xlabel(_axis_label(dim))
    _label(axes.yaxis, _field_label(selection))
    open_frame(axes)
    places, solid = selection.coordinates(dim), selection.solid()
    if solid is not None:
        lower, upper = selection.bounds(dim)
        across, width = axes.get_xaxis_transform(), (upper - lower) / len(places)
        axes.bar(places[solid], 1, width, transform=across, color=SOLID, edgecolor=SOLID, linewidth=0.5, zorder=1)
    heading = _heading(axes, selection, width)

    def draw(values: NDArray[np.floating], time: float) -> None:
        line.set_data(places, values if solid is None else np.where(solid, np.nan, values))
        heading(values, time)

    return figure, draw


def _image(selection: Selection, limits: Limits) -> tuple[Figure, Draw]:
    horizontal, vertical = selection.dims
    (left, right), (bottom, top) = selection.bounds(horizontal), selection.bounds(vertical)
    ratio = min(max((right - left) / (top - bottom), 1 / WIDEST), WIDEST)
    width = min(LARGEST[0], LARGEST[1] * ratio)
    height = width / ratio
    flat = height < 2.2  # too low for a colour bar's label at its side: the bar lies below
    lines = len(_title_lines(selection, width))
    figure, axes = _figure(width, height, 0.35 if flat else 1.15, 1.35 if flat else 0.6, lines)
    colours, low, high = colour_scale(limits, selection.field.dtype)
    image = axes.imshow(
        [[np.nan]], origin="lower", extent=(left, right, bottom, top), aspect="auto", cmap=colours, vmin=low, vmax=high
    )
    image.set_cmap(image.get_cmap().with_extremes(bad="0.6"))
    bar_box = (0.0, -0.78 / height, 1.0, 0.15 / height) if flat else (1 + 0.14 / width, 0.0, 0.16 / width, 1.0)
    solid = selection.solid()
    if solid is not None:  # over the field, whose 0 there would look like the fluid's
        axes.imshow(
            np.where(solid, 1.0, np.nan).T, origin="lower", extent=(left, right, bottom, top), aspect="auto",
            cmap=ListedColormap([SOLID]), interpolation="nearest",
        )  # fmt: skip
    direction = "horizontal" if flat else "vertical"
    bar = figure.colorbar(image, cax=axes.inset_axes(bar_box), orientation=direction)
    bar.outline.set_linewidth(0.5)
    name, power = bar.long_axis.label, bar.long_axis.get_offset_text()
    name.set_text(_field_label(selection))
    if flat:
        name.set(x=0, horizontalalignment="left")  # a power of ten stands on the right
    else:
        power.set(x=2.2, horizontalalignment="left")  # above the numbers
        if len(name.get_text()) <= SHORT and len(f"t = 0.123456,  {selection.place()}") <= LETTERS * width:
            name.set(rotation=0, horizontalalignment="left", verticalalignment="bottom")
            bar.long_axis.set_label_coords(0, 1 + 0.06 / height)  # above the bar, where the heading does not reach
    axes.set_xlabel(_axis_label(horizontal))
    _label(axes.yaxis, _axis_label(vertical))
    axes.locator_params(axis="x", nbins=max(2, min(6, int(width / 0.8))))
    axes.locator_params(axis="y", nbins=max(2, min(6, int(height / 0.6))))
    heading = _heading(axes, selection, width)

    def draw(values: NDArray[np.floating], time: float) -> None:
        image.set_data(values.T)
        heading(values, time)

    return figure, draw


def _figure(width: float, height: float, right: float, bottom: float = 0.6, lines: int = 1) -> tuple[Figure, Axes]:
    """Return a figure with one pair of axes of this size in inches, and room for labels and `lines` lines of title."""
    left, top = 0.95, 0.55 + 0.2 * lines
    size = left + width + right, bottom + height + top
    figure = Figure(figsize=size)
    FigureCanvasAgg(figure)
    return figure, figure.add_axes((left / size[0], bottom / size[1], width / size[0], height / size[1]))


def _heading(axes: Axes, selection: Selection, width: float) -> Draw:
    """Write the run's title above the axes, and below it the time and the position of the slice.

    Returns a function that changes the time.
    """
    place: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "annotation_clip": False}
    axes.annotate("\n".join(_title_lines(selection, width)), (0, 1), (0, 24), fontsize=11.5, color="0.1", **place)
    below = axes.annotate("", (0, 1), (0, 8), fontsize=10, color="0.35", **place)
    axes.yaxis.get_offset_text().set(horizontalalignment="right", x=-0.01)  # a power of ten stays beside the heading

    def update(values: NDArray[np.floating], time: float) -> None:
        lost = int(np.count_nonzero(~np.isfinite(values)))
        parts = [f"t = {time:.6g}", selection.place(), f"{lost} values not finite" if lost else ""]
        below.set_text(",  ".join(part for part in parts if part))

    return update


def _title_lines(selection: Selection, width: float) -> list[str]:
    """Break the run's title into at most two lines, for axes of this width in inches."""
    lines = textwrap.wrap(selection.view.title, max(24, int(LETTERS * (width + 0.7))), max_lines=2, placeholder=" ...")
    return [as_text(line) for line in lines]


def diagnostics_figure(view: FileView) -> Figure:
    """Draw the time series of all diagnostics, one panel each. Raises RequestProblem if the file has none."""
    names = [name for name in view.diagnostics if name not in ("time", "step")]
    if not names or len(view.diagnostics["time"]) == 0:
        raise RequestProblem(f"{view.path} holds no diagnostics: {view.missing_series('[diagnostics]')}.")
    series = {name: np.asarray(view.diagnostics[name], np.float64) for name in names}
    members = next((_members(view, values.shape[1]) for values in series.values() if values.ndim > 1), [])
    beside = BESIDE if 0 < len(members) <= MOST_LINES else 0.0
    columns = 1 if len(names) <= 3 else 2
    rows = -(-len(names) // columns)
    figure = Figure(figsize=((6.6 if columns == 1 else 9.6) + beside, 0.9 + 1.9 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, sharex=True, squeeze=False).T.ravel()
    head(grid[0], as_text(textwrap.shorten(view.title, 70, placeholder=" ...")))
    time = view.diagnostics["time"]
    for axes, (name, values) in zip(grid, series.items(), strict=False):
        _series(axes, time, values, name, members)
    if beside:
        figure.legend(grid[0].lines[: len(members)], members, loc="outside right upper", fontsize=8)
    for axes in grid[len(names) :]:
        axes.remove()
    for column in range(columns):
        grid[min((column + 1) * rows, len(names)) - 1].set_xlabel("t")
        grid[min((column + 1) * rows, len(names)) - 1].tick_params(labelbottom=True)
    return figure


CLIPPED = 99.0  # percent of the samples of many receivers within the ends of the colour scale


def probes_figure(view: FileView, name: str, samples: NDArray[np.floating], member: int | None = None) -> Figure:
    """Draw the ``samples``, of shape (times, receivers), of a table of [probes]; in an ensemble those of a ``member``.

    A few receivers are drawn as lines, many as an image with a column per receiver and time downwards, like a shot gather.
    Raises RequestProblem if there are no samples.
    """
    probes = view.probes[name]
    if not samples.size:
        raise RequestProblem(f"{view.path} holds no samples of the probes '{name}' yet.")
    few = probes.count <= MOST_LINES
    figure = Figure(figsize=(6.6 + BESIDE, 3.4) if few else (6.6, 5.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    head(axes, as_text(textwrap.shorten(view.title, 70, placeholder=" ...")))
    unit = "" if probes.units == "1" else f" ({probes.units})"
    label = as_text(f"{probes.long_name}{unit} at {name}")
    if member is not None:
        axes.set_title(as_text(member_text(view, member)), loc="left", fontsize=10, color="0.1")
    if few:
        for number, line in enumerate(samples.T):
            place = ", ".join(f"{along[number]:.7g}" for along in probes.places.values())
            color = colormaps["viridis"](0.9 * number / max(1, probes.count - 1))
            dashes = (0, (4, 1 + number)) if number else "-"  # with gaps that show equal samples of an earlier receiver
            axes.plot(probes.times, line, color=color, lw=1.2, ls=dashes, label=f"({place})")
        heading = ", ".join(probes.places)
        figure.legend(fontsize=8, loc="outside right upper", title=heading, title_fontsize=8, handlelength=3.5)
        axes.set_xlabel("t")
        axes.set_ylabel(label)
        open_frame(axes)
        return figure
    finite = np.abs(samples[np.isfinite(samples)])
    largest = float(np.percentile(finite, CLIPPED)) if finite.size else 0.0
    cmap, low, high = colour_scale(value_limits(np.clip(samples, -largest, largest)), samples.dtype)
    across, places = varying_axis(probes.places)
    start, end = cell_bounds(probes.times)
    extent = (*cell_bounds(places if across else np.arange(probes.count, dtype=np.float64)), end, start)
    image = axes.imshow(samples, aspect="auto", cmap=cmap, vmin=low, vmax=high, extent=extent, interpolation="nearest")
    figure.colorbar(image, ax=axes, extend="both" if finite.size and finite.max() > largest else "neither", label=label)
    axes.set_xlabel(across or "receiver")
    axes.set_ylabel("t")
    return figure


def varying_axis(places: Mapping[str, NDArray[np.float64]]) -> tuple[str, NDArray[np.float64]]:
    """Return the only axis along which receivers are about evenly spaced, and their coordinates on it.

    The result is ("", empty) if there is no such axis.
    """
    moving = [axis for axis, along in places.items() if np.ptp(along) > 0]
    steps = np.diff(places[moving[0]]) if len(moving) == 1 else np.zeros(0)
    even = len(steps) > 0 and np.allclose(steps, steps[0], rtol=0.05) and steps[0] > 0
    return (moving[0], places[moving[0]]) if even else ("", np.zeros(0))


def _members(view: FileView, count: int) -> list[str]:
    """Return the names of the members of an ensemble for a legend, with their values if a few members have short ones."""
    names = [member_text(view, member) for member in range(count)] if count <= MOST_LINES else []
    fit = names and max(map(len, names)) <= LONGEST_NAME
    return names if fit else [f"member = {member}" for member in range(count)]


def _series(
    axes: Axes, time: NDArray[np.float64], values: NDArray[np.float64], name: str, members: Sequence[str]
) -> None:
    """Draw one diagnostic, with a line for each of the ``members`` of an ensemble.

    If it hardly changes, its change from the start is drawn, unless it is constant up to rounding. If it spans decades, the
    axis is logarithmic.
    """
    low, high = value_limits(values)
    label = name
    if is_constant((low, high), values.dtype):
        axes.set_ylim(colour_scale((low, high), values.dtype)[1:])
    elif values.ndim == 1 and np.isfinite(values[0]) and high - low < 1e-3 * max(abs(low), abs(high)):
        label = f"{name} − {values[0]:.7g}"
        values = values - values[0]
    elif low > 0 and high > 1e3 * low:
        axes.set_yscale("log")
        later = value_limits(values[1:])[0]  # an error at t = 0 may be rounding alone
        if low < 1e-3 * later:
            axes.set_ylim(bottom=later / 2)
    marker = "o" if len(time) < 3 else None
    for number, (line, member) in enumerate(zip(np.atleast_2d(values.T), members or [""], strict=True)):
        color = colormaps["viridis"](0.9 * number / max(1, len(members) - 1)) if members else LINE
        axes.plot(time, line, color=color, marker=marker, markersize=4, label=member)
    if len(time) > 1:
        axes.set_xlim(time[0], time[-1])
    axes.set_title(as_text(label), loc="left", fontsize=10, color="0.1")
    open_frame(axes)


def head(axes: Axes, text: str) -> None:
    """Write the title of a figure at its top, aligned with the left edge of these axes."""
    place = blended_transform_factory(axes.transAxes, axes.figure.transFigure)
    axes.figure.suptitle(text, x=0, ha="left", fontsize=11.5, color="0.1", transform=place)


def open_frame(axes: Axes) -> None:
    """Draw grid lines, and remove the frame at the top and on the right."""
    axes.grid(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _label(axis: Axis, text: str) -> None:
    """Label an axis; a short label of a vertical axis is horizontal."""
    axis.set_label_text(text)
    if isinstance(axis, YAxis) and len(text) <= SHORT:
        axis.label.set(rotation=0, va="center", ha="right")
        axis.labelpad = 8  # not to be read as a part of a number beside it


def _axis_label(dim: str) -> str:
    return dim.removesuffix("_face")


def _field_label(selection: Selection) -> str:
    """Return `long_name [units]`, without units for a dimensionless field."""
    field = selection.field
    return as_text(field.long_name if field.units in ("", "1") else f"{field.long_name} [{field.units}]")


def as_text(text: str) -> str:
    """Prepare a user's text for matplotlib. If `$...$` in it is not valid mathematics, it is shown literally."""
    text = printable(text)[:LONGEST_TEXT]
    try:
        MathTextParser("path").parse(text)
    except (ValueError, RecursionError):
        return text.replace("$", r"\$")
    return text
