"""`hpcstencil plot`: draw a picture or movie of an output or checkpoint file."""

from __future__ import annotations

from typing import Any

import click

from hpcstencil.runtime.launcher import environment_rank
from hpcstencil.validation.errors import EnvironmentProblem, InputError
from hpcstencil.validation.printable import echo
from postprocess.options import plot_options


@click.command()
@plot_options
def plot(**request: Any) -> None:
    """Write a picture of FILE, an output or checkpoint file or the result of a fit or a gradient, and print its path.

    The picture is of one field at one time: a line for one axis, an image for two. A 3-D field is cut in the middle
    of z unless --slice says where. --movie animates all snapshots, --diagnostics plots the time series. Of a fit, the
    convergence and the fields that were found are drawn, of a gradient its fields.
    """
    if environment_rank() != 0:
        return
    # matplotlib and h5py are imported only here, so that `hpcstencil --help` answers at once
    from postprocess.plot import WriteProblem, render
    from postprocess.reader import FileProblem, RequestProblem

    try:
        echo(render(**request))
    except (FileProblem, RequestProblem) as problem:
        raise InputError(str(problem)) from problem
    except WriteProblem as problem:
        raise EnvironmentProblem(str(problem)) from problem
