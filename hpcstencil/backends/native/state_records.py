"""Native code's storing of whole states after given steps, as a reverse sweep needs them.

One call can then take all steps of a run whose states are stored every few steps. The C++ side is state_records.hpp.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import jax
import numpy as np

from hpcstencil.distributed.halo import Fields


class Struct(ctypes.Structure):
    """The struct StateRecords of state_records.hpp."""

    _fields_ = (("count", ctypes.c_int64), ("steps", ctypes.c_void_p), ("fields", ctypes.c_void_p))


class StoredInCalls:
    """See `backend.Steps.storing`. ``fields`` are the names of the fields of the program in ``library``, in order."""

    def __init__(self, library: ctypes.CDLL, fields: Sequence[str]) -> None:
        self.library, self.fields = library, fields

    @contextmanager
    def __call__(self, rooms: Mapping[int, Fields]) -> Iterator[None]:
        steps = np.array(sorted(rooms), np.int64)
        jax.block_until_ready(list(rooms.values()))
        places = np.zeros((len(steps), len(self.fields)), np.uintp)
        for place, step in zip(places, steps, strict=True):
            for name, array in rooms[int(step)].items():
                place[self.fields.index(name)] = array.unsafe_buffer_pointer()
        struct = Struct(len(steps), steps.ctypes.data, places.ctypes.data)
        self.library.set_state_records(ctypes.byref(struct))
        try:
            yield
        finally:
            self.library.set_state_records(None)
