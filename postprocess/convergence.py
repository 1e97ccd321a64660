"""A figure of errors against resolution, with the slope of the expected order of convergence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from postprocess.figures import LINE, STYLE

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
        figure.suptitle(title, fontsize=11)
        for place, study in enumerate(studies, start=1):
            axes = figure.add_subplot(1, len(studies), place)
            sizes, errors = np.array(study["sizes"], float), np.array(study["errors"])
            slope = errors[0] * (sizes / sizes[0]) ** -study["promised"]
            axes.loglog(sizes, slope, "--", color=PROMISED, label=f"order {study['promised']:g}, promised")
            axes.loglog(sizes, errors, "o-", color=LINE, label=f"order {study['observed']:.2f}, observed")
            axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
            axes.minorticks_off()
            axes.set_xlabel(study["label"])
            axes.set_ylabel("rms error" if place == 1 else "")
            axes.set_title(study["title"], fontsize=10.5)
            axes.grid(True)
            axes.legend(frameon=False, fontsize=9)
        figure.savefig(path)
