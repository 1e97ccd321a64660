"""What the commands share: reading the input, choosing devices, joining the processes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hpcstencil.config.reader import load
from hpcstencil.config.settings import Config
from hpcstencil.problem.build import build
from hpcstencil.problem.parameter_files import contents_of
from hpcstencil.problem.problem import Problem
from hpcstencil.problem.warnings import warnings_of
from hpcstencil.runtime import watchdog
from hpcstencil.runtime.communicator import Communicator, agree, connect, from_rank_0
from hpcstencil.runtime.devices import bind_devices
from hpcstencil.runtime.failure import abort_all
from hpcstencil.runtime.progress import say
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.validation.errors import HpcstencilError, InputError


def problem_of(path: Path, overrides: Sequence[str], communicator: Communicator) -> tuple[Config, Problem]:
    """The input at ``path`` with every --set of ``overrides`` applied, and its problem, both checked. Warnings go to
    standard error. All processes call this together. Raises InputError, or EnvironmentProblem for an unreadable file,
    on all of them."""

    config = agree(communicator, lambda: load(path, overrides))
    contents = from_rank_0(communicator, lambda: contents_of(config))
    problem = agree(communicator, lambda: build(config, contents))
    for warning in warnings_of(problem):
        say(f"warning: {warning}")
    return config, problem


def wanted_devices(config: Config, option: int | None) -> int | None:
    """The number of devices per process that the option or else the input requests; None for all that are available.
    Raises InputError if the option is not positive."""
    if option is not None:
        if option < 1:
            raise InputError(f"--devices: expected a positive number, got {option}")
        return option
    given = config.decomposition.devices
    if isinstance(given, str):
        return None
    return given if isinstance(given, int) else math.prod(given)


def decomposed_of(problem: Problem, processes: int, devices: int) -> Decomposed:
    """The problem split into blocks for ``processes`` processes of ``devices`` devices each. Prints a message if blocks
    are too thin for a whole step between two exchanges. Raises InputError if they do not fit."""
    decomposed = Decomposed.of(problem, processes, devices)
    if decomposed.thin:
        say("blocks are thin: halos are exchanged for every stage of the integrator")
    return decomposed


@contextmanager
def processes() -> Iterator[Communicator]:
    """A context that connects the processes of this run and yields their communicator, under the watchdog. An error
    that not all processes share ends all of them."""
    communicator = connect()
    try:
        watchdog.start(communicator)
        yield communicator
    except BaseException as error:
        shared = isinstance(error, HpcstencilError) and error.shared
        if communicator.size > 1 and not shared:
            abort_all(communicator, error)
        raise
    finally:
        communicator.watch.close()


def devices_of(config: Config, option: int | None) -> tuple[int, list[str]]:
    """(number of this process's devices, ids of its GPUs). Call it before jax starts, whose environment variables it
    sets. Raises InputError if there are fewer GPUs than requested."""
    return bind_devices(wanted_devices(config, option))
