"""Checks before a run that all processes have the same input, program and number of devices, and that none share a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcstencil.config import provenance
from hpcstencil.config.paths import sources
from hpcstencil.problem.problem import Problem
from hpcstencil.runtime.communicator import Communicator, agree
from hpcstencil.runtime.devices import identities
from hpcstencil.runtime.hosts import host
from hpcstencil.runtime.progress import say
from hpcstencil.runtime.versions import sources_digest, versions
from hpcstencil.validation.errors import EnvironmentProblem


def require_consistency(communicator: Communicator, count: int, problem: Problem) -> None:
    """Check that all processes have the same input, program, libraries and number of devices (``count``). Collective.

    They can differ because hosts may see different versions of a file. Raises EnvironmentProblem, on all processes, if they
    do.
    """
    most, least = (int(n) for n in communicator.maximum(np.array([count, -count])) * (1, -1))
    if least < most:
        raise EnvironmentProblem(
            f"processes have {least} to {most} devices; give each the same number, for example with --devices {least}"
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
        for what, own in files.items():
            if own != files_there.get(what):
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


def warn_of_shared_gpus(communicator: Communicator, ids: Sequence[str]) -> None:
    """Print a warning if two processes of a host use the same GPU. ``ids`` are this process's GPUs. Collective."""
    users: dict[tuple[str, str], list[int]] = {}
    everyone = communicator.gather((host(), identities(ids))) if communicator.any(bool(ids)) else None
    for rank, (name, owned) in enumerate(everyone or []):
        for gpu in owned:
            users.setdefault((name, gpu), []).append(rank)
    for (name, gpu), ranks in users.items():
        if len(ranks) > 1:
            say(
                f"warning: ranks {', '.join(map(str, ranks))} share GPU {gpu} of {name}; start fewer processes per host"
            )
