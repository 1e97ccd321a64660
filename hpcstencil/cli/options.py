"""Options that several commands have."""

from __future__ import annotations

import click

set_option = click.option(
    "--set", "overrides", metavar="KEY=VALUE", multiple=True, help="Override a key of the input (repeatable)."
)
devices_option = click.option("--devices", type=int, help="Devices per process.")
devices_as_for_run = click.option("--devices", type=int, help="Devices per process (default: as for run).")
