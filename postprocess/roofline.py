"""A roofline plot of the results of `hpcstencil bench --json`: speed against intensity, below the limit of the bandwidth.

The model is speed <= copy bandwidth * intensity (Williams, Waterman & Patterson, Commun. ACM 52 (2009) 65-76). The unit of work
is the update of one cell, for which each field is read and written once. Code that takes several steps per pass through memory
may exceed the limit. The rows of a scaling study get a second panel, of speed against the number of processes.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogLocator

from postprocess.figures import LINE, STYLE, as_text, head, open_frame

DPI = 200
ROOF, STAGES, WEAK = "0.15", "0.5", "#c8641e"
MARKERS = {"strong": ("o", LINE, "the same grid"), "weak": ("s", WEAK, "a grid that grows with them")}
Row = Mapping[str, Any]


@rc_context(STYLE)
def save_roofline(told: Mapping[str, Any], path: str | Path) -> None:
    """Draw the object that `bench --json` prints, and write the picture. The suffix of ``path`` selects the format.

    Raises OSError if the picture cannot be written.
    """
    roofline_figure(told).savefig(path, dpi=DPI, bbox_inches="tight", pad_inches=0.12)


def roofline_figure(told: Mapping[str, Any]) -> Figure:
    """Return the figure for the object that `bench --json` prints."""
    rows, machine = told["rows"], told["machine"]
    scaling = any(row["scaling"] for row in rows)
    figure = Figure(figsize=(9.4 if scaling else 5.2, 5.0), layout="constrained")
    FigureCanvasAgg(figure)
    device = "" if machine["device"].startswith("cpu") else f", {machine['device']}"
    name = textwrap.wrap(f"{machine['processor']}, {machine['cores']} cores{device}", 90 if scaling else 48)
    panels = figure.subplots(1, 1 + scaling, squeeze=False, sharey=True)[0]
    head(panels[0], "\n".join(map(as_text, name)))
    largest = max(_processes(row) for row in rows)
    _roofline(panels[0], told["copy_bandwidth"], [row for row in rows if _processes(row) == largest])
    if scaling:
        _scaling(panels[1], rows)
    for axes in panels:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.margins(y=0.12)
        axes.legend(fontsize=8.5, loc="upper left", bbox_to_anchor=(-0.02, -0.15))
        open_frame(axes)
    panels[0].set_ylabel("speed [Gcell/s]")
    return figure


def _processes(row: Row) -> int:
    return math.prod(row["processes"])


def _intensity(row: Row) -> float:
    """Return the intensity of a row, in cell updates per byte."""
    return row["cells_per_second"] / row["t_eff"]


def _roofline(axes: Axes, bandwidth: float, rows: Sequence[Row]) -> None:
    """Draw the rows, and the limits for one pass through memory per step and per stage."""
    intensities = [_intensity(row) for row in rows]
    ends = [min(intensities) / 2.5, max(intensities) * 2.5]
    stages = max(row["stages"] for row in rows)
    roofs = {
        stages: f"once per stage, of which a step has {stages}",
        1: f"copy bandwidth {bandwidth / 1e9:.3g} GB/s, each field in and out once per step",
    }
    for times, label in sorted(roofs.items()):
        style: Any = {"color": ROOF} if times == 1 else {"color": STAGES, "linestyle": "--"}
        axes.plot(ends, [bandwidth / times * intensity / 1e9 for intensity in ends], label=label, **style)
    for row, intensity in zip(rows, intensities, strict=True):
        marker, colour, _ = MARKERS[row["scaling"] or "strong"]
        grid, count = " x ".join(map(str, row["grid"])), _processes(row)
        who = f"{grid}, {row['kernel']}, {count} process{'es' if count > 1 else ''}"
        label = f"{who}: {row['ratio']:.2f} of the bandwidth"
        axes.plot(intensity, row["cells_per_second"] / 1e9, marker, color=colour, markersize=8, label=label)
    axes.set(xscale="log", xlim=ends, xlabel="intensity [cell steps per byte]")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    first = rows[0]
    title = f"{Path(first['equation']).name}, order {first['order']}, {first['precision']}"
    axes.set_title(as_text(title), loc="left", fontsize=10, color="0.1")


def _scaling(axes: Axes, rows: Sequence[Row]) -> None:
    """Draw the speed against the number of processes, with the parallel efficiency.

    The limit is the bandwidth that this number of processes reaches.
    """
    first = rows[0]
    roofs = {_processes(row): row["roof"] * _intensity(row) / 1e9 for row in rows}
    axes.plot(list(roofs), list(roofs.values()), color=ROOF, label="copy bandwidth of this number of processes")
    ideal = [count * first["cells_per_second"] / 1e9 for count in roofs]
    axes.plot(list(roofs), ideal, ":", color=STAGES, label="ideal")
    for kind, (marker, colour, words) in MARKERS.items():
        own = [row for row in rows if row["scaling"] == kind]
        counts, speeds = [_processes(row) for row in own], [row["cells_per_second"] / 1e9 for row in own]
        axes.plot(counts, speeds, marker + "-", color=colour, markersize=6, linewidth=1.2, label=f"{kind}: {words}")
        for row, count, speed in zip(own[1:], counts[1:], speeds[1:], strict=True):
            place: Any = {"xytext": (0, -14 if kind == "strong" else 7), "textcoords": "offset points", "ha": "center"}
            text = axes.annotate(f"{row['efficiency']:.2f}", (count, speed), color=colour, fontsize=8, **place)
            text.set_path_effects([withStroke(linewidth=3, foreground="white")])  # a line may pass behind it
    axes.set(xscale="log", xlabel="processes")
    axes.set_xticks(list(roofs), list(map(str, roofs)))
    axes.margins(x=0.08)
    axes.set_title("scaling, with the parallel efficiency", loc="left", fontsize=10, color="0.1")
