"""Native code's recording of extrema and sums of fields, and of expressions of them, for diagnostics.

The compiled program reduces them after each recorded step, while the cells are in the caches, so that one call can take many
steps. The C++ side is field_records.hpp.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence

import numpy as np

from hpcstencil.backends.native.recorded_steps import RecordedSteps
from hpcstencil.backends.native.value_program import ValueTree
from hpcstencil.symbolic.expressions import Field, Node

HEADROOM = 2  # bits by which values may grow before their sums take longer
SUM_AND_EXTREMA, EXTREMA = 1, 2  # as in field_sums.hpp


class Records(RecordedSteps):
    """The struct FieldRecords of field_records.hpp."""

    _fields_ = (
        ("sums", ctypes.c_void_p),
        ("values", ctypes.c_int64),
        ("trees", ctypes.c_void_p),
        ("times", ctypes.c_void_p),
    )


class SumRecords:
    """The sums and extrema of ``trees`` in up to ``most`` records, of which native code fills some.

    A record has ``width`` sums, of dtype ``field_sum``, and those of the trees are at ``places``; that of an ensemble has them
    for each of its ``members`` (0 for a single run). ``expected`` holds the `expected_exponent` of each tree; it is kept up to
    date. ``times`` are those of the records. Without ``with_sums`` only the extrema are found.
    """

    def __init__(
        self,
        trees: Sequence[Node],
        places: Sequence[int],
        width: int,
        most: int,
        field_sum: np.dtype,
        expected: dict[Node, int],
        members: int,
        with_sums: bool = True,
    ) -> None:
        self.trees, self.places, self.expected, self.members = trees, places, expected, members
        self.wanted = SUM_AND_EXTREMA if with_sums else EXTREMA
        self.sums, self.times = np.zeros((most, max(1, members), width), field_sum), np.zeros(most)
        self.empty = np.zeros(width, field_sum)  # a record to which nothing was added
        self.empty["high"] = self.empty["low"] = -math.inf
        self.empty["wanted"][self.places] = self.wanted

    def clear(self, times: Sequence[float]) -> None:
        """Prepare for records at these ``times``."""
        self.times[: len(times)] = times
        if self.wanted == SUM_AND_EXTREMA:
            self.empty["exponent"][self.places] = [self.expected.get(tree, 0) for tree in self.trees]
        self.sums[...] = self.empty

    def extremes(self, count: int) -> np.ndarray:
        found = self._found(count)
        for tree, last in zip(self.trees, found[-1], strict=True) if self.wanted == SUM_AND_EXTREMA else ():
            of_members = np.atleast_1d(last)
            whole = of_members[of_members["broken"] == 0]
            if len(whole):
                self.expected[tree] = expected_exponent(whole["high"].max(), whole["low"].max())
        extremes = np.empty((*found.shape, 3))
        for n, part in enumerate(("high", "low", "broken")):
            extremes[..., n] = found[part]
        return extremes

    def parts(self, count: int) -> np.ndarray:
        return self._found(count)["limb"]

    def _found(self, count: int) -> np.ndarray:
        """Return the sums of the first records: of shape (count, trees), in an ensemble (count, trees, members)."""
        found = np.swapaxes(self.sums[:count][:, :, self.places], 1, 2)
        return found if self.members else found[..., 0]


class NativeRecords(SumRecords):
    """Records of ``trees``, each a field or in ``values``; see `reductions.TreeRecords`.

    ``fields`` are those of the program in ``library``. The other arguments are those of `SumRecords`.
    """

    with_last = True

    def __init__(
        self,
        library: ctypes.CDLL,
        fields: Sequence[str],
        field_sum: np.dtype,
        values: Mapping[Node, ValueTree],
        expected: dict[Node, int],
        trees: Sequence[Node],
        most: int,
        members: int,
        with_sums: bool,
    ) -> None:
        self.library = library
        recorded = [tree for tree in trees if tree in values]
        places = [
            fields.index(tree.name) if isinstance(tree, Field) else len(fields) + recorded.index(tree) for tree in trees
        ]
        super().__init__(trees, places, len(fields) + len(recorded), most, field_sum, expected, members, with_sums)
        self.values = (ValueTree * len(recorded))(*(values[tree] for tree in recorded))
        self.records = Records(
            records=most,
            sums=self.sums.ctypes.data,
            values=len(recorded),
            trees=ctypes.addressof(self.values),
            times=self.times.ctypes.data,
        )
        self.records.drop_with(self, self.library.drop_field_records)

    def expect(self, every: int, first: int, origin: int, times: Sequence[float]) -> None:
        self.clear(times)
        self.records.choose(every, first, origin)
        self.library.add_field_records(ctypes.byref(self.records))

    def expect_nothing(self) -> None:
        self.library.drop_field_records(ctypes.byref(self.records))


def expected_exponent(high: float, low: float) -> int:
    """Return the exponent e such that the magnitudes of later values are expected to stay below 2^e.

    ``high`` and ``low`` are the maxima of the present values and of their negatives.
    """
    return math.frexp(max(abs(high), abs(low)))[1] + HEADROOM


def recordable(library: ctypes.CDLL, fields: Sequence[str], names: Sequence[str], everywhere: bool = False) -> bool:
    """Return whether a program with these ``fields`` computes those with ``names`` in every step.

    With ``everywhere`` it must compute them outside absorbing layers too.
    """
    made = (ctypes.c_int64 * len(fields))()
    library.find_recordable(made, ctypes.c_int64(everywhere))
    return all(name in fields and made[fields.index(name)] for name in names)
