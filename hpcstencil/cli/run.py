"""`hpcstencil run`: run the simulation that an input file describes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcstencil import STARTED
from hpcstencil.cli.options import devices_option, set_option
from hpcstencil.runtime import signals
from hpcstencil.runtime.launcher import environment_rank
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.printable import echo

if TYPE_CHECKING:
    from hpcstencil.problem.problem import Problem
    from hpcstencil.runtime.communicator import Communicator
    from hpcstencil.simulation.restart import Options


@click.command()
@click.argument("input_file", metavar="INPUT.toml", type=click.Path(path_type=Path))
@set_option
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Output file, instead of the input's output.path."
)
@click.option("--overwrite", is_flag=True, help="Replace an existing output file.")
@click.option("--resume", is_flag=True, help="Continue from the newest valid checkpoint of this run, if any.")
@click.option("--restart", type=click.Path(path_type=Path), help="Start from this checkpoint, with a new output.")
@devices_option
@click.option("--quiet", is_flag=True, help="No progress and no summary.")
def run(
    input_file: Path,
    overrides: tuple[str, ...],
    output: Path | None,
    overwrite: bool,
    resume: bool,
    restart: Path | None,
    devices: int | None,
    quiet: bool,
) -> None:
    """Run the simulation that INPUT.toml describes and write its output file."""
    if resume and (restart is not None or overwrite):
        raise InputError(
            f"--resume: cannot be combined with {'--restart' if restart else '--overwrite'}; give one of them"
        )
    from hpcstencil.cli.prepare import problem_of, processes

    with signals.watched() as request, processes() as communicator:
        config, problem = problem_of(input_file, overrides, communicator, output)

        from hpcstencil.simulation.restart import Options

        path = (output or config.output.path).absolute()
        options = Options(path, overwrite, resume, restart, quiet, overrides, STARTED)
        execute(communicator, problem, options, devices, request)


def execute(
    communicator: Communicator,
    problem: Problem,
    options: Options,
    devices: int | None,
    request: signals.Request,
) -> None:
    """Run a checked problem on the processes of this launch, and print the summary on rank 0.

    ``devices`` is the option --devices, or None. ``request`` records signals that ask the run to stop. All processes
    call this together, before JAX is imported. Raises the errors of `simulation.run.run`.
    """
    from hpcstencil.cli.prepare import decomposed_of, devices_of
    from hpcstencil.runtime.communicator import agree
    from hpcstencil.runtime.devices import start_jax
    from hpcstencil.simulation.consistency_check import require_consistency, warn_of_shared_gpus

    count, ids = devices_of(problem.config, devices)
    require_consistency(communicator, count, problem)
    decomposed = decomposed_of(problem, communicator.size, count)
    warn_of_shared_gpus(communicator, ids)
    signals.check_not_stopped(request, communicator)
    if communicator.rank == 0 and not ids:
        decomposed.begin()  # starts compiling in the background while JAX is imported
    local = agree(communicator, lambda: start_jax(count))

    from hpcstencil.problem.warnings import unstable
    from hpcstencil.runtime.progress import say
    from hpcstencil.simulation.run import run as run_problem
    from hpcstencil.simulation.summary import report

    summary = run_problem(decomposed, options, communicator, local, request)
    if environment_rank() == 0 and not options.quiet:
        echo(report(summary))
        for warning in unstable(problem):  # repeated below the summary, where users look
            say(f"warning: {warning}; check the result")
