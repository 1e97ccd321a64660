"""Launches of Pallas kernels on a block: over boxes of its cells, and over rows of the cells that read strips.

A kernel whose arrays have strips is launched twice. The first launch computes the cells that read no strip, in boxes; it does
not wait for the exchange. The second one computes the other cells, in rows, and adds them to the same arrays. It also stores
the strips of its results that are sent next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from hpcstencil.backends.pallas.cost_model import SECTOR
from hpcstencil.backends.pallas.strips import Beside, Outgoing, Sending
from hpcstencil.backends.pallas.tiles import Box, Row, Tile, Windows, around, cells_in
from hpcstencil.backends.xla.evaluate import Rules
from hpcstencil.distributed.windows import STEP_SIZE, Frame, Value
from hpcstencil.symbolic.expressions import Node, walk

# (arrays in memory, operands by the names of the arrays that hold them, time, step size) -> evaluator of trees
See = Callable[[Mapping[str, Value], Mapping[str, Node], Any, Any], Cells]
Body = Callable[[Any, See], Any]
# The cells of a box by bytes of a value and number of axes, powers of 2 as Triton requires, and the groups of 32 threads that
# compute a box together: the fastest of `benchmarks/gpu.py --tune` on an H100.
TILES = {4: {1: (2048,), 2: (16, 128), 3: (4, 8, 64)}, 8: {1: (1024,), 2: (4, 256), 3: (2, 8, 64)}}
WARPS = {4: 8, 8: 4}
# Trees with this many nodes in total get smaller boxes, so that their values fit the registers, and one code for all cells that
# read strips, because it takes long to compile.
LARGE = 64


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
        axis; none if some cells of the strips are not among those that read strips. Inside the kernel, ``given`` holds
        references to memory instead of arrays, and ``see`` makes the evaluators of ``trees``.
        """
        given = blocks_alone(given, Outgoing)
        inner = self.without_strips(given, trees, region)
        rest = [] if inner == region else around(region, inner)
        if rest != [region]:
            made = self.in_boxes(body, blocks_alone(given, Beside), made, trees, inner, sent(given))
        if not rest:
            return made, {}
        if sending and rest != [region] and not self.leaves_strips(sending.widths, inner):
            sending = None
        last = [box for box in rest if box[:-1] == inner[:-1]] if nodes_in(trees) < LARGE else []
        groups = [[box for box in rest if box not in last], last]
        return self.in_rows(body, given, made, [group for group in groups if group], sending)

    def leaves_strips(self, widths: Sequence[int], inner: Windows) -> bool:
        """Return whether no strip of these ``widths`` that is sent has a cell in the ``inner`` windows."""
        sides = zip(widths, inner, self.least, self.frame.sides, strict=True)
        return all(
            (low.kind != "halo" or start >= w) and (high.kind != "halo" or stop <= n - w)
            for w, (start, stop), n, (low, high) in sides
        )

    def without_strips(self, given: Any, trees: Sequence[Node], region: Windows) -> Windows:
        """Return the windows of the cells in a ``region`` that read no strip of an array in ``given``."""
        arrays = jax.tree.leaves(given, is_leaf=lambda part: isinstance(part, Value))
        sides = {(axis, upper) for array in arrays if isinstance(array, Beside) for axis, upper, _ in array.sides()}
        reach, inner = self.rules.discretization.radius(trees), []
        for axis, (start, stop) in enumerate(region):
            unit = SECTOR if axis == len(region) - 1 else 1
            first, last = -(-reach[axis] // unit) * unit, (self.least[axis] - reach[axis]) // unit * unit
            if (axis, 0) in sides and start < reach[axis]:
                start = first
            if (axis, 1) in sides and stop > self.least[axis] - reach[axis]:
                stop = last
            inner.append((start, stop))
        return tuple(inner)

    def in_boxes(
        self, body: Body, given: Any, made: Any, trees: Sequence[Node], region: Windows, after: Sequence[jax.Array]
    ) -> Any:
        """Compute the cells of a ``region`` that read no strip, in boxes of many cells.

        The kernel ignores the arrays ``after``. It gets them because XLA starts messages when their strips are made; so it
        starts them before this kernel.
        """
        reach, itemsize = self.rules.discretization.radius(trees), np.dtype(self.rules.dtype).itemsize
        shape = box_shape([stop - start for start, stop in region], nodes_in(trees), itemsize)
        first = [start for start, _ in region]
        first[-1] -= max(0, first[-1]) % shape[-1]  # so that boxes begin where the memory's lines do
        counts = [pl.cdiv(stop - start, n) for start, (_, stop), n in zip(first, region, shape, strict=True)]
        ragged = tuple(
            (begin < start, (stop - begin) % n != 0)
            for begin, (start, stop), n in zip(first, region, shape, strict=True)
        )

        def kernel(about: Any, given: Any, after: Any, made: Any) -> None:
            frame = self.seen_in_kernel(about)
            place = [pl.program_id(axis) for axis in reversed(range(len(shape)))]  # the last axis varies fastest
            starts = (start + i * n for start, i, n in zip(first, place, shape, strict=True))
            tile = Box(tuple(starts), shape, region, ragged)
            near = self.near_edge(tile, frame, reach)
            values = partial(self.values, body, about, frame, given, tile)
            results = values(False) if near is None else lax.cond(near, lambda: values(True), lambda: values(False))
            jax.tree.map(tile.store, made, results, is_leaf=is_value)

        call = self.call(kernel, made, tuple(reversed(counts)), WARPS[itemsize])
        return call(self.about, given, list(after))

    def in_rows(
        self, body: Body, given: Any, made: Any, groups: Sequence[Sequence[Windows]], sending: Sending | None
    ) -> tuple[Any, Any]:
        """Compute the cells of ``groups`` of boxes in rows, each cell with its own index, and store the strips of ``sending``.

        Each group has code of its own, which reads only the strips that its cells may need. The cells are added to the arrays
        ``made``, or to new ones if these are placeholders. Returns these arrays and the strips by axis.
        """
        count = min(tiles.ROW, pl.next_power_of_2(max(cells_in(boxes) for boxes in groups)))
        rows = [pl.cdiv(cells_in(boxes), count) for boxes in groups]

        def kernel(about: Any, given: Any, *arrays: Any) -> None:
            frame, (made, strips), number, first = self.seen_in_kernel(about), arrays[-2:], pl.program_id(0), 0
            for boxes, n in zip(groups, rows, strict=True):

                @pl.when((number >= first) & (number < first + n))
                def _(boxes: Sequence[Windows] = boxes, first: int = first) -> None:
                    tile = Row((number - first) * count, count, boxes)
                    results = self.values(body, about, frame, given, tile, True)
                    jax.tree.map(tile.store, made, results, is_leaf=is_value)
                    if sending:
                        sending.store(tile, results["moved"], frame.counts, strips)

                first += n

        so_far = jax.tree.leaves(made)
        new = isinstance(so_far[0], jax.ShapeDtypeStruct)
        before = len(jax.tree.leaves((self.about, given)))
        same = {} if new else {before + i: i for i in range(len(so_far))}
        blank = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), made)
        strips = sending.blank(self.frame.cells, self.rules.dtype) if sending else {}
        call = self.call(kernel, (blank, strips), (sum(rows),), tiles.WARPS, same)
        results: tuple[Any, Any] = call(self.about, given) if new else call(self.about, given, made)
        return results

    def call(
        self,
        kernel: Callable[..., None],
        made: Any,
        grid: tuple[int, ...],
        warps: int,
        same: Mapping[int, int] = {},
    ) -> Any:
        """Return the launch of a kernel that fills arrays like ``made``; ``same`` are arguments that it fills in place."""
        return pl.pallas_call(
            kernel,
            out_shape=made,
            grid=grid,
            interpret=self.interpret,
            compiler_params=triton.CompilerParams(num_warps=warps),
            input_output_aliases=dict(same),
        )

    def seen_in_kernel(self, about: Any) -> Frame:
        """Return the frame with the run-time values that a kernel received."""
        axes = range(self.frame.ndim)
        return replace(
            self.frame,
            counts=[about["counts"][axis] for axis in axes],
            touches=[[about["touches"][2 * axis + side] != 0 for side in (0, 1)] for axis in axes],
            coordinates=about["coordinates"],
        )

    def values(self, body: Body, about: Any, frame: Frame, given: Any, tile: Tile, edge: bool) -> Any:
        """Return the results of a kernel's ``body`` in a tile; ``edge`` says whether it may read beyond the block."""
        parameters = {name: about["parameters"][i] for i, name in enumerate(self.parameters)}

        def see(arrays: Mapping[str, Value], operands: Mapping[str, Node], time: Any, dt: Any) -> Cells:
            known = {**parameters, STEP_SIZE: dt}
            return Cells(self.rules, frame, tile, arrays, operands, known, time, edge, self.least)

        return jax.tree.map(lambda x: jnp.broadcast_to(x, tile.shape), body(given, see))

    def near_edge(self, tile: Box, frame: Frame, reach: Sequence[int]) -> jax.Array | None:
        """Return whether a tile may read cells beyond the block, as a traced bool; None if no tile can.

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


def blocks_alone(given: Any, kind: type[Value]) -> Any:
    """Return a kernel's arguments without the strips of values of a ``kind``, so that the kernel does not wait for them."""

    def alone(part: Any) -> Any:
        return Value(part.array, part.windows) if isinstance(part, kind) else part

    return jax.tree.map(alone, given, is_leaf=is_value)


def sent(given: Any) -> Sequence[jax.Array]:
    """Return the strips of the blocks among a kernel's arguments that are sent."""
    parts = jax.tree.leaves(given, is_leaf=is_value)
    return next((part.sent for part in parts if isinstance(part, Beside)), ())


def nodes_in(trees: Sequence[Node]) -> int:
    """Return the number of nodes in all ``trees``."""
    return sum(1 for tree in trees for _ in walk(tree))


def is_value(part: Any) -> bool:
    """Return whether a part of a kernel's arguments is a `Value`."""
    return isinstance(part, Value)


def box_shape(sizes: Sequence[int], nodes: int, itemsize: int) -> tuple[int, ...]:
    """Return the shape of a box for a region of ``sizes`` cells per axis and trees of ``nodes`` nodes in total.

    A value takes ``itemsize`` bytes.
    """
    first, *others = TILES[itemsize][len(sizes)]
    most = (first // 2 if nodes >= LARGE else first, *others)
    return tuple(min(n, pl.next_power_of_2(size)) for n, size in zip(most, sizes, strict=True))
