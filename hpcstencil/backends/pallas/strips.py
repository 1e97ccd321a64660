"""Blocks beside the strips of cells that other blocks own: kernels read both where they are.

             upper strip of axis 0, with the corners
            ┌─────┬───────────────────────┬─────┐
            │     │                       │     │      An exchange goes along one axis after the other. The strips
            ├─────┼───────────────────────┼─────┤      of a later axis include the cells received along earlier
   lower    │     │                       │     │      ones, so that corners arrive without messages of their own.
   strip of │     │         block         │     │      If nothing reads corners, all strips are cut from the block,
   axis 1   │     │                       │     │      and all messages can travel at the same time.
            ├─────┼───────────────────────┼─────┤
            │     │                       │     │
            └─────┴───────────────────────┴─────┘

The last axis along which a cell lies outside the block determines the strip that has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from hpcstencil.backends.pallas import tiles
from hpcstencil.backends.pallas.tiles import Row, Windows, cells_in
from hpcstencil.distributed.device_grid import NO_OUTER, DeviceGrid
from hpcstencil.distributed.exchange import Ghosts
from hpcstencil.distributed.windows import Frame, Value

Values = Mapping[str, Value]
Strips = Mapping[int, tuple[jax.Array, jax.Array]]  # (lower, upper) by axis
BlankStrips = dict[int, tuple[jax.ShapeDtypeStruct, jax.ShapeDtypeStruct]]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["array", "strips", "sent"],
    meta_fields=["windows", "number", "corners"],
)
@dataclass(frozen=True)
class Beside(Value):
    """A field's block, and the strips of cells beyond it.

    Attributes
    ----------
    array, windows
        The block itself.
    strips
        The (lower, upper) strips by axis: arrays of shape (fields, cells per axis), or None on a side without any. In
        kernels they are references to memory.
    number
        The index of the field in these arrays.
    corners
        Whether the strips of an axis include the cells received along earlier axes.
    sent
        The strips that one kernel cut out of the block to be sent.
    """

    strips: Mapping[int, Ghosts]
    number: int
    corners: bool
    sent: Sequence[jax.Array] = ()

    @property
    def covered(self) -> Windows:
        """The windows of the block and its strips together."""
        return self._with_strips(range(len(self.windows)))

    def first(self, axis: int, upper: int, count: int | jax.Array) -> list[int | jax.Array]:
        """Return the index, per axis, of the first cell of a strip beside a block of ``count`` cells along ``axis``."""
        windows = self._with_strips(range(axis) if self.corners else ())
        result: list[int | jax.Array] = [start for start, _ in windows]
        result[axis] = count if upper else -width(self.strips[axis][0], axis)
        return result

    def _with_strips(self, axes: Iterable[int]) -> Windows:
        windows = [window for window in self.windows if window is not None]
        for axis in axes:
            lower, upper = self.strips.get(axis, (None, None))
            start, stop = windows[axis]
            windows[axis] = start - width(lower, axis), stop + width(upper, axis)
        return tuple(windows)

    def sides(self) -> Iterator[tuple[int, int, Any]]:
        """Yield the (axis, side, strip) of all strips, in the order of the exchange."""
        for axis, strips in self.strips.items():
            for upper, strip in enumerate(strips):
                if strip is not None:
                    yield axis, upper, strip


def width(strip: Any, axis: int) -> int:
    """Return the number of cells of a strip along its ``axis``; 0 if it is None."""
    return 0 if strip is None else int(strip.shape[1 + axis])


def covered(value: Value) -> Windows:
    """Return the windows that a value covers, with its strips if it has any."""
    if isinstance(value, Beside):
        return value.covered
    return tuple(window for window in value.windows if window is not None)


def beside(
    fields: Mapping[str, jax.Array],
    windows: Windows,
    ghosts: Mapping[int, Ghosts],
    corners: bool,
    sent: Sequence[jax.Array] = (),
) -> Values:
    """Return the blocks of ``fields`` with the ``ghosts`` that `DeviceGrid.received` returned for them in this order."""
    if not any(strip is not None for strips in ghosts.values() for strip in strips):
        return {name: Value(array, windows) for name, array in fields.items()}
    return {name: Beside(array, windows, ghosts, i, corners, sent) for i, (name, array) in enumerate(fields.items())}


@partial(jax.tree_util.register_dataclass, data_fields=["array", "strips"], meta_fields=["windows", "names"])
@dataclass(frozen=True)
class Outgoing(Value):
    """A field's block beside the strips that the kernel which computed it has stored, to be sent.

    Attributes
    ----------
    array, windows
        The block itself.
    strips
        The (lower, upper) strips by axis: arrays of shape (fields, cells per axis).
    names
        The fields in these arrays, in their order. Of these fields, only the first is an `Outgoing`.
    """

    strips: Strips
    names: tuple[str, ...]


def stored(values: Values, names: Sequence[str]) -> Strips | None:
    """Return the strips of the fields ``names`` if a kernel has stored them, by axis; otherwise None."""
    first = values[names[0]]
    return first.strips if isinstance(first, Outgoing) and first.names == tuple(names) else None


def replaced(values: Values, moved: Values) -> dict[str, Value]:
    """Return the ``values`` with those in ``moved`` in their place. Stored strips of fields that have moved are dropped."""
    return {
        name: Value(value.array, value.windows)
        if isinstance(value, Outgoing) and not moved.keys().isdisjoint(value.names)
        else value
        for name, value in values.items()
    } | dict(moved)


def blank(fields: int, widths: Sequence[int], cells: Sequence[int], dtype: Any) -> BlankStrips:
    """Return placeholders for the (lower, upper) strips by axis of some ``fields``.

    Each is an array of shape (fields, cells per axis), ``widths[axis]`` cells wide along its axis; axes of width 0 have none.
    ``cells`` are those of the block's array per axis.
    """
    shapes = {axis: (fields, *cells[:axis], w, *cells[axis + 1 :]) for axis, w in enumerate(widths) if w}
    return {axis: (jax.ShapeDtypeStruct(shape, dtype),) * 2 for axis, shape in shapes.items()}


@dataclass(frozen=True)
class Sending:
    """The strips of the fields ``names`` that kernels store when they compute the cells in them.

    ``widths`` are the cells of the strips of an axis along it, 0 without strips. ``least`` is the least number of cells per
    axis that a device's block has.
    """

    names: tuple[str, ...]
    widths: tuple[int, ...]
    least: tuple[int, ...]

    def blank(self, cells: Sequence[int], dtype: Any) -> BlankStrips:
        """Return placeholders for the strips of a block with an array of ``cells`` cells per axis."""
        return blank(len(self.names), self.widths, cells, dtype)

    def store(self, row: Row, moved: Mapping[str, jax.Array], counts: Sequence[Any], made: Any) -> None:
        """Store those of a row's cells that lie in strips. ``moved`` are the values of the fields in the row."""
        for axis, both in made.items():
            w, (start, stop) = self.widths[axis], row.region[axis]
            for strip, lies_in_it, first in zip(
                both, (start < w, stop > self.least[axis] - w), (0, counts[axis] - w), strict=True
            ):
                if not lies_in_it:
                    continue
                places = [row.index(a) - (first if a == axis else 0) for a in range(len(self.widths))]
                inside = (places[axis] >= 0) & (places[axis] < w)
                for n, name in enumerate(self.names):
                    number = jnp.full(row.shape, n, jnp.int32)
                    triton.store(strip.at[(number, *places)], moved[name], mask=inside)


