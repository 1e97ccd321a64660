"""`hpcstencil bench`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from hpcstencil.parallel import environment_rank

# Measured without an input: 3-D heat, the equation that moves the most memory for its arithmetic.
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
@click.option(
    "--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Override a key of the input (repeatable)."
)
@click.option("--devices", type=int, help="Devices per process.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def bench(input_file: Path | None, overrides: tuple[str, ...], devices: int | None, as_json: bool) -> None:
    """Measure the speed of INPUT.toml's step loop (default: 3-D heat, 256^3) against the machine's copy bandwidth."""
    from hpcstencil.cli.prepare import devices_of, planned, problem_of, processes, same_everywhere
    from hpcstencil.config import from_mapping
    from hpcstencil.formulation import build

    with processes() as communicator:
        if input_file is None:
            config = from_mapping(STANDARD, Path.cwd(), overrides)
            problem = build(config)
        else:
            config, problem = problem_of(input_file, overrides, communicator)
        count, _ = devices_of(config, devices)
        same_everywhere(communicator, count, problem)
        plan = planned(problem, communicator.size, count)

        from hpcstencil.launch import start_jax
        from hpcstencil.parallel import agree

        local = agree(communicator, lambda: start_jax(count))
        from hpcstencil import benchmark
        from hpcstencil.calibration import kernel_for
        from hpcstencil.decomposition import for_kernel
        from hpcstencil.simulation import simulate

        kernel = kernel_for(problem, local, communicator, plan.lowered).kernel
        plan = for_kernel(plan, problem, kernel)
        bandwidth = benchmark.copy_bandwidth(communicator, local)
        row = benchmark.measure(simulate(problem, plan, communicator, local, kernel), communicator, bandwidth)
        result = {
            "machine": benchmark.machine_description(),
            "versions": benchmark.versions(),
            "copy_bandwidth": bandwidth,
            "rows": [row],
        }
        if environment_rank() == 0:
            click.echo(json.dumps(result) if as_json else benchmark.table(result))
