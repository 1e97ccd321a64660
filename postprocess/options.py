"""Options that the scripts here and `hpcstencil plot` share. This module imports nothing slow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

OPTIONS = (
    click.argument("file", type=click.Path(path_type=Path)),
    click.option("--field", help="Field to plot; default: the file's first."),
    click.option(
        "--time",
        type=float,
        help="Plot the snapshot nearest to this time, which the file must reach; default: the last.",
    ),
    click.option("--slice", "slices", multiple=True, metavar="AXIS=PLACE", help="Cut here, such as z=0.5; repeatable."),
    click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path),
        help="Picture to write; default: beside FILE, such as run.u.png, or run.u.t2.z0.5.png for --time 2 --slice z=0.5.",
    ),
    click.option("--movie", is_flag=True, help="Animate all snapshots (mp4 with ffmpeg, else GIF)."),
    click.option("--diagnostics", is_flag=True, help="Plot the time series of the diagnostics instead of a field."),
    click.option("--probes", metavar="NAME", help="Plot the samples of [probes.NAME] instead of a field."),
)


def plot_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a click command with the argument FILE and the options of a plot."""
    for option in reversed(OPTIONS):
        function = option(function)
    return function
