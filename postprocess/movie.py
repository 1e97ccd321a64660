"""Movies of a figure, as mp4 (by ffmpeg) or GIF (by Pillow)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from matplotlib import animation, colormaps, colors
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from postprocess.figures import LINE

DPI = 120


def write_mp4(figure: Figure, frames: Iterator[None], target: Path, rate: float) -> None:
    """Write an mp4 with `rate` frames per second to `target`.

    Each step of the iterator `frames` draws the next frame into the figure.
    """
    even = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2:color=white", "-pix_fmt", "yuv420p", "-crf", "18"]
    writer = animation.FFMpegWriter(fps=rate, codec="libx264", extra_args=even)  # type: ignore[arg-type]  # need not be whole
    with writer.saving(figure, os.fspath(target), DPI):
        for _ in frames:
            writer.grab_frame()


def write_gif(figure: Figure, frames: Iterator[None], target: Path, rate: float) -> None:
    """Write a repeating GIF with the same 256 colours in every frame. The arguments are those of `write_mp4`.

    Pillow would choose the colours of each frame separately, so that they would shift during the movie and the colour bar
    would show bands.
    """
    palette = _palette(figure)
    images = (_grab(figure).quantize(palette=palette, dither=Image.Dither.NONE) for _ in frames)
    first = next(images)
    first.save(target, save_all=True, append_images=images, duration=10 * round(100 / rate), loop=0, optimize=False)


def _grab(figure: Figure) -> Image.Image:
    canvas = FigureCanvasAgg(figure)
    figure.set_dpi(DPI)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")


def _palette(figure: Figure) -> Image.Image:
    """Return 220 colours of the figure's colour map, or 24 shades of its line, and 36 greys.

    Pillow looks colours up in steps of 4, so a colour closer to white than that would become the white background.
    """
    shown = figure.axes[0].images
    shades = colors.LinearSegmentedColormap.from_list("shades", ["white", LINE])
    drawn = colormaps[shown[0].get_cmap().name](np.linspace(0, 1, 220)) if shown else shades(np.linspace(0.1, 1, 24))
    chosen = np.vstack([drawn, colormaps["gray"](np.linspace(0, 1, 36))])[:, :3]
    palette = Image.new("P", (1, 1))
    palette.putpalette(np.rint(255 * chosen).astype(np.uint8).tobytes())
    return palette
