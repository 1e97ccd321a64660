"""Steps that several commands share: connect the processes, read the input, choose devices, decompose the grid."""

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


def problem_of(
    path: Path, overrides: Sequence[str], communicator: Communicator, output: Path | None = None
) -> tuple[Config, Problem]:
    """Read and check the input at ``path``, and build its problem.

    ``overrides`` and ``output`` are the arguments of --set and --output. Warnings are printed on standard error. All processes
    call this together. Raises InputError, or EnvironmentProblem if a data file cannot be read, on all of them.
    """

    config = agree(communicator, lambda: load(path, overrides, output))
    contents = from_rank_0(communicator, lambda: contents_of(config))
    problem = agree(communicator, lambda: build(config, contents))
    for warning in warnings_of(problem):
        say(f"warning: {warning}")
    return config, problem


def wanted_devices(config: Config, option: int | None) -> int | None:
    """The number of devices per process that --devices (``option``) or else the input requests; None for the default.

    Raises InputError if the option is not positive.
    """
    if option is not None:
        if option < 1:
            raise InputError(f"--devices: expected a positive number, got {option}")
        return option
    given = config.decomposition.devices
    if isinstance(given, str):
        return None
    return given if isinstance(given, int) else math.prod(given)


def decomposed_of(problem: Problem, processes: int, devices: int) -> Decomposed:
    """Decompose the problem for ``processes`` processes with ``devices`` devices each.

    Prints a message if blocks are too thin for a whole step between two exchanges. Raises InputError if the blocks do
    not fit.
    """
    decomposed = Decomposed.of(problem, processes, devices)
    if decomposed.thin:
        say("blocks are thin: halos are exchanged for every stage of the integrator")
    return decomposed


@contextmanager
def processes() -> Iterator[Communicator]:
    """Context manager that connects the processes of this launch, starts the watchdog and yields the communicator.

    An exception that is not raised by all processes together (`HpcstencilError.shared`) aborts all of them.
    """
    communicator = connect()
    try:
        watchdog.start(communicator)
        yield communicator
        communicator.barrier()  # if a rank left early, the monitors would think that the others wait for it
    except BaseException as error:
        shared = isinstance(error, HpcstencilError) and error.shared
        if communicator.size > 1 and not shared:
            abort_all(communicator, error)
        raise
    finally:
        communicator.watch.close()


def devices_of(config: Config, option: int | None) -> tuple[int, list[str]]:
    """Choose the devices of this process: (number of devices, ids of its GPUs, which may be none).

    It sets environment variables that JAX reads, so call it before JAX is imported. Raises InputError if there are
    fewer GPUs than requested.
    """
    return bind_devices(wanted_devices(config, option))
