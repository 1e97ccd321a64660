"""`hpcstencil fit`: the unknowns that minimize the objective of an input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcstencil import STARTED
from hpcstencil.cli.options import devices_as_for_run, set_option
from hpcstencil.runtime import signals
from hpcstencil.runtime.launcher import environment_rank
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.printable import echo

if TYPE_CHECKING:
    from hpcstencil.adjoint.limits import Limits
    from hpcstencil.fit.run import Fitted
    from hpcstencil.gradient.members import Members
    from hpcstencil.simulation.prepared import Decomposed
    from hpcstencil.simulation.simulation import ComposedSimulation


@click.command()
@click.argument("input_file", metavar="INPUT.toml", type=click.Path(path_type=Path))
@set_option
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The file (default: INPUT.fit.h5).")
@click.option("--overwrite", is_flag=True, help="Begin again, and replace existing files of this fit.")
@click.option("--resume", is_flag=True, help="Continue from the newest valid checkpoint of this fit, if any.")
@devices_as_for_run
@click.option("--quiet", is_flag=True, help="No progress and no summary.")
def fit(
    input_file: Path,
    overrides: tuple[str, ...],
    output: Path | None,
    overwrite: bool,
    resume: bool,
    devices: int | None,
    quiet: bool,
) -> None:
    """Find the values of the quantities listed in gradient.of that minimize the objective of INPUT.toml, and write them to a
    file.

    Each evaluation takes the run forwards and then in reverse. A checkpoint is written after each iteration.
    """
    if resume and overwrite:
        raise InputError("--resume: cannot be combined with --overwrite; give one of them")
    from hpcstencil.adjoint.derivation import adjoint_of
    from hpcstencil.adjoint.limits import limits_of
    from hpcstencil.adjoint.members import single_runs
    from hpcstencil.adjoint.unknowns import InitialValues, NumberParameter, unknowns_of
    from hpcstencil.cli.prepare import problem_of, processes
    from hpcstencil.cli.prepare_gradient import blocks_of_member, composed_members
    from hpcstencil.config.settings import FitConfig
    from hpcstencil.runtime.communicator import agree, from_rank_0

    path = (output or Path(f"{input_file.stem}.fit.h5")).absolute()
    with signals.watched() as request, processes() as communicator:
        config, problem = problem_of(input_file, overrides, communicator, path)
        unknowns, first = agree(communicator, lambda: unknowns_of(problem)), single_runs(problem)[0]
        # The initial values that are fitted become arrays.
        found = {one.name for one in unknowns if isinstance(one, InitialValues)}
        expressed = tuple(name for name in first.initial if name not in found)
        adjoint = agree(communicator, lambda: adjoint_of(first, expressed))
        limits = agree(communicator, lambda: limits_of(problem, unknowns, config.fit or FitConfig()))
        decomposed, local = blocks_of_member(problem, devices, communicator)

        from hpcstencil.fit.checkpoints import WHAT
        from hpcstencil.gradient.checkpoint_identity import newest
        from hpcstencil.gradient.resumable import refuse_existing
        from hpcstencil.gradient.stored_states import remove_states
        from hpcstencil.io.output_lock import claimed
        from hpcstencil.simulation.start import composed

        with claimed([path], communicator):
            if not (resume or overwrite):
                from_rank_0(communicator, lambda: refuse_existing(path, "fit"))
            remove_states(path, communicator)
            continued = newest(path, WHAT, communicator) if resume else None
            members = composed_members(problem, adjoint, expressed, decomposed, local, communicator, continued)
            compose = partial(composed, devices=local, communicator=communicator)
            result, whole = _fit(members, limits, path, continued, compose, request, quiet)
        if environment_rank() == 0 and not quiet:
            numbers = {one.key: whole[one.key] for one in unknowns if isinstance(one, NumberParameter)}
            echo(f"{_summary(result, numbers)}\n{'fit':<21} {path}")


def _fit(
    members: Members,
    limits: Mapping[str, Limits],
    path: Path,
    continued: Path | None,
    compose: Callable[[Decomposed], ComposedSimulation],
    request: signals.Request,
    quiet: bool,
) -> tuple[Fitted, dict[str, Any]]:
    """Fit the unknowns and write the file ``path``. Return the fit, and the unknowns by key. All processes call this together.

    Arrays over the grid are on rank 0 only. ``request`` records signals that ask the fit to stop. The other arguments and the
    errors are those of `FitRun`.
    """
    from hpcstencil.fit.file import write
    from hpcstencil.fit.run import Duration, FitRun
    from hpcstencil.fit.unknowns import by_unknown
    from hpcstencil.gradient.recording import stopped_while_recording
    from hpcstencil.gradient.resumable import stored_beside
    from hpcstencil.python.gradient import gathered_blocks
    from hpcstencil.runtime.communicator import from_rank_0
    from hpcstencil.runtime.walltime import Walltime
    from hpcstencil.simulation.event_loop import StopRequests

    communicator, longest = members.forward.communicator, Duration()
    walltime = Walltime(members.config.checkpoint.walltime, communicator, STARTED)
    stops = StopRequests(request, walltime, lambda: longest.seconds, communicator)

    def recording() -> None:
        if reason := stops.reason():
            raise stopped_while_recording(reason)

    sweeps = members.sweeps
    members, plans = stored_beside(path, members, {}).planned(
        lambda number: sweeps[number].forward.initial_fields(), recording
    )
    result = FitRun(members, plans, limits, path, compose, stops, longest, quiet).run(continued)
    blocks = result.state.point.unknowns
    whole = by_unknown(gathered_blocks(members.forward, blocks, members.series), members)
    from_rank_0(communicator, lambda: write(path, members, result, whole))
    return result, whole


def _summary(result: Fitted, numbers: Mapping[str, Any]) -> str:
    """The summary of a fit as text. ``numbers`` are the unknowns that are numbers, by key."""
    from hpcstencil.gradient.members import listed

    rows = result.state.rows
    evaluations = sum(row.evaluations for row in rows)
    found = "".join(f"{key:<21} {listed(number)}\n" for key, number in numbers.items())
    return (
        f"{'objective':<21} {rows[-1].objective:.10g}, {rows[0].objective:.10g} at the start\n{found}"
        f"{'iterations':<21} {len(rows) - 1}, with {evaluations} evaluation{'s' * (evaluations != 1)}\n"
        f"{'end':<21} {result.why}"
    )
