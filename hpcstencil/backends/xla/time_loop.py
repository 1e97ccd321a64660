"""The compiled loop over many steps, in two forms.

fused   for one device per process: the whole loop, including the mpi4jax exchange, is one `jit`
phased  for several devices per process: `pmap`, with `ppermute` between the devices. To exchange with other processes, the
        loop leaves compiled code, gathers the edge strips on one device, exchanges them there by mpi4jax, and returns them

The phased form exists because mpi4jax cannot be called in code that is mapped over several devices. A `Stepper` takes the
single steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hpcstencil.backends.backend import Advance
from hpcstencil.backends.xla.time_step import Stepper
from hpcstencil.distributed.device_blocks import Placed
from hpcstencil.distributed.device_grid import Body, DeviceGrid
from hpcstencil.distributed.halo import Fields
from hpcstencil.distributed.windows import Frame, Parameters, Value
from hpcstencil.numerics.schedule import StepRange


def by_stepper(stepper: Stepper, together: int) -> Advance:
    """Return the function that advances the fields step by step, in array code or GPU kernels.

    ``together`` is the number of steps in each round of the loop, as in `repeated`.
    """
    device_grid, every = stepper.device_grid, stepper.steps_per_exchange

    def steps(framed: dict[str, Value], frame: Frame, parameters: Parameters, these: StepRange) -> Fields:
        """Take ``these`` steps on a block padded with ghost cells, and crop the result to the block."""
        t0, first, dt, n = these
        step = stepper.step(parameters, frame)

        def body(i: jax.Array, u: dict[str, Value]) -> dict[str, Value]:
            after = step(u, t0 + (first + i) * dt, dt, None)
            new, old = ({name: values[name].array for name in u} for values in (after, u))
            return {name: replace(u[name], array=array) for name, array in going_on(i < n, new, old).items()}

        return device_grid.cropped(repeated(most(n), body, framed, together))

    def loop(fields: Fields, places: Placed, parameters: Parameters, these: StepRange) -> Fields:
        frame, (t0, first, dt, n) = device_grid.frame(places), these

        def one(i: jax.Array, u: Fields) -> Fields:
            after = step(stepper.framed(u, frame), t0 + (first + i) * dt, dt, device_grid.interior)
            return going_on(i < n, device_grid.cropped(after), u)

        def block(b: jax.Array, u: Fields) -> Fields:
            done = b * every
            part = these.part(done, jnp.minimum(every, n - done))
            return steps(stepper.framed(u, frame), frame, parameters, part)

        if every > 1:
            return lax.fori_loop(0, (most(n) + every - 1) // every, block, fields)
        step = stepper.step(parameters, frame)
        return repeated(most(n), one, fields, together if every else 1)

    if device_grid.exchange.fused:
        return fused(device_grid, loop)
    if every:
        return in_blocks(device_grid.exchanged(steps, stepper.widths, has_loop=True, donate=True), every)
    return in_blocks(one_in_pieces(stepper), 1)


# ---- the two forms ----


def fused(device_grid: DeviceGrid, loop: Body) -> Advance:
    """Return ``loop(fields, places, parameters, range of steps)`` as one compiled call, which overwrites the fields."""
    compiled = device_grid.compiled(loop, 2, donated=(0,))
    return lambda fields, parameters, these: compiled(fields, device_grid.places, parameters, these)


def in_blocks(block: Advance, every: int) -> Advance:
    """Return the function that advances by repeated calls of ``block``, each with at most ``every`` steps.

    Each call finishes before the next one starts.
    """

    def advance(fields: Fields, parameters: Parameters, these: StepRange) -> Fields:
        for done in range(0, int(most(these.count)) or 1, every):  # zero steps still compile
            part = these.part(done, np.minimum(every, these.count - done))
            fields = jax.block_until_ready(block(fields, parameters, part))
        return fields

    return advance


def one_in_pieces(stepper: Stepper) -> Advance:
    """Return the function that takes at most one step per call and exchanges halos outside compiled code.

    Each evaluation of the right-hand side has its own exchange.
    """
    step, chosen = stepper.in_pieces(), chosen_by(stepper.device_grid)

    def block(fields: Fields, parameters: Parameters, these: StepRange) -> Fields:
        after, _ = step(fields, parameters, these.start, these.dt)
        return chosen(after, fields, these.count)

    return block


def chosen_by(device_grid: DeviceGrid) -> Callable[[Fields, Fields, int | np.ndarray | jax.Array], Fields]:
    """Return the function (new fields, old fields, n) -> the new fields if n > 0, otherwise the old ones.

    n is the number of steps still to take. In an ensemble whose members take their own steps, n has one entry per member,
    which decides for that member.
    """

    def of_members(new: Fields, old: Fields, active: bool | np.ndarray | jax.Array) -> Fields:
        return going_on(active, new, old)

    choose = device_grid.compiled(of_members, 1)
    return lambda new, old, n: choose(new, old, n > 0) if np.ndim(n) else new if n else old


# ---- loops, and the members of an ensemble in them ----


def repeated(n: int | np.ndarray | jax.Array, step: Callable[[jax.Array, Any], Any], u: Any, together: int) -> Any:
    """Apply u = step(i, u) for i = 0 .. n - 1, with ``together`` calls in each round of a compiled loop.

    On GPUs, several calls per round save copies, because the steps alternate between two sets of arrays. They also save
    waiting, because the host waits after each round to learn whether another one follows. The steps that do not fill a round
    are taken in rounds of a quarter of its calls, and so on down to one. The price is compile time, since each call in a
    round is compiled separately.
    """
    one, done = (step if together == 1 else jax.jit(step)), 0
    while together > 1:
        u, done = _in_rounds(n, one, u, together, done)
        together //= 4
    return lax.fori_loop(done, n, one, u)


def _in_rounds(n: Any, step: Callable[[jax.Array, Any], Any], u: Any, together: int, done: Any) -> tuple[Any, Any]:
    """Take all whole rounds of ``together`` steps after the first ``done`` ones; return u and the number of steps done."""
    rounds = (n - done) // together

    def several(r: jax.Array, u: Any) -> Any:
        for j in range(together):
            u = step(done + r * together + j, u)
        return u

    return lax.fori_loop(0, rounds, several, u), done + rounds * together


def most(n: int | np.ndarray | jax.Array) -> Any:
    """Return the largest number of steps of any member, of shape (); ``n`` itself if it is a single number."""
    return jnp.max(n) if jnp.ndim(n) else n


def going_on(active: bool | np.ndarray | jax.Array, new: Fields, old: Fields) -> Fields:
    """Return the new fields of the ``active`` members and the old fields of the others.

    If ``active`` is a single value instead of one per member, all fields are the new ones.
    """
    return {name: jnp.where(active, new[name], old[name]) for name in old} if jnp.ndim(active) else new
