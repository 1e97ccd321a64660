"""`hpcstencil sweep`: plan a parameter sweep, run its members, report their status, and collect their results."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from hpcstencil import STARTED
from hpcstencil.cli.options import devices_option, parsable
from hpcstencil.validation.errors import RESUME, HpcstencilError, InputError, StoppedEarly
from hpcstencil.validation.printable import echo

if TYPE_CHECKING:
    from hpcstencil.sweep.folder import Member

T = TypeVar("T")
FOLDER = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))


@click.group()
def sweep() -> None:
    """Expand a parameter sweep into members, run them one by one, and collect their results in one table.

    \b
    hpcstencil sweep plan sweep.toml --dir runs        makes runs/0000, runs/0001 ...
    hpcstencil sweep run runs --all                    or: sbatch --array=0-7 jobs/array.sbatch runs
    hpcstencil sweep status runs
    hpcstencil sweep collect runs                      runs/table.csv, table.h5 and table.png
    """


@sweep.command()
@click.argument("sweep_file", metavar="SWEEP.toml", type=click.Path(path_type=Path))
@click.option("--dir", "folder", type=click.Path(path_type=Path), help="The sweep's folder; default: the file's stem.")
@click.option("--overwrite", is_flag=True, help="Change or remove members of an existing plan.")
def plan(sweep_file: Path, folder: Path | None, overwrite: bool) -> None:
    """Check the members that SWEEP.toml describes and create a folder with one input file for each.

    The command can be repeated: the same plan changes nothing, and a plan with more members adds them. The base input
    is recorded, so later edits of it change no member.
    """

    def act() -> str:
        from hpcstencil.sweep.members import member_inputs, read_sweep
        from hpcstencil.sweep.plan import write_plan
        from hpcstencil.sweep.report import planned_report, warned

        asked = read_sweep(sweep_file)
        configs, warnings = member_inputs(asked)
        planned, change = write_plan(asked, configs, folder or Path(sweep_file.stem), overwrite, busy)
        for text in warned(warnings):
            _say(text)
        return planned_report(planned, folder or Path(sweep_file.stem), change)

    _once(act)


@sweep.command("run")
@FOLDER
@click.option("--index", type=int, help="Number of the member; default: SLURM_ARRAY_TASK_ID.")
@click.option("--all", "everything", is_flag=True, help="Run all members that are not done, on this machine.")
@click.option("--jobs", type=int, help="With --all: members at a time, sharing the cores (default: 1).")
@click.option(
    "--set",
    "sets",
    metavar="KEY=VALUE",
    multiple=True,
    callback=parsable,
    help="An additional setting for this member, kept for its later runs.",
)
@click.option("--overwrite", is_flag=True, help="Run from the start, even if it is complete.")
@devices_option
@click.option("--quiet", is_flag=True, help="No progress and no summary.")
def run_member(
    folder: Path,
    index: int | None,
    everything: bool,
    jobs: int | None,
    sets: tuple[str, ...],
    overwrite: bool,
    devices: int | None,
    quiet: bool,
) -> None:
    """Run one member, or all of them. A stopped member continues from its newest checkpoint; a complete one is not run again.

    The exit status is that of `hpcstencil run`. A member that another process is running is refused with status 4.

    With --all, run all members that are not done, each in its own process, whose output goes to DIR/0000/run.log and so
    on. The exit status is 0 if all are done, else that of the worst failure. A signal is passed on to the running
    members.
    """
    if everything:
        options = [*(part for text in sets for part in ("--set", text)), *(["--overwrite"] if overwrite else [])]
        options += [*(["--devices", str(devices)] if devices is not None else []), *(["--quiet"] if quiet else [])]
        _run_all(folder, index, jobs, options, overwrite, quiet)
    elif jobs is not None:
        raise InputError("--jobs: expected together with --all, as --index runs one member; add --all")
    else:
        _run_one(folder, index, sets, overwrite, devices, quiet)


def _run_all(
    folder: Path, index: int | None, jobs: int | None, options: list[str], overwrite: bool, quiet: bool
) -> None:
    """`sweep run --all`: run all members that are not done, ``jobs`` at a time."""
    from hpcstencil.runtime.launcher import environment_size
    from hpcstencil.runtime.signals import watched
    from hpcstencil.sweep.folder import read_plan
    from hpcstencil.sweep.local import run_all

    if index is not None:
        raise InputError("--index: cannot be combined with --all; give one of them")
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs: expected a positive number of members at a time, got {jobs}")
    if environment_size() > 1:
        raise InputError(
            "--all: starts a process per member by itself, so run it without mpirun or srun; or give --index"
        )
    with watched() as request:
        report = run_all(read_plan(folder), options, overwrite, jobs or 1, request, (lambda _: None) if quiet else _say)
    if not quiet:
        echo(report)


def _run_one(
    folder: Path, index: int | None, sets: tuple[str, ...], overwrite: bool, devices: int | None, quiet: bool
) -> None:
    """`sweep run --index`: run one member in this launch. All processes call this together."""
    from hpcstencil.cli.prepare import problem_of, processes
    from hpcstencil.cli.run import execute
    from hpcstencil.runtime.communicator import from_rank_0
    from hpcstencil.runtime.signals import watched
    from hpcstencil.simulation.restart import Options
    from hpcstencil.sweep.attempts import recording_outcome
    from hpcstencil.sweep.folder import read_plan
    from hpcstencil.sweep.members import described
    from hpcstencil.sweep.state import repaired, start

    with watched() as request, processes() as communicator:
        member = from_rank_0(communicator, lambda: read_plan(folder).member(_index(index)))
        number = member.index
        with _named(number):
            begin = from_rank_0(
                communicator, lambda: start(read_plan(folder), member, sets, overwrite, communicator.size, _say)
            )
            if begin.attempt is None:
                if communicator.rank == 0:
                    echo(f"member {number} {begin.note}")
                return
            _say(f"member {number}: {described(repaired(member.settings, begin.overrides))}")
            if begin.note:
                _say(f"member {number}: {begin.note}")
            with recording_outcome(begin.attempt) if communicator.rank == 0 else nullcontext():
                config, problem = problem_of(member.input, begin.overrides, communicator)
                options = Options(
                    member.output,
                    overwrite=begin.fresh,
                    resume=not begin.fresh,
                    quiet=quiet,
                    overrides=begin.overrides,
                    started=STARTED,
                )
                execute(communicator, problem, options, devices, request)


@sweep.command()
@FOLDER
@click.option("--failed", is_flag=True, help="Print only the failed members, as sbatch --array takes them.")
@click.option(
    "--unfinished",
    is_flag=True,
    help="Print only those never begun, stopped or interrupted, as sbatch --array takes them.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def status(folder: Path, failed: bool, unfinished: bool, as_json: bool) -> None:
    """Print how many members are done, and the state of each other member with its reason.

    Together, --failed and --unfinished print both kinds. To run the failed members again:

    sbatch --array=$(hpcstencil sweep status DIR --failed) jobs/array.sbatch DIR
    """
    if as_json and (failed or unfinished):
        raise InputError("--json: cannot be combined with --failed or --unfinished; give one of them")

    def act() -> str | None:
        from hpcstencil.sweep.folder import read_plan
        from hpcstencil.sweep.report import array_list, status_json, status_report
        from hpcstencil.sweep.state import UNFINISHED, standing
        from hpcstencil.validation.messages import listing

        planned = read_plan(folder)
        found = [standing(planned, member) for member in planned.members]
        if as_json:
            return status_json(planned, found)
        if not (failed or unfinished):
            return status_report(planned, found, folder)
        wanted = (*(("failed",) if failed else ()), *(UNFINISHED if unfinished else ()))
        listed = [here.member.index for here in found if here.state in wanted]
        if not listed:
            _say(f"no member of {folder} is {listing(wanted, 'or')}")
        return array_list(listed) if listed else None

    _once(act)


@sweep.command()
@FOLDER
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="The table's path without ending; default: DIR/table."
)
def collect(folder: Path, output: Path | None) -> None:
    """Write one table of all members, as CSV and HDF5, and a plot of the final diagnostics against the parameters.

    Members that are not done have rows without values, and a warning names them.
    """

    def act() -> str:
        from hpcstencil.sweep.folder import read_plan
        from hpcstencil.sweep.report import array_list
        from hpcstencil.sweep.state import standing
        from hpcstencil.sweep.table import collect as collect_table

        planned = read_plan(folder)
        found = [standing(planned, member) for member in planned.members]
        written = collect_table(planned, found, output or folder / "table")
        missing = [here.member.index for here in found if here.state != "done"]
        if missing:
            _say(f"warning: {len(missing)} of {len(found)} members are not done and have rows without values: "
                 f"{array_list(missing)} (see hpcstencil sweep status {folder})")  # fmt: skip
        if not any(here.config.diagnostics.expressions for here in found):
            _say("warning: the members have no [diagnostics], so the table has no results and there is no plot")
        return "\n".join(map(str, written))

    _once(act)


# ---- shared ----------------------------------------------------------------------------------------------------------


def busy(member: Member) -> bool:
    """Whether a process is currently running the member."""
    from hpcstencil.sweep.attempts import attempts, running

    found = attempts(member.folder)
    return bool(found) and running(found[-1])


def _once(action: Callable[[], str | None]) -> None:
    """Run ``action`` on rank 0 only and print its result there. An exception is raised on all processes."""
    from hpcstencil.cli.prepare import processes
    from hpcstencil.runtime.communicator import from_rank_0

    with processes() as communicator:
        report = from_rank_0(communicator, action)
        if communicator.rank == 0 and report is not None:
            echo(report)


def _index(option: int | None) -> int:
    """The number of the member: the option --index, or else the number of the Slurm array task.

    Raises InputError if there is neither.
    """
    if option is not None:
        return option
    task = os.environ.get("SLURM_ARRAY_TASK_ID", "")
    if not task.isdigit():
        raise InputError("--index: expected the number of a member, but got neither it nor a Slurm array task "
                         "(SLURM_ARRAY_TASK_ID); write for example --index 0")  # fmt: skip
    return int(task)


@contextmanager
def _named(number: int) -> Iterator[None]:
    """Context manager that adds the number of the member to the message of an HpcstencilError."""
    try:
        yield
    except StoppedEarly as error:
        then = "run the same command to continue" if error.then == RESUME else error.then
        raise StoppedEarly(f"member {number}: {error.what}", then) from error
    except HpcstencilError as error:
        raise type(error)(f"member {number}: {error}") from error


def _say(text: str) -> None:
    """Print a line on standard error, on rank 0 only."""
    from hpcstencil.runtime.progress import say

    say(text)
