"""The memory of a tape (`adjoint.tape`): arrays of which each step has its own."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hpcstencil.numerics.topology import Topology
from hpcstencil.runtime.communicator import Communicator

BESIDE = 8  # planes before the first array and behind the last one, which compiled code may read and never uses
ALIGNED = 64  # bytes
MESSAGE = 2**19  # bytes of a message, about; longer ones would leave the caches between two copies


def half_of(dtype: np.dtype) -> np.dtype:
    """The dtype of a tape in half precision for a run with this ``dtype``; half.hpp is the C++ side.

    For float64 it is float32. For float32 it is that of the first 16 bits (bfloat16), as unsigned integers, which MPI can send.
    """
    return np.dtype({"float32": np.uint16, "float64": np.float32}[dtype.name])


class TapeMemory:
    """The values of some successive ``steps`` of a run on this process. ``recorded`` says how many of them have been recorded.

    ``arrays`` has the axes (step, value, cells of this process's block), and ``around`` those cells with the ``halo`` of other
    blocks. The memory is kept from one sweep to the next, since new memory comes slowly, page by page. It is not JAX's, whose
    exchange would copy each array to surround it with a halo.
    """

    def __init__(self) -> None:
        self.memory, self.arrays, self.around = np.empty(0, np.uint8), np.empty(0), np.empty(0)
        self.names, self.halo = tuple[str, ...](), tuple[int, ...]()
        self.steps, self.recorded, self.complete = range(0), 0, False

    def begin(
        self, steps: range, names: Sequence[str], shape: tuple[int, ...], dtype: np.dtype, halo: tuple[int, ...]
    ) -> None:
        """Make room for the values with these ``names`` in these ``steps``, on blocks of a ``shape`` with a ``halo`` of some
        cells at both ends of each axis."""
        whole = (len(steps), len(names), *(n + 2 * h for n, h in zip(shape, halo, strict=True)))
        size = math.prod(whole) * dtype.itemsize
        beside = BESIDE * math.prod(whole[3:]) * dtype.itemsize + ALIGNED
        if self.memory.nbytes < size + 2 * beside + 2 * ALIGNED:
            self.memory = np.empty(size + 2 * beside + 2 * ALIGNED, np.uint8)
        first = beside + -(self.memory.ctypes.data + beside) % ALIGNED
        self.around = self.memory[first : first + size].view(dtype).reshape(whole)
        own = tuple(slice(h, h + n) for n, h in zip(shape, halo, strict=True))
        self.arrays, self.names, self.halo = self.around[:, :, *own], tuple(names), halo
        self.steps, self.recorded, self.complete = steps, 0, False

    def has(self, steps: range) -> bool:
        """Whether the values of these ``steps`` have been recorded."""
        return self.steps.start <= steps.start and steps.stop <= self.steps.start + self.recorded

    def due(self, first: int, last: int) -> dict[int, dict[str, np.ndarray]]:
        """The arrays `at` the steps from number ``first`` to ``last`` that are to be recorded, which then count as recorded."""
        steps = range(max(first, self.steps.start), min(last, self.steps.stop))
        if steps:
            self.recorded = steps.stop - self.steps.start
        return {step: self.at(step) for step in steps}

    def at(self, step: int) -> dict[str, np.ndarray]:
        """The arrays of the step with this number on this process's block, by name."""
        return dict(zip(self.names, self.arrays[step - self.steps.start], strict=True))

    def exchange(self, communicator: Communicator, topology: Topology) -> None:
        """Fill the halo, axis by axis, so that it has its corners too; unless this has been done. Collective."""
        for axis, width in enumerate(self.halo if not self.complete else ()):
            cells = np.moveaxis(self.around, 2 + axis, 0)
            if not width:
                continue
            of_step = width * self.around[0].size // cells.shape[0] * self.around.itemsize
            for first in range(0, len(self.steps), count := max(1, MESSAGE // of_step)):
                part = cells[:, first : first + count]
                lower, upper = part[width : 2 * width], part[-2 * width : -width]
                for sent, received, direction in ((lower, part[-width:], -1), (upper, part[:width], 1)):
                    to, source = topology.neighbour(axis, direction), topology.neighbour(axis, -direction)
                    communicator.shift(sent, to, received, source)
        self.complete = True
