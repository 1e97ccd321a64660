"""Sums and extrema over the whole grid, bitwise equal for every decomposition.

Each value v is split into integers, v = 2^e (q_1 2^-b + q_2 2^-2b + q_3 2^-3b), where 2^e is larger than every |v|. The
integers are summed exactly over the cells of a block, over devices with `psum`, and over processes with an allreduce.
Unlike floating-point addition, integer addition does not depend on the order. The number of bits b is small enough that no
sum over the whole grid overflows; three parts together have more bits than float64.

After Demmel & Nguyen, "Parallel reproducible summation", IEEE Trans. Comput. 64 (2015) 2060-2070.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hpcstencil.backends.backend import Cellwise, Reduced
from hpcstencil.backends.xla.evaluate import Evaluation, Rules, of_members
from hpcstencil.distributed.device_blocks import Devices
from hpcstencil.distributed.device_grid import DeviceGrid
from hpcstencil.distributed.halo import Fields
from hpcstencil.distributed.windows import Frame, Number, Parameters, Value
from hpcstencil.numerics.error_norm import LIMIT, QUANTUM, error_norm
from hpcstencil.runtime.communicator import Communicator
from hpcstencil.runtime.threads import by_threads
from hpcstencil.symbolic.expressions import OPERATORS, Field, Node
from hpcstencil.symbolic.stencil_reach import Needs

PARTS = 3
CELLS_AT_ONCE = 2**16  # cells reduced at a time on a CPU, where XLA stores temporaries of at least 8 bytes per cell
VALUES_AT_ONCE = 2**20  # most cells evaluated at a time on a CPU, for native code that reduces them
CELLS_IN_NUMPY = 2**17  # the same in numpy; larger, because its threads synchronize between numpy calls

# (values of each tree in some rows, mask of the cells that count) -> partial result of these rows
OfRows = Callable[[list[jax.Array], jax.Array], Any]
Norm = Callable[[jax.Array], np.ndarray]  # sums of squared errors on the devices of this process -> the error


def bits_per_part(cells: int) -> int:
    """Return a number of bits per part for which a sum over ``cells`` cells cannot overflow int64."""
    return 62 - math.ceil(math.log2(max(cells, 2)))


def exact_sum(parts: np.ndarray, exponent: int, bits: int) -> float:
    """Return 2^exponent Σ_j parts_j 2^(-j bits), computed exactly and rounded once to float64.

    ``parts`` is int64 of shape (parts,), with j = 1, 2, ... The result is infinite if float64 has no such number.
    """
    last = len(parts) - 1
    total = sum(int(parts[j]) << ((last - j) * bits) for j in np.flatnonzero(parts).tolist())
    unit = exponent - len(parts) * bits
    try:
        return (total << max(0, unit)) / (1 << max(0, -unit))  # Python divides integers with one rounding
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def integer_parts(values: np.ndarray, exponent: int, bits: int) -> np.ndarray:
    """Return the integer parts of the sum of an array, whose values are below 2^``exponent``: int64 of shape (PARTS,).

    The parts of several arrays may be added. ``bits`` are those of `bits_per_part` for all values together.
    """
    few = 1 << max(0, 53 - bits)  # numbers whose sum is exact in float64, in any order
    scale = math.ldexp(1.0, bits - exponent)
    totals, cells = np.zeros(PARTS, np.int64), values.reshape(-1)
    room = np.empty((2, min(len(cells), CELLS_IN_NUMPY)))
    for first in range(0, len(cells), CELLS_IN_NUMPY):
        some = cells[first : first + CELLS_IN_NUMPY]
        rest, whole = room[:, : len(some)]
        with np.errstate(invalid="ignore"):  # values that are not finite, whose sum is not used
            np.multiply(some, scale, out=rest, dtype=np.float64)
            for j in range(PARTS):
                if j:
                    rest *= 2.0**bits
                np.rint(rest, out=whole)
                rest -= whole
                totals[j] += np.add.reduceat(whole, np.arange(0, len(whole), few)).astype(np.int64).sum()
    return totals


@dataclass(frozen=True)
class CompiledTrees:
    """Expression trees that compiled code evaluates.

    ``needs`` maps the operands in them to the ghost cells that they require. ``listed`` are the parameters in which the
    members of an ensemble differ; None for a single run.
    """

    device_grid: DeviceGrid
    rules: Rules
    needs: Needs
    trees: Sequence[Node]
    listed: Collection[str] | None

    @cached_property
    def need_ghost_cells(self) -> bool:
        """Whether any tree applies a stencil. If so, values need ghost cells and are computed for the whole block at once."""
        return any(not tree.kinds.isdisjoint(OPERATORS) for tree in self.trees)

    @property
    def widths(self) -> tuple[int, ...]:
        """The number of ghost cells per axis and side that the values need; zeros if no tree applies a stencil."""
        return self.device_grid.widths(1) if self.need_ghost_cells else (0,) * self.device_grid.grid.ndim

    @property
    def grid_axes(self) -> tuple[int, ...]:
        """The grid axes of the arrays of values. In an ensemble, the member axis follows them."""
        return tuple(range(self.device_grid.grid.ndim))

    def values(
        self, fields: Mapping[str, Value], parameters: Parameters, time: Number, frame: Frame
    ) -> list[jax.Array]:
        """Evaluate each tree in the own cells of ``frame``, for use inside compiled code.

        The arrays are in the run's dtype and have no ghost cells. In an ensemble, their last axis is the member.
        """

        def of_one(fields: Mapping[str, Value], parameters: Parameters, time: Number, frame: Frame) -> list[jax.Array]:
            evaluate = Evaluation(self.rules, frame, self.needs, fields, parameters, time)
            return [_on_block(evaluate(tree), frame) for tree in self.trees]

        cellwise = of_one if self.listed is None else of_members(of_one, self.listed)
        return cellwise(fields, parameters, time, frame)

    def by_rows(
        self, fields: Mapping[str, Value], parameters: Parameters, time: Number, frame: Frame, action: OfRows
    ) -> Any:
        """Apply ``action`` to one group of rows after the other, for use inside compiled code.

        A row is one index along the first axis. ``action(values, mask)`` gets the values of the trees and a mask of the
        cells that count. Its results are stacked along a new first axis.
        """
        values = self.values(fields, parameters, time, frame) if self.need_ghost_cells else []
        in_row = len(self.trees) * math.prod(next(iter(fields.values())).array.shape[1:])
        few = min(frame.cells[0], max(1, CELLS_AT_ONCE // in_row))
        rows = few if on_cpu(self.device_grid) else frame.cells[0]

        def some(first: jax.Array) -> Any:
            start = jnp.minimum(first, frame.cells[0] - rows)
            part = frame.rows(start, rows)
            owned = _owned(part, first - start)
            if self.need_ghost_cells:
                mine = [lax.dynamic_slice_in_dim(v, start, rows) for v in values]
            else:
                mine = self.values({name: v.rows(start, rows) for name, v in fields.items()}, parameters, time, part)
            return action(mine, owned if self.listed is None else owned[..., None])

        return lax.map(some, jnp.arange(0, frame.cells[0], rows))


def compiled_extremes(trees: CompiledTrees) -> Callable[..., Any]:
    """Return the function (fields, parameters, time) -> extrema of each tree over the devices of this process.

    The result is float64 of shape (trees, 3), with a trailing member axis in an ensemble. The three columns are the
    maximum, the negative minimum and the number of non-finite cells.
    """
    device_grid, axes = trees.device_grid, trees.grid_axes

    def of_rows(values: list[jax.Array], owned: jax.Array) -> Any:
        high = jnp.stack([jnp.where(owned, v, -jnp.inf).max(axes) for v in values]).astype(jnp.float64)
        low = -jnp.stack([jnp.where(owned, v, jnp.inf).min(axes) for v in values]).astype(jnp.float64)
        # max() may skip a NaN, so non-finite cells are counted separately.
        broken = jnp.stack([jnp.where(owned, ~jnp.isfinite(v), False).sum(axes) for v in values])
        return high, low, broken

    def extremes(fields: Mapping[str, Value], frame: Frame, parameters: Parameters, time: Number) -> Any:
        high, low, broken = trees.by_rows(fields, parameters, time, frame, of_rows)
        found = (
            device_grid.device_max(high.max(0)),
            device_grid.device_max(low.max(0)),
            device_grid.device_sum(broken.sum(0)),
        )
        return jnp.stack([part.astype(jnp.float64) for part in found], 1)

    return device_grid.exchanged(extremes, trees.widths)


def compiled_values(trees: CompiledTrees) -> Callable[..., list[jax.Array]]:
    """Return the function (fields, parameters, time) -> value of each tree in every cell.

    Each result is an array in the run's precision, laid out on the devices like a field, without ghost cells.
    """

    def of_cells(fields: Mapping[str, Value], frame: Frame, parameters: Parameters, time: Number) -> list[jax.Array]:
        return trees.values(fields, parameters, time, frame)

    return trees.device_grid.exchanged(of_cells, trees.widths)


def compiled_sums(trees: CompiledTrees, bits: int) -> Callable[..., Any]:
    """Return the function (fields, parameters, time, scales) -> integer parts q of the sum of each tree.

    The sums are over the devices of this process: int64 of shape (trees, PARTS), with a trailing member axis in an
    ensemble. ``scales`` holds 2^(bits - e) of each tree: float64 of shape (trees,) or (trees, members).
    """
    device_grid = trees.device_grid

    def sums(
        fields: Mapping[str, Value], frame: Frame, parameters: Parameters, time: Number, scales: np.ndarray | jax.Array
    ) -> Any:
        def of_rows(values: list[jax.Array], owned: jax.Array) -> Any:
            totals = []
            for i, v in enumerate(values):
                rest, parts = jnp.where(owned, v, 0).astype(jnp.float64) * scales[i], []
                for _ in range(PARTS):
                    whole = jnp.rint(rest)
                    rest = (rest - whole) * 2.0**bits
                    parts.append(whole.astype(jnp.int64).sum(trees.grid_axes))
                totals.append(jnp.stack(parts))
            return jnp.stack(totals)

        return device_grid.device_sum(trees.by_rows(fields, parameters, time, frame, of_rows).sum(0))

    return device_grid.exchanged(sums, trees.widths)


def compiled_error_sums(trees: CompiledTrees) -> Callable[..., Any]:
    """Return the function (fields, parameters, time) -> sums of squared errors, as `error_norm` defines them.

    The trees are the squared errors. The sums are over the devices of this process: int64 of shape (trees, WORDS), with a
    trailing member axis in an ensemble.
    """
    device_grid, axes = trees.device_grid, trees.grid_axes

    def of_rows(values: list[jax.Array], owned: jax.Array) -> jax.Array:
        totals = []
        for v in values:
            broken = owned & ~(v < LIMIT)
            rest, words = jnp.where(owned & ~broken, v, 0).astype(jnp.float64), []
            for unit in (QUANTUM * 2.0**64, QUANTUM * 2.0**32, QUANTUM):
                whole = jnp.rint(rest * (1 / unit))
                rest = rest - whole * unit
                words.append(whole.astype(jnp.int64).sum(axes))
            totals.append(jnp.stack([*reversed(words), broken.astype(jnp.int64).sum(axes)]))
        return jnp.stack(totals)

    def sums(fields: Mapping[str, Value], frame: Frame, parameters: Parameters, time: Number) -> jax.Array:
        return device_grid.device_sum(trees.by_rows(fields, parameters, time, frame, of_rows).sum(0))

    return device_grid.exchanged(sums, trees.widths)


def norm_of(device_grid: DeviceGrid, communicator: Communicator) -> Norm:
    """Return the collective function that turns this process's sums of squared errors into the `error_norm`."""

    def norm(sums: jax.Array) -> np.ndarray:
        return error_norm(communicator.total(np.asarray(device_grid.first(sums))), device_grid.grid.cells)

    return norm


