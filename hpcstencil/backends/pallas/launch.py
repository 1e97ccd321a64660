"""Launches of Pallas kernels on a block: over boxes of its cells, and over rows of the cells that read strips.

A kernel whose arrays have strips is launched several times, into the same arrays. The first launch computes the cells that
read no strip, in boxes; it does not wait for the exchange. The others compute the cells that do. Along the last axis, where
strips are not contiguous in memory, those of a wide block are whole boxes too. Otherwise they are rows. The kernels of these
cells also store the strips that are sent next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.typing import ArrayLike

from hpcstencil.backends.pallas import tiles
from hpcstencil.backends.pallas.cells import Cells
from hpcstencil.backends.pallas.cost_model import edge_depth, has_wide_edges, line
from hpcstencil.backends.pallas.strips import Beside, Outgoing, Sending
from hpcstencil.backends.pallas.tiles import Box, Row, Tile, Windows, around, cells_in
from hpcstencil.backends.xla.evaluate import Rules
from hpcstencil.distributed.windows import STEP_SIZE, Frame, Value
from hpcstencil.symbolic.expressions import Node, walk

# (arrays in memory, operands by the names of the arrays that hold them, time, step size) -> evaluator of trees
See = Callable[[Mapping[str, Value], Mapping[str, Node], Any, Any], Cells]
Body = Callable[[Any, See], Any]
Edges = Collection[tuple[int, int]]  # (axis, side)
# The cells of a box by bytes of a value and number of axes, powers of 2 as Triton requires, and the groups of 32 threads that
# compute a box together: the fastest of `benchmarks/gpu.py --tune` on an H100.
TILES = {4: {1: (2048,), 2: (16, 128), 3: (4, 8, 64)}, 8: {1: (1024,), 2: (4, 256), 3: (2, 8, 64)}}
WARPS = {4: 8, 8: 4}
LARGE = 64  # trees with this many nodes in total get tiles of half the size, so that their values fit the registers


@dataclass(frozen=True)
class Launch:
    """A launcher of kernels on a device's block, which ``frame`` describes.

    All kernels receive ``about``: the frame's run-time values and the values of the ``parameters``. ``interpret`` runs the
    kernels on a CPU, slowly.
    """

    rules: Rules
    frame: Frame
    parameters: Sequence[str]
    about: Mapping[str, Any]
    interpret: bool

    @staticmethod
    def on(rules: Rules, frame: Frame, parameters: Mapping[str, ArrayLike], interpret: bool) -> Launch:
        """Return the launcher for a block, with the equation's ``parameters`` by name."""
        about = {
            "counts": jnp.stack([jnp.asarray(n, jnp.int32) for n in frame.counts]),
            "touches": jnp.stack([jnp.asarray(touch, jnp.int32) for pair in frame.touches for touch in pair]),
            "coordinates": [x.astype(rules.dtype) for x in frame.coordinates],
            "parameters": jnp.stack([jnp.asarray(x, rules.dtype) for x in (*parameters.values(), 0)]),
        }
        return Launch(rules, frame, tuple(parameters), about, interpret)

    @property
    def least(self) -> tuple[int, ...]:
        """The least number of cells per axis that a device's block has. Blocks along an axis differ by at most one cell."""
        pairs = zip(self.frame.counts, self.frame.cells, strict=True)
        return tuple(most if isinstance(count, int) else most - 1 for count, most in pairs)

    def blank(self, windows: Windows) -> Value:
        """Return a placeholder for an array that a kernel fills, on ``windows`` and in the run's dtype."""
        return Value(jax.ShapeDtypeStruct([stop - start for start, stop in windows], self.rules.dtype), windows)

    def inside(self, windows: Windows, trees: Sequence[Node]) -> Windows:
        """Return the windows of the cells in which ``trees`` can be evaluated from arrays on ``windows``."""
        reach = self.rules.discretization.radius(trees)
        return tuple(
            (start + r * (low.kind == "halo"), stop - r * (high.kind == "halo"))
            for (start, stop), r, (low, high) in zip(windows, reach, self.frame.sides, strict=True)
        )

    def __call__(
        self, body: Body, given: Any, made: Any, trees: Sequence[Node], region: Windows, sending: Sending | None = None
    ) -> tuple[Any, Any]:
        """Compute ``body(given, see)`` in the cells of a ``region``, one kernel instance per tile.

        Returns arrays shaped like ``made``, whose cells outside the region are undefined, and the strips of ``sending``, by
        axis. These are empty if there is nothing to send, or if cells in them read no strip: kernels do not store them then.
        Inside the kernel, ``given`` holds references to memory instead of arrays, and ``see`` makes the evaluators of
        ``trees``.
        """
        given = jax.tree.map(without_stored, given, is_leaf=is_value)
        edges, inner = edges_of(given), self.without_strips(given, trees, region)
        rest = [] if inner == region else around(region, inner)
        filled, strips = made, {}
        if rest != [region]:
            after = sent(given)
            filled, _ = self.in_boxes(body, blocks_alone(given), (made, {}), trees, inner, (), after)
        if sending is not None and self.stores(sending, region, rest, inner):
            strips = sending.blank([stop for _, stop in region], self.rules.dtype)
        into, rows = (filled, strips), list[Windows]()
        for box in rest:
            if has_wide_edges(self.least, self.itemsize) and box[:-1] == inner[:-1] and box != region:
                into = self.in_boxes(body, given, into, trees, box, edges, (), sending)
            else:
                rows.append(box)
        return self.in_rows(body, given, into, rows, sending) if rows else into

    def stores(self, sending: Sending, region: Windows, rest: Sequence[Windows], inner: Windows) -> bool:
        """Return whether all cells in the strips of ``sending`` read strips: they lie in the ``region``, not in ``inner``."""
        if region != tuple((0, n) for n in self.frame.cells):
            return False
        sides = zip(sending.widths, inner, self.least, self.frame.sides, strict=True)
        return rest == [region] or all(
            (low.kind != "halo" or start >= w) and (high.kind != "halo" or stop <= n - w)
            for w, (start, stop), n, (low, high) in sides
        )

    @property
    def all_edges(self) -> Edges:
        """All edges of the block."""
        return [(axis, upper) for axis in range(self.frame.ndim) for upper in (0, 1)]

    @property
    def itemsize(self) -> int:
        """The bytes of a value."""
        return np.dtype(self.rules.dtype).itemsize

    def without_strips(self, given: Any, trees: Sequence[Node], region: Windows) -> Windows:
        """Return the windows of the cells in a ``region`` that read no strip of an array in ``given``.

        Along the last axis it begins and ends where lines of memory do.
        """
        sides, reach, inner = edges_of(given), self.rules.discretization.radius(trees), []
        for axis, (start, stop) in enumerate(region):
            unit = edge_depth(self.least, self.itemsize) if axis == len(region) - 1 else 1
            first, last = -(-reach[axis] // unit) * unit, (self.least[axis] - reach[axis]) // unit * unit
            if (axis, 0) in sides and start < reach[axis]:
                start = first
            if (axis, 1) in sides and stop > self.least[axis] - reach[axis]:
                stop = last
            inner.append((start, stop))
        return tuple(inner)

    def in_boxes(
        self,
        body: Body,
        given: Any,
        made: Any,
        trees: Sequence[Node],
        region: Windows,
        edges: Edges,
        after: Sequence[jax.Array],
        sending: Sending | None = None,
    ) -> Any:
        """Compute the cells of a ``region`` in boxes of many cells.

        They may read beyond the ``edges``. The results are added to the arrays ``made``, or to new ones where these are
        placeholders: (arrays of the body's results, strips of ``sending``).

        The kernel ignores the arrays ``after``. It gets them because XLA starts messages when their strips are made; so it
        starts them before this kernel.
        """
        reach, sizes = self.rules.discretization.radius(trees), [stop - start for start, stop in region]
        shape = box_shape(sizes, sum(1 for tree in trees for _ in walk(tree)), self.itemsize)
        first = [start for start, _ in region]
        first[-1] -= max(0, first[-1]) % min(
            shape[-1], line(self.itemsize)
        )  # so that boxes begin where the memory's lines do
        counts = [pl.cdiv(stop - start, n) for start, (_, stop), n in zip(first, region, shape, strict=True)]
        ragged = tuple(
            (begin < start, (stop - begin) % n != 0)
            for begin, (start, stop), n in zip(first, region, shape, strict=True)
        )

        def kernel(about: Any, given: Any, after: Any, filled: Any) -> None:
            frame = self.seen_in_kernel(about)
            place = [pl.program_id(axis) for axis in reversed(range(len(shape)))]  # the last axis varies fastest
            starts = (start + i * n for start, i, n in zip(first, place, shape, strict=True))
            tile = Box(tuple(starts), shape, region, ragged)
            near = self.near_edge(tile, frame, reach)
            values = partial(self.values, body, about, frame, given, tile)
            results = (
                values(edges) if near is None else lax.cond(near, lambda: values(self.all_edges), lambda: values(edges))
            )
            store(tile, results, filled, sending, frame)

        return self.filled(kernel, given, after, made, tuple(reversed(counts)), WARPS[self.itemsize])

    def in_rows(
        self, body: Body, given: Any, made: Any, boxes: Sequence[Windows], sending: Sending | None = None
    ) -> Any:
        """Compute the cells of the ``boxes`` in rows, each cell with its own index, and add them as `in_boxes` does."""
        count = min(tiles.ROW, pl.next_power_of_2(cells_in(boxes)))

        def kernel(about: Any, given: Any, after: Any, filled: Any) -> None:
            tile, frame = Row(pl.program_id(0) * count, count, boxes), self.seen_in_kernel(about)
            store(tile, self.values(body, about, frame, given, tile, self.all_edges), filled, sending, frame)

        return self.filled(kernel, given, (), made, (pl.cdiv(cells_in(boxes), count),), tiles.WARPS)

    def filled(
        self,
        kernel: Callable[[Any, Any, Any, Any], None],
        given: Any,
        after: Sequence[jax.Array],
        made: Any,
        grid: tuple[int, ...],
        warps: int,
    ) -> Any:
        """Launch ``kernel(about, given, after, references to arrays)`` and return the arrays, structured like ``made``.

        It fills the arrays in ``made`` in place, and new ones where these are placeholders.
        """
        leaves, structure = jax.tree.flatten(made)
        old = {n: leaf for n, leaf in enumerate(leaves) if not isinstance(leaf, jax.ShapeDtypeStruct)}
        before = len(jax.tree.leaves((self.about, given, list(after))))

        def filling(about: Any, given: Any, after: Any, *arrays: Any) -> None:
            kernel(about, given, after, jax.tree.unflatten(structure, arrays[len(old) :]))

        made = pl.pallas_call(
            filling,
            out_shape=[jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves],
            grid=grid,
            interpret=self.interpret,
            compiler_params=triton.CompilerParams(num_warps=warps),
            input_output_aliases={before + i: n for i, n in enumerate(old)},
        )(self.about, given, list(after), *old.values())
        return jax.tree.unflatten(structure, made)

    def seen_in_kernel(self, about: Any) -> Frame:
        """Return the frame with the run-time values that a kernel received."""
        axes = range(self.frame.ndim)
        return replace(
            self.frame,
            counts=[about["counts"][axis] for axis in axes],
            touches=[[about["touches"][2 * axis + side] != 0 for side in (0, 1)] for axis in axes],
            coordinates=about["coordinates"],
        )

    def values(self, body: Body, about: Any, frame: Frame, given: Any, tile: Tile, edges: Edges) -> Any:
        """Return the results of a kernel's ``body`` in a tile that may read beyond these ``edges`` of the block."""
        parameters = {name: about["parameters"][i] for i, name in enumerate(self.parameters)}

        def see(arrays: Mapping[str, Value], operands: Mapping[str, Node], time: Any, dt: Any) -> Cells:
            known = {**parameters, STEP_SIZE: dt}
            return Cells(self.rules, frame, tile, arrays, operands, known, time, edges, self.least)

        return jax.tree.map(lambda x: jnp.broadcast_to(x, tile.shape), body(given, see))

    def near_edge(self, tile: Box, frame: Frame, reach: Sequence[int]) -> jax.Array | None:
        """Return whether a tile may read beyond an edge without strips, as a traced bool; None if no tile can.

        ``reach`` is the distance, in cells per axis, at which the trees read.
        """
        found = []
        for axis, (low, high) in enumerate(frame.sides):
            start, stop = tile.region[axis]
            if reach[axis] and start < reach[axis] and (low.kind != "halo" or low.boundary):
                found.append(tile.start[axis] < reach[axis])
            if reach[axis] and stop + reach[axis] > self.least[axis] and (high.kind != "halo" or high.boundary):
                found.append(tile.start[axis] + (tile.shape[axis] + reach[axis]) > frame.counts[axis])
        return reduce(jnp.logical_or, found) if found else None


def blocks_alone(given: Any) -> Any:
    """Return a kernel's arguments without strips, so that the kernel does not wait for them."""

    def alone(part: Any) -> Any:
        return Value(part.array, part.windows) if isinstance(part, Beside) else part

    return jax.tree.map(alone, given, is_leaf=is_value)


def without_stored(part: Any) -> Any:
    """Return a part of a kernel's arguments, without the strips that are stored to be sent."""
    return Value(part.array, part.windows) if isinstance(part, Outgoing) else part


def edges_of(given: Any) -> Edges:
    """Return the (axis, side) of the edges at which an array among a kernel's arguments has strips."""
    parts = jax.tree.leaves(given, is_leaf=is_value)
    return frozenset((axis, upper) for part in parts if isinstance(part, Beside) for axis, upper, _ in part.sides())


def store(tile: Tile, results: Any, filled: Any, sending: Sending | None, frame: Frame) -> None:
    """Store the ``results`` of a kernel's body in a tile, and those of its cells that lie in the strips of ``sending``.

    ``filled`` are the (arrays, strips) in memory.
    """
    arrays, strips = filled
    jax.tree.map(tile.store, arrays, results, is_leaf=is_value)
    if strips and sending is not None:
        sending.store(tile, results["moved"], frame.counts, strips)


def sent(given: Any) -> Sequence[jax.Array]:
    """Return the strips that were cut out of the blocks among a kernel's arguments."""
    parts = jax.tree.leaves(given, is_leaf=is_value)
    return next((part.sent for part in parts if isinstance(part, Beside)), ())


def is_value(part: Any) -> bool:
    """Return whether a part of a kernel's arguments is a `Value`."""
    return isinstance(part, Value)


def box_shape(sizes: Sequence[int], nodes: int, itemsize: int) -> tuple[int, ...]:
    """Return the shape of a box for a region of ``sizes`` cells per axis and trees of ``nodes`` nodes in total.

    A value takes ``itemsize`` bytes. If the region is narrow along the last axis, a box is longer along the first.
    """
    first, *others = TILES[itemsize][len(sizes)]
    first //= 2 if nodes >= LARGE else 1
    if others:
        first *= max(1, others[-1] // pl.next_power_of_2(sizes[-1]))
    return tuple(min(n, pl.next_power_of_2(size)) for n, size in zip((first, *others), sizes, strict=True))
