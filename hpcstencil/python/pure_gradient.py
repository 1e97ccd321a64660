"""Reverse-mode derivatives of the steps of `sim.function`: `jax.grad` through the steps of any backend.

The adjoint problem reverses one step after the other, as in `gradient.reverse_sweep`, here in JAX code that other JAX code may
contain. The states before all steps are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.dtypes import float0

from hpcstencil.adjoint.derivation import adjoint_of
from hpcstencil.adjoint.names import ADJOINT, GRADIENT, REMEMBERED
from hpcstencil.adjoint.problem import Adjoint
from hpcstencil.config.settings import ObjectiveConfig
from hpcstencil.distributed.device_grid import Body
from hpcstencil.distributed.halo import Fields
from hpcstencil.distributed.windows import Parameters
from hpcstencil.numerics.integrators import MEMORY
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.problem.problem import Problem
from hpcstencil.python.shared_programs import PROGRAMS
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.symbolic.expressions import PARAMETER_FIELD, Constant, Reduction
from hpcstencil.validation.errors import InputError

Advance = Callable[[Fields, Parameters, StepRange], Any]


def _composed(simulation: ComposedSimulation, problem: Problem) -> ComposedSimulation:
    """A problem on the device of a ``simulation``."""
    devices, communicator = simulation.device_grid.devices.devices, simulation.communicator
    program, composed = PROGRAMS.take(Decomposed.of(problem, 1, 1), devices, communicator)
    PROGRAMS.give_back(program)  # one process has nothing to free
    _ = composed.device_grid.places  # cached from here on: not to be computed while JAX traces
    return composed


@dataclass(frozen=True)
class Wanted:
    """The numbers and fields of parameters with respect to which JAX asks for derivatives."""

    numbers: tuple[str, ...]
    arrays: tuple[str, ...]


@dataclass
class Derivatives:
    """Reverse-mode derivatives by fields and parameters of the functions of which ``steps`` steps of a simulation consist.

    ``one_by_one`` makes a function that `jax.vmap` maps over its arguments one after the other. Differentiating raises
    InputError for what has no gradient yet.
    """

    simulation: ComposedSimulation
    steps: int
    one_by_one: Callable[[Callable[..., Any]], Callable[..., Any]]
    known: dict[Wanted, Reverse] = field(default_factory=dict)

    def of_steps(self, advance: Advance) -> Advance:
        """The function ``advance``, which takes the steps, with derivatives."""
        return self._by(advance, lambda reverse: reverse)

    def of_slopes(self, slopes: Body) -> Body:
        """The function ``slopes``, which returns those that a two-step method remembers at t = 0, with derivatives."""
        return self._by(slopes, lambda reverse: reverse.of_slopes)

    def reverse(self, wanted: Wanted) -> Reverse:
        """The reverse of the steps, with respect to the parameters that are ``wanted``."""
        if wanted not in self.known:
            with jax.ensure_compile_time_eval():  # its arrays are no part of what JAX traces
                self.known[wanted] = Reverse.of(self.simulation, wanted, self.steps)
        return self.known[wanted]

    def _by(self, action: Callable[..., Any], of: Callable[[Reverse], Callable[..., Any]]) -> Callable[..., Any]:
        """The function ``action`` of (fields, parameters, steps or time), whose derivatives ``of`` takes from the reverse."""

        @jax.custom_vjp
        def taken(fields: Fields, parameters: Parameters, these: Any) -> Any:
            return action(fields, parameters, these)

        def forward(fields: Any, parameters: Any, these: Any) -> Any:
            """Leaves have the members ``value`` and ``perturbed``, whether the derivative depends on them."""
            wanted = Wanted(
                tuple(name for name, leaf in parameters.items() if leaf.perturbed),
                tuple(name for name, leaf in fields.items() if leaf.perturbed and name.startswith(PARAMETER_FIELD)),
            )
            self.reverse(wanted)  # refuses what has no gradient yet
            plain = jax.tree.map(lambda leaf: leaf.value, (fields, parameters, these), is_leaf=_is_leaf)
            # Within vmap JAX may call a function that it has traced before, and give backward the tree of another one.
            # So the tree is always the same, and the shape of an array says what is wanted.
            return _once_differentiable(action)(*plain), (*plain, jnp.zeros((list(self.known).index(wanted), 0)))

        def backward(kept: Any, bars: Any) -> Any:
            fields, parameters, these, shaped = kept
            reverse = of(list(self.known.values())[shaped.shape[0]])
            if members := len(self.simulation.problem.members):
                reverse = _of_members(reverse, members)
            reverse_once = _once_differentiable(self.one_by_one(reverse))
            found, numbers = reverse_once(fields, parameters, these, _instantiated(bars))
            zero = {name: jnp.zeros_like(value) for name, value in parameters.items()}
            return found, {**zero, **numbers}, jax.tree.map(_no_cotangent, these)

        taken.defvjp(forward, backward, symbolic_zeros=True)
        return taken


def _once_differentiable(part: Callable[..., Any]) -> Callable[..., Any]:
    """The function ``part`` of a first derivative, whose own derivative is refused with an InputError."""

    @jax.custom_jvp
    def once(*given: Any) -> Any:
        return part(*given)

    @once.defjvp
    def refused(*_: Any) -> NoReturn:
        raise InputError(
            "sim.function: second derivatives of it are not available; use sim.hessian_product, with an objective in the input"
        )

    return once


def _of_members(reverse: Callable[..., Any], count: int) -> Callable[..., Any]:
    """The function ``reverse`` of a single run as one of an ensemble of ``count`` members, which it takes one after the other.

    The members are the last axis of fields. Numbers in which they differ have the shape (members,); the derivatives with
    respect to the others are added up.
    """

    def of_all(fields: Fields, parameters: Parameters, these: Any, bars: Fields) -> Any:
        def listed(value: Any) -> Any:
            return jnp.broadcast_to(value, (count,))

        by_member = {name: jnp.moveaxis(array, -1, 0) for name, array in fields.items()}
        bars_by_member = {name: jnp.moveaxis(bar, -1, 0) for name, bar in bars.items()}
        given = by_member, jax.tree.map(listed, dict(parameters)), jax.tree.map(listed, these), bars_by_member
        found, numbers = lax.map(lambda one: reverse(*one), given)
        sums = {name: each if jnp.ndim(parameters[name]) else each.sum() for name, each in numbers.items()}
        return {name: jnp.moveaxis(array, 0, -1) for name, array in found.items()}, sums

    return of_all


def _is_leaf(value: object) -> bool:
    return hasattr(value, "perturbed")


def _instantiated(bars: Mapping[str, Any]) -> dict[str, jax.Array]:
    """Cotangents as arrays, zeros included."""
    return {name: bar if isinstance(bar, jax.Array) else jnp.zeros(bar.shape, bar.dtype) for name, bar in bars.items()}


def _no_cotangent(value: Any) -> Any:
    """The cotangent of a number on which the derivative is not taken."""
    if jnp.issubdtype(jnp.result_type(value), jnp.integer):
        return np.zeros(jnp.shape(value), float0)
    return jnp.zeros_like(value)


class Reverse:
    """Steps of a simulation in reverse, in JAX code.

    It is the function (fields, parameters, steps, cotangents of the fields after them) -> (cotangents of the fields before
    them, those of the numbers ``wanted``).
    """

    @classmethod
    def of(cls, simulation: ComposedSimulation, wanted: Wanted, count: int) -> Reverse:
        """Compose the reverse of ``count`` steps. Raises InputError for what has no gradient yet."""
        problem = simulation.problem
        if simulation.communicator.size > 1 or simulation.device_grid.devices.several:
            raise InputError(
                "sim.function: derivatives are not available yet on several processes or devices; take one, or "
                "sim.value_and_gradient()"
            )
        if problem.config.gradient.storage == "disk":
            raise InputError(
                "gradient.storage: jax.grad stores states in memory; remove it, or use sim.value_and_gradient()"
            )
        if problem.config.gradient.tape_precision == "half":
            raise InputError(
                "gradient.tape_precision: jax.grad stores states instead of a tape; remove it, or use "
                "sim.value_and_gradient()"
            )
        if problem.members:  # they are reversed one after the other
            problem = problem.members[0]
            topology = simulation.plan.topology
            blocks = replace(problem.config.decomposition, processes=topology.processes, devices=topology.devices)
            alone = replace(problem, config=replace(problem.config, decomposition=blocks))
            simulation = _composed(simulation, alone)
        names = [*wanted.numbers, *(name.removeprefix(PARAMETER_FIELD) for name in wanted.arrays)]
        of = (f"initial.{problem.shown[0]}", *(f"equation.{name}" for name in names))
        gradient = replace(problem.config.gradient, of=of)
        objective = {"": Reduction("integral", Constant(0.0))}  # the program that calls the function has one
        config = replace(problem.config, gradient=gradient, objective=ObjectiveConfig())
        asked = replace(problem, config=config, objective=objective, misfit=None)
        adjoint = adjoint_of(asked, ())
        backward = _composed(simulation, adjoint.reversing(simulation.plan.topology))
        return cls(simulation, backward, adjoint, wanted, count)

    def __init__(
        self, simulation: ComposedSimulation, backward: ComposedSimulation, adjoint: Adjoint, wanted: Wanted, count: int
    ) -> None:
        self.backward, self.adjoint, self.wanted, self.count = backward, adjoint, wanted, count
        self.changing = simulation.problem.changing
        self.forward_step, self.backward_step = (
            one.steps.inside() if one.steps.inside else one.steps.advance for one in (simulation, backward)
        )

    def __call__(self, fields: Fields, parameters: Parameters, these: StepRange, bars: Fields) -> Any:
        constant = {name: array for name, array in fields.items() if name not in self.changing}
        kept = self.changing if self.adjoint.needs_states else ()

        def ahead(u: Fields, number: jax.Array) -> Any:
            return dict(self.forward_step(u, parameters, these.part(number, 1))), {name: u[name] for name in kept}

        def back(cotangents: Fields, stored: Any) -> Any:
            number, state = stored
            given = {**state, **constant, **cotangents}
            ordered = {name: given[name] for name in self.backward.problem.fields}
            found = self.backward_step(ordered, parameters, these.part(number, 1))
            return {name: found[name] for name in cotangents}, None

        numbers = jnp.arange(self.count)
        states: Fields = {}
        if kept:
            _, states = lax.scan(ahead, dict(fields), numbers)
        zero = jnp.zeros_like(bars[self.changing[0]])
        after = {name: bars.get(name.removeprefix(ADJOINT), zero) for name in self.adjoint.reverse_rhs}
        before, _ = lax.scan(back, after, (numbers, states), reverse=True)
        return self.collected(fields, before, {name: bars[name] for name in constant})

    def of_slopes(self, fields: Fields, parameters: Parameters, time: jax.Array, bars: Fields) -> Any:
        """The same for the slopes that a two-step method remembers at t = 0. ``fields`` are those without them."""
        zero = jnp.zeros_like(bars[next(iter(bars))])
        cotangents = dict.fromkeys(self.adjoint.reverse_rhs, zero) | {
            ADJOINT + name + MEMORY: bar for name, bar in bars.items()
        }
        trees = self.backward.problem.derived.get(REMEMBERED, {})
        if trees:
            found = self.backward.derived[REMEMBERED]({**fields, **cotangents}, parameters, time)
            cotangents |= dict(zip(trees, found, strict=True))
        return self.collected(fields, cotangents, dict.fromkeys(fields, zero))

    def collected(self, fields: Fields, before: Fields, constant: Fields) -> Any:
        """The result, from the fields adjoint.u and gradient.p ``before`` the steps, and cotangents of ``constant`` fields."""
        found = {name: before[ADJOINT + name] if ADJOINT + name in before else constant[name] for name in fields}
        for name in self.wanted.arrays:
            found[name] = found[name] + before[GRADIENT + name.removeprefix(PARAMETER_FIELD)]
        return found, {name: before[GRADIENT + name].astype(jnp.float64).sum() for name in self.wanted.numbers}