def compiled_rows(trees: CompiledTrees, rows: int) -> Callable[..., list[jax.Array]]:
    """Return the function (fields, parameters, time, first) -> value of each tree in ``rows`` rows from row ``first`` on.

    The trees must not apply stencils, and there must be one device. The results are as those of `compiled_values`.
    """

    def of_rows(
        fields: Mapping[str, Value], frame: Frame, parameters: Parameters, time: Number, first: int | jax.Array
    ) -> list[jax.Array]:
        some = {name: value.rows(first, rows) for name, value in fields.items()}
        return trees.values(some, parameters, time, frame.rows(first, rows))

    return trees.device_grid.exchanged(of_rows, trees.widths)


def blocks_of_values(trees: CompiledTrees, evaluation: Cellwise | None) -> Callable[..., Iterator[list[np.ndarray]]]:
    """Return the function (fields, parameters, time) -> values of the trees on this process.

    The function yields one block of cells after the other, as a list with an array for each tree. XLA computes the values,
    unless an ``evaluation`` does. It evaluates trees without stencils a few rows at a time, so that the values stay in the
    caches.
    """
    devices, shape = trees.device_grid.devices, trees.device_grid.topology.capacity()
    if evaluation or trees.need_ghost_cells or devices.several:
        whole = evaluation or compiled_values(trees)

        def all_rows(fields: Fields, parameters: Parameters, time: Number) -> Iterator[list[np.ndarray]]:
            yield from zip(*(devices.owned(array) for array in whole(fields, parameters, time)), strict=True)

        return all_rows
    at_once = min(VALUES_AT_ONCE, max(CELLS_AT_ONCE, math.prod(shape) // 8))  # little memory beside the fields
    rows = min(shape[0], max(1, at_once // math.prod(shape[1:])))
    some = compiled_rows(trees, rows)

    def by_rows(fields: Fields, parameters: Parameters, time: Number) -> Iterator[list[np.ndarray]]:
        for first in range(0, shape[0], rows):
            start = min(first, shape[0] - rows)
            yield [np.asarray(array)[first - start :] for array in some(fields, parameters, time, start)]

    return by_rows


class TreeReducer(Protocol):
    """The reductions of some trees on this process's CPUs, without XLA."""

    @property
    def of_values(self) -> ValueReducer | None:
        """What reduces the values of other trees; None if compiled code does."""

    @property
    def of_members(self) -> bool:
        """Whether results are per member of an ensemble. The member is then the last axis of the fields and of the results."""

    def expect(self, wanted: bool) -> None:
        """Announce that the fields are about to change, and whether reductions of their new values are ``wanted``."""

    def reduces(self, tree: Node) -> bool:
        """Return whether it reduces this tree; equal on all processes."""

    def extremes(self, tree: Node, fields: Fields, parameters: Parameters, time: float | np.ndarray) -> np.ndarray:
        """Return (maximum, -minimum, number of non-finite cells) of a tree on this process, float64, and keep its sum."""

    def parts(self, tree: Node, fields: Fields, exponent: np.ndarray) -> np.ndarray:
        """Return integers, int64 of shape (parts,), that make up the sum of a tree on this process, after its `extremes`.

        Those of all processes are added up. The values are below 2^``exponent``, a number or one per member.
        """

    def total(self, parts: np.ndarray, exponent: int) -> float:
        """Return the sum over the whole grid from the added ``parts`` of all processes, rounded once to float64."""

    def evaluation(self, trees: Sequence[Node]) -> Cellwise | None:
        """Return the function that computes the values of these trees, which ``of_values`` reduces; None if XLA does."""

    def recorder(self, trees: Sequence[Node], most: int, with_sums: bool) -> TreeRecords | None:
        """Return a recorder of up to ``most`` reductions of these trees, by compiled calls; None if they make none.

        See `backend.Reductions`.
        """


class ValueReducer(Protocol):
    """The reductions of any values on this process's CPUs, each time those of one tree."""

    def begin(self, tree: Node) -> None:
        """Begin with the values of a tree."""

    def add(self, tree: Node, values: np.ndarray) -> None:
        """Add an array of values."""

    def end(self, tree: Node) -> np.ndarray:
        """Return the extremes of all values since `begin`, as `TreeReducer.extremes`; `TreeReducer.parts` returns their sum."""


class TreeRecords(Protocol):
    """Reductions of n trees after some steps of a compiled call, on this process's CPUs."""

    @property
    def with_last(self) -> bool:
        """See `backend.Recorder`."""

    def expect(self, every: int, first: int, origin: int, times: Sequence[float]) -> None:
        """See `backend.Recorder`."""

    def expect_nothing(self) -> None:
        """See `backend.Recorder`."""

    def extremes(self, count: int) -> np.ndarray:
        """Return the extremes of the first ``count`` records, as `TreeReducer.extremes`: float64 of shape (count, n, 3), or
        (count, n, members, 3)."""

    def parts(self, count: int) -> np.ndarray:
        """Return the parts of the sums of the first ``count`` records, as `TreeReducer.parts`: int64 of shape
        (count, n, parts), or (count, n, members, parts)."""


@dataclass(frozen=True)
class Recorder:
    """Reductions that are recorded by a compiled call; see `backend.Recorder`."""

    records: TreeRecords
    reducer: TreeReducer
    communicator: Communicator
    with_sums: bool

    @property
    def with_last(self) -> bool:
        return self.records.with_last

    def expect(self, every: int, first: int, origin: int, times: Sequence[float]) -> None:
        self.records.expect(every, first, origin, times)

    def expect_nothing(self) -> None:
        self.records.expect_nothing()

    def taken(self, count: int) -> Iterator[Reduced]:
        high, low, broken = np.moveaxis(self.records.extremes(count), -1, 0)
        low, high = _bounds(self.communicator, high, low)
        broken = self.communicator.total(broken.astype(np.int64))
        sums = self._sums(count, low, high, broken) if self.with_sums else np.full(broken.shape, math.nan)
        for n in range(count):
            yield Reduced(low[n], high[n], broken[n], sums[n])

    def _sums(self, count: int, low: np.ndarray, high: np.ndarray, broken: np.ndarray) -> np.ndarray:
        """Return the sums of the first ``count`` records, NaN for trees with ``broken`` cells. Collective."""
        exponents = _exponents(np.maximum(np.abs(low), np.abs(high)))
        totals = self.communicator.total(self.records.parts(count))
        sums = np.full(broken.shape, math.nan)
        for index in zip(*np.nonzero(broken == 0), strict=True):
            sums[index] = self.reducer.total(totals[index], int(exponents[index]))
        return sums


def _bounds(communicator: Communicator, high: np.ndarray, low: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (minimum, maximum) over all processes, from the maxima of values and of their negatives. Collective."""
    high, low = communicator.maximum(np.stack([high, low]))
    return 0.0 - low, high + 0.0  # which of 0 and -0 was found first is left to chance


def _exponents(largest: np.ndarray) -> np.ndarray:
    """Return the exponents e of 2 with which sums of values up to these magnitudes are split into integers.

    2^(bits - e) must be a normal number, because XLA takes smaller ones as 0. Of values below 2^-960 no bits are lost.
    """
    return np.clip(np.where(np.isfinite(largest), np.frexp(largest)[1], 0), -960, 1024)


@dataclass(frozen=True)
class ByNumpy:
    """Reductions by numpy, which is several times as fast at this as XLA. ``bits`` are those of `bits_per_part`."""

    devices: Devices
    bits: int
    of_values: ClassVar[None] = None
    of_members: ClassVar[bool] = False

    def expect(self, wanted: bool) -> None:
        return None

    def reduces(self, tree: Node) -> bool:
        return isinstance(tree, Field)

    def extremes(self, tree: Node, fields: Fields, parameters: Parameters, time: float | np.ndarray) -> np.ndarray:
        blocks = self._blocks(tree, fields)
        found = [by_threads(lambda part: (part.max(), -part.min()), block) for block in blocks]
        high, low = np.concatenate(found).astype(np.float64).max(0)
        if np.isfinite(high) and np.isfinite(low):
            return np.array([high, low, 0.0])
        return np.array([high, low, sum(int(np.count_nonzero(~np.isfinite(block))) for block in blocks)])

    def parts(self, tree: Node, fields: Fields, exponent: np.ndarray) -> np.ndarray:
        def of_part(part: np.ndarray) -> np.ndarray:
            return integer_parts(part, int(exponent), self.bits)

        return np.sum([total for block in self._blocks(tree, fields) for total in by_threads(of_part, block)], 0)

    def _blocks(self, tree: Node, fields: Fields) -> list[np.ndarray]:
        assert isinstance(tree, Field)
        return [block for block in self.devices.owned(fields[tree.name]) if block.size]

    def total(self, parts: np.ndarray, exponent: int) -> float:
        return exact_sum(parts, exponent, self.bits)

    def evaluation(self, trees: Sequence[Node]) -> Cellwise | None:
        return None

    def recorder(self, trees: Sequence[Node], most: int, with_sums: bool) -> TreeRecords | None:
        return None


class Reductions:
    """Reductions of a fixed list of trees over the whole grid, compiled once; see `backend.Reductions`.

    On CPUs ``reducer`` reduces trees that are plain fields, and if it can, others or their values; in an ensemble only if it is
    `TreeReducer.of_members`. Compiled code reduces the rest. ``listed`` are the parameters in which the members of an ensemble
    differ; None for a single run.
    """

    def __init__(
        self,
        device_grid: DeviceGrid,
        communicator: Communicator,
        rules: Rules,
        needs: Needs,
        trees: tuple[Node, ...],
        listed: Collection[str] | None = None,
        reducer: TreeReducer | None = None,
    ) -> None:
        self.device_grid, self.communicator, self.trees = device_grid, communicator, trees
        self.cells = device_grid.grid.cells
        self.bits = bits_per_part(self.cells)
        self.reducer = reducer or ByNumpy(device_grid.devices, self.bits)
        apart = on_cpu(device_grid) and (listed is None or self.reducer.of_members)
        self.reduced = [tree for tree in trees if apart and self.reducer.reduces(tree)]
        others = [tree for tree in trees if tree not in self.reduced]
        left = CompiledTrees(device_grid, rules, needs, others, listed)
        self.of_values = self.reducer.of_values if apart else None
        self.valued, self.compiled = (others, []) if self.of_values else ([], others)
        self.run_values = blocks_of_values(left, self.reducer.evaluation(self.valued))
        self.run_extremes = compiled_extremes(left)
        self.run_sums = compiled_sums(left, self.bits)

    def expect(self, wanted: bool) -> None:
        """See `backend.Reductions`."""
        self.reducer.expect(wanted)

    def recorder(self, most: int, with_sums: bool = True) -> Recorder | None:
        """See `backend.Reductions`."""
        records = self.reducer.recorder(self.trees, most, with_sums) if self.trees and not self.compiled else None
        return None if records is None else Recorder(records, self.reducer, self.communicator, with_sums)

    def extremes(
        self, fields: Fields, parameters: Parameters, time: float | np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return (minimum, maximum, number of non-finite cells) of each tree over the whole grid at ``time``. Collective.

        See `backend.Reductions` for shapes and dtypes.
        """
        if not self.trees:
            return np.empty(0), np.empty(0), np.empty(0, np.int64)
        each = {tree: self.reducer.extremes(tree, fields, parameters, time) for tree in self.reduced}
        each |= self._extremes_of_values(fields, parameters, time)
        if self.compiled:
            each |= zip(self.compiled, self.device_grid.first(self.run_extremes(fields, parameters, time)), strict=True)
        high, low, broken = np.moveaxis(np.stack([each[tree] for tree in self.trees]), 1, 0)
        low, high = _bounds(self.communicator, high, low)
        return low, high, self.communicator.total(np.asarray(broken, np.int64))

    def _extremes_of_values(
        self, fields: Fields, parameters: Parameters, time: float | np.ndarray
    ) -> dict[Node, np.ndarray]:
        """Return the extremes of the trees whose values are reduced, by tree. Collective."""
        if self.of_values is None or not self.valued:
            return {}
        for tree in self.valued:
            self.of_values.begin(tree)
        for arrays in self.run_values(fields, parameters, time):
            for tree, values in zip(self.valued, arrays, strict=True):
                self.of_values.add(tree, values)
        return {tree: self.of_values.end(tree) for tree in self.valued}

    def sums(self, fields: Fields, parameters: Parameters, time: float, largest: np.ndarray) -> np.ndarray:
        """Return the sum of each tree over the whole grid at ``time``, rounded once to float64. Collective.

        See `backend.Reductions` for shapes and ``largest``.
        """
        if not self.trees:
            return np.empty(0)
        exponents = dict(zip(self.trees, _exponents(largest), strict=True))
        apart = (*self.reduced, *self.valued)
        parts = {tree: self.reducer.parts(tree, fields, exponents[tree]) for tree in apart}
        if self.compiled:
            scales = np.ldexp(1.0, self.bits - np.array([exponents[tree] for tree in self.compiled]))
            found = self.device_grid.first(self.run_sums(fields, parameters, time, scales))
            parts |= zip(self.compiled, np.asarray(found, np.int64), strict=True)
        totals = self._totals([parts[tree] for tree in self.trees])
        result = np.array(largest, np.float64)
        for index in np.ndindex(largest.shape):
            if math.isfinite(largest[index]):
                tree = self.trees[index[0]]
                of_one, exponent = totals[index[0]][(slice(None), *index[1:])], int(exponents[tree][index[1:]])
                by_code = tree in self.compiled
                result[index] = (
                    exact_sum(of_one, exponent, self.bits) if by_code else self.reducer.total(of_one, exponent)
                )
        return result

    def _totals(self, parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the sums of each of these int64 arrays over all processes. Collective."""
        total = self.communicator.total(np.concatenate([part.ravel() for part in parts]))
        ends = np.cumsum([part.size for part in parts])[:-1]
        return [one.reshape(part.shape) for one, part in zip(np.split(total, ends), parts, strict=True)]


def on_cpu(device_grid: DeviceGrid) -> bool:
    """Return whether the devices are CPUs, so that numpy can read their memory."""
    return bool(device_grid.devices.devices[0].platform == "cpu")


def _on_block(value: Value, frame: Frame) -> jax.Array:
    """Return the array of a value in the block's own cells, of shape `Frame.cells`, without ghost cells."""
    interior = tuple((0, n) for n in frame.cells)
    return jnp.broadcast_to(value.crop(interior).array, frame.cells)


def _owned(frame: Frame, first: int | jax.Array) -> jax.Array:
    """Return a bool mask of the cells that the device owns, among the rows from ``first`` on.

    A device's array may be larger than its block. The mask broadcasts over the array.
    """
    owned: jax.Array = (jnp.arange(frame.cells[0]) >= first).reshape([-1] + [1] * (frame.ndim - 1))
    for axis, (n, count) in enumerate(zip(frame.cells, frame.counts, strict=True)):
        if count is not n:
            shape = [1] * frame.ndim
            shape[axis] = n
            owned = owned & (jnp.arange(n) < count).reshape(shape)
    return owned
