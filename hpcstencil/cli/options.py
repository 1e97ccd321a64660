"""Options that several commands have."""

from __future__ import annotations

import click

from hpcstencil.validation.overrides import parse_override


def parsable(context: click.Context, option: click.Parameter, overrides: tuple[str, ...]) -> tuple[str, ...]:
    """Return the arguments of --set. Raises InputError for one that cannot be parsed, before click refuses what follows it."""
    for text in overrides:
        parse_override(text)
    return overrides


set_option = click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    callback=parsable,
    help="Override a key of the input (repeatable).",
)
devices_option = click.option("--devices", type=int, help="Devices per process.")
devices_as_for_run = click.option("--devices", type=int, help="Devices per process (default: as for run).")
