"""The compiled loop over many steps, in two forms.

fused   one device per process: the whole loop, mpi4jax exchange included, is one `jit`
phased  several devices per process: `pmap` with `ppermute` inside. If processes exchange too, the loop leaves the
        compiled code for that: edge strips go to one device, mpi4jax exchanges them there, and they return

mpi4jax cannot be called in code mapped over several devices, hence the second form. A `Stepper` takes single steps.
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


def by_stepper(stepper: Stepper, together: int = 1) -> Advance:
    """The function that takes steps one at a time, by array code or by GPU kernels. ``together`` is as in
    `repeated`."""
    device_grid, every = stepper.device_grid, stepper.every

    def steps(framed: dict[str, Value], frame: Frame, parameters: Parameters, these: StepRange) -> Fields:
        """The fields after ``these`` steps on a block with halo, cropped to the block."""
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
    """The function that takes steps by ``loop(fields, places, parameters, which steps)`` as one compiled call. It
    reuses the memory of the fields."""
    compiled = device_grid.compiled(loop, 2, donate=True)
    return lambda fields, parameters, these: compiled(fields, device_grid.places, parameters, these)


def in_blocks(block: Advance, every: int) -> Advance:
    """The function that takes steps by repeated calls of ``block``, each with at most ``every`` steps. Each call
    finishes before the next one starts."""

    def advance(fields: Fields, parameters: Parameters, these: StepRange) -> Fields:
        for done in range(0, int(most(these.count)) or 1, every):  # zero steps still compile
            part = these.part(done, np.minimum(every, these.count - done))
            fields = jax.block_until_ready(block(fields, parameters, part))
        return fields

    return advance


def one_in_pieces(stepper: Stepper) -> Advance:
    """The function that takes at most one step per call, with an exchange outside compiled code for each evaluation."""
    step, chosen = stepper.in_pieces(), chosen_by(stepper.device_grid)

    def block(fields: Fields, parameters: Parameters, these: StepRange) -> Fields:
        after, _ = step(fields, parameters, these.start, these.dt)
        return chosen(after, fields, these.count)

    return block


def chosen_by(device_grid: DeviceGrid) -> Callable[[Fields, Fields, int | np.ndarray | jax.Array], Fields]:
    """The function (new fields, old fields, number of steps to take) -> the new fields if there is a step to take,
    otherwise the old ones. In an ensemble whose members take their own steps, each member decides by its own number."""

    def of_members(new: Fields, old: Fields, active: bool | np.ndarray | jax.Array) -> Fields:
        return going_on(active, new, old)

    choose = device_grid.compiled(of_members, 1)
    return lambda new, old, n: choose(new, old, n > 0) if np.ndim(n) else new if n else old


# ---- loops, and the members of an ensemble in them ----


def repeated(n: int | np.ndarray | jax.Array, step: Callable[[jax.Array, Any], Any], u: Any, together: int) -> Any:
    """u after the calls u = step(i, u) for i = 0 .. n - 1, with ``together`` of them in each round of a loop.

    On GPUs two or more save a copy: a step writes to other arrays, and the next step writes back to the first ones.
    They also save waiting, since after each round the host waits to know whether another one follows. The compiler sees
    each of them.
    """
    if together == 1:
        return lax.fori_loop(0, n, step, u)
    one, rounds = jax.jit(step), n // together

    def several(r: jax.Array, u: Any) -> Any:
        for j in range(together):
            u = one(r * together + j, u)
        return u

    return lax.fori_loop(rounds * together, n, one, lax.fori_loop(0, rounds, several, u))


def most(n: int | np.ndarray | jax.Array) -> Any:
    """The largest number of steps of any member, of shape (); ``n`` itself if that is one number for all."""
    return jnp.max(n) if jnp.ndim(n) else n


def going_on(active: bool | np.ndarray | jax.Array, new: Fields, old: Fields) -> Fields:
    """The new fields of the members that are ``active`` and the old fields of the rest. If ``active`` is a single
    value, these are all new fields."""
    return {name: jnp.where(active, new[name], old[name]) for name in old} if jnp.ndim(active) else new
