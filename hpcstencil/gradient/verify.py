"""Tests of the gradient of an input, for `hpcstencil gradient --verify`.

Taylor     |J(x + h d) - J(x) - h J'd| falls with h², for a random direction d of all unknowns
products   Σ λ (∂f/∂u v) = Σ ((∂f/∂u)ᵀ λ) v for random λ and v, at the initial state
bits       the gradient is the same, bit for bit, by other decompositions, with one stored state, and without a tape

They are taken in float64, with a tape of full precision. If the input asks for one in half precision, one more line says by how
much that changes the gradient in the precision of the input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hpcstencil.adjoint.derivation import adjoint_of
from hpcstencil.adjoint.members import single_runs
from hpcstencil.adjoint.names import ADJOINT, PRODUCTS, TANGENT, TRANSPOSED
from hpcstencil.adjoint.plan import SweepPlan
from hpcstencil.adjoint.unknowns import CellValues, InitialValues, NumberParameter, SeriesParameter, Unknown
from hpcstencil.backends.backend import Unsupported
from hpcstencil.config.settings import Decomposition
from hpcstencil.distributed.halo import Fields
from hpcstencil.distributed.windows import STEP_SIZE
from hpcstencil.gradient.members import Members, Total, members_of
from hpcstencil.gradient.reverse_sweep import ReverseSweep
from hpcstencil.problem.problem import Problem
from hpcstencil.runtime.communicator import Communicator, OneProcess, from_rank_0
from hpcstencil.simulation.compose import with_kernel
from hpcstencil.simulation.initial_state import lower_walls
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.symbolic import numpy_evaluate
from hpcstencil.symbolic.expressions import Field, Node, Noise, Pointwise
from hpcstencil.validation.errors import InputError, NumericsError
from hpcstencil.validation.findings import Finding, verdict
from hpcstencil.validation.messages import listing

LARGEST = 1e-3  # the first h, of directions as large as the unknowns
HALVINGS = 5
WITHIN = 0.05  # of slope 2
ROUNDING = 1e-12  # a remainder that is a smaller fraction of the objective is rounding
DOT_TOLERANCE = 1e-12  # difference of the two products, relative to the sum of magnitudes


@dataclass(frozen=True)
class Tested:
    """The results of the tests: the ``remainders`` for h, h/2, ..., relative to the objective, the relative difference of the
    two products, and whether other ``ways`` to compute the gradient give the same bits."""

    remainders: tuple[float, ...]
    difference: float
    ways: tuple[Finding, ...] = ()

    @property
    def slopes(self) -> list[float]:
        """The observed orders of the remainders; infinite where a remainder is 0."""
        pairs = zip(self.remainders[:-1], self.remainders[1:], strict=True)
        return [math.log2(a / b) if a and b else math.inf for a, b in pairs]

    @property
    def second_order(self) -> bool:
        """Whether the remainders are of second order, or nothing but rounding."""
        return max(self.remainders) <= ROUNDING or all(abs(slope - 2.0) <= WITHIN for slope in self.slopes)

    @property
    def transposed(self) -> bool:
        """Whether the two products agree."""
        return self.difference <= DOT_TOLERANCE


def measured(members: Members, plans: Sequence[SweepPlan], problem: Problem | None = None) -> Tested:
    """Take the tests. Collective. The fields must be float64.

    The remainders are those of the sum over the members of an ensemble. The products are those of the first, since all have the
    same trees. Other decompositions are tried for the ``problem``, an ensemble or a single run, if it is given.
    """
    total = total_of(members, plans)
    ways = () if problem is None else tuple(_ways(problem, members, plans, total))
    return Tested(_remainders(members, total), _difference(members.sweeps[0]), ways)


def total_of(members: Members, plans: Sequence[SweepPlan]) -> Total:
    """The gradient by these plans. Collective."""
    return members.total(lambda number, sweep: sweep(sweep.forward.initial_fields(), plans[number].states))


def report(found: Tested) -> str:
    """The results as lines of text."""
    slopes = " ".join(f"{slope:.3f}" for slope in found.slopes)
    remainders = " ".join(f"{remainder:.2e}" for remainder in found.remainders)
    return (
        f"Taylor remainders     {remainders}\n"
        f"Taylor slopes         {slopes}, promised 2 within {WITHIN}: {verdict(found.second_order)}\n"
        f"dot product           differs by {found.difference:.1e}, promised {DOT_TOLERANCE:g}: {verdict(found.transposed)}"
        + "".join(f"\n{way.name:<22}{way.words}: {verdict(way.met)}" for way in found.ways)
    )


def rounding(problem: Problem, members: Members) -> str:
    """By how much a tape in half precision changes the gradient of a ``problem``, as a line for the user on rank 0. Collective.

    ``members`` are those of the tests. Raises InputError if there is no tape.
    """
    communicator = members.forward.communicator

    def total(precision: str) -> Total:
        of_problem = _with(problem, gradient=replace(problem.config.gradient, tape_precision=precision))
        return _others(of_problem, members, communicator, _devices(members), _blocks(members))

    def norm(one: Unknown, values: Any) -> float:
        own = float(np.sum(np.square(values, dtype=float)))
        each = communicator.gather(own) if isinstance(one, CellValues) else [own]
        return math.sqrt(math.fsum(each or []))

    full, half = total("full"), total("half")
    changes = []
    for one in members.unknowns:
        size, change = norm(one, full.of(one)), norm(one, half.of(one) - full.of(one))
        changes.append(f"{one.key} by {change / (size or 1.0):.1e}")
    return f"half precision        of the tape changes {listing(changes)} (relative 2-norm)"


def failures(path: Path, found: Tested) -> None:
    """Raise NumericsError, on all processes, if a test failed. ``path`` is the input."""
    failed = [] if found.second_order else ["the Taylor slopes"]
    failed += [] if found.transposed else ["the dot product"]
    failed += [way.name for way in found.ways if not way.met]
    if failed:
        raise NumericsError(f"gradient: {path} fails the test of {' and '.join(failed)}")


def _ways(problem: Problem, members: Members, plans: Sequence[SweepPlan], total: Total) -> Iterator[Finding]:
    """Compute the gradient with one stored state, without a tape, and by other decompositions. Compare each with ``total``.

    Collective.
    """
    communicator, devices, blocks = members.forward.communicator, _devices(members), _blocks(members)
    if any(plan.states > 1 for plan in plans):
        yield _compared(
            "one stored state", total_of(members, [replace(plan, states=1) for plan in plans]), total, members
        )
    here = partial(_others, problem, members, communicator)
    tried: list[tuple[str, Callable[[], Total]]] = []
    if members.sweeps[0].adjoint.tape is not None:
        tried.append(("without a tape", partial(here, devices, blocks, tape=False)))
    if communicator.size * len(devices) > 1:
        one_process = partial(_others, problem, members, OneProcess(), devices[:1], {})
        tried.append(("one process", lambda: _part(from_rank_0(communicator, one_process), members)))
        tried.append(("an exchange per step", partial(here, devices, {**blocks, "steps_per_exchange": 1})))
    if len(devices) > 1 and communicator.size > 1:
        tried.append(("one device", partial(here, devices[:1], blocks)))
    for name, total_by in tried:
        try:
            yield _compared(name, total_by(), total, members)
        except InputError as refusal:
            yield Finding(name, f"does not fit: {refusal}", True)


def _others(
    problem: Problem,
    members: Members,
    communicator: Communicator,
    devices: Sequence[jax.Device],
    wishes: Mapping[str, Any],
    tape: bool = True,
) -> Total:
    """The gradient on these processes and ``devices``, by the kernels of ``members``, with these keys of [decomposition], and
    with a ``tape`` if `plan.with_tape_if_faster` says so.

    Collective. Raises InputError if the blocks do not fit.
    """

    def composed(kernel: str, blocks: Decomposed) -> ComposedSimulation:
        try:
            return with_kernel(kernel, blocks, communicator, devices)
        except Unsupported as refusal:
            raise InputError(str(refusal)) from None

    gradient, sweep = replace(problem.config.gradient, storage="memory"), members.sweeps[0]
    problem = _with(problem, gradient=gradient, decomposition=Decomposition(**wishes))
    first = single_runs(problem)[0]
    forward = composed(sweep.forward.kernel, Decomposed.of(first, communicator.size, len(devices)))
    adjoint, back = adjoint_of(first, first.initial), partial(composed, sweep.backward.kernel)
    others = members_of(problem, forward, adjoint, back, {}, members.own, tuple(first.initial), tape)
    return total_of(*others.planned(lambda number: others.sweeps[number].forward.initial_fields()))


def _with(problem: Problem, **tables: Any) -> Problem:
    """The problem, and those of its members, with these tables of the input."""
    members = tuple(_with(member, **tables) for member in problem.members)
    return replace(problem, config=replace(problem.config, **tables), members=members)


def _devices(members: Members) -> Sequence[jax.Device]:
    """The devices of this process."""
    return members.forward.device_grid.devices.devices


def _blocks(members: Members) -> dict[str, Any]:
    """The keys of [decomposition] with which each process has the same block of the grid as in ``members``."""
    return {"processes": members.forward.device_grid.topology.processes}


def _part(whole: Total, members: Members) -> Total:
    """What this process has of a gradient whose ``blocks`` are whole arrays."""
    own: Any = (..., *(slice(*r) for r in members.forward.ranges))
    return replace(whole, blocks={key: array[own] for key, array in whole.blocks.items()})


def _compared(name: str, found: Total, expected: Total, members: Members) -> Finding:
    """Compare a gradient with the expected one. Collective."""
    worst = 0.0
    for given, ours in zip(_parts(expected), _parts(found), strict=True):
        if given.tobytes() != ours.tobytes():
            worst = max(worst, float(np.abs(ours - given).max() / (np.abs(given).max() or 1.0)), np.finfo(float).tiny)
    worst = float(members.forward.communicator.maximum(np.array([worst]))[0])
    return Finding(name, f"differs by {worst:.1e}" if worst else "the same bits", not worst)


def _parts(total: Total) -> list[np.ndarray]:
    """The objective, and all derivatives that this process has."""
    each = {**total.numbers, **total.series, **total.blocks}
    return [np.array(total.value), *(np.ascontiguousarray(each[key]) for key in sorted(each))]


def _random(sweep: ReverseSweep, stream: int, size: float = 1.0) -> np.ndarray:
    """This process's block of random numbers between -size and size, the same for every decomposition."""
    forward = sweep.forward
    grid = forward.problem.config.grid
    return size * numpy_evaluate.block_values(Noise(1, stream), grid, forward.ranges, {}, forward.dtype)


