"""`hpcstencil bench`: measure the speed of the step loop."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click

from hpcstencil.cli.options import devices_option, set_option
from hpcstencil.runtime.launcher import environment_rank
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.printable import echo

# The input that is measured by default: 3-D heat, the equation with the most memory traffic per arithmetic operation.
STANDARD = {
    "title": "bench",
    "grid": {"shape": [256, 256, 256]},
    "equation": {"name": "heat"},
    "initial": {"u": "sin(x/20)*sin(y/20)*sin(z/20)"},
    "numerics": {"integrator": "euler"},
    "time": {"end": 1.0, "dt": 0.1},
}


@click.command()
@click.argument("input_file", metavar="[INPUT.toml]", required=False, type=click.Path(path_type=Path))
@set_option
@devices_option
@click.option(
    "--scaling",
    is_flag=True,
    help="Rows for 1, 2, 4 ... of the processes: the same grid, and one that grows with them.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--plot", metavar="FILE.png", type=click.Path(path_type=Path), help="Draw the rows in a roofline picture."
)
def bench(
    input_file: Path | None,
    overrides: tuple[str, ...],
    devices: int | None,
    scaling: bool,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Measure the speed of INPUT.toml's step loop (default: 3-D heat, 256^3) against the machine's copy bandwidth."""
    from hpcstencil.cli.prepare import decomposed_of, devices_of, problem_of, processes
    from hpcstencil.config.reader import from_mapping
    from hpcstencil.problem.build import build
    from hpcstencil.runtime.progress import say
    from hpcstencil.simulation.consistency_check import require_consistency

    if plot is not None and plot.suffix.lower() != ".png":
        raise InputError(f"--plot: expected a file that ends in .png, but got {plot}; write for example bench.png")
    with processes() as communicator:
        if input_file is None:
            config = from_mapping(STANDARD, Path.cwd(), overrides)
            problem = build(config)
        else:
            config, problem = problem_of(input_file, overrides, communicator)
        count, _ = devices_of(config, devices)
        require_consistency(communicator, count, problem)
        decomposed = decomposed_of(problem, communicator.size, count)

        from hpcstencil.runtime.communicator import agree, from_rank_0
        from hpcstencil.runtime.devices import start_jax

        local = agree(communicator, lambda: start_jax(count))
        from hpcstencil.benchmark.report import result, table
        from hpcstencil.benchmark.rows import Case, measure, scaling_cases

        cases = [Case(decomposed)]
        if scaling and communicator.size > 1:
            cases = scaling_cases(problem, communicator.size, count)
        elif scaling:
            say("--scaling: one process gives one row; for more rows, mpirun -n 4 hpcstencil bench --scaling")
        results = result(*measure(cases, communicator, local))
        if environment_rank() == 0:
            echo(json.dumps(results) if as_json else table(results))
        if plot is not None:
            from_rank_0(communicator, partial(draw, results, plot))
            if environment_rank() == 0 and not as_json:
                echo(f"\nplot            {plot}")


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Write a roofline plot of the ``results`` to ``path``. Raises EnvironmentProblem if it cannot be written."""
    from hpcstencil.runtime.atomic_write import publish
    from hpcstencil.runtime.filesystem import file_errors
    from postprocess.roofline import save_roofline  # matplotlib is slow to load, and only needed here

    with file_errors(path, "create"):
        path.parent.mkdir(parents=True, exist_ok=True)
    publish(path, lambda temporary: save_roofline(results, temporary))
