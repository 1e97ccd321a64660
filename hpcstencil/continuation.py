"""Where a run begins: at its initial state, at its own newest checkpoint, or at a checkpoint of another run."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from hpcstencil.checkpoint import newest_checkpoint
from hpcstencil.config import Config, from_mapping
from hpcstencil.errors import InputError
from hpcstencil.hdf5 import refuse_existing
from hpcstencil.hdf5_read import inspect
from hpcstencil.parallel import Communicator
from hpcstencil.provenance import allowed, differences
from hpcstencil.toml_text import is_set


@dataclass(frozen=True)
class Options:
    """How the command line asks for the run. ``overrides`` are the texts given with --set."""

    output: Path
    overwrite: bool = False
    resume: bool = False
    restart: Path | None = None
    quiet: bool = False
    overrides: tuple[str, ...] = ()


def source_of(config: Config, options: Options, communicator: Communicator) -> Path | str | None:
    """Where the state comes from: a checkpoint, "complete" where nothing is left to do, None for the initial state."""
    if options.restart is not None:
        if not options.overwrite:
            refuse_existing(options.output)
        _refuse_other_physics(config, options.restart, options.overrides)
        return options.restart
    if options.resume:
        return _resume_source(config, options, communicator)
    if not options.overwrite:
        refuse_existing(options.output)
    return None


def _resume_source(config: Config, options: Options, communicator: Communicator) -> Path | str | None:
    """For --resume: the newest good checkpoint of this output, if the run is not complete already."""
    if not options.output.exists():
        return None
    contents = inspect(options.output)
    _refuse_other_physics(config, options.output, options.overrides)
    if contents.complete and contents.time is not None and config.time.end <= contents.time:
        return "complete"
    newest = newest_checkpoint(options.output, communicator)
    if newest is not None:
        _refuse_other_physics(config, newest, options.overrides)
    if newest is None and contents.complete:
        raise InputError(
            f"{options.output}: the run is complete and left no checkpoint to go on from (set checkpoint.every_steps or "
            f"every_minutes beforehand); use --overwrite to run it again"
        )
    return newest


def _refuse_other_physics(config: Config, path: Path, overrides: tuple[str, ...]) -> None:
    """A continued run may differ from its origin in its end, cadences and decomposition; all else must be asked for
    with --set, and another grid never."""
    contents = inspect(path)
    origin = from_mapping(tomllib.loads(contents.input), path.parent)
    for key in differences(origin, config):
        given = is_set(key, overrides)
        if allowed(key) or (given and not key.startswith("grid.")):
            continue
        remedy = (
            f"keep its grid of {' x '.join(map(str, origin.grid.shape))} cells"
            if key.startswith("grid.")
            else f"if that is meant, say it with --set {key}=..."
        )
        raise InputError(f"{key}: {path} was made with another value; {remedy}")