def _sum(sweep: ReverseSweep, tree: Node, fields: Fields) -> float:
    """The sum of a tree over all cells of the grid. Collective."""
    backward = sweep.backward
    problem = backward.problem
    reductions = backward.steps.reductions(problem.needs([tree]), (tree,))
    parameters = _with_step(problem)
    low, high, _ = reductions.extremes(fields, parameters, 0.0)
    return float(reductions.sums(fields, parameters, 0.0, np.maximum(np.abs(low), np.abs(high)))[0])


def _with_step(problem: Problem) -> dict[str, Any]:
    """The parameters of the adjoint problem, and the size of a step, on which slopes with implicit damping depend."""
    return {**problem.parameters, STEP_SIZE: problem.config.time.dt}


@dataclass(frozen=True)
class Moved:
    """A direction of the unknowns of one member: its numbers and time series by name, and its arrays by field."""

    numbers: Mapping[str, Any]
    arrays: Fields


def _direction(members: Members, number: int) -> Moved:
    """A random direction for the member of this number, 0 where boundary conditions give the values. Those of unknowns that all
    members share are the same. Collective."""
    sweep = members.sweeps[number]
    forward, start = sweep.forward, sweep.forward.initial_fields()
    numbers, arrays, count = dict[str, Any](), Fields(), len(members.unknowns)
    for stream, one in enumerate(members.unknowns):
        own = number * count if one.key in members.own else 0
        match one:
            case NumberParameter():
                size = 0.7 * (abs(forward.problem.parameters[one.name]) or 1.0)
                numbers[one.name] = size * (-1) ** (own // count)
            case SeriesParameter():
                samples = forward.problem.parameters[one.name]
                random = np.random.default_rng(stream).uniform(-1.0, 1.0, len(samples))
                numbers[one.name] = (np.abs(samples).max() or 1.0) * random
            case CellValues():
                own_largest = np.abs(forward.block(start[one.values_field])).max()
                largest = float(forward.communicator.maximum(np.array([own_largest]))[0])
                random = _random(sweep, stream + own, largest or 1.0)
                if isinstance(one, InitialValues) and one.name in forward.problem.positions:
                    random = np.where(lower_walls(forward.problem, one.name, forward.ranges), 0.0, random)
                arrays |= forward.put({one.values_field: random})
    return Moved(numbers, arrays)


def _remainders(members: Members, total: Total) -> tuple[float, ...]:
    slope = 0.0
    for number, sweep in enumerate(members.sweeps):
        along = _direction(members, number)
        for one in members.unknowns:
            if number and one.key not in members.own:
                continue
            given = total.of(one)
            derivative = given[number] if one.key in members.own else given
            if isinstance(one, CellValues):
                product = Field("derivative") * Field("direction")
                fields = {**sweep.forward.put({"derivative": derivative}), "direction": along.arrays[one.values_field]}
                slope += _sum(sweep, product, fields)
            else:
                slope += math.fsum(np.atleast_1d(along.numbers[one.name] * derivative))

    def objective(h: float, number: int, sweep: ReverseSweep) -> float:
        problem, along = sweep.forward.problem, _direction(members, number)
        parameters = {
            **problem.parameters,
            **{name: problem.parameters[name] + h * d for name, d in along.numbers.items()},
        }
        moved = replace(sweep, forward=sweep.forward.with_problem(replace(problem, parameters=parameters)))
        fields = moved.forward.initial_fields()
        fields |= {name: fields[name] + d.dtype.type(h) * d for name, d in along.arrays.items()}
        return moved.value(fields)

    sizes = [LARGEST / 2**n for n in range(HALVINGS + 1)]
    scale = abs(total.value) or 1.0
    values = [members.value(partial(objective, h)) for h in sizes]
    return tuple(abs(value - total.value - h * slope) / scale for h, value in zip(sizes, values, strict=True))


def _difference(sweep: ReverseSweep) -> float:
    """The relative difference of the two products for the right-hand side at the initial state. Collective."""
    forward, backward, fields = sweep.forward, sweep.backward, tuple(sweep.adjoint.forward.trees)
    state, problem = forward.initial_fields(), backward.problem
    random = {
        prefix + name: _random(sweep, stream)
        for stream, (prefix, name) in enumerate((p, n) for p in (ADJOINT, TANGENT) for n in fields)
    }
    given = {**state, **forward.put(random)}
    terms = problem.derived[PRODUCTS]
    expected = _sum(sweep, terms["tangent"], given)
    size = _sum(sweep, Pointwise("abs", (terms["tangent"],)), given)
    zeros, slopes = {name: jnp.zeros_like(state[fields[0]]) for name in problem.fields}, backward.steps.slopes()
    if taped := problem.replayed:
        recorded = forward.steps.slopes()(state, _with_step(forward.problem), 0.0)
        given |= {name: recorded[name] for name in taped}
    rated = {name: array for name, array in {**zeros, **given}.items() if name in (*problem.fields, *taped)}
    found = slopes(rated, _with_step(problem), 0.0)
    if operands := sweep.adjoint.operands:
        found = slopes({**rated, **{name: found[name] for name in operands}}, _with_step(problem), 0.0)
    products = {TRANSPOSED + name: found[ADJOINT + name] for name in fields}
    products |= {name: array for name, array in given.items() if name.startswith(TANGENT)}
    return abs(_sum(sweep, terms["adjoint"], products) - expected) / (size or 1.0)
