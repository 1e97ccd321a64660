"""The steps of a simulation as a pure JAX function of its state and parameters.

The function calls the same compiled program as `Simulation.step`. `jax.vmap` makes it run one member after the other,
so each result equals that of a separate call, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from hpcstencil.distributed.device_blocks import Devices
from hpcstencil.distributed.halo import Fields
from hpcstencil.distributed.windows import Parameters
from hpcstencil.numerics.integrators import MEMORY
from hpcstencil.numerics.schedule import Clock, StepRange
from hpcstencil.problem.stability import cfl_step
from hpcstencil.python.assignment import as_array
from hpcstencil.simulation.simulation import Simulation
from hpcstencil.simulation.state import State
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import unknown

Function = Callable[..., State]


def function_of(simulation: Simulation, steps: int, constant: Mapping[str, np.ndarray]) -> Function:
    """The function f(state, parameters=None) -> state after ``steps`` steps, see `hpcstencil.Simulation.function`.
    ``constant`` are this process's blocks of the fields that never change: parameters given as arrays, and a mask.

    Raises InputError for problems for which it is not available.
    """
    problem, devices = simulation.problem, simulation.device_grid.devices
    dt = _step_size(simulation)
    simulation.device_grid.places  # noqa: B018  (made once, and not while JAX traces)
    advance = _mapped_one_by_one(simulation)
    slopes = simulation.steps.slopes() if problem.method.multistep else None
    remembered = {**_memory(simulation), **constant}

    def first_state(fields: Mapping[str, jax.Array], parameters: Parameters) -> State:
        """The state at t = 0 with these fields, by name: this process's cells without ghost cells."""
        for name in fields:
            if name not in problem.shown:
                raise unknown("state", "field", name, problem.shown)
        missing = [name for name in problem.shown if name not in fields]
        if missing:
            raise InputError(f"state: expected all fields, but {missing[0]} is missing; add it")
        whole = {name: _checked(simulation, name, array) for name, array in fields.items()} | remembered
        if slopes is not None:
            made = slopes(_split(whole, devices), parameters, 0.0)
            whole |= _whole({name + MEMORY: slope for name, slope in made.items()}, devices)
        return State(Clock(), whole)

    @jax.jit
    def stepped(state: State | Mapping[str, jax.Array], parameters: Parameters) -> State:
        start = state if isinstance(state, State) else first_state(state, parameters)
        clock = start.clock
        done = jnp.asarray(clock.step - clock.base_step, jnp.int64)
        base = jnp.asarray(clock.base_time, jnp.float64)
        fields = advance(_split(start.fields, devices), parameters, StepRange(base, done, dt, np.int64(steps)))
        kept: dict[str, Any] = {name: jnp.asarray(value) for name, value in vars(clock).items()}
        after = Clock(**kept | {"step": clock.step + steps, "time": base + (done + steps) * dt})
        return State(after, _whole(fields, devices))

    def f(state: State | Mapping[str, Any], parameters: Parameters | None = None) -> State:
        given = dict(parameters or {})
        for name in given:
            if name not in problem.parameters:
                raise unknown("parameters", "parameter", name, tuple(problem.parameters))
        if given and problem.config.time.dt is None:
            raise InputError(
                "parameters: not available yet with time.cfl, since the stable step depends on them; give time.dt"
            )
        for name, value in given.items():
            if jnp.shape(value) != ():
                raise InputError(
                    f'parameters["{name}"]: expected a number, but got the shape {jnp.shape(value)}; map over it with '
                    "jax.vmap"
                )
        numbers = {name: jnp.asarray(given.get(name, value), jnp.float64) for name, value in problem.parameters.items()}
        return stepped(state if isinstance(state, State) else _plain(simulation, state), numbers)

    return f


def _step_size(simulation: Simulation) -> float:
    """The size of all steps. Raises InputError if there is no such size, or the steps cannot be one JAX function."""
    problem, key = simulation.problem, "sim.function"
    if problem.members:
        raise InputError(f"{key}: not available yet for an [ensemble]; leave it out and use jax.vmap")
    if problem.step_follows_solution:
        raise InputError(
            f"{key}: not available yet where the step follows the solution ({problem.config.time.given}); give time.dt"
        )
    if not simulation.device_grid.exchange.fused:
        raise InputError(
            f"{key}: not available yet with several devices on each of several processes; use one device per process"
        )
    return problem.config.time.dt or cfl_step(problem, {})


