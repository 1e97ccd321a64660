"""The steps after which native code records something while it takes many steps, as recorded_steps.hpp expects them."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar


class RecordedSteps(ctypes.Structure):
    """The struct RecordedSteps, with which the structs of recorders begin."""

    _fields_: ClassVar[Sequence[tuple[str, Any]]] = (
        ("every", ctypes.c_int64),
        ("origin", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("records", ctypes.c_int64),
    )

    def drop_with(self, recorder: object, drop: Callable[[Any], object]) -> None:
        """Let ``drop``, a function of a library, forget this struct when its ``recorder`` is collected.

        It names the struct, because another recorder of the same program may be in use then.
        """
        weakref.finalize(recorder, drop, ctypes.c_void_p(ctypes.addressof(self)))

    def choose(self, every: int, first: int, origin: int) -> None:
        """Let the state after step n of the run be record n / ``every`` - ``first``, if ``every`` divides n.

        Step 0 of a call's clock is step ``origin`` of the run.
        """
        self.every, self.first, self.origin = every, first, origin
