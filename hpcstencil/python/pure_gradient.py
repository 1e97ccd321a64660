"""Reverse-mode derivatives of the steps of `sim.function`: `jax.grad` through the steps of any backend.

The adjoint problem reverses one step after the other, as in `gradient.sweep`, here in JAX code that other JAX code may
contain. The states before all steps are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.dtypes import float0

from hpcstencil.adjoint.problem import ADJOINT, GRADIENT, Adjoint, adjoint_of, refuse_ensemble
from hpcstencil.config.settings import ObjectiveConfig
from hpcstencil.distributed.halo import Fields
from hpcstencil.distributed.windows import Parameters
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.python.shared_programs import PROGRAMS
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.simulation.simulation import Simulation
from hpcstencil.symbolic.expressions import PARAMETER_FIELD, Constant, Reduction
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import shown

Advance = Callable[[Fields, Parameters, StepRange], Any]


@jax.tree_util.register_static
@dataclass(frozen=True)
class Wanted:
    """The numbers and fields of parameters with respect to which JAX asks for derivatives."""

    numbers: tuple[str, ...]
    arrays: tuple[str, ...]


def differentiable(
    simulation: Simulation, advance: Advance, steps: int, one_by_one: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Advance:
    """The function ``advance``, which takes ``steps`` steps, with reverse-mode derivatives by fields and parameters.

    ``one_by_one`` makes a function that `jax.vmap` maps over its arguments one after the other. Differentiating raises
    InputError for what has no gradient yet.
    """
    known: dict[Wanted, Reverse] = {}

    def reverse(wanted: Wanted) -> Reverse:
        if wanted not in known:
            with jax.ensure_compile_time_eval():  # its arrays are no part of what JAX traces
                known[wanted] = Reverse.of(simulation, wanted, steps)
        return known[wanted]

    @jax.custom_vjp
    def stepped(fields: Fields, parameters: Parameters, these: StepRange) -> Any:
        return advance(fields, parameters, these)

    def forward(fields: Any, parameters: Any, these: Any) -> Any:
        """Leaves have the members ``value`` and ``perturbed``, whether the derivative depends on them."""
        wanted = Wanted(
            tuple(name for name, leaf in parameters.items() if leaf.perturbed),
            tuple(name for name, leaf in fields.items() if leaf.perturbed and name.startswith(PARAMETER_FIELD)),
        )
        reverse(wanted)  # refuses what has no gradient yet
        plain = jax.tree.map(lambda leaf: leaf.value, (fields, parameters, these), is_leaf=_is_leaf)
        return advance(*plain), (*plain, wanted)

    def backward(kept: Any, bars: Any) -> Any:
        fields, parameters, these, wanted = kept
        found, numbers = one_by_one(reverse(wanted))(fields, parameters, these, _instantiated(bars))
        zero = {name: jnp.zeros_like(value) for name, value in parameters.items()}
        return found, {**zero, **numbers}, jax.tree.map(_no_cotangent, these)

    stepped.defvjp(forward, backward, symbolic_zeros=True)
    return stepped


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
    def of(cls, simulation: Simulation, wanted: Wanted, count: int) -> Reverse:
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
        refuse_ensemble(problem, "derivatives of sim.function")
        if problem.method.multistep:
            raise InputError(
                "numerics.integrator: derivatives of sim.function are not available yet with "
                f"{shown(problem.config.numerics.integrator)}; use sim.value_and_gradient()"
            )
        names = [*wanted.numbers, *(name.removeprefix(PARAMETER_FIELD) for name in wanted.arrays)]
        of = (f"initial.{problem.shown[0]}", *(f"equation.{name}" for name in names))
        gradient = replace(problem.config.gradient, of=of)
        objective = {"": Reduction("integral", Constant(0.0))}  # the program that calls the function has one
        config = replace(problem.config, gradient=gradient, objective=ObjectiveConfig())
        asked = replace(problem, config=config, objective=objective, misfit=None)
        adjoint = adjoint_of(asked, ())
        blocks = Decomposed.of(adjoint.reversing(simulation.plan.topology), 1, 1)
        program, backward = PROGRAMS.take(blocks, simulation.device_grid.devices.devices, simulation.communicator)
        PROGRAMS.give_back(program)  # one process has nothing to free
        _ = backward.device_grid.places  # cached from here on: not to be computed while JAX traces
        return cls(simulation, backward, adjoint, wanted, count)

    def __init__(
        self, simulation: Simulation, backward: Simulation, adjoint: Adjoint, wanted: Wanted, count: int
    ) -> None:
        self.backward, self.adjoint, self.wanted, self.count = backward, adjoint, wanted, count
        self.changing = tuple(simulation.problem.trees)
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
        after = {name: bars.get(name.removeprefix(ADJOINT), zero) for name in self.adjoint.rates}
        before, _ = lax.scan(back, after, (numbers, states), reverse=True)
        found = {name: before[ADJOINT + name] for name in self.changing}
        for name in constant:
            found[name] = bars[name]
            if name in self.wanted.arrays:
                found[name] = found[name] + before[GRADIENT + name.removeprefix(PARAMETER_FIELD)]
        sums = {name: before[GRADIENT + name].astype(jnp.float64).sum() for name in self.wanted.numbers}
        return {name: found[name] for name in fields}, sums
