"""The compiled step loop in its two forms, made from one one-step body.

fused   one device per process: the whole loop, mpi4jax exchange included, is one `jit`
phased  several devices per process: `pmap` with `ppermute` inside; where processes have to exchange as well, the loop
        leaves the compiled code for that: edge strips go to one device, mpi4jax exchanges them there, and they return

mpi4jax cannot be called in code mapped over several devices, hence the second form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from hpcstencil.blocks import Devices, Places, frame_of, sides, values
from hpcstencil.evaluate import Rules, right_hand_side
from hpcstencil.expressions import Node
from hpcstencil.frame import Frame, Value, common
from hpcstencil.grid import Grid
from hpcstencil.halo import (
    DEVICE_AXIS,
    Fields,
    Ghosts,
    exchange_devices,
    exchange_edges,
    exchange_processes,
    strips_for,
    surround,
)
from hpcstencil.integrators import Tableau
from hpcstencil.radius import Needs
from hpcstencil.topology import Topology, unravel

Outer = dict[int, tuple[Any, Any]]  # process axis -> ghost cells (lower, upper) from other processes, per device
Body = Callable[..., Any]


def combined(u: Value, dt: Any, coefficients: tuple[float, ...], slopes: list[Value]) -> Value:
    """u + dt Σ_j a_j k_j, from left to right, on the windows that all have."""
    terms = [(a, k) for a, k in zip(coefficients, slopes, strict=False) if a]
    windows = common([u, *(k for _, k in terms)])
    result = u.crop(windows).array
    for a, k in terms:
        result = result + (dt * a).astype(result.dtype) * k.crop(windows).array
    return Value(result, windows)


@dataclass(frozen=True)
class Machine:
    """A decomposed grid on this process's devices: puts ghost cells around fields and runs code on every block.

    ``communicator`` is the mpi4py communicator of the halo exchange alone (None with one process). ``halo_wraps`` says
    that ghost cells of whole periodic axes are filled by the exchange rather than by each derivative.
    """

    topology: Topology
    grid: Grid
    devices: Devices
    communicator: Any
    radius: tuple[int, ...]
    margin: tuple[int, ...]
    halo_wraps: bool

    @cached_property
    def sides(self) -> Any:
        cells = self.topology.capacity()
        return sides(self.topology, [self.halo_wraps and n >= r for n, r in zip(cells, self.radius, strict=True)])

    @cached_property
    def places(self) -> dict[str, Any]:
        return self.devices.put_places(Places.of(self.topology, self.grid, self.margin))

    @property
    def leaves_compiled_code(self) -> bool:
        """Whether the exchange between processes has to happen outside the compiled loop."""
        return self.devices.several and self.topology.size > 1

    def frame(self, places: Mapping[str, Any]) -> Frame:
        return frame_of(self.topology, self.sides, self.margin, places)

    def widths(self, radii: int) -> tuple[int, ...]:
        """Ghost cells per axis for ``radii`` evaluations in a row between two exchanges."""
        return tuple(
            radii * r if "halo" in (low.kind, high.kind) else 0
            for r, (low, high) in zip(self.radius, self.sides, strict=True)
        )

    def compiled(self, body: Body, shared: int, donate: bool = False) -> Body:
        """``body(fields, places, ..., shared arguments)`` on every device; the last ``shared`` arguments are the same
        for all devices, the others have a device axis."""
        donated = (0,) if donate else ()
        if not self.devices.several:
            return jax.jit(body, donate_argnums=donated)
        count = body.__code__.co_argcount
        axes = (0,) * (count - shared) + (None,) * shared
        return jax.pmap(body, DEVICE_AXIS, in_axes=axes, devices=self.devices.devices, donate_argnums=donated)

    def surrounded(
        self, fields: Mapping[str, Any], widths: tuple[int, ...], frame: Frame, outer: Outer
    ) -> dict[str, Value]:
        """The fields with their halos, inside compiled code."""
        framed = surround(fields, widths, frame.counts, lambda *strips: self.swap(outer, *strips))
        windows = tuple(
            (-w * (low.kind == "halo"), n + w * (high.kind == "halo"))
            for w, n, (low, high) in zip(widths, frame.cells, frame.sides, strict=True)
        )
        return values(framed, windows)

    def swap(self, outer: Outer, axis: int, first: Any, last: Any) -> Ghosts:
        """Ghost cells for the strips of one axis, inside compiled code; ``outer`` holds what came from elsewhere."""
        topology = self.topology
        between_processes = topology.processes[axis] > 1
        if not self.devices.several:
            if between_processes:
                return exchange_processes(first, last, topology, axis, self.communicator)
            return last, first
        if topology.devices[axis] == 1:
            if not between_processes:
                return last, first
            return tuple(
                None if topology.neighbour(axis, direction) is None else ghosts
                for direction, ghosts in zip((-1, 1), outer[axis], strict=True)
            )  # type: ignore[return-value]
        lower, upper = exchange_devices(first, last, topology, axis)
        if between_processes:
            places = jnp.array([unravel(d, topology.devices)[axis] for d in range(topology.device_count)])
            place = places[lax.axis_index(DEVICE_AXIS)]
            lower = jnp.where(place == 0, outer[axis][0], lower)
            upper = jnp.where(place == topology.devices[axis] - 1, outer[axis][1], upper)
        return lower, upper

    def exchanged(self, body: Body, widths: tuple[int, ...], has_loop: bool = False) -> Body:
        """``body(values, frame, *shared)`` on every block surrounded by ``widths`` ghost cells, as a function of the
        fields and the shared arguments; in the phased form the exchange between processes comes before it.

        XLA has another convolution outside of loops than inside, so a body that ``has_loop`` not is put into one.
        """

        def whole(fields: Fields, places: Any, outer: Outer, shared: tuple[Any, ...]) -> Any:
            frame = self.frame(places)
            surrounded = self.surrounded(fields, widths, frame, outer)
            if has_loop:
                return body(surrounded, frame, *shared)
            return in_loop(lambda: body(surrounded, frame, *shared), places["once"])

        run = self.compiled(whole, 1)
        outer_ghosts = self.outer_exchange(widths)
        return lambda fields, *arguments: run(fields, self.places, outer_ghosts(fields), arguments)

    def outer_exchange(self, widths: tuple[int, ...]) -> Callable[[Fields], Outer]:
        """The exchange between processes outside compiled code: nothing to do where the compiled code does it."""
        if not self.leaves_compiled_code:
            return lambda fields: {}
        axes = [a for a in range(self.grid.ndim) if self.topology.processes[a] > 1 and widths[a]]

        def strips_along(axis: int) -> Body:
            def body(fields: Fields, places: Any, outer: Outer) -> Any:
                frame = self.frame(places)
                return strips_for(fields, widths, frame.counts, lambda *strips: self.swap(outer, *strips), axis)

            return self.compiled(body, 0)

        def edges_along(axis: int) -> Body:
            return jax.jit(lambda first, last: exchange_edges(first, last, self.topology, axis, self.communicator))

        programs = [(axis, strips_along(axis), edges_along(axis)) for axis in axes]

        def exchange(fields: Fields) -> Outer:
            outer: Outer = {}
            for axis, strips, edges in programs:
                first, last = jax.device_put(strips(fields, self.places, dict(outer)), self.devices.devices[0])
                outer[axis] = jax.device_put(edges(first, last), self.devices.sharding)
            return outer

        return exchange

    def device_sum(self, x: Any) -> Any:
        """Sum over the devices of this process, inside compiled code."""
        return lax.psum(x, DEVICE_AXIS) if self.devices.several else x

    def device_max(self, x: Any) -> Any:
        """Maximum over the devices of this process, inside compiled code."""
        return lax.pmax(x, DEVICE_AXIS) if self.devices.several else x

    def first(self, result: Any) -> Any:
        """A result that is the same on all devices, as numpy arrays."""

        def one(a: Any) -> Any:
            return jax.device_get(a.addressable_shards[0].data)[0] if self.devices.several else jax.device_get(a)

        return jax.tree.map(one, result)


def in_loop(body: Callable[[], Any], once: Any) -> Any:
    """What ``body`` returns, computed inside a loop of ``once`` rounds: a traced 1, so that XLA keeps the loop."""
    nothing = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(body))
    return lax.fori_loop(0, once, lambda i, _: body(), nothing)


Advance = Callable[[Fields, Mapping[str, float], float, int, float, int], Fields]


def build(
    machine: Machine, trees: Mapping[str, Node], rules: Rules, needs: Needs, tableau: Tableau, every: int
) -> Advance:
    """The function advance(fields, parameters, base_time, first, dt, n) that takes n steps.

    Step i = 0 .. n - 1 of them goes from t = base_time + (first + i) dt to t + dt. ``every`` steps are taken between two
    halo exchanges; 0 means an exchange for each stage. The fields given are used up (their memory is reused).
    """
    rhs = right_hand_side(trees, rules, needs)
    stages = range(tableau.stages)
    interior = tuple((0, n) for n in machine.topology.capacity())

    def one_step(u: dict[str, Value], parameters: Any, t: Any, dt: Any, frame: Frame) -> dict[str, Value]:
        k: list[dict[str, Value]] = []
        for i in stages:
            y = {name: combined(u[name], dt, tableau.a[i], [s[name] for s in k]) for name in u}
            k.append(rhs(y, parameters, t + tableau.c[i] * dt, frame))
        return {name: combined(u[name], dt, tableau.b, [s[name] for s in k]) for name in u}

    def several_steps(
        framed: dict[str, Value], frame: Frame, parameters: Any, t0: Any, first: Any, dt: Any, n: Any
    ) -> Fields:
        """Steps first .. first + n - 1 on a block with halo, cropped to the block."""

        def body(i: Any, u: dict[str, Value]) -> dict[str, Value]:
            new = one_step(u, parameters, t0 + (first + i) * dt, dt, frame)
            return {name: padded(new[name], u[name].windows) for name in u}

        if every == 1 and not machine.leaves_compiled_code:  # the loop over exchanges is around this
            new = one_step(framed, parameters, t0 + first * dt, dt, frame)
        else:
            new = lax.fori_loop(0, n, body, framed)
        return {name: value.crop(interior).array for name, value in new.items()}

    if every == 0:
        return _stage_by_stage(machine, rhs, tableau, interior)

    widths = machine.widths(every * tableau.stages)

    if machine.leaves_compiled_code:
        block = machine.exchanged(several_steps, widths, has_loop=True)

        def advance_phased(fields: Fields, parameters: Any, t0: float, first: int, dt: float, n: int) -> Fields:
            for done in range(0, n or 1, every):  # no step at all still compiles
                fields = jax.block_until_ready(block(fields, parameters, t0, first + done, dt, min(every, n - done)))
            return fields

        return advance_phased

    def loop(fields: Fields, places: Any, parameters: Any, t0: Any, first: Any, dt: Any, n: Any) -> Fields:
        frame = machine.frame(places)

        def body(b: Any, u: Fields) -> Fields:
            framed = machine.surrounded(u, widths, frame, {})
            return several_steps(
                framed, frame, parameters, t0, first + b * every, dt, jnp.minimum(every, n - b * every)
            )

        return lax.fori_loop(0, (n + every - 1) // every, body, fields)

    compiled = machine.compiled(loop, 5, donate=True)
    return lambda fields, *arguments: compiled(fields, machine.places, *arguments)


def padded(value: Value, windows: Any) -> Value:
    """The value on larger windows, zeros (never read as valid) in the rim."""
    padding = [(have[0] - want[0], want[1] - have[1], 0) for have, want in zip(value.windows, windows, strict=True)]  # type: ignore[index]
    return Value(lax.pad(value.array, value.array.dtype.type(0), padding), windows)


def _stage_by_stage(machine: Machine, rhs: Any, tableau: Tableau, interior: Any) -> Advance:
    """Advance with a halo exchange for every stage: blocks need be no wider than one stencil."""
    widths = machine.widths(1)

    def stage_value(u: Fields, k: list[Fields], dt: Any, coefficients: tuple[float, ...]) -> Fields:
        whole = {name: Value(array, interior) for name, array in u.items()}
        return {
            name: combined(whole[name], dt, coefficients, [Value(s[name], interior) for s in k]).array for name in u
        }

    def slope(y: dict[str, Value], frame: Frame, parameters: Any, t: Any) -> Fields:
        return {name: value.crop(interior).array for name, value in rhs(y, parameters, t, frame).items()}

    if machine.leaves_compiled_code:
        run = machine.exchanged(slope, widths)
        rows = [_combination(machine, stage_value, row) for row in (*tableau.a, tableau.b)]

        def advance_phased(fields: Fields, parameters: Any, t0: float, first: int, dt: float, n: int) -> Fields:
            before = fields
            for i in range(n or 1):  # no step at all still compiles
                t = t0 + (first + i) * dt
                k: list[Fields] = []
                for row, c in zip(rows, tableau.c, strict=False):
                    k.append(jax.block_until_ready(run(row(fields, k, dt), parameters, t + c * dt)))
                fields = rows[-1](fields, k, dt)
            return fields if n else before

        return advance_phased

    def loop(fields: Fields, places: Any, parameters: Any, t0: Any, first: Any, dt: Any, n: Any) -> Fields:
        frame = machine.frame(places)

        def body(i: Any, u: Fields) -> Fields:
            t = t0 + (first + i) * dt
            k: list[Fields] = []
            for row, c in zip(tableau.a, tableau.c, strict=True):
                y = machine.surrounded(stage_value(u, k, dt, row), widths, frame, {})
                k.append(slope(y, frame, parameters, t + c * dt))
            return stage_value(u, k, dt, tableau.b)

        return lax.fori_loop(0, n, body, fields)

    compiled = machine.compiled(loop, 5, donate=True)
    return lambda fields, *arguments: compiled(fields, machine.places, *arguments)


def _combination(machine: Machine, stage_value: Any, row: tuple[float, ...]) -> Body:
    """u + dt Σ_j row_j k_j on every device, for the phased form."""

    def body(u: Fields, k: list[Fields], dt: Any) -> Fields:
        return stage_value(u, k, dt, row)

    return machine.compiled(body, 1)
