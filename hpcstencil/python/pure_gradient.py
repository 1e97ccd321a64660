"""Reverse-mode derivatives of the steps of `sim.function`: `jax.grad` through the steps of any backend.

The adjoint problem reverses one step after the other, as in `gradient.sweep`, here in JAX code that other JAX code may
contain. The states before all steps are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.dtypes import float0

from hpcstencil.adjoint.problem import ADJOINT, GRADIENT, TRANSPOSED, adjoint_of
from hpcstencil.adjoint.stages import transposed_stages
from hpcstencil.distributed.halo import Fields
from hpcstencil.distributed.windows import Parameters
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.python.shared_programs import PROGRAMS
from hpcstencil.simulation.prepared import Decomposed
from hpcstencil.simulation.simulation import Simulation
from hpcstencil.symbolic.expressions import PARAMETER_FIELD, Constant, Reduction
from hpcstencil.validation.errors import InputError

Advance = Callable[[Fields, Parameters, StepRange], Any]
Terms = Sequence[tuple[float, jax.Array]]


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
        names = [*wanted.numbers, *(name.removeprefix(PARAMETER_FIELD) for name in wanted.arrays)]
        of = (f"initial.{problem.shown[0]}", *(f"equation.{name}" for name in names))
        gradient = replace(problem.config.gradient, of=of)
        objective = {"": Reduction("integral", Constant(0.0))}  # the program that calls the function has one
        asked = replace(problem, config=replace(problem.config, gradient=gradient), objective=objective)
        adjoint = adjoint_of(asked, ()).on(simulation.plan.topology)
        blocks = Decomposed.of(adjoint, 1, 1)
        program, backward = PROGRAMS.take(blocks, simulation.device_grid.devices.devices, simulation.communicator)
        PROGRAMS.give_back(program)  # one process has nothing to free
        _ = backward.device_grid.places  # cached from here on: not to be computed while JAX traces
        return cls(simulation, backward, wanted, count)

    def __init__(self, simulation: Simulation, backward: Simulation, wanted: Wanted, count: int) -> None:
        self.simulation, self.backward, self.wanted, self.count = simulation, backward, wanted, count
        problem = simulation.problem
        self.changing = tuple(problem.trees)
        self.stages = transposed_stages(problem.method, problem.groups, self.changing)
        self.slopes = simulation.steps.slopes()
        self.forward_step, self.backward_step = (
            one.steps.inside() if one.steps.inside else one.steps.advance for one in (simulation, backward)
        )
        self.gradients = tuple(
            GRADIENT + name.removeprefix(PARAMETER_FIELD) for name in (*wanted.numbers, *wanted.arrays)
        )

    def __call__(self, fields: Fields, parameters: Parameters, these: StepRange, bars: Fields) -> Any:
        constant = {name: array for name, array in fields.items() if name not in self.changing}

        def ahead(u: Fields, number: jax.Array) -> Any:
            return dict(self.forward_step(u, parameters, these.part(number, 1))), {
                name: u[name] for name in self.changing
            }

        def back(carry: Any, stored: Any) -> Any:
            number, state = stored
            return self._reversed(state, constant, carry, parameters, these.part(number, 1)), None

        numbers = jnp.arange(self.count)
        _, states = lax.scan(ahead, dict(fields), numbers)
        like = bars[self.changing[0]]
        first = {ADJOINT + name: bars[name] for name in self.changing}
        first |= {name: jnp.zeros_like(like) for name in self.gradients}
        found, _ = lax.scan(back, first, (numbers, states), reverse=True)
        before = {name: found[ADJOINT + name] for name in self.changing}
        for name in constant:
            before[name] = bars[name]
            if name in self.wanted.arrays:
                before[name] = before[name] + found[GRADIENT + name.removeprefix(PARAMETER_FIELD)]
        sums = {name: found[GRADIENT + name].astype(jnp.float64).sum() for name in self.wanted.numbers}
        return {name: before[name] for name in fields}, sums

    def _reversed(
        self, state: Fields, constant: Fields, after: Fields, parameters: Parameters, step: StepRange
    ) -> Fields:
        """The cotangents before one step, by field of the adjoint problem, from those ``after`` it."""
        method = self.simulation.problem.method
        values = self._stage_values(state, constant, parameters, step)
        bars: dict[int, Fields] = {len(self.stages): {name: after[ADJOINT + name] for name in self.changing}}
        gradients = {name: after[name] for name in self.gradients}
        for stage in self.stages:
            j = stage.number
            made = {
                name: _sum([(a, bars[i][name]) for i, a in stage.values[name]], state[name]) for name in self.changing
            }
            if stage.evaluates:
                slopes = {
                    ADJOINT + name: step.dt * _sum([(b, bars[i][name]) for i, b in stage.slopes[name]], state[name])
                    for name in self.changing
                }
                given = {**values[j], **constant, **gradients, **{TRANSPOSED + name: u for name, u in made.items()}}
                given |= {name: array.astype(state[self.changing[0]].dtype) for name, array in slopes.items()}
                ordered = {name: given[name] for name in self.backward.problem.fields}
                at = StepRange(step.start + method.nodes[j] * step.dt, 0, 1.0, 1)
                found = self.backward_step(ordered, parameters, at)
                gradients = {name: found[name] for name in gradients}
                made = {name: found[TRANSPOSED + name] for name in self.changing}
            bars[j] = made
        return {**{ADJOINT + name: array for name, array in bars[0].items()}, **gradients}

    def _stage_values(self, state: Fields, constant: Fields, parameters: Parameters, step: StepRange) -> list[Fields]:
        """The fields y_0 .. y_(s-1) of a step that begins with ``state``."""
        problem = self.simulation.problem
        y: list[Fields] = [state]
        k: dict[int, Fields] = {}
        for stage in problem.method.stages[:-1]:
            for j, _ in stage.slopes:
                if j not in k:
                    k[j] = self.slopes({**y[j], **constant}, parameters, step.start + problem.method.nodes[j] * step.dt)
            made = {}
            for name in self.changing:
                if stage.group is None or problem.groups[name] == stage.group:
                    terms = [(a, y[j][name]) for j, a in stage.values]
                    moved = _sum([(b, k[j][name]) for j, b in stage.slopes], state[name])
                    made[name] = (_sum(terms, state[name]) + step.dt * moved).astype(state[name].dtype)
            y.append({**y[-1], **made})
        return y


def _sum(terms: Terms, like: jax.Array) -> jax.Array:
    """The sum of arrays times weights, in the dtype of ``like``."""
    result = jnp.zeros_like(like)
    for weight, array in terms:
        result = result + jnp.asarray(weight, like.dtype) * array
    return result
