"""Reductions in native code, for diagnostics: extrema and exact sums of fields, while steps store them or later, and of the
values of expressions.

Native code expects values of about the magnitude of the last ones. Others only take longer.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import jax
import numpy as np

from hpcstencil.backends.backend import Cellwise
from hpcstencil.backends.native.field_records import NativeRecords, expected_exponent, recordable
from hpcstencil.backends.native.stencil_records import RecordsTogether, StencilRecords
from hpcstencil.backends.native.stencil_values import CompiledValues
from hpcstencil.backends.native.value_program import ValueProgram, ValueTree
from hpcstencil.backends.xla.reductions import TreeRecords, exact_sum
from hpcstencil.distributed.device_grid import DeviceGrid
from hpcstencil.distributed.halo import Fields
from hpcstencil.distributed.windows import Parameters
from hpcstencil.runtime.threads import by_threads
from hpcstencil.symbolic.expressions import Field, Node

LIMB_BITS = 32  # the distance of the limbs of exact_sum.hpp


@cache
def field_sum_of(limbs: int) -> Any:
    """Return the type of the struct FieldSum of field_sums.hpp, whose sum has these ``limbs``."""

    class FieldSum(ctypes.Structure):
        _fields_ = (
            ("wanted", ctypes.c_int64),
            ("exponent", ctypes.c_int64),
            ("high", ctypes.c_double),
            ("low", ctypes.c_double),
            ("broken", ctypes.c_int64),
            ("at", ctypes.c_void_p),
            ("limb", ctypes.c_int64 * limbs),
        )

    return FieldSum


@dataclass
class ByNative:
    """Reductions of fields and of expressions of them in native code; see `reductions.TreeReducer`.

    Attributes
    ----------
    device_grid
        The device grid on which the fields live.
    library, fields
        The compiled program that takes the steps, and the names of its fields.
    trees
        The trees to reduce. Plain fields among them, and those in ``values``, are reduced here.
    while_stepping
        Whether one call of the program takes all steps, so that it may reduce its results.
    records
        Whether calls of the program may record trees after some of their steps.
    values, value_program
        The trees that ``value_program`` evaluates, as loaded.
    stencil_values
        What computes the values of the trees that apply stencils; None if XLA does, or there are none.
    records_stencils
        Whether calls of the program may record these too.
    members
        The number of members of an ensemble, which are the last axis of the fields; 0 for a single run.
    """

    device_grid: DeviceGrid
    library: ctypes.CDLL
    fields: Sequence[str]
    trees: Sequence[Node]
    while_stepping: bool
    records: bool
    value_program: ValueProgram
    values: Mapping[Node, ValueTree]
    stencil_values: CompiledValues | None
    records_stencils: bool
    members: int
    expected: dict[Node, int] = field(default_factory=dict)  # the `expected_exponent` of each tree
    found: dict[Node, list[Any]] = field(default_factory=dict)  # the last reductions, of each member

    def __post_init__(self) -> None:
        limbs, least_bit = int(self.library.limbs_of_sums()), int(self.library.least_bit_of_sums())
        self.top_bit = least_bit + LIMB_BITS * limbs
        self.field_sum = field_sum_of(limbs)

        class FieldSums(ctypes.Structure):
            _fields_ = (("stored", ctypes.c_int64), ("field", self.field_sum * len(self.fields)))

        self.sums = FieldSums()
        self.names = {tree.name for tree in self.trees if isinstance(tree, Field)} & set(self.fields)
        weakref.finalize(self, self.library.set_field_sums, None, ctypes.byref(self.sums))

    def expect(self, wanted: bool) -> None:
        if not self.while_stepping or not self.names:
            return
        self.sums.stored = 0
        for name, each in zip(self.fields, self.sums.field, strict=True):
            each.wanted = int(wanted and name in self.names)
            each.exponent = self.expected.get(Field(name), 0)
        self.library.set_field_sums(ctypes.byref(self.sums), None)

    @property
    def of_members(self) -> bool:
        return self.members > 0

    def reduces(self, tree: Node) -> bool:
        return isinstance(tree, Field) or tree in self.values

    def extremes(self, tree: Node, fields: Fields, parameters: Parameters, time: float | np.ndarray) -> np.ndarray:
        if not isinstance(tree, Field):
            self.begin(tree)
            for member, found in enumerate(self.found[tree]):
                self._add_values(found, tree, fields, parameters, float(time), member)
        elif stored := self._stored(tree.name, fields[tree.name]):
            self.found[tree] = [stored]
        else:
            self.begin(tree)
            for block in self.device_grid.devices.owned(fields[tree.name]):
                self.add(tree, block)
        return self.end(tree)

    def _add_values(
        self, found: Any, tree: Node, fields: Fields, parameters: Parameters, time: float, member: int
    ) -> None:
        """Evaluate a tree of ``values`` in the cells of this process, and add its values to what is ``found`` of a member."""
        grid, topology, devices = self.device_grid.grid, self.device_grid.topology, self.device_grid.devices
        numbers = self.value_program.numbers(parameters, member)
        read = [devices.owned(fields[name]) for name in self.value_program.read(tree)]
        for device in range(len(devices.devices)):
            block = topology.device_block(device)
            places = [grid.centres(axis, *cells, topology.periodic[axis]) for axis, cells in enumerate(block)]
            if all(place.size for place in places):
                arrays = [np.ascontiguousarray(self._by_member(each[device])[member]) for each in read]
                by_threads(partial(self._add_block, found, tree, numbers, time, places[1:]), places[0], *arrays)

    def _by_member(self, array: np.ndarray) -> list[np.ndarray]:
        """Return the array of each member, and of a single run the array."""
        return [array[..., member] for member in range(self.members)] if self.members else [array]

    def _add_block(
        self,
        found: Any,
        tree: Node,
        numbers: np.ndarray,
        time: float,
        beside: Sequence[np.ndarray],
        along: np.ndarray,
        *arrays: np.ndarray,
    ) -> None:
        """Add the values of a tree in a part of a block.

        ``along`` are the coordinates of its cells along the first axis, and ``beside`` those along the others. ``arrays``
        are the part's cells of the fields that the tree reads.
        """
        counts, places, pitches = [1, 1, 1], [np.zeros(1)] * 3, [0, 0, 0]
        for axis, (a, place) in enumerate(zip(self.value_program.axis_of, (along, *beside), strict=True)):
            counts[a], places[a] = len(place), place
            pitches[a] = arrays[0].strides[axis] // arrays[0].itemsize if arrays else 0
        self.library.sum_values(
            ctypes.byref(found),
            ctypes.byref(self.values[tree]),
            ctypes.c_void_p(numbers.ctypes.data),
            ctypes.c_double(time),
            (ctypes.c_void_p * 3)(*(place.ctypes.data for place in places)),
            (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays)),
            (ctypes.c_int64 * 3)(*counts),
            (ctypes.c_int64 * 3)(*pitches),
        )

    def parts(self, tree: Node, fields: Fields, exponent: np.ndarray) -> np.ndarray:
        parts = np.array([each.limb for each in self.found[tree]], np.int64).T
        return parts if self.members else parts[:, 0]

    @property
    def of_values(self) -> ByNative:
        return self

    def evaluation(self, trees: Sequence[Node]) -> Cellwise | None:
        found = self.stencil_values
        return found.evaluate if found and found.trees == tuple(trees) else None

    def begin(self, tree: Node) -> None:
        exponent = self.expected.get(tree, 0)
        self.found[tree] = [
            self.field_sum(exponent=exponent, high=-math.inf, low=-math.inf) for _ in range(max(1, self.members))
        ]

    def add(self, tree: Node, values: np.ndarray) -> None:
        def of_part(found: Any, part: np.ndarray) -> None:
            cells = np.ascontiguousarray(part)
            self.library.sum_cells(found, ctypes.c_void_p(cells.ctypes.data), ctypes.c_int64(cells.size))

        if values.size:
            for found, own in zip(self.found[tree], self._by_member(values), strict=True):
                by_threads(partial(of_part, ctypes.byref(found)), own)

    def end(self, tree: Node) -> np.ndarray:
        found = self.found[tree]
        whole = [each for each in found if not each.broken]
        if whole:
            self.expected[tree] = expected_exponent(max(each.high for each in whole), max(each.low for each in whole))
        extremes = np.array([(each.high, each.low, each.broken) for each in found], np.float64).T
        return extremes if self.members else extremes[:, 0]

    def total(self, parts: np.ndarray, exponent: int) -> float:
        return exact_sum(parts[::-1], self.top_bit, LIMB_BITS)

    def recorder(self, trees: Sequence[Node], most: int, with_sums: bool) -> TreeRecords | None:
        stencils = self.stencil_values
        others = [tree for tree in trees if stencils is None or tree not in stencils.trees]
        possible = self.records and (stencils is None or self.records_stencils)
        if not possible or not all(map(self._is_recordable, others)):
            return None
        given = self.library, self.fields, np.dtype(self.field_sum)
        records = NativeRecords(*given, self.values, self.expected, others, most, self.members, with_sums)
        if stencils is None:
            return records
        return RecordsTogether(trees, [records, StencilRecords(*given, stencils, self.expected, most, self.members)])

    def _is_recordable(self, tree: Node) -> bool:
        if isinstance(tree, Field):
            return recordable(self.library, self.fields, [tree.name], everywhere=True)
        known = tree in self.values and tree.field_names <= set(self.fields)
        return known and bool(self.library.can_record_values(ctypes.byref(self.values[tree])))

    def _stored(self, name: str, array: jax.Array) -> Any:
        """Return what the last call of the program has reduced, if that is this array; None otherwise."""
        if not self.sums.stored or name not in self.names:
            return None
        each = self.sums.field[self.fields.index(name)]
        if not each.wanted or each.at != np.asarray(array).ctypes.data:
            return None
        each.wanted = 0  # once: the array may be overwritten before the next call
        return self.field_sum.from_buffer_copy(each)
