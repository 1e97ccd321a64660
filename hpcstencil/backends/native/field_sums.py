"""Reductions in native code, for diagnostics: extrema and exact sums of fields, while steps store them or later, and of the
values of expressions.

Native code expects values of about the magnitude of the last ones. Others only take longer.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jax
import numpy as np

from hpcstencil.backends.native.field_records import NativeRecords, expected_exponent, recordable
from hpcstencil.backends.xla.reductions import exact_sum
from hpcstencil.distributed.device_blocks import Devices
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
    """Reductions of fields in native code; see `reductions.FieldReducer`.

    Attributes
    ----------
    library, fields
        The compiled program, and the names of its fields.
    trees
        The trees to reduce. Plain fields among them are reduced here.
    while_stepping
        Whether one call of the program takes all steps, so that it may reduce its results.
    records
        Whether calls of the program may record fields after some of their steps.
    """

    devices: Devices
    library: ctypes.CDLL
    fields: Sequence[str]
    trees: Sequence[Node]
    while_stepping: bool
    records: bool
    expected: dict[str, int] = field(default_factory=dict)  # the `expected_exponent` of each field
    found: dict[str, Any] = field(default_factory=dict)  # the last reductions

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
            each.exponent = self.expected.get(name, 0)
        self.library.set_field_sums(ctypes.byref(self.sums), None)

    def extremes(self, name: str, array: jax.Array) -> tuple[float, float, int]:
        if stored := self._stored(name, array):
            self.found[name] = stored
            return self.end(name)
        self.begin(name)
        for block in self.devices.owned(array):
            self.add(name, block)
        return self.end(name)

    def parts(self, name: str, array: jax.Array, exponent: int) -> np.ndarray:
        return self.parts_of(name)

    @property
    def of_values(self) -> ByNative:
        return self

    def begin(self, key: str) -> None:
        self.found[key] = self.field_sum(exponent=self.expected.get(key, 0), high=-math.inf, low=-math.inf)

    def add(self, key: str, values: np.ndarray) -> None:
        total = ctypes.byref(self.found[key])

        def of_part(part: np.ndarray) -> None:
            cells = np.ascontiguousarray(part)
            self.library.sum_cells(total, ctypes.c_void_p(cells.ctypes.data), ctypes.c_int64(cells.size))

        if values.size:
            by_threads(of_part, values)

    def end(self, key: str) -> tuple[float, float, int]:
        found = self.found[key]
        if not found.broken:
            self.expected[key] = expected_exponent(found.high, found.low)
        return found.high, found.low, found.broken

    def parts_of(self, key: str) -> np.ndarray:
        return np.array(self.found[key].limb, np.int64)

    def total(self, parts: np.ndarray, exponent: int) -> float:
        return exact_sum(parts[::-1], self.top_bit, LIMB_BITS)

    def recorder(self, names: Sequence[str], most: int) -> NativeRecords | None:
        made = self.records and recordable(self.library, self.fields, names, everywhere=True)
        given = self.library, self.fields, np.dtype(self.field_sum), self.expected
        return NativeRecords(*given, names, most) if made else None

    def _stored(self, name: str, array: jax.Array) -> Any:
        """Return what the last call of the program has reduced, if that is this array; None otherwise."""
        if not self.sums.stored or name not in self.names:
            return None
        each = self.sums.field[self.fields.index(name)]
        if not each.wanted or each.at != np.asarray(array).ctypes.data:
            return None
        each.wanted = 0  # once: the array may be overwritten before the next call
        return self.field_sum.from_buffer_copy(each)
