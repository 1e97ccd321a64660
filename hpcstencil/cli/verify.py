"""`hpcstencil verify`: measure orders of convergence, conservation, and equality of decompositions."""

from __future__ import annotations

from pathlib import Path

import click

from hpcstencil.cli.options import devices_as_for_run, set_option
from hpcstencil.runtime.launcher import environment_rank
from hpcstencil.validation.errors import NumericsError
from hpcstencil.validation.printable import echo


@click.command()
@click.argument("input_file", metavar="INPUT.toml", type=click.Path(path_type=Path))
@set_option
@devices_as_for_run
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The plot (default: INPUT.verify.png in the working folder).",
)
def verify(input_file: Path, overrides: tuple[str, ...], devices: int | None, output: Path | None) -> None:
    """Measure orders of convergence in space and time, conservation, and equality of decompositions for INPUT.toml.

    Ends with status 3 if a promised property is missing.
    """
    from hpcstencil.cli.prepare import devices_of, problem_of, processes
    from hpcstencil.config.ensemble import members
    from hpcstencil.runtime.progress import say
    from hpcstencil.simulation.consistency_check import require_consistency

    with processes() as communicator:
        config, problem = problem_of(input_file, overrides, communicator)
        if config.ensemble:
            say("measuring the first member of the ensemble only")
            config, problem = members(config)[0], problem.members[0]
        count, _ = devices_of(config, devices)
        require_consistency(communicator, count, problem)

        from hpcstencil.runtime.communicator import agree, from_rank_0
        from hpcstencil.runtime.devices import start_jax
        from hpcstencil.verify.report import figure_data, opening, report_lines
        from hpcstencil.verify.studies import Orders, Study, conservation, decompositions, of_one_grid, reduced

        local = agree(communicator, lambda: start_jax(count))
        own = agree(communicator, lambda: reduced(config))
        unstudied = of_one_grid(config)

        def measured() -> tuple[list[Study], tuple[float, str] | None]:
            if unstudied:
                return [], None
            orders = Orders(problem, say)
            return [orders.in_space(), orders.in_time()], orders.source()

        studies, source = from_rank_0(communicator, measured)
        say("running the input itself for some steps ...")
        findings = from_rank_0(communicator, lambda: conservation(own))
        findings += decompositions(own, communicator, local)
        path = output or Path(f"{input_file.stem}.verify.png")

        def plotted() -> None:
            from postprocess.convergence import save

            save(path, config.title or input_file.stem, figure_data(studies))

        if studies:
            from_rank_0(communicator, plotted)
        missed = [f"order in {study.name}" for study in studies if not study.met]
        missed += [finding.name for finding in findings if not finding.met]
        if environment_rank() == 0:
            lines = [opening(config, source, unstudied), *report_lines(studies, findings)]
            echo("\n".join([*lines, f"plot         {path}"] if studies else lines[:-1]))
        if missed:
            raise NumericsError(f"verify: {input_file} does not keep what was promised: {', '.join(missed)}")
