"""A figure of errors against resolution, with the slope of the expected order of convergence."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from postprocess.figures import LINE, STYLE, as_text, head, open_frame

DPI = 200
PROMISED = "0.6"


def save(path: Path, title: str, studies: Sequence[Mapping[str, Any]]) -> None:
    """Write the figure as PNG to ``path``.

    Each study is a mapping with the keys ``title``, ``label`` (of its sizes), ``sizes``, ``errors``, ``observed`` (the
    observed order) and ``promised`` (the expected order).
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(4.2 * len(studies), 3.6), layout="constrained", dpi=DPI)
        FigureCanvasAgg(figure)
        for place, study in enumerate(studies, start=1):
            axes = figure.add_subplot(1, len(studies), place)
            sizes, errors = np.array(study["sizes"], float), np.array(study["errors"])
            slope = errors[0] * (sizes / sizes[0]) ** -study["promised"]
            axes.loglog(sizes, slope, "--", color=PROMISED, label=f"order {study['promised']:g}, promised")
            axes.loglog(sizes, errors, "o-", color=LINE, label=f"order {study['observed']:.2f}, observed")
            axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
            axes.xaxis.minorticks_off()  # those of the errors have labels where the range holds no decade
            axes.set_xlabel(study["label"])
            axes.set_ylabel("rms error" if place == 1 else "")
            axes.set_title(study["title"], loc="left", fontsize=10, color="0.1")
            axes.legend(fontsize=9)
            open_frame(axes)
        head(figure.axes[0], as_text(textwrap.shorten(title, 70, placeholder=" ...")))
        figure.savefig(path, bbox_inches="tight", pad_inches=0.12)
