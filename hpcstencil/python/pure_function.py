"""The steps of a simulation as a pure JAX function of state and parameters.

The function runs the same compiled program as `Simulation.step`. Under `jax.vmap` it runs one batch element after the
other, so each result is bitwise equal to that of a separate call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
from hpcstencil.problem.problem import Problem
from hpcstencil.problem.stability import cfl_step
from hpcstencil.python.assignment import as_array
from hpcstencil.python.pure_gradient import Derivatives
from hpcstencil.simulation.simulation import ComposedSimulation
from hpcstencil.simulation.solid_cells import solid_block
from hpcstencil.simulation.state import State
from hpcstencil.symbolic.expressions import parameter_field
from hpcstencil.validation.errors import InputError
from hpcstencil.validation.messages import unknown


@dataclass(frozen=True, eq=False)
class Function:
    """The function f(state, parameters=None) that returns the state after ``steps`` more steps.

    See `hpcstencil.Simulation.function`. ``kernel`` is the name of the backend that computes the steps.
    """

    steps: int
    kernel: str
    _simulation: ComposedSimulation
    _stepped: Callable[..., State]

    def __call__(self, state: State | Mapping[str, Any], parameters: Mapping[str, Any] | None = None) -> State:
        """Take the steps from a ``state``, with some ``parameters`` in place of those of the simulation.

        A dict has this process's block of each field at t = 0, without ghost cells, in the shape that `sim.local` has. Raises
        InputError for unknown names and other shapes.
        """
        given = state if isinstance(state, State) else _plain(self._simulation, state)
        return self._stepped(given, *_parameters(self._simulation, parameters or {}))

    def __repr__(self) -> str:
        return f"<{self.steps} steps of {self._simulation.problem.config.equation.name} by {self.kernel}>"


def function_of(simulation: ComposedSimulation, steps: int, constant: Mapping[str, np.ndarray]) -> Function:
    """Build the function of ``steps`` steps, which takes and returns the block of each process.

    ``constant`` holds this process's blocks of the fields that are constant in time (parameters given as arrays, and
    solid cells), by name, with the member axis of an ensemble last. All processes call this together. Raises InputError
    for problems for which the function is not available.
    """
    problem, devices = simulation.problem, simulation.device_grid.devices
    _refuse_unavailable(simulation)
    dt = _step_sizes(problem)
    members = len(problem.members)
    _ = simulation.device_grid.places  # cached from here on: not to be computed while JAX traces
    derivatives = Derivatives(simulation, steps, _one_by_one)
    advance = derivatives.of_steps(_mapped_one_by_one(simulation))
    slopes = derivatives.of_slopes(simulation.steps.slopes()) if problem.method.multistep else None
    kept, solid = _kept(simulation, constant)
    remembered = {name: block for name, block in kept.items() if name not in problem.constant}

    def on_devices(fields: Mapping[str, jax.Array]) -> dict[str, Any]:
        last = {name: jnp.moveaxis(block, 0, -1) if members else block for name, block in fields.items()}
        return _split(last, devices)

    def as_state(fields: Mapping[str, jax.Array]) -> dict[str, Any]:
        whole = _whole({name: array for name, array in fields.items() if name in problem.changing}, devices)
        return {name: jnp.moveaxis(block, -1, 0) if members else block for name, block in whole.items()}

    def first_state(fields: Mapping[str, jax.Array], parameters: Parameters, constant: Fields) -> State:
        """The state at t = 0 with these fields of the equation. Arrays are blocks of this process without ghost cells,
        with members first."""
        whole: dict[str, Any] = {name: _checked(simulation, name, fields[name]) for name in problem.shown}
        if solid is not None:
            whole = {name: jnp.where(solid, 0, block) for name, block in whole.items()}
        whole |= remembered
        if slopes is not None:
            made = slopes(on_devices(whole | constant), parameters, simulation.per_member(0.0))
            whole |= as_state({name + MEMORY: slope for name, slope in made.items()})
        clock: dict[str, Any] = {
            name: jnp.asarray(simulation.per_member(value)) for name, value in vars(Clock()).items()
        }
        return State(Clock(**clock), whole)

    @jax.jit
    def stepped(state: State | Mapping[str, jax.Array], parameters: Parameters, constant: Fields) -> State:
        constant = {
            name: jnp.asarray(block) for name, block in {**kept, **constant}.items() if name in problem.constant
        }
        start = state if isinstance(state, State) else first_state(state, parameters, constant)
        clock = start.clock
        done = jnp.asarray(clock.step - clock.base_step, jnp.int64)
        base = jnp.asarray(clock.base_time, jnp.float64)
        these = StepRange(base, done, dt, simulation.per_member(np.int64(steps)))
        fields = advance(on_devices({**start.fields, **constant}), parameters, these)
        same: dict[str, Any] = {name: jnp.asarray(value) for name, value in vars(clock).items()}
        after = Clock(**same | {"step": clock.step + steps, "time": base + (done + steps) * dt})
        return State(after, as_state(fields))

    return Function(steps, simulation.kernel, simulation, stepped)


def _refuse_unavailable(simulation: ComposedSimulation) -> None:
    """Raise InputError if the steps of this simulation cannot be one JAX function."""
    problem, key = simulation.problem, "sim.function"
    if problem.step_follows_solution:
        raise InputError(
            f"{key}: not available yet where the step follows the solution ({problem.config.time.given}); give time.dt"
        )
    if not simulation.device_grid.exchange.fused:
        raise InputError(
            f"{key}: not available yet with several devices on each of several processes; use one device per process"
        )


def _step_sizes(problem: Problem) -> Any:
    """The step size: one number, or a float64 array of shape (members,) if the members have individual step sizes."""
    if not problem.own_steps:
        return problem.config.time.dt or cfl_step(problem, {})
    return np.array([cfl_step(member, {}) for member in problem.members])


def _parameters(
    simulation: ComposedSimulation, given: Mapping[str, Any]
) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """(numbers by parameter, arrays by field of a parameter) for the parameters ``given`` to the function.

    Numbers are float64, and those not given keep the values of the simulation. Arrays are blocks of this process.
    Raises InputError for parameters that cannot be given, and for wrong shapes.
    """
    problem = simulation.problem
    if not isinstance(given, Mapping):
        raise InputError(f"parameters: expected a dict of parameters, but got {type(given).__name__}; give one")
    given = {name: _taken(value, None, f'parameters["{name}"]') for name, value in given.items()}
    fields = {
        name: parameter_field(name).name for name in problem.symbols if parameter_field(name).name in problem.given
    }
    for name, value in given.items():
        key = f'parameters["{name}"]'
        if name in fields:
            continue
        if name in problem.symbols and name not in problem.numbers:
            raise InputError(
                f"{key}: expected a number or a field read from a file, but the input has an expression or a time series "
                "for it; give it a number there, or make another simulation"
            )
        if name not in problem.parameters:
            raise unknown("parameters", "parameter", name, (*problem.numbers, *fields))
        shapes = {(), np.shape(problem.parameters[name])}
        if jnp.shape(value) not in shapes:
            expected = " or ".join(["a number", *(f"the shape {shape} of the members" for shape in shapes if shape)])
            raise InputError(
                f"{key}: expected {expected}, but got the shape {jnp.shape(value)}; map over it with jax.vmap"
            )
    if given and problem.config.time.dt is None:
        raise InputError(
            "parameters: not available yet with time.cfl, since the stable step depends on them; give time.dt"
        )
    numbers = {}
    for name, value in problem.parameters.items():
        array = jnp.asarray(given.get(name, value), jnp.float64)
        numbers[name] = jnp.broadcast_to(array, np.shape(value))
    arrays = {
        fields[name]: _checked(simulation, fields[name], value, f'parameters["{name}"]')
        for name, value in given.items()
        if name in fields
    }
    return numbers, arrays


def _mapped_one_by_one(simulation: ComposedSimulation) -> Callable[[Fields, Parameters, StepRange], Any]:
    """The steps as a function that `jax.vmap` maps one batch element after the other."""
    inside = simulation.steps.inside() if simulation.steps.inside else simulation.steps.advance

    def advance(fields: Fields, parameters: Parameters, these: StepRange) -> Any:
        return dict(inside(fields, parameters, these))

    return _one_by_one(advance)


def _one_by_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, which `jax.vmap` maps one batch element after the other."""
    mapped = custom_vmap(function)

    @mapped.def_vmap
    def of_many(count: int, is_mapped: Sequence[Any], *arguments: Any) -> tuple[Any, Any]:
        def repeated(x: Any, has_axis: bool) -> Any:
            return x if has_axis else jnp.broadcast_to(x, (count, *jnp.shape(x)))

        every = jax.tree.map(repeated, arguments, tuple(is_mapped))
        results = jax.lax.map(lambda one: mapped(*one), every)
        return results, jax.tree.map(lambda _: True, results)

    return mapped


