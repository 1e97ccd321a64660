"""Steps that `gradient` and `fit` share: decompose the grid, start JAX, and compose the reverse sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcstencil.adjoint.members import differing, single_runs
from hpcstencil.adjoint.problem import Adjoint
from hpcstencil.cli.prepare import decomposed_of, devices_of
from hpcstencil.problem.build import build
from hpcstencil.problem.problem import Problem
from hpcstencil.runtime.communicator import Communicator, agree, from_rank_0
from hpcstencil.runtime.devices import start_jax
from hpcstencil.simulation.consistency_check import require_consistency
from hpcstencil.simulation.prepared import Decomposed

if TYPE_CHECKING:
    from hpcstencil.gradient.members import Members


def for_tests(problem: Problem) -> Problem:
    """The problem in which tests of a gradient are taken: in float64, with a tape of full precision."""
    config = problem.config
    numerics, gradient = replace(config.numerics, precision="float64"), replace(config.gradient, tape_precision="full")
    return build(replace(config, numerics=numerics, gradient=gradient), problem.contents)


def blocks_of_member(
    problem: Problem, option: int | None, communicator: Communicator
) -> tuple[Decomposed, tuple[Any, ...]]:
    """Decompose the problem of the first member of an ensemble, or of a single run, and start JAX: (blocks, devices).

    ``option`` is that of --devices. All processes call this together, before JAX is imported. Raises the errors of
    `devices_of`, `require_consistency` and `decomposed_of`.
    """
    count, _ = devices_of(problem.config, option)
    require_consistency(communicator, count, problem)
    decomposed = decomposed_of(single_runs(problem)[0], communicator.size, count)
    return decomposed, agree(communicator, lambda: start_jax(count))


def composed_members(
    problem: Problem,
    adjoint: Adjoint,
    expressed: Sequence[str],
    decomposed: Decomposed,
    devices: Sequence[Any],
    communicator: Communicator,
    continued: Path | None,
) -> Members:
    """Compose the reverse sweeps of a gradient, or of each evaluation of a fit, on the ``devices``. Collective.

    ``adjoint`` and ``decomposed`` are those of the first member of an ensemble, or of the single run, and ``expressed`` the
    fields as in `adjoint_of`. A warning is printed if a kernel differs from that of the checkpoint ``continued``, unless it is
    None. Raises the errors of `composed` and `members_of`.
    """
    from hpcstencil.gradient.checkpoint_identity import kernels_in
    from hpcstencil.gradient.members import members_of
    from hpcstencil.simulation.start import composed

    kernels = ("", "") if continued is None else from_rank_0(communicator, lambda: kernels_in(continued))
    forward = composed(decomposed, devices, communicator, kernels[0])
    compose = partial(composed, devices=devices, communicator=communicator, before=kernels[1])
    own = differing(problem, adjoint.unknowns, {})
    return members_of(problem, forward, adjoint, compose, {}, own, expressed)
