"""Reductions of fields in native code, for diagnostics: extrema and exact sums, while a step stores the fields or later.

The sum depends on the exponent of the largest magnitude, which is known only afterwards. Native code takes that of the last
reduction, and reduces again in the rare case that it was another one.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

import jax
import numpy as np

from hpcstencil.backends.xla.reductions import PARTS, ByNumpy
from hpcstencil.distributed.device_blocks import Devices
from hpcstencil.runtime.threads import by_threads
from hpcstencil.symbolic.expressions import Field, Node


class FieldSum(ctypes.Structure):
    """The C++ struct of a field's reductions (field_sums.hpp)."""

    _fields_ = (
        ("wanted", ctypes.c_int64),
        ("exponent", ctypes.c_int64),
        ("bits", ctypes.c_int64),
        ("high", ctypes.c_double),
        ("low", ctypes.c_double),
        ("part", ctypes.c_int64 * PARTS),
        ("unfit", ctypes.c_int64),
        ("broken", ctypes.c_int64),
        ("at", ctypes.c_void_p),
    )


@dataclass
class ByNative:
    """Reductions of fields in native code; see `reductions.FieldReducer`.

    Attributes
    ----------
    bits
        Those of `bits_per_part`.
    library, fields
        The compiled program, and the names of its fields.
    trees
        The trees to reduce. Plain fields among them are reduced here.
    while_stepping
        Whether one call of the program takes all steps, so that it may reduce its results.
    """

    devices: Devices
    bits: int
    library: ctypes.CDLL
    fields: Sequence[str]
    trees: Sequence[Node]
    while_stepping: bool
    guessed: dict[str, int] = field(default_factory=dict)  # the exponent of each field
    found: dict[str, FieldSum] = field(default_factory=dict)  # the last reductions, until their sums are asked for

    def __post_init__(self) -> None:
        class FieldSums(ctypes.Structure):
            _fields_ = (("stored", ctypes.c_int64), ("field", FieldSum * len(self.fields)))

        self.sums = FieldSums()
        self.names = {tree.name for tree in self.trees if isinstance(tree, Field)} & set(self.fields)
        self.by_numpy = ByNumpy(self.devices, self.bits)
        weakref.finalize(self, self.library.set_field_sums, None, ctypes.byref(self.sums))

    def expect(self, wanted: bool) -> None:
        if not self.while_stepping or not self.names:
            return
        self.sums.stored = 0
        for name, each in zip(self.fields, self.sums.field, strict=True):
            each.wanted = int(wanted and name in self.guessed and name in self.names)
            each.exponent, each.bits = self.guessed.get(name, 0), self.bits
        self.library.set_field_sums(ctypes.byref(self.sums), None)

    def extremes(self, name: str, array: jax.Array) -> tuple[float, float, int]:
        stored = self._stored(name, array)
        found = stored or self._reduced(array, self.guessed.get(name, 0))
        if found.broken:
            return self.by_numpy.extremes(name, array)
        self.found[name] = found
        if not stored:
            self.guessed.setdefault(name, exponent_of(found))
        return found.high, found.low, 0

    def parts(self, name: str, array: jax.Array, exponent: int) -> np.ndarray:
        self.guessed[name] = exponent
        found = self.found.pop(name, None)
        if found is None or found.unfit or found.exponent != exponent:
            found = self._reduced(array, exponent)
        if found.unfit:
            return self.by_numpy.parts(name, array, exponent)
        return np.array(found.part, np.int64)

    def _stored(self, name: str, array: jax.Array) -> FieldSum | None:
        """Return what the last call of the program has reduced, if that is this array."""
        if not self.sums.stored or name not in self.names:
            return None
        each = self.sums.field[self.fields.index(name)]
        if not each.wanted or each.at != np.asarray(array).ctypes.data:
            return None
        each.wanted = 0  # once: the array may be overwritten before the next call
        return FieldSum.from_buffer_copy(each)

    def _reduced(self, array: jax.Array, exponent: int) -> FieldSum:
        """Return the reductions of an array, relative to this exponent."""
        total = FieldSum(0, exponent, self.bits, -math.inf, -math.inf)

        def of_part(part: np.ndarray) -> None:
            cells = np.ascontiguousarray(part)
            self.library.sum_cells(ctypes.byref(total), ctypes.c_void_p(cells.ctypes.data), ctypes.c_int64(cells.size))

        for block in self.devices.owned(array):
            if block.size:
                by_threads(of_part, block)
        return total


def exponent_of(found: FieldSum) -> int:
    """Return the exponent of the largest magnitude."""
    return math.frexp(max(abs(found.high), abs(found.low)))[1]