@dataclass(frozen=True)
class Exchanging:
    """The exchange of strips inside compiled code, for the device with this ``frame``.

    ``interpret`` interprets the kernel that cuts strips out of a block, on a CPU.
    """

    device_grid: DeviceGrid
    frame: Frame
    interpret: bool

    def __call__(
        self,
        fields: Mapping[str, jax.Array],
        rounds: int,
        corners: bool,
        strips: Strips | None = None,
    ) -> Values:
        """Return the blocks of ``fields`` with strips for ``rounds`` evaluations of the right-hand side.

        Without ``corners`` no message waits for another one. The ``strips`` to be sent, by axis, are then those that kernels
        have stored; if there are none, one kernel cuts all.
        """
        grid = self.device_grid
        widths = grid.widths(rounds)
        if corners or not any(widths):
            return beside(fields, grid.interior, grid.received(fields, widths, self.frame), corners)
        strips = strips or self.strips_of(list(fields.values()), rounds)
        ghosts = {axis: grid.exchange.along(axis, *both, NO_OUTER) for axis, both in strips.items()}
        return beside(fields, grid.interior, ghosts, corners, [strip for both in strips.values() for strip in both])

    def strips_of(self, fields: Sequence[jax.Array], rounds: int = 1) -> Strips:
        """Return the strips of ``fields``, cut out of them by one kernel, for ``rounds`` evaluations; see `cut`."""
        return cut(fields, self.device_grid.widths(rounds), self.frame.counts, self.interpret)


def cut(
    fields: Sequence[jax.Array], widths: Sequence[int], counts: Sequence[int | jax.Array], interpret: bool
) -> Strips:
    """Return the strips at the (lower, upper) side of each axis with a width, cut out of the ``fields`` by one kernel.

    They are shaped as by `blank`. ``counts`` are the cells per axis that the block owns.
    """
    shape, made = fields[0].shape, blank(len(fields), widths, fields[0].shape, fields[0].dtype)
    box = {axis: tuple((0, n) for n in strip.shape[1:]) for axis, (strip, _) in made.items()}
    rows = {axis: pl.cdiv(cells_in([windows]), tiles.ROW) for axis, windows in box.items()}

    def kernel(counts: Any, fields: Any, strips: Any) -> None:
        number, first = pl.program_id(0), 0
        for axis in box:
            for upper in (0, 1):

                @pl.when((number >= first) & (number < first + rows[axis]))
                def _(axis: int = axis, upper: int = upper, first: int = first) -> None:
                    tile = Row((number - first) * tiles.ROW, tiles.ROW, [box[axis]])
                    place = [tile.index(a) for a in range(len(shape))]
                    source = list(place)
                    if upper:
                        source[axis] = place[axis] + (counts[axis] - widths[axis])
                    for n, field in enumerate(fields):
                        strip = strips[axis][upper].at[(jnp.full(tile.shape, n, jnp.int32), *place)]
                        triton.store(strip, triton.load(field.at[tuple(source)]))

                first += rows[axis]

    call = pl.pallas_call(
        kernel,
        out_shape=made,
        grid=(2 * sum(rows.values()),),
        interpret=interpret,
        compiler_params=triton.CompilerParams(num_warps=tiles.WARPS),
    )
    strips: Strips = call(jnp.stack([jnp.asarray(n, jnp.int32) for n in counts]), list(fields))
    return strips
