"""Launches of Pallas kernels over the tiles of a block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.typing import ArrayLike

from hpcstencil.backends.pallas.cells import Cells, Tile
from hpcstencil.backends.xla.evaluate import Rules
from hpcstencil.distributed.windows import STEP_SIZE, Frame, Value, Window
from hpcstencil.symbolic.expressions import Node, walk

# (arrays in memory, operands by the names of the arrays that hold them, time, step size) -> evaluator of trees
See = Callable[[Mapping[str, Value], Mapping[str, Node], Any, Any], Cells]
Body = Callable[[Any, See], Any]
Windows = tuple[Window, ...]  # of cells per axis
TILES = {1: (2048,), 2: (16, 128), 3: (4, 8, 64)}  # cells per axis: powers of 2, as Triton requires
WARPS = 8  # groups of 32 threads that compute a tile together
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

    def __call__(self, body: Body, given: Any, made: Any, trees: Sequence[Node], region: Windows) -> Any:
        """Compute ``body(given, see)`` in the cells of a ``region``, one kernel instance per tile.

        Returns arrays shaped like ``made``, whose cells outside the region are undefined. Inside the kernel, ``given``
        holds references to memory instead of arrays, and ``see`` makes the evaluators of ``trees``.
        """
        reach, sizes = self.rules.discretization.radius(trees), [stop - start for start, stop in region]
        shape = tile_shape(sizes, sum(1 for tree in trees for _ in walk(tree)))
        counts = [pl.cdiv(size, n) for size, n in zip(sizes, shape, strict=True)]

        def kernel(about: Any, given: Any, made: Any) -> None:
            frame = replace(
                self.frame,
                counts=[about["counts"][axis] for axis in range(len(shape))],
                touches=[[about["touches"][2 * axis + side] != 0 for side in (0, 1)] for axis in range(len(shape))],
                coordinates=about["coordinates"],
            )
            first = [pl.program_id(axis) for axis in reversed(range(len(shape)))]  # the last axis varies fastest
            tile = Tile(
                tuple(start + i * n for (start, _), i, n in zip(region, first, shape, strict=True)),
                shape,
                tuple(stop for _, stop in region),
                tuple(size % n != 0 for size, n in zip(sizes, shape, strict=True)),
            )
            parameters = {name: about["parameters"][i] for i, name in enumerate(self.parameters)}

            def values(edge: bool) -> Any:
                def see(arrays: Mapping[str, Value], operands: Mapping[str, Node], time: Any, dt: Any) -> Cells:
                    known = {**parameters, STEP_SIZE: dt}
                    return Cells(self.rules, frame, tile, arrays, operands, known, time, edge)

                return jax.tree.map(lambda x: jnp.broadcast_to(x, shape), body(given, see))

            near = self.near_edge(tile, frame, reach)
            results = values(False) if near is None else lax.cond(near, lambda: values(True), lambda: values(False))
            jax.tree.map(tile.store, made, results, is_leaf=lambda part: isinstance(part, Value))

        call = pl.pallas_call(
            kernel,
            out_shape=made,
            grid=tuple(reversed(counts)),
            interpret=self.interpret,
            compiler_params=triton.CompilerParams(num_warps=WARPS),
        )
        return call(self.about, given)

    def near_edge(self, tile: Tile, frame: Frame, reach: Sequence[int]) -> jax.Array | None:
        """Return whether a tile may read cells beyond the block, as a traced bool; None if no tile can.

        ``reach`` is the distance, in cells per axis, at which the trees read.
        """
        found = []
        for axis, (low, high) in enumerate(frame.sides):
            if reach[axis] and (low.kind != "halo" or low.boundary):
                found.append(tile.start[axis] < reach[axis])
            if reach[axis] and (high.kind != "halo" or high.boundary):
                found.append(tile.start[axis] + (tile.shape[axis] + reach[axis]) > frame.counts[axis])
        return reduce(jnp.logical_or, found) if found else None


def tile_shape(sizes: Sequence[int], nodes: int) -> tuple[int, ...]:
    """Return the shape of a tile for a region of ``sizes`` cells per axis and trees of ``nodes`` nodes in total."""
    first, *others = TILES[len(sizes)]
    most = (first // 2 if nodes >= LARGE else first, *others)
    return tuple(min(n, pl.next_power_of_2(size)) for n, size in zip(most, sizes, strict=True))
