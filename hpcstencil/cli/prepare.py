"""The common part of the commands: reading the input, choosing devices, joining the processes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hpcstencil.cli import abort_all
from hpcstencil.config import provenance
from hpcstencil.config.paths import sources
from hpcstencil.config.reader import load
from hpcstencil.config.settings import Config
from hpcstencil.problem.build import build
from hpcstencil.problem.problem import Problem
from hpcstencil.runtime import watchdog
from hpcstencil.runtime.communicator import Communicator, agree, connect
from hpcstencil.runtime.devices import bind_devices, identities
from hpcstencil.runtime.hosts import host
from hpcstencil.runtime.progress import say
from hpcstencil.runtime.versions import sources_digest, versions
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.validation.errors import EnvironmentProblem, HpcstencilError, InputError


def problem_of(path: Path, overrides: Sequence[str], communicator: Communicator) -> tuple[Config, Problem]:
    """Read and check the input on every process; warnings go to standard error. Raises InputError on all processes
    together."""

    def read() -> tuple[Config, Problem]:
        config = load(path, overrides)
        return config, build(config)

    config, problem = agree(communicator, read)
    for warning in problem.warnings():
        say(f"warning: {warning}")
    return config, problem


def wanted_devices(config: Config, option: int | None) -> int | None:
    """The number of devices per process that the command line or the input requests; None for all available devices.
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
    """Split the problem into blocks. Print a message if a block is too thin for a whole step between two exchanges."""
    decomposed = Decomposed.of(problem, processes, devices)
    if decomposed.thin:
        say("blocks are thin: halos are exchanged for every stage of the integrator")
    return decomposed


@contextmanager
def processes() -> Iterator[Communicator]:
    """A context with the communicator of this run, under the watchdog. A failure on only one process ends all of
    them."""
    communicator = connect()
    try:
        unreachable = watchdog.start(communicator)
        if unreachable:
            say(
                f"warning: no TCP connection to rank 0 from ranks {', '.join(map(str, unreachable))}: if one of them is lost, "
                "the others may wait for ever"
            )
        yield communicator
    except BaseException as error:
        shared = isinstance(error, HpcstencilError) and error.shared
        if communicator.size > 1 and not shared:
            abort_all(communicator, error)
        raise
    finally:
        communicator.watch.close()


def warn_of_shared_gpus(communicator: Communicator, ids: Sequence[str]) -> None:
    """Warn if two processes of a host use the same GPU. ``ids`` are this process's GPUs."""
    users: dict[tuple[str, str], list[int]] = {}
    for rank, (name, owned) in enumerate(communicator.allgather((host(), identities(ids)))):
        for gpu in owned:
            users.setdefault((name, gpu), []).append(rank)
    for (name, gpu), ranks in users.items():
        if len(ranks) > 1:
            say(
                f"warning: ranks {', '.join(map(str, ranks))} share GPU {gpu} of {name}; start fewer processes per host"
            )


def devices_of(config: Config, option: int | None) -> tuple[int, list[str]]:
    """The number of this process's devices, and its GPU ids. Call it before jax is imported."""
    return bind_devices(wanted_devices(config, option))


def same_everywhere(communicator: Communicator, count: int, problem: Problem) -> None:
    """Check that all processes have the same input, program and number of devices, since hosts may see different
    versions of a file.

    Raises EnvironmentProblem on all processes if they differ.
    """
    counts = communicator.allgather(count)
    if len(set(counts)) > 1:
        raise EnvironmentProblem(
            f"processes have {min(counts)} to {max(counts)} devices; give each the same number, for example with --devices "
            f"{min(counts)}"
        )
    if communicator.size == 1:
        return
    config = problem.config
    files = {
        "the input": provenance.sha256(config),
        "the equation's file": problem.source,
        **{key: file.stat().st_size for key, file in sources(config).items()},
        "the files of hpcstencil": sources_digest(),
    }
    libraries = versions()
    first, files_there, libraries_there = communicator.broadcast((host(), files, libraries))

    def compared() -> None:
        for what, told in files.items():
            if told != files_there.get(what):
                raise EnvironmentProblem(
                    f"{what}: another version on {host()} than that of rank 0 on {first}; use one folder that all hosts share, "
                    "and start again when all of them see the same file there"
                )
        for name, version in libraries.items():
            if version != libraries_there[name]:
                raise EnvironmentProblem(
                    f"{name}: expected version {libraries_there[name]}, that of rank 0 on {first}, but got {version} on "
                    f"{host()}; start all ranks with one Python environment"
                )

    agree(communicator, compared)
