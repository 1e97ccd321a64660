"""`hpcstencil info`: what an output or checkpoint file holds, and whether it is complete and sound."""

from __future__ import annotations

from pathlib import Path

import click

from hpcstencil.errors import InputError
from hpcstencil.parallel import environment_rank


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
def info(file: Path) -> None:
    """Say what FILE, an output or checkpoint file, holds, and whether it is complete and sound."""
    if environment_rank() != 0:
        return
    # h5py is imported only here, so that `hpcstencil --help` answers at once
    from postprocess.reader import FileProblem
    from postprocess.summary import summarize

    try:
        click.echo(summarize(file))
    except FileProblem as problem:
        raise InputError(str(problem)) from problem
