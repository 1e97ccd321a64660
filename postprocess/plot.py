"""Pictures and movies of output and checkpoint files, fits and gradients.

Also a script: `python -m postprocess.plot FILE.h5 --help`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from tqdm import tqdm

from hpcstencil.validation.printable import echo, printable
from postprocess.figures import (
    STYLE,
    Draw,
    Limits,
    diagnostics_figure,
    field_canvas,
    field_figure,
    probes_figure,
    value_limits,
)
from postprocess.movie import write_gif, write_mp4
from postprocess.options import plot_options
from postprocess.reader import FileProblem, RequestProblem, is_result, read_samples, read_view
from postprocess.results import read_result, result_figure
from postprocess.selection import Selection, select

DPI = 200
MOVIES = (".mp4", ".gif")
SECONDS = 12.0  # a movie lasts about this long, within 5 to 25 frames per second


class WriteProblem(Exception):
    """Raised if the picture cannot be written. The message is one sentence for the user."""


@rc_context(STYLE)
def plot_field(
    path: str | Path,
    field: str | None = None,
    time: float | None = None,
    slices: Mapping[str, float] | None = None,
    output: str | Path | None = None,
) -> Path:
    """Plot one field at one time, write the picture, and return its path.

    The default is `STEM.FIELD.png` beside the file. A given time and given slices are part of the name, such as
    `STEM.FIELD.t1500.z0.5.png`.

    Parameters
    ----------
    path
        An output or checkpoint file.
    field
        The name of the field; default: the first in the file.
    time
        The nearest snapshot is shown; default: the last.
    slices
        The positions at which axes are cut, such as {"z": 0.5}. A 3-D field without slices is cut in the middle of z. One
        remaining axis gives a line, two give an image.
    output
        The picture; its suffix selects the format (png, pdf, svg, ...).

    Raises FileProblem, RequestProblem or WriteProblem, each with a message of one sentence for the user.
    """
    selection = select(read_view(path), field, time, slices)
    if time is not None and f"{selection.time:.6g}" != f"{time:.6g}":
        click.echo(f"hpcstencil: t = {selection.time:.6g} is drawn, the snapshot nearest to {time:.6g}", err=True)
    return _save(
        field_figure(selection), output or _beside(path, selection.field.name, "png", t=time, **(slices or {}))
    )


@rc_context(STYLE)
def plot_diagnostics(path: str | Path, output: str | Path | None = None) -> Path:
    """Plot the time series of all diagnostics in panels, and return the path (default: `STEM.diagnostics.png`).

    Raises the same errors as `plot_field`.
    """
    return _save(diagnostics_figure(read_view(path)), output or _beside(path, "diagnostics", "png"))


@rc_context(STYLE)
def plot_probes(path: str | Path, name: str, output: str | Path | None = None, member: int | None = None) -> Path:
    """Plot the samples of a table of [probes], and return the path (default: `STEM.NAME.png`, or `STEM.NAME.member1.png`).

    A few receivers are drawn as lines, many as an image with time downwards. In an ensemble they are those of one member,
    by default the first. Raises the same errors as `plot_field`.
    """
    view = read_view(path)
    samples = read_samples(view, name, member)
    shown = (member or 0) if "member" in view.coordinates else None
    return _save(probes_figure(view, name, samples, shown), output or _beside(path, name, "png", member=member))


@rc_context(STYLE)
def plot_result(path: str | Path, output: str | Path | None = None) -> Path:
    """Plot what a fit found and its convergence, or a gradient, and return the path (default: `STEM.png`).

    ``path`` is the file that `hpcstencil fit` or `hpcstencil gradient` wrote. Raises the same errors as `plot_field`.
    """
    return _save(result_figure(read_result(path)), output or Path(path).with_suffix(".png"))


@rc_context(STYLE)
def plot_movie(
    path: str | Path,
    field: str | None = None,
    slices: Mapping[str, float] | None = None,
    output: str | Path | None = None,
) -> Path:
    """Animate all snapshots of a field, with the same colours in all frames, and return the path.

    The default is `STEM.FIELD.mp4`, or with slices a name such as `STEM.FIELD.z0.5.mp4`. mp4 needs ffmpeg; without
    it the default is a GIF. One frame is in memory at a time. Each snapshot is read twice, the first time to find the range of
    values. Raises the same errors as `plot_field`.
    """
    selection = select(read_view(path), field, None, slices)
    has_ffmpeg = shutil.which("ffmpeg") is not None
    target = Path(output or _beside(path, selection.field.name, "mp4" if has_ffmpeg else "gif", **(slices or {})))
    if target.suffix.lower() not in MOVIES:
        raise RequestProblem(f"A movie is written as .mp4 or .gif, not as '{target.name}'.")
    if target.suffix.lower() == ".mp4" and not has_ffmpeg:
        raise WriteProblem("An mp4 needs the program ffmpeg, which is not in PATH: install it, or write a .gif.")
    figure, draw = field_canvas(selection, movie_limits(selection))
    rate = min(25.0, max(5.0, len(selection.view.times) / SECONDS))
    write = write_mp4 if target.suffix.lower() == ".mp4" else write_gif
    try:
        _publish(target, lambda temporary: write(figure, _frames(selection, draw), temporary, rate))
    except subprocess.CalledProcessError as error:
        raise WriteProblem(f"ffmpeg failed (status {error.returncode}) on {target}: write a .gif instead.") from error
    return target


def _frames(selection: Selection, draw: Draw) -> Iterator[None]:
    """Draw one snapshot after the other, with a progress bar if stderr is a terminal."""
    for snapshot, time in enumerate(tqdm(selection.view.times, desc="movie", unit="frame", disable=None)):
        draw(selection.values(snapshot), float(time))
        yield


def movie_limits(selection: Selection) -> Limits:
    """Return the smallest and the largest finite value that is shown, over all snapshots."""
    frames = range(len(selection.view.times))
    limits = np.array(
        [value_limits(selection.fluid(selection.values(frame))) for frame in tqdm(frames, desc="limits", disable=None)]
    )
    return value_limits(limits)


def render(
    file: Path,
    field: str | None = None,
    time: float | None = None,
    slices: Sequence[str] = (),
    output: Path | None = None,
    movie: bool = False,
    diagnostics: bool = False,
    probes: str | None = None,
) -> Path:
    """Write the picture that the command line requests, and return its path. Raises the same errors as `plot_field`.

    `slices` are texts such as 'z=0.5'.
    """
    if diagnostics or probes is not None:
        option = "--probes" if probes is not None else "--diagnostics"
        cut = parse_slices(slices)
        member = cut.pop("member", None) if probes is not None else None
        if movie or field is not None or time is not None or cut or (diagnostics and probes is not None):
            others = "--movie, --field, --time, --slice" + (" and --diagnostics" if probes is not None else "")
            raise RequestProblem(f"{option} plots time series: leave out {others}.")
        if probes is None:
            return plot_diagnostics(file, output)
        return plot_probes(file, probes, output, None if member is None else round(member))
    if movie:
        if time is not None:
            raise RequestProblem("--movie shows all times: it does not go with --time.")
        return plot_movie(file, field, parse_slices(slices), output)
    if field is None and time is None and not slices and is_result(file):
        return plot_result(file, output)
    return plot_field(file, field, time, parse_slices(slices), output)


def parse_slices(texts: Sequence[str]) -> dict[str, float]:
    """Parse texts such as 'z=0.5' to {axis: position}, with positions in the input's unit of length.

    Raises RequestProblem for other texts, and for an axis given twice.
    """
    slices: dict[str, float] = {}
    for text in texts:
        axis, _, place = (part.strip() for part in text.partition("="))
        try:
            value = float(place)
        except ValueError:
            raise RequestProblem(f"A slice is an axis and a place, such as z=0.5, not '{text}'.") from None
        if axis in slices:
            raise RequestProblem(f"The axis '{axis}' is sliced twice: give each axis once.")
        slices[axis] = value
    return slices


def _beside(path: str | Path, name: str, ending: str, **places: float | None) -> Path:
    """Return the path STEM.NAME.PLACES.ENDING beside the file, with ``places`` such as z=0.5."""
    given = [f"{axis}{place:.10g}" for axis, place in places.items() if place is not None]
    return Path(path).with_name(".".join([Path(path).stem, name, *given, ending]))


def _publish(target: Path, make: Callable[[Path], object]) -> None:
    """Create the file ``target``, and its folder if it is missing.

    ``make`` writes the file under a temporary name with the same suffix. A failure leaves no incomplete file, and an older
    picture as it was. (`runtime.atomic_write` does the same, but imports the modules of MPI.)
    """
    linked = Path(os.path.realpath(target))
    temporary = linked.with_name(f".{os.getpid()}.{linked.name}")
    try:
        linked.parent.mkdir(parents=True, exist_ok=True)
        make(temporary)
        os.replace(temporary, linked)
    except OSError as error:
        raise WriteProblem(f"{target} could not be written: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def _save(figure: Figure, output: str | Path) -> Path:
    target = Path(output)
    if not target.suffix:
        target = target.with_name(target.name + ".png")
    kinds = figure.canvas.get_supported_filetypes()
    if target.suffix[1:].lower() not in kinds:
        known = ", ".join(f".{kind}" for kind in sorted(kinds))
        raise RequestProblem(f"A picture cannot be written as '{target.name}': use one of {known}.")
    _publish(target, lambda temporary: figure.savefig(temporary, dpi=DPI, bbox_inches="tight", pad_inches=0.12))
    return target


@click.command()
@plot_options
def main(**request: Any) -> None:
    """Plot a field or the diagnostics of FILE, an output or checkpoint file."""
    try:
        echo(render(**request))
    except (FileProblem, RequestProblem, WriteProblem) as problem:
        click.echo(printable(problem), err=True)
        sys.exit(4 if isinstance(problem, WriteProblem) else 2)


if __name__ == "__main__":
    main()
