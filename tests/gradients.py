"""Shared parts of the tests of gradients: the reverse sweep of an input given as tables, Taylor remainders, interruptions."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
from support import problem_of, simulation_of, traced_slopes

from hpcstencil.adjoint.derivation import adjoint_of
from hpcstencil.adjoint.members import differing, single_runs
from hpcstencil.adjoint.names import ADJOINT, GRADIENT, TRANSPOSED
from hpcstencil.adjoint.plan import injects
from hpcstencil.adjoint.problem import Adjoint
from hpcstencil.adjoint.run_steps import steps_of
from hpcstencil.adjoint.unknowns import NumberParameter
from hpcstencil.distributed.windows import STEP_SIZE
from hpcstencil.gradient import compose, resumable
from hpcstencil.gradient.compiled_parts import CompiledParts
from hpcstencil.gradient.compose import samples_of
from hpcstencil.gradient.members import Members, Total, members_of
from hpcstencil.gradient.reverse_sweep import ReverseSweep
from hpcstencil.runtime.communicator import Communicator
from hpcstencil.runtime.signals import Request
from hpcstencil.simulation.event_loop import StopRequests
from hpcstencil.simulation.initial_state import at_walls
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.validation.errors import StoppedEarly


def sweep_of(
    tables: Mapping[str, Any], communicator: Communicator | None = None, devices: int = 1, kernel: str = "shift"
) -> ReverseSweep:
    """The reverse sweep of an input, from the initial expressions."""
    problem = problem_of(**tables)
    adjoint = adjoint_of(problem, problem.initial)
    forward = simulation_of(problem, communicator, devices, kernel)
    backward = simulation_of(adjoint.reversing(forward.plan.topology), communicator, devices, kernel)
    samples, injected = samples_of(forward, backward, adjoint, {}), injects(adjoint, forward.plan.topology, kernel)
    run = steps_of(problem)
    compiled = CompiledParts(forward, adjoint, backward, None, 1, injected, run.total)
    return ReverseSweep(forward, adjoint, backward, run, {}, compiled, samples=samples, injected=injected)


def members_from(
    tables: Mapping[str, Any],
    communicator: Communicator | None = None,
    devices: int = 1,
    kernel: str = "shift",
    found: Iterable[str] = (),
    verified: bool = False,
) -> Members:
    """The reverse sweeps of all members of an input. The initial values of the fields ``found`` are no expressions."""
    problem = problem_of(**tables)
    first = single_runs(problem)[0]
    expressed = tuple(name for name in first.initial if name not in set(found))
    adjoint = adjoint_of(first, expressed, verified)

    def compose(blocks: Decomposed) -> ComposedSimulation:
        return simulation_of(blocks.problem, communicator, devices, kernel)

    forward = simulation_of(first, communicator, devices, kernel)
    return members_of(problem, forward, adjoint, compose, {}, differing(problem, adjoint.unknowns, {}), expressed)


@contextmanager
def without_tapes() -> Iterator[None]:
    """A context in which sweeps are composed without a tape."""
    with patch.object(compose, "with_tape_if_faster", lambda adjoint, *_: adjoint):
        yield


def several_at_once(
    sweep: ReverseSweep, steps: int, communicator: Communicator | None = None, devices: int = 1
) -> ReverseSweep:
    """The same sweep, which reverses ``steps`` steps together."""
    problem = sweep.adjoint.reversing(sweep.forward.plan.topology, steps)
    several = simulation_of(problem, communicator, devices, sweep.forward.kernel)
    injected = sweep.injected and several.steps.injection is not None  # the blocks may be too thin
    compiled = CompiledParts(sweep.forward, sweep.adjoint, sweep.backward, several, steps, injected, sweep.steps)
    return replace(sweep, several=several, at_once=steps, injected=injected, compiled=compiled)


def objective(sweep: ReverseSweep, fields: Mapping[str, Any], numbers: Mapping[str, float]) -> float:
    """The objective of a run from these blocks, with other numbers as parameters."""
    problem = sweep.forward.problem
    other = replace(problem, parameters={**problem.parameters, **numbers})
    sweep = replace(sweep, forward=sweep.forward.with_problem(other))
    return sweep.value(sweep.forward.put(dict(fields)))


def taylor_slopes(sweep: ReverseSweep, fields: Mapping[str, np.ndarray], size: float = 1e-3) -> list[float]:
    """The orders of |J(x + h d) - J(x) - h J'd| over five halvings of h, for a random direction d of all unknowns.

    Values of fields on lower boundaries move too, but a run begins with the given ones there.
    """
    rng, unknowns = np.random.default_rng(3), sweep.adjoint.unknowns
    problem, ranges = sweep.forward.problem, sweep.forward.ranges
    result = sweep(sweep.forward.put(dict(fields)), sweep.steps)
    along_numbers, along_fields, slope = {}, {}, 0.0
    for one in unknowns:
        if isinstance(one, NumberParameter):
            size_of_one = max(0.1, abs(problem.parameters[one.name]))
            along_numbers[one.name] = d = float(rng.standard_normal()) * size_of_one
            slope += d * result.numbers[one.key]
        else:
            along_fields[one.values_field] = d = rng.standard_normal(problem.config.grid.shape)
            slope += float((d * np.asarray(result.arrays[one.key])).sum())
    remainders = []
    for n in range(6):
        h = size / 2**n
        numbers = {name: problem.parameters[name] + h * d for name, d in along_numbers.items()}
        moved = {name: at_walls(problem, name, fields[name] + h * d, ranges, [0.0]) for name, d in along_fields.items()}
        remainders.append(abs(objective(sweep, {**fields, **moved}, numbers) - result.value - h * slope))
    return [float(np.log2(a / b)) for a, b in zip(remainders[:-1], remainders[1:], strict=True)]


def differences_from_jax(adjoint: Adjoint, state: Mapping[str, np.ndarray], seed: int) -> dict[str, float]:
    """How far the adjoint of the right-hand sides at a state, for random seeds, is from that of jax.vjp, relative to its size.

    By field, in the worst cell, and by number that is an unknown.
    """
    problem, rng = adjoint.forward, np.random.default_rng(seed)
    shape = problem.config.grid.shape
    seeds = {name: jnp.asarray(rng.standard_normal(shape)) for name in problem.trees}
    parameters = {name: jnp.asarray(value) for name, value in {**problem.parameters, STEP_SIZE: 0.05}.items()}
    slopes, transposed = traced_slopes(problem), traced_slopes(adjoint.problem)

    @jax.jit
    def by_jax(state, parameters, seeds):
        return jax.vjp(lambda u, p: slopes(u, p, 0.3), state, parameters)[1](seeds)

    of_fields, of_numbers = by_jax({name: jnp.asarray(u) for name, u in state.items()}, parameters, seeds)
    given = {ADJOINT + name: one for name, one in seeds.items()} | dict.fromkeys(
        adjoint.problem.trees, jnp.zeros(shape)
    )
    found = jax.jit(lambda given: transposed(given, parameters, 0.3))({**state, **given})
    differences = {}
    for name in problem.trees:
        expected = np.asarray(of_fields[name])
        differences[name] = np.abs(found[TRANSPOSED + name] - expected).max() / max(1.0, np.abs(expected).max())
    for name in (one.name for one in adjoint.unknowns if isinstance(one, NumberParameter)):
        cells = np.asarray(found.get(GRADIENT + name, 0.0))
        differences[name] = abs(cells.sum() - float(of_numbers[name])) / (1.0 + np.abs(cells).sum())
    return differences


def bytes_of(total: Total) -> tuple[float, dict[str, bytes]]:
    """(objective, bytes of the derivatives with respect to numbers, time series, and this process's blocks of the others)."""
    each = {**total.numbers, **total.series, **total.blocks}
    return total.value, {key: np.asarray(x).tobytes() for key, x in each.items()}


def in_memory(members: Members) -> Total:
    """The gradient by sweeps with states in memory that nothing interrupts. All processes call this together."""
    members = replace(members, sweeps=tuple(replace(sweep, stored=None) for sweep in members.sweeps))
    planned, plans = members.planned(lambda number: members.sweeps[number].forward.initial_fields())
    return planned.total(lambda number, sweep: sweep(sweep.forward.initial_fields(), plans[number].states))


def attempt(members: Members, path: Path, calls: int) -> Total | None:
    """The gradient that writes ``path``, and continues where the last attempt was stopped; None if this one is stopped in
    turn, after some calls. All processes call this together."""
    reasons = iter([""] * calls)
    with patch.object(StopRequests, "reason", lambda _: next(reasons, "SIGTERM")):
        newest = resumable.newest_of(path, members.forward.communicator, 0 if members.count else None)
        gradient = resumable.ResumableGradient(path, members, Request(), time.monotonic(), quiet=True)
        if newest is not None:
            gradient.resume(newest)
        with patch.object(gradient, "_recording"):
            plans = gradient.planned()
        gradient.pace.steps = 2  # several calls between two stored states
        try:
            with patch.object(gradient.pace, "took"):
                return gradient.total(plans)
        except StoppedEarly:
            return None
