"""The steps after which native code records something while it takes many steps, as recorded_steps.hpp expects them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, ClassVar


class RecordedSteps(ctypes.Structure):
    """The struct RecordedSteps, with which the structs of recorders begin."""

    _fields_: ClassVar[Sequence[tuple[str, Any]]] = (
        ("every", ctypes.c_int64),
        ("origin", ctypes.c_int64),
        ("first", ctypes.c_int64),
        ("records", ctypes.c_int64),
    )
