"""`hpcstencil doctor`: check the environment."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path("."),
    help="Where the output will be written (default: the current folder).",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    help="Seconds that each probe may take.",
)
def doctor(folder: Path, timeout: float) -> int:
    """Check the environment, alone or under mpirun or srun: one line per check, with a remedy for each problem.

    Exit status 0 if no check failed, else 4.
    """
    from hpcstencil.doctor.examine import examine

    return examine(folder, timeout)
