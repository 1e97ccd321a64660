"""The command `hpcstencil`. Each subcommand is a separate module, imported only when it is used, so `--help` is fast."""

from __future__ import annotations

import importlib
import os
import sys
from typing import NoReturn

import click

from hpcstencil import __version__
from hpcstencil.runtime.failure import of_environment, sentence
from hpcstencil.runtime.launcher import environment_rank
from hpcstencil.validation.errors import EnvironmentProblem, HpcstencilError
from hpcstencil.validation.printable import printable_lines

COMMANDS = {
    "new": "Write an example input to start from; without a NAME, list the examples.",
    "run": "Run the simulation that INPUT.toml describes and write its output file.",
    "check": "Validate INPUT.toml without running it. Print the resolved input, decomposition, memory, predicted time.",
    "equations": "List the equations that an input may name; with a NAME its fields and parameters.",
    "info": "Describe an output, a checkpoint, or a result of a fit or a gradient, and check that it is complete and valid.",
    "plot": "Make a PNG of a field, an animation, or the time series of a run.",
    "bench": "Measure speed in hardware terms: cells/s, T_eff, and its ratio to the copy bandwidth.",
    "doctor": "Check the environment (launch, MPI, HDF5, devices, folder) and suggest a remedy for each problem.",
    "gradient": "Compute the objective of INPUT.toml and its gradient with respect to initial fields and parameters.",
    "fit": "Minimize the objective of INPUT.toml over the initial fields and parameters in gradient.of.",
    "sweep": "Plan a parameter sweep, run its members, and collect their results in one table.",
    "verify": "Measure orders of convergence, conservation and equality of decompositions of INPUT.toml.",
}
COUNTS = ("-n", "--np", "--nprocs", "--processes", "--ranks")  # launcher options that users may give here by mistake


class Commands(click.Group):
    """The group of all subcommands. It imports the module of a subcommand when that is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import and return the command called ``name``; None if there is none."""
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"hpcstencil.cli.{name}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments name. Raises click.UsageError, with a suggestion, for an unknown one."""
        from hpcstencil.config import planned
        from hpcstencil.validation.messages import nearest

        if args and args[0] in planned.COMMANDS:
            raise click.UsageError(f"The command '{args[0]}' is not available yet.", ctx)
        if args and args[0] not in COMMANDS and (near := nearest(args[0], COMMANDS)):
            raise click.UsageError(f"No such command '{args[0]}'. Did you mean '{near}'?", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands for `--help`, without importing their modules."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=Commands)
@click.version_option(__version__, prog_name="hpcstencil")
def cli() -> None:
    """Solve time-dependent PDEs with stencils on uniform grids, on any number of processes and devices."""


def main() -> None:
    """Run the command line and exit the process.

    The exit status depends on the kind of failure (`validation.errors`), and is the same on all processes if they fail
    together. Errors are printed on rank 0 only.
    """
    try:
        status = cli(prog_name="hpcstencil", standalone_mode=False) or 0
    except click.exceptions.NoArgsIsHelpError as error:
        status = print_error(error.format_message(), 2)
    except click.ClickException as error:
        status = print_error(f"hpcstencil: {error.format_message()}{launched(error)}", 2)
    except click.Abort:
        status = print_error("hpcstencil: interrupted", 130)
    except HpcstencilError as error:
        status = print_error(f"hpcstencil: {error}", error.status)
        if status == EnvironmentProblem.status:
            # Open files that HDF5 could not write are closed when the error is released. h5py would report that again.
            sys.excepthook, sys.unraisablehook = lambda *_: None, lambda _: None
    except Exception as error:
        if not of_environment(error):
            raise
        status = print_error(f"hpcstencil: {sentence(error)}", EnvironmentProblem.status)
    sys.exit(status)


def start() -> None:
    """The entry point of the command.

    After an `EnvironmentProblem` the process exits without closing open files, because HDF5 may crash when it closes a
    file that it could not write.
    """
    try:
        main()
    except SystemExit as leaving:
        if leaving.code == EnvironmentProblem.status:
            leave_at_once(EnvironmentProblem.status)
        raise


def launched(error: click.ClickException) -> str:
    """Advice for a user who gives the number of processes as an option of hpcstencil instead of the launcher; "" for
    other errors."""
    asked = isinstance(error, click.NoSuchOption) and error.option_name in COUNTS
    return " The launcher takes it: mpirun -n 4 hpcstencil run INPUT.toml" if asked else ""


def print_error(text: str, status: int) -> int:
    """Print an error message on standard error, on rank 0 only. Returns ``status``."""
    if environment_rank() == 0:
        print(printable_lines(text), file=sys.stderr, flush=True)
    return status


def leave_at_once(status: int) -> NoReturn:
    """Exit with this status, skipping the finalization of Python and MPI, in which HDF5 would close files collectively."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
