"""`hpcstencil check`: validate an input without running it."""

from __future__ import annotations

from pathlib import Path

import click

from hpcstencil.cli.options import set_option
from hpcstencil.runtime.communicator import OneProcess
from hpcstencil.runtime.launcher import environment_rank, environment_size
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.printable import echo


@click.command()
@click.argument("input_file", metavar="INPUT.toml", type=click.Path(path_type=Path))
@set_option
@click.option(
    "--processes", type=int, help="Number of processes to check for (default: those of this launch, or the input's)."
)
@click.option("--devices", type=int, help="Devices per process to check for.")
def check(input_file: Path, overrides: tuple[str, ...], processes: int | None, devices: int | None) -> None:
    """Validate INPUT.toml without running it.

    Print the resolved input, decomposition, memory, halo traffic and predicted time.
    """
    import math

    from hpcstencil.cli.prepare import decomposed_of, problem_of, wanted_devices
    from hpcstencil.simulation.backend_choice import foreseen
    from hpcstencil.simulation.dry_run import report

    for option, count in (("--processes", processes), ("--devices", devices)):
        if count is not None and not 1 <= count < 2**31:
            raise InputError(f"{option}: expected a number from 1 to 2**31 - 1, but got {count}; correct it")
    config, problem = problem_of(input_file, overrides, OneProcess())
    given = config.decomposition.processes
    default = math.prod(given) if isinstance(given, tuple) and environment_size() == 1 else environment_size()
    decomposed = decomposed_of(problem, processes or default, wanted_devices(config, devices) or 1)
    if environment_rank() == 0:
        echo(report(foreseen(decomposed)))
