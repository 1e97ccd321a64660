"""`hpcstencil info`: describe and check an output, a checkpoint, or the result of a fit or a gradient."""

from __future__ import annotations

from pathlib import Path

import click

from hpcstencil.runtime.communicator import OneProcess
from hpcstencil.runtime.launcher import environment_rank
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.printable import echo


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--repair", is_flag=True, help="First undo an incomplete write that a killed run left in FILE.")
def info(file: Path, repair: bool) -> None:
    """Describe the contents of FILE, an output, a checkpoint or a result of a fit or a gradient, and check that it is valid."""
    if environment_rank() != 0:
        return
    # h5py is imported only here, so that `hpcstencil --help` answers at once
    from hpcstencil.checkpoint.checkpoint import verify
    from hpcstencil.checkpoint.repair import repaired
    from postprocess.reader import FileProblem
    from postprocess.summary import summarize

    if repair:
        echo("\n".join(repaired(file)))
    try:
        text = summarize(file)
    except FileProblem as problem:
        raise InputError(str(problem)) from problem
    if ".checkpoint." in file.name:
        verify(file, OneProcess())
        text += "\nchecksums      verified: every byte is as it was written"
    echo(text)
