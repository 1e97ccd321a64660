"""The compiled loop over many steps of GPU kernels, with exchanges of strips between them.

`docs/design/forms.md` describes the two forms, fused and phased.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from hpcstencil.backends.backend import Advance
from hpcstencil.backends.pallas.step import Kernels
from hpcstencil.backends.pallas.strips import Exchanging, Values, beside
from hpcstencil.backends.xla.time_loop import fused, repeated
from hpcstencil.distributed.device_blocks import Placed
from hpcstencil.distributed.device_grid import DeviceGrid
from hpcstencil.distributed.exchange import Ghosts
from hpcstencil.distributed.halo import Fields
from hpcstencil.distributed.windows import Frame, Parameters
from hpcstencil.numerics.schedule import StepRange


def advance(kernels: Kernels, device_grid: DeviceGrid, every: int, together: int) -> Advance:
    """Return the function that advances the fields by ``kernels``.

    ``every`` is the number of steps between two exchanges, 0 for an exchange before each evaluation of the right-hand side,
    and ``together`` the number of steps in each round of the loop, as in `repeated`.
    """

    def loop(fields: Fields, places: Placed, parameters: Parameters, these: StepRange) -> Fields:
        frame, (t0, first, dt, n) = device_grid.frame(places), these
        stepping = kernels.on(parameters, frame, Exchanging(device_grid, frame, kernels.interpret))

        def in_stages(i: jax.Array, u: Values) -> Values:
            return stepping.exchanging_in_stages(u, t0 + (first + i) * dt, dt)

        def single(i: jax.Array, u: Fields) -> Fields:
            return stepping.after_exchange(u, [t0 + (first + i) * dt], dt)

        def several(block: jax.Array, u: Fields) -> Fields:
            return stepping.after_exchange(u, [t0 + (first + block * every + i) * dt for i in range(every)], dt)

        if every * kernels.method.evaluations <= 1:  # an exchange before each evaluation
            return device_grid.cropped(repeated(n, in_stages, stepping.begun(fields), together))
        if every == 1:
            return repeated(n, single, fields, together)
        fields = repeated(n // every, several, fields, max(1, together // every))
        return lax.fori_loop(n // every * every, n, single, fields)

    if device_grid.exchange.fused:
        return fused(device_grid, loop)
    return phased(kernels, device_grid, every)


def phased(kernels: Kernels, device_grid: DeviceGrid, every: int) -> Advance:
    """Return the function that advances by calls of ``every`` steps, or of one, after an exchange outside compiled code.

    Each call finishes before the next one starts.
    """

    def call(steps: int) -> Callable[[Fields, Parameters, StepRange], Fields]:
        def body(
            fields: Fields, ghosts: dict[int, Ghosts], frame: Frame, parameters: Parameters, these: StepRange
        ) -> Any:
            stepping = kernels.on(parameters, frame, Exchanging(device_grid, frame, kernels.interpret))
            values = beside(fields, device_grid.interior, ghosts, corners=True)
            t0, first, dt, _ = these
            return stepping.steps(values, [t0 + (first + i) * dt for i in range(steps)], dt)

        widths = device_grid.widths(steps * kernels.method.evaluations)
        return device_grid.beside_received(body, widths, donate=True)

    one, several = call(1), call(every)

    def advance(fields: Fields, parameters: Parameters, these: StepRange) -> Fields:
        done, count = 0, int(these.count)
        while done < count:
            steps = every if count - done >= every else 1
            block = several if steps == every else one
            fields = jax.block_until_ready(block(fields, parameters, these.part(done, steps)))
            done += steps
        return fields

    return advance
