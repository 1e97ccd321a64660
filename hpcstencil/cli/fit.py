"""`hpcstencil fit`: the unknowns that minimize the objective of an input."""

from __future__ import annotations

from pathlib import Path

import click

from hpcstencil import STARTED
from hpcstencil.runtime import signals
from hpcstencil.runtime.launcher import environment_rank
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.printable import echo


@click.command()
@click.argument("input_file", metavar="INPUT.toml", type=click.Path(path_type=Path))
@click.option(
    "--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Override a key of the input (repeatable)."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The file (default: INPUT.fit.h5).")
@click.option("--overwrite", is_flag=True, help="Begin again, and replace existing files of this fit.")
@click.option("--resume", is_flag=True, help="Continue from the newest valid checkpoint of this fit, if any.")
@click.option("--devices", type=int, help="Devices per process (default: as for run).")
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
    from hpcstencil.adjoint.members import differing, single_runs
    from hpcstencil.adjoint.problem import unknowns_of
    from hpcstencil.cli.prepare import decomposed_of, devices_of, problem_of, processes
    from hpcstencil.config.paths import check_output_path
    from hpcstencil.config.settings import FitConfig
    from hpcstencil.runtime.communicator import agree, from_rank_0
    from hpcstencil.runtime.devices import start_jax
    from hpcstencil.runtime.walltime import Walltime
    from hpcstencil.simulation.consistency_check import require_consistency

    path = (output or Path(f"{input_file.stem}.fit.h5")).absolute()
    with signals.watched() as request, processes() as communicator:
        config, problem = problem_of(input_file, overrides, communicator)
        unknowns, first = agree(communicator, lambda: unknowns_of(problem)), single_runs(problem)[0]
        found = {one.name for one in unknowns if one.kind == "initial"}  # whose values are no expressions any more
        expressed = tuple(name for name in first.initial if name not in found)
        adjoint = agree(communicator, lambda: adjoint_of(first, expressed))
        own = differing(problem, unknowns, {})
        limits = agree(communicator, lambda: limits_of(problem, unknowns, config.fit or FitConfig()))
        agree(communicator, lambda: check_output_path(config, input_file, path, "--output"))
        count, _ = devices_of(config, devices)
        require_consistency(communicator, count, problem)
        decomposed = decomposed_of(first, communicator.size, count)
        local = agree(communicator, lambda: start_jax(count))

        from hpcstencil.fit.checkpoints import newest
        from hpcstencil.fit.file import write
        from hpcstencil.fit.run import Duration, fitted
        from hpcstencil.fit.unknowns import by_unknown
        from hpcstencil.gradient.checkpoint_identity import kernels_in
        from hpcstencil.gradient.members import listed, members_of
        from hpcstencil.gradient.recording import stopped_while_recording
        from hpcstencil.gradient.resumable import refuse_existing, stored_beside
        from hpcstencil.gradient.stored_states import remove_states
        from hpcstencil.io.output_lock import claimed
        from hpcstencil.python.gradient import gathered_blocks
        from hpcstencil.simulation.event_loop import StopRequests
        from hpcstencil.simulation.start import composed

        with claimed([path], communicator):
            if not (resume or overwrite):
                from_rank_0(communicator, lambda: refuse_existing(path, "fit"))
            remove_states(path, communicator)
            resumed = newest(path, communicator) if resume else None
            before = ("", "") if resumed is None else from_rank_0(communicator, lambda: kernels_in(resumed))
            forward = composed(decomposed, local, communicator, before[0])
            members = members_of(
                problem,
                forward,
                adjoint,
                lambda blocks: composed(blocks, local, communicator, before[1]),
                {},
                own,
                expressed,
            )
            longest = Duration()
            walltime = Walltime(config.checkpoint.walltime, communicator, STARTED)
            stops = StopRequests(request, walltime, lambda: longest.seconds, communicator)

            def recording() -> None:
                if reason := stops.reason():
                    raise stopped_while_recording(reason)

            sweeps = members.sweeps
            members, plans = stored_beside(path, members, {}).planned(
                lambda number: sweeps[number].forward.initial_fields(), recording
            )
            result = fitted(
                members,
                plans,
                limits,
                path,
                resumed,
                lambda blocks: composed(blocks, local, communicator),
                stops,
                longest,
                quiet,
            )
            whole = by_unknown(gathered_blocks(forward, result.state.point.unknowns, members.series), members)
            from_rank_0(communicator, lambda: write(path, members, result, whole))
        if environment_rank() == 0 and not quiet:
            rows = result.state.rows
            evaluations = sum(row.evaluations for row in rows)
            kinds = {one.key: one.kind for one in unknowns}
            numbers = "".join(f"{key:<21} {listed(x)}\n" for key, x in whole.items() if kinds[key] == "number")
            echo(
                f"{'objective':<21} {rows[-1].objective:.10g}, {rows[0].objective:.10g} at the start\n{numbers}"
                f"{'iterations':<21} {len(rows) - 1}, with {evaluations} evaluation{'s' * (evaluations != 1)}\n"
                f"{'end':<21} {result.why}\n{'fit':<21} {path}"
            )
