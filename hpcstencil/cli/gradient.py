"""`hpcstencil gradient`: the objective of an input and its gradient."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcstencil import STARTED
from hpcstencil.cli.options import devices_as_for_run, set_option
from hpcstencil.runtime import signals
from hpcstencil.runtime.launcher import environment_rank
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.printable import echo

if TYPE_CHECKING:
    from hpcstencil.gradient.members import Members
    from hpcstencil.io.output_lock import Claim


@click.command()
@click.argument("input_file", metavar="INPUT.toml", type=click.Path(path_type=Path))
@set_option
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The file (default: INPUT.gradient.h5).")
@click.option("--overwrite", is_flag=True, help="Begin again, and replace existing files of this gradient.")
@click.option("--resume", is_flag=True, help="Continue an interrupted gradient, if there is one.")
@devices_as_for_run
@click.option("--quiet", is_flag=True, help="No progress and no summary.")
@click.option(
    "--verify",
    is_flag=True,
    help="Test the gradient instead of writing it: Taylor remainders, dot products, decompositions.",
)
def gradient(
    input_file: Path,
    overrides: tuple[str, ...],
    output: Path | None,
    overwrite: bool,
    resume: bool,
    devices: int | None,
    quiet: bool,
    verify: bool,
) -> None:
    """Compute the objective of INPUT.toml and its gradient with respect to the quantities listed in gradient.of.

    The run is taken forwards and then in reverse, and a file with the result is written.
    """
    if quiet and verify:
        raise InputError("--quiet: cannot be combined with --verify, which prints its results; give one of them")
    if resume and (overwrite or verify):
        raise InputError(
            f"--resume: cannot be combined with {'--verify' if verify else '--overwrite'}; give one of them"
        )
    from hpcstencil.adjoint.derivation import adjoint_of
    from hpcstencil.adjoint.members import single_runs
    from hpcstencil.cli.prepare import problem_of, processes
    from hpcstencil.cli.prepare_gradient import blocks_of_member, composed_members, for_tests
    from hpcstencil.runtime.communicator import agree, from_rank_0
    from hpcstencil.runtime.progress import say

    path = (output or Path(f"{input_file.stem}.gradient.h5")).absolute()
    with nullcontext(signals.Request()) if verify else signals.watched() as request, processes() as communicator:
        config, given = problem_of(input_file, overrides, communicator, path)
        problem = agree(communicator, lambda: for_tests(given)) if verify else given
        first = single_runs(problem)[0]
        expressed = tuple(first.initial)
        adjoint = agree(communicator, lambda: adjoint_of(first, expressed, verified=verify))
        decomposed, local = blocks_of_member(problem, devices, communicator)

        from hpcstencil.gradient.members import in_words
        from hpcstencil.gradient.resumable import newest_of, refuse_existing
        from hpcstencil.gradient.verify import failures, measured, report, rounding
        from hpcstencil.io.output_lock import claimed

        with claimed([path], communicator) as claims:
            if not (resume or overwrite or verify):
                from_rank_0(communicator, lambda: refuse_existing(path, "gradient"))
            newest = newest_of(path, communicator, 0 if problem.members else None) if resume else None
            members = composed_members(problem, adjoint, expressed, decomposed, local, communicator, newest)
            if not verify:
                _compute(members, claims[0], newest, overwrite, request, quiet)
                return
            members, plans = members.planned(lambda number: members.sweeps[number].forward.initial_fields())
            say(in_words(plans))
            found = measured(members, plans, problem)
            lines = [report(found)]
            if given.config.gradient.tape_precision == "half":
                lines.append(rounding(given, members))
        if environment_rank() == 0:
            echo("\n".join(lines))
        failures(input_file, found)


def _compute(
    members: Members, claim: Claim, newest: Path | None, overwrite: bool, request: signals.Request, quiet: bool
) -> None:
    """Compute a gradient, write its file, whose lock is ``claim``, and print the result unless ``quiet``. Collective.

    The gradient continues from the file ``newest``, unless it is None. Raises StoppedEarly, on all processes, after the signal
    in ``request`` or at the walltime.
    """
    from hpcstencil.gradient.file import is_complete, write
    from hpcstencil.gradient.members import in_words, listed
    from hpcstencil.gradient.resumable import ResumableGradient, remove
    from hpcstencil.python.gradient import collected
    from hpcstencil.runtime.communicator import from_rank_0
    from hpcstencil.runtime.filesystem import prepare_folder
    from hpcstencil.runtime.progress import say

    path, communicator, config = claim.output, members.forward.communicator, members.config
    tell = (lambda text: None) if quiet else say
    resumable = ResumableGradient(path, members, request, STARTED, quiet)
    interrupted = newest is not None
    if not overwrite and from_rank_0(communicator, lambda: is_complete(path, config, resumable.digests, interrupted)):
        remove(path, communicator)
        tell(f"{path} is complete")
        return
    prepare_folder(path, communicator)
    claim.take()
    if overwrite:
        remove(path, communicator)
    if newest is not None:
        resumable.resume(newest)
        tell(f"continuing from {newest.name}")
    plans = resumable.planned()
    tell(in_words(plans))
    total = resumable.total(plans)
    whole = collected(resumable.members, total)
    from_rank_0(communicator, lambda: write(path, members, total.value, whole, resumable.digests))
    remove(path, communicator)
    if environment_rank() == 0 and not quiet:
        numbers = "".join(f"{key:<21} {listed(number)}\n" for key, number in total.numbers.items())
        echo(f"{'objective':<21} {total.value:.10g}\n{numbers}{'gradient':<21} {path}")
