"""The decomposed grid on this process's devices: pads fields with halos and runs compiled code on every block."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from hpcstencil.distributed.device_blocks import DEVICE_AXIS, Devices, Placed, Places, frame_of, sides, values
from hpcstencil.distributed.exchange import Exchange, Ghosts, Outer, StripsOf
from hpcstencil.distributed.halo import Fields, received, strips_after, surround
from hpcstencil.distributed.windows import Frame, Parameters, Side, Value
from hpcstencil.numerics.grid import Grid
from hpcstencil.numerics.schedule import StepRange
from hpcstencil.numerics.topology import Topology

NO_OUTER: Outer = {}  # no ghost cells from outside, if the exchange happens inside compiled code
Body = Callable[..., Any]


@dataclass(frozen=True)
class DeviceGrid:
    """The decomposed grid on this process's devices.

    Fields have the shapes described in `device_blocks`, without ghost cells.

    Attributes
    ----------
    exchange
        Provides the ghost cells that other blocks own.
    radius
        The distance, in cells per axis, at which one evaluation of the right-hand side reads.
    margin
        The number of coordinates beyond a block, per axis and side.
    halo_wraps
        Whether the exchange also fills the ghost cells of undecomposed periodic axes; otherwise each derivative does.
    constants
        The numbers in the expressions. They are passed to compiled code at run time. Otherwise the compiler could fold them
        into others in some decompositions but not in others, and results would differ.
    """

    topology: Topology
    grid: Grid
    devices: Devices
    exchange: Exchange
    radius: tuple[int, ...]
    margin: tuple[int, ...]
    halo_wraps: bool
    constants: tuple[float, ...] = ()

    @cached_property
    def sides(self) -> tuple[tuple[Side, Side], ...]:
        """The (lower, upper) sides of this process's device blocks, per axis; see `device_blocks.sides`."""
        cells = self.topology.capacity()
        return sides(self.topology, [self.halo_wraps and n >= r for n, r in zip(cells, self.radius, strict=True)])

    @cached_property
    def places(self) -> Placed:
        """The `Places` of the device blocks, transferred to the devices at the first access."""
        return self.devices.put_places(Places.of(self.topology, self.grid, self.margin), self.constants)

    def frame(self, places: Placed) -> Frame:
        """Return the frame of the device with these ``places``. For use inside compiled code."""
        return frame_of(self.topology, self.sides, self.margin, places, self.constants)

    def widths(self, radii: int) -> tuple[int, ...]:
        """Return the number of ghost cells per axis and side for ``radii`` evaluations of the right-hand side per exchange.

        It is 0 on axes without a halo.
        """
        return self.widths_of([radii * r for r in self.radius])

    def widths_of(self, reach: Sequence[int]) -> tuple[int, ...]:
        """Return the number of ghost cells per axis and side for code that reads ``reach`` cells beyond the block.

        It is 0 on axes without a halo.
        """
        return tuple(
            r if "halo" in (low.kind, high.kind) else 0 for r, (low, high) in zip(reach, self.sides, strict=True)
        )

    def compiled(self, body: Body, shared: int, donated: Sequence[int] = ()) -> Body:
        """Compile ``body(fields, places, ..., shared arguments)`` for every device.

        With several devices, all arguments and results have a leading device axis, except the last ``shared`` arguments,
        which are the same for all devices. The arguments with the numbers ``donated``, such as 0 for the fields, are
        overwritten.
        """
        if not self.devices.several:
            return jax.jit(body, donate_argnums=donated)
        count = body.__code__.co_argcount
        axes = (0,) * (count - shared) + (None,) * shared
        return jax.pmap(body, DEVICE_AXIS, in_axes=axes, devices=self.devices.devices, donate_argnums=donated)

    def compiled_in_place(self, body: Body) -> Body:
        """Compile ``body(fields, places, parameters, range of steps)`` for every device, overwriting the fields.

        With several devices, each field keeps a leading device axis of length 1 inside the body. Removing and restoring that
        axis would make XLA copy the fields.
        """
        if not self.devices.several:
            return self.compiled(body, 2, donated=(0,))
        own, same = self.devices.sharding.spec, PartitionSpec()

        def of_device(fields: Fields, places: Placed, parameters: Parameters, these: StepRange) -> Any:
            return body(fields, jax.tree.map(lambda place: place[0], places), parameters, these)

        mapped = jax.shard_map(
            of_device, mesh=self.devices.sharding.mesh, in_specs=(own, own, same, same), out_specs=own, check_vma=False
        )
        return jax.jit(mapped, donate_argnums=0)

    def surrounded(
        self, fields: Mapping[str, jax.Array], widths: tuple[int, ...], frame: Frame, outer: Outer = NO_OUTER
    ) -> dict[str, Value]:
        """Exchange halos of ``widths`` cells per axis, and return the padded fields. For use inside compiled code.

        ``fields`` are a device's own cells without ghost cells. ``outer`` holds the ghost cells that were exchanged outside
        compiled code.
        """
        framed = surround(fields, widths, frame.counts, self.exchange, outer)
        windows = tuple(
            (-w * (low.kind == "halo"), n + w * (high.kind == "halo"))
            for w, n, (low, high) in zip(widths, frame.cells, frame.sides, strict=True)
        )
        return values(framed, windows)

    @property
    def interior(self) -> tuple[tuple[int, int], ...]:
        """The windows of a device's own cells: (0, cells) per axis."""
        return tuple((0, n) for n in self.topology.capacity())

    def cropped(self, fields: Mapping[str, Value]) -> Fields:
        """Return the arrays of the fields by name, cropped to the device's own cells."""
        return {name: value.crop(self.interior).array for name, value in fields.items()}

    def received(
        self, fields: Mapping[Any, jax.Array], widths: tuple[int, ...], frame: Frame, outer: Outer = NO_OUTER
    ) -> dict[int, Ghosts]:
        """Exchange halos, and return the ghost cells (lower, upper) by axis as separate arrays. For use inside compiled code.

        ``fields`` are a device's own cells. Each array of ghost cells has the shape (fields, cells per axis), with
        ``widths[axis]`` cells along its axis. It is None if no device of this process has a neighbour on that side.
        """
        ghosts = received(fields, widths, frame.counts, self.exchange, outer)
        return {part.axis: (part.lower, part.upper) for part in ghosts}

    def exchanged(self, body: Body, widths: tuple[int, ...], has_loop: bool = False, donate: bool = False) -> Body:
        """Return the compiled function of (fields, *shared) that exchanges halos and runs ``body`` on every block.

        ``body(values, frame, *shared)`` gets the fields padded with ``widths`` ghost cells per axis. The ``shared`` arguments
        are the same for all devices. If the exchange is not fused, its part between processes runs first. With ``donate``,
        the fields are overwritten. A body without a loop (``has_loop`` false) is wrapped in one, because XLA's convolutions
        round differently inside and outside of loops.
        """

        def whole(fields: Fields, places: Placed, outer: Outer, shared: tuple[Any, ...]) -> Any:
            frame = self.frame(places)
            surrounded = self.surrounded(fields, widths, frame, outer)
            if has_loop:
                return body(surrounded, frame, *shared)
            return in_loop(lambda: body(surrounded, frame, *shared), places["once"])

        return self._with_outer(whole, widths, donate)

    def beside_received(
        self, body: Body, widths: tuple[int, ...], donate: bool, names: Collection[Any] | None = None
    ) -> Body:
        """Like `exchanged`, for a ``body(fields, ghost cells, frame, *shared)`` that takes ghost cells as separate arrays.

        They are those that `received` returns. If ``names`` is given, only these fields are exchanged.
        """

        def whole(fields: Fields, places: Placed, outer: Outer, shared: tuple[Any, ...]) -> Any:
            frame = self.frame(places)
            return body(fields, self.received(among(fields, names), widths, frame, outer), frame, *shared)

        return self._with_outer(whole, widths, donate, names)

    def _with_outer(
        self, whole: Body, widths: tuple[int, ...], donate: bool, names: Collection[Any] | None = None
    ) -> Body:
        """Return ``whole(fields, places, ghost cells from outside, shared)`` as a function of fields and shared arguments."""
        run = self.compiled(whole, 1, donated=(0,) if donate else ())
        outside = self.outside(widths)
        return lambda fields, *arguments: run(fields, self.places, outside(among(fields, names)), arguments)

    def outside(self, widths: tuple[int, ...]) -> Callable[[Fields], Outer]:
        """Return the part of the exchange that precedes compiled code, as a function of the fields; see `Exchange.outside`.

        ``widths`` is the number of ghost cells per axis. The returned function is collective.
        """

        def strips_along(axis: int) -> StripsOf:
            def body(fields: Fields, places: Placed, outer: Outer) -> Any:
                return strips_after(fields, widths, self.frame(places).counts, self.exchange, outer, axis)

            run = self.compiled(body, 0)
            return lambda fields, outer: run(fields, self.places, outer)

        return self.exchange.outside(widths, strips_along)

    def device_sum(self, x: jax.Array) -> jax.Array:
        """Return the elementwise sum of ``x`` over the devices of this process. For use inside compiled code."""
        return lax.psum(x, DEVICE_AXIS) if self.devices.several else x

    def device_max(self, x: jax.Array) -> jax.Array:
        """Return the elementwise maximum of ``x`` over the devices of this process. For use inside compiled code."""
        return lax.pmax(x, DEVICE_AXIS) if self.devices.several else x

    def first(self, result: Any) -> Any:
        """Return a pytree of arrays that are equal on all devices of this process, as numpy arrays without a device axis."""

        def one(a: jax.Array) -> Any:
            return jax.device_get(a.addressable_shards[0].data)[0] if self.devices.several else jax.device_get(a)

        return jax.tree.map(one, result)


def among(fields: Mapping[Any, jax.Array], names: Collection[Any] | None) -> dict[Any, jax.Array]:
    """Return the fields (or numbered arrays) whose keys are in ``names``; all of them if ``names`` is None."""
    return dict(fields) if names is None else {name: fields[name] for name in names}


def in_loop(body: Callable[[], Any], once: jax.Array) -> Any:
    """Return the result of ``body()``, computed inside a loop of ``once`` rounds.

    ``once`` is the traced number 1, so that XLA cannot remove the loop.
    """
    nothing = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), jax.eval_shape(body))
    return lax.fori_loop(0, once, lambda i, _: body(), nothing)