def _mapped_one_by_one(simulation: Simulation) -> Callable[[Fields, Parameters, StepRange], Any]:
    """The steps as a function that JAX can map, one member after the other, but not differentiate."""

    def advance(fields: Fields, parameters: Parameters, these: StepRange) -> Any:
        return dict(simulation.steps.advance(fields, parameters, these))

    mapped = custom_vmap(advance)

    @mapped.def_vmap
    def of_many(count: int, is_mapped: Sequence[Any], *arguments: Any) -> tuple[Any, Any]:
        def repeated(x: Any, has_axis: bool) -> Any:
            return x if has_axis else jnp.broadcast_to(x, (count, *jnp.shape(x)))

        every = jax.tree.map(repeated, arguments, tuple(is_mapped))
        results = jax.lax.map(lambda one: mapped(*one), every)
        return results, jax.tree.map(lambda _: True, results)

    @jax.custom_jvp
    def steps(fields: Fields, parameters: Parameters, these: StepRange) -> Any:
        return mapped(fields, parameters, these)

    @steps.defjvp
    def derivative(values: Any, tangents: Any) -> Any:
        raise InputError(
            "sim.function: derivatives through the steps of a simulation are not available yet; differentiate around it"
        )

    return steps


def _memory(simulation: Simulation) -> dict[str, np.ndarray]:
    """The memories of absorbing layers at t = 0. Blocks of this process."""
    cells = [stop - start for start, stop in simulation.ranges]
    return {name: np.zeros(cells, simulation.dtype) for name in simulation.problem.memory if not name.endswith(MEMORY)}


def _checked(simulation: Simulation, name: str, array: Any) -> Any:
    """An array of a plain dict as a field of the state: this process's cells, in the run's dtype."""
    cells = tuple(stop - start for start, stop in simulation.ranges)
    if jnp.shape(array) != cells:
        raise InputError(
            f'state["{name}"]: expected the shape {cells} of this process\'s cells, but got {jnp.shape(array)}; '
            "change the array"
        )
    return jnp.asarray(array, simulation.dtype)


def _plain(simulation: Simulation, state: object) -> dict[str, Any]:
    """The fields of a mapping as arrays that JAX takes; an xarray.Dataset is such a mapping too."""
    if not isinstance(state, Mapping):
        raise InputError(
            f"state: expected a dict of fields or an earlier result, but got {type(state).__name__}; write for example "
            f'{{"{simulation.problem.shown[0]}": array}}'
        )
    names, layout = simulation.problem.shown, simulation.problem.layout

    def converted(name: str, array: Any) -> Any:
        if not hasattr(array, "dims") or name not in names:
            return array
        return as_array(array, layout.dimensions(name), f'state["{name}"]')

    return {name: converted(name, array) for name, array in state.items()}


def _split(fields: Mapping[str, jax.Array], devices: Devices) -> dict[str, Any]:
    """The fields of a process's block as arrays on its devices, inside compiled code."""
    if not devices.several:
        return dict(fields)
    capacity, count = devices.topology.capacity(), len(devices.devices)

    def split(block: jax.Array) -> jax.Array:
        parts = []
        for device in range(count):
            here, _ = devices.slices(device)
            part = block[here]
            parts.append(jnp.pad(part, [(0, most - n) for most, n in zip(capacity, part.shape, strict=True)]))
        return jnp.stack(parts)

    return {name: split(block) for name, block in fields.items()}


def _whole(fields: Mapping[str, jax.Array], devices: Devices) -> dict[str, Any]:
    """The inverse of `_split`."""
    if not devices.several:
        return dict(fields)
    cells = tuple(stop - start for start, stop in devices.topology.block())

    def joined(array: jax.Array) -> jax.Array:
        block = jnp.zeros(cells, array.dtype)
        for device in range(len(devices.devices)):
            here, there = devices.slices(device)
            block = block.at[here].set(array[device][there])
        return block

    return {name: joined(array) for name, array in fields.items()}