def _kept(
    simulation: ComposedSimulation, constant: Mapping[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """(additional fields of a state at t = 0, solid cells or None).

    These fields are the memory fields of absorbing layers, which start at 0, and the ``constant`` fields. All are
    blocks of this process; the fields have the member axis of an ensemble first.
    """
    problem = simulation.problem
    names = [name for name in problem.memory if not name.endswith(MEMORY) and name not in problem.constant]
    shape = [*(stop - start for start, stop in simulation.ranges), *problem.layout.members]
    blocks = {**{name: np.zeros(shape, simulation.dtype) for name in names}, **constant}
    solid = None if problem.mask is None else solid_block(simulation, simulation.put(blocks)) != 0
    return {name: np.moveaxis(block, -1, 0) if problem.members else block for name, block in blocks.items()}, solid


def _checked(simulation: ComposedSimulation, name: str, array: Any, key: str = "") -> Any:
    """Convert an array to a field of the state: a block of this process in the dtype of the run, with members first.

    Faces on an upper boundary, whose values the boundary condition prescribes, are left out. Raises InputError for
    other shapes; ``key`` names the array in its message.
    """
    cells = tuple(stop - start for start, stop in simulation.ranges)
    problem, members = simulation.problem, simulation.problem.layout.members
    upper = [stop == n for (_, stop), n in zip(simulation.ranges, problem.config.grid.shape, strict=True)]
    shown = tuple(n + more * last for n, more, last in zip(cells, problem.layout.extra(name), upper, strict=True))
    shape = jnp.shape(array)
    if shape not in {(*first, *rest) for first in {(), members} for rest in (cells, shown)}:
        where = key or f'state["{name}"]'
        raise InputError(
            f"{where}: expected the shape {(*members, *cells)} of this process's cells, but got {shape}; change the array"
        )
    own = jnp.asarray(array, simulation.dtype)[(..., *(slice(0, n) for n in cells))]
    return jnp.broadcast_to(own, (*members, *cells))


def _plain(simulation: ComposedSimulation, state: object) -> dict[str, Any]:
    """Check a mapping of fields, such as a dict or an xarray.Dataset, and convert xarray arrays to NumPy.

    Raises InputError unless it has exactly the fields of the equation.
    """
    if not isinstance(state, Mapping):
        raise InputError(
            f"state: expected a dict of fields or an earlier result, but got {type(state).__name__}; write for example "
            f'{{"{simulation.problem.shown[0]}": array}}'
        )
    names, layout = simulation.problem.shown, simulation.problem.layout
    for name in state:
        if name not in names:
            raise unknown("state", "field", str(name), names)
    for name in names:
        if name not in state:
            raise InputError(f"state: expected all fields, but {name} is missing; add it")

    return {name: _taken(array, layout.dimensions(name), f'state["{name}"]') for name, array in state.items()}


def _taken(array: Any, dims: Sequence[str] | None, key: str) -> Any:
    """An array that JAX takes, as `as_array`. Compiled functions read numpy arrays in the machine's order of bytes, whatever
    their dtype says."""
    if isinstance(array, jax.Array):
        return array
    array = as_array(array, dims, key)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _split(fields: Mapping[str, jax.Array], devices: Devices) -> dict[str, Any]:
    """Split the blocks of this process into device blocks, stacked along a new first axis and padded to equal shapes.

    Members of an ensemble are the last axis. It is called inside compiled code. With one device nothing changes.
    """
    if not devices.several:
        return dict(fields)
    capacity, count = devices.topology.capacity(), len(devices.devices)
    ndim = len(capacity)

    def split(block: jax.Array) -> jax.Array:
        parts = []
        for device in range(count):
            here, _ = devices.slices(device)
            part = block[here]
            missing = [(0, most - n) for most, n in zip(capacity, part.shape[:ndim], strict=True)]
            parts.append(jnp.pad(part, [*missing, *[(0, 0)] * (part.ndim - ndim)]))
        return jnp.stack(parts)

    return {name: split(block) for name, block in fields.items()}


def _whole(fields: Mapping[str, jax.Array], devices: Devices) -> dict[str, Any]:
    """The inverse of `_split`."""
    if not devices.several:
        return dict(fields)
    cells = tuple(stop - start for start, stop in devices.topology.block())

    def joined(array: jax.Array) -> jax.Array:
        block = jnp.zeros((*cells, *array.shape[1 + len(cells) :]), array.dtype)
        for device in range(len(devices.devices)):
            here, there = devices.slices(device)
            block = block.at[here].set(array[device][there])
        return block

    return {name: joined(array) for name, array in fields.items()}
