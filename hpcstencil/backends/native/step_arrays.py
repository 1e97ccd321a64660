"""Arrays of which each step of a call has its own: states and values that native code stores after given steps, as a reverse
sweep needs them, and values that it reads in each step.

One call can then take all steps of a run whose states are stored every few steps, or reverse them with the values of a tape.
The C++ sides are step_arrays.hpp and state_records.hpp.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from hpcstencil.backends.backend import ArraysByStep


class StepArraysStruct(ctypes.Structure):
    """The struct StepArrays of step_arrays.hpp."""

    _fields_ = (
        ("count", ctypes.c_int64),
        ("steps", ctypes.c_void_p),
        ("arrays", ctypes.c_void_p),
        ("planes", ctypes.c_void_p),
        ("pitches", ctypes.c_void_p),
        ("bytes", ctypes.c_void_p),
    )


def address(array: jax.Array | np.ndarray) -> int:
    """The address of an array's memory on this process's only device."""
    return int(array.ctypes.data if isinstance(array, np.ndarray) else array.unsafe_buffer_pointer())


def plane_and_pitch(array: jax.Array | np.ndarray) -> tuple[int, int]:
    """The cells from one plane of an array to the next, and from one row to the next. In two dimensions planes are rows."""
    if isinstance(array, np.ndarray):
        strides = [stride // array.itemsize for stride in array.strides]
    else:
        strides = [math.prod(array.shape[axis + 1 :]) for axis in range(array.ndim)]
    return strides[0], strides[-2] if array.ndim > 1 else strides[0]


@contextmanager
def registered(register: Callable[[Any], None], names: Sequence[str], arrays: ArraysByStep) -> Iterator[None]:
    """Context manager that registers arrays with these ``names`` by a function of a library, and unregisters them at its end.

    All arrays of a name have the same strides and dtype, and cells of the last axis beside each other. They may be in half
    precision (half.hpp).
    """
    steps = np.array(sorted(arrays), np.int64)
    places = np.zeros((len(steps), len(names)), np.uintp)
    planes, pitches, sizes = np.zeros((3, len(names)), np.int64)
    for place, step in zip(places, steps, strict=True):
        for name, array in arrays[int(step)].items():
            n = names.index(name)
            place[n], (planes[n], pitches[n]), sizes[n] = address(array), plane_and_pitch(array), array.dtype.itemsize
    struct = StepArraysStruct(len(steps), *(each.ctypes.data for each in (steps, places, planes, pitches, sizes)))
    register(ctypes.byref(struct))
    try:
        yield
    finally:
        register(None)


class StoredInCalls:
    """See `backend.Steps.storing`. ``fields`` are the names of the fields of the program in ``library``, in order."""

    def __init__(self, library: ctypes.CDLL, fields: Sequence[str]) -> None:
        self.library, self.fields = library, fields

    @contextmanager
    def __call__(self, rooms: ArraysByStep) -> Iterator[None]:
        jax.block_until_ready([array for room in rooms.values() for array in room.values()])
        with registered(self.library.set_state_records, self.fields, rooms):
            yield


class ReplayedInCalls:
    """See `backend.Steps.replaying`. ``names`` are those of `Problem.replayed`."""

    def __init__(self, library: ctypes.CDLL, names: Sequence[str]) -> None:
        self.library, self.names = library, names

    def __call__(self, arrays: ArraysByStep) -> Any:
        return registered(self.library.set_replayed, self.names, arrays)
