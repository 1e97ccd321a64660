"""`hpcstencil gradient`: the objective of an input and its gradient."""

from __future__ import annotations

from pathlib import Path

import click

from hpcstencil.runtime.launcher import environment_rank
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.printable import echo


@click.command()
@click.argument("input_file", metavar="INPUT.toml", type=click.Path(path_type=Path))
@click.option(
    "--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Override a key of the input (repeatable)."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The file (default: INPUT.gradient.h5).")
@click.option("--overwrite", is_flag=True, help="Replace an existing file.")
@click.option("--devices", type=int, help="Devices per process (default: as for run).")
@click.option(
    "--verify", is_flag=True, help="Test the gradient instead of writing it: Taylor remainders, dot products."
)
def gradient(
    input_file: Path,
    overrides: tuple[str, ...],
    output: Path | None,
    overwrite: bool,
    devices: int | None,
    verify: bool,
) -> None:
    """Compute the objective of INPUT.toml and its gradient with respect to the names in gradient.of.

    The run is taken forwards and then in reverse, and a file with the result is written.
    """
    from hpcstencil.adjoint.members import differing, single_runs
    from hpcstencil.adjoint.problem import adjoint_of
    from hpcstencil.cli.prepare import decomposed_of, devices_of, listed, problem_of, processes
    from hpcstencil.config.paths import check_output_path
    from hpcstencil.runtime.communicator import agree, from_rank_0
    from hpcstencil.runtime.devices import start_jax
    from hpcstencil.runtime.progress import say
    from hpcstencil.simulation.same_everywhere import same_everywhere

    path = (output or Path(f"{input_file.stem}.gradient.h5")).absolute()
    with processes() as communicator:
        if verify:
            overrides = (*overrides, 'numerics.precision="float64"')
        config, problem = problem_of(input_file, overrides, communicator)
        first = single_runs(problem)[0]
        adjoint = agree(communicator, lambda: adjoint_of(first, first.initial, verified=verify))

        def check() -> None:
            check_output_path(config, input_file, path, "--output")
            if path.exists() and not overwrite and not verify:
                raise InputError(f"{path}: exists already; say --overwrite to replace it, or choose another --output")

        agree(communicator, check)
        count, _ = devices_of(config, devices)
        same_everywhere(communicator, count, problem)
        decomposed = decomposed_of(first, communicator.size, count)
        local = agree(communicator, lambda: start_jax(count))

        from hpcstencil.gradient.file import write
        from hpcstencil.gradient.members import members_of, told
        from hpcstencil.gradient.verify import failures, measured, tell
        from hpcstencil.python.gradient import collected
        from hpcstencil.simulation.start import composed

        forward = composed(decomposed, local, communicator)
        own = differing(problem, adjoint.unknowns, {})
        members = members_of(
            problem,
            forward,
            adjoint,
            lambda blocks: composed(blocks, local, communicator),
            {},
            own,
            tuple(first.initial),
        )
        members, plans = members.planned(lambda number: members.sweeps[number].forward.initial_fields())
        say(told(plans))
        if verify:
            found = measured(members, plans)
            if environment_rank() == 0:
                echo(tell(found))
            failures(input_file, found)
            return
        total = members.total(lambda number, sweep: sweep(sweep.forward.initial_fields(), plans[number].states))
        whole = collected(members, total)
        from_rank_0(communicator, lambda: write(path, config, total.value, whole))
        if environment_rank() == 0:
            numbers = "".join(f"{key:<21} {listed(number)}\n" for key, number in total.numbers.items())
            echo(f"{'objective':<21} {total.value:.10g}\n{numbers}{'gradient':<21} {path}")
