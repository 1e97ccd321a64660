"""`hpcstencil gradient`: the objective of an input and its gradient."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcstencil import STARTED
from hpcstencil.runtime import signals
from hpcstencil.runtime.launcher import environment_rank
from hpcstencil.validation.errors import InputError, NumericsError
from hpcstencil.validation.printable import echo

if TYPE_CHECKING:
    from hpcstencil.adjoint.plan import SweepPlan
    from hpcstencil.gradient.sweep import Sweep
    from hpcstencil.io.output_lock import Claim


@click.command()
@click.argument("input_file", metavar="INPUT.toml", type=click.Path(path_type=Path))
@click.option(
    "--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Override a key of the input (repeatable)."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The file (default: INPUT.gradient.h5).")
@click.option("--overwrite", is_flag=True, help="Begin again, and replace existing files of this gradient.")
@click.option("--resume", is_flag=True, help="Continue an interrupted gradient, if there is one.")
@click.option("--devices", type=int, help="Devices per process (default: as for run).")
@click.option(
    "--verify", is_flag=True, help="Test the gradient instead of writing it: Taylor remainders, dot products."
)
def gradient(
    input_file: Path,
    overrides: tuple[str, ...],
    output: Path | None,
    overwrite: bool,
    resume: bool,
    devices: int | None,
    verify: bool,
) -> None:
    """Compute the objective of INPUT.toml and its gradient with respect to the names in gradient.of.

    The run is taken forwards and then in reverse, and a file with the result is written.
    """
    if resume and (overwrite or verify):
        raise InputError(
            f"--resume: cannot be combined with {'--verify' if verify else '--overwrite'}; give one of them"
        )
    from hpcstencil.adjoint.problem import adjoint_of
    from hpcstencil.cli.prepare import decomposed_of, devices_of, problem_of, processes
    from hpcstencil.config.paths import check_output_path
    from hpcstencil.runtime.communicator import agree, from_rank_0
    from hpcstencil.runtime.devices import start_jax
    from hpcstencil.simulation.same_everywhere import same_everywhere

    path = (output or Path(f"{input_file.stem}.gradient.h5")).absolute()
    with nullcontext(signals.Request()) if verify else signals.watched() as request, processes() as communicator:
        if verify:
            overrides = (*overrides, 'numerics.precision="float64"')
        config, problem = problem_of(input_file, overrides, communicator)
        adjoint = agree(communicator, lambda: adjoint_of(problem, problem.initial, verified=verify))
        agree(communicator, lambda: check_output_path(config, input_file, path, "--output"))
        count, _ = devices_of(config, devices)
        same_everywhere(communicator, count, problem)
        decomposed = decomposed_of(problem, communicator.size, count)
        local = agree(communicator, lambda: start_jax(count))

        from hpcstencil.gradient.compose import planned, sweep_of
        from hpcstencil.gradient.origin import kernels_in
        from hpcstencil.gradient.resumable import newest_of, refuse_existing
        from hpcstencil.gradient.verify import failures, measured, tell
        from hpcstencil.io.output_lock import claimed
        from hpcstencil.simulation.start import composed

        with claimed([path], communicator) as claims:
            if not (resume or overwrite or verify):
                from_rank_0(communicator, lambda: refuse_existing(path))
            newest = newest_of(path, communicator) if resume else None
            before = ("", "") if newest is None else from_rank_0(communicator, lambda: kernels_in(newest))
            forward = composed(decomposed, local, communicator, before[0])
            compose = partial(composed, devices=local, communicator=communicator, before=before[1])
            sweep = sweep_of(forward, adjoint, compose, {}, path)
            if not verify:
                _compute(sweep, claims[0], newest, overwrite, request)
                return
            sweep, plan = planned(sweep, forward.initial_fields())
            _tell_plan(plan)
            found = measured(sweep, plan)
        if environment_rank() == 0:
            echo(tell(found))
        failures(input_file, found)


def _tell_plan(plan: SweepPlan) -> None:
    from hpcstencil.runtime.progress import say

    say(f"{plan.steps} steps, {plan.states} stored states, {plan.taken} steps in all before their reversal")


def _compute(sweep: Sweep, claim: Claim, newest: Path | None, overwrite: bool, request: signals.Request) -> None:
    """Compute a gradient, write its file, whose lock is ``claim``, and print the result. All processes call this together.

    The gradient continues from the file ``newest``, unless it is None. Raises StoppedEarly, on all processes, after the signal
    in ``request`` or at the walltime.
    """
    from hpcstencil.gradient.compose import planned
    from hpcstencil.gradient.file import refuse_other, write
    from hpcstencil.gradient.resumable import Resumable, remove
    from hpcstencil.python.gradient import collected
    from hpcstencil.runtime.communicator import from_rank_0
    from hpcstencil.runtime.filesystem import prepare_folder
    from hpcstencil.runtime.progress import say

    path, communicator, config = claim.output, sweep.forward.communicator, sweep.forward.problem.config
    course = Resumable(path, sweep.forward, request, STARTED)
    if not overwrite and from_rank_0(communicator, path.exists):
        from_rank_0(communicator, lambda: refuse_other(path, config, course.digests))
        remove(path, communicator)
        say(f"{path} is complete")
        return
    prepare_folder(path, communicator)
    claim.take()
    if overwrite:
        remove(path, communicator)
    if newest is not None:
        say(f"continuing from {newest.name}")
        sweep = course.resumed(sweep, newest)
    fields = sweep.forward.initial_fields()
    sweep, plan = planned(sweep, fields, course.recording)
    _tell_plan(plan)
    course.begin(sweep, plan.states, plan.bytes_on_disk)
    try:
        result = sweep(fields, plan.states, course)
    except NumericsError:  # a gradient that continues would fail again
        remove(path, communicator)
        raise
    whole = collected(sweep, result)
    from_rank_0(communicator, lambda: write(path, config, result.value, whole, course.digests))
    remove(path, communicator)
    if environment_rank() == 0:
        numbers = "".join(f"{key:<21} {number:.10g}\n" for key, number in result.numbers.items())
        echo(f"{'objective':<21} {result.value:.10g}\n{numbers}{'gradient':<21} {path}")
