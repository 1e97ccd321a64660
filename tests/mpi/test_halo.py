"""The coordinate test: every cell holds its global number; after the exchange every ghost cell holds its own.

Numbers begin at 1, so that a ghost cell that nothing was written to, which is 0, differs from every cell. An exchange that
gets every ghost cell wrong shows that the comparison sees each of them.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import pytest
from support import dealt, problem_of

from hpcstencil.distributed.device_blocks import Devices
from hpcstencil.distributed.device_grid import DeviceGrid
from hpcstencil.distributed.exchange import exchange_for
from hpcstencil.distributed.halo import surround
from hpcstencil.numerics.topology import Topology, best_parts
from hpcstencil.runtime.communicator import connect

pytestmark = pytest.mark.mpi
SPOILT = -7.5  # no number, nor the negative of one


@pytest.fixture(scope="module")
def communicator():
    return connect()


def global_index(shape, ranges, periodic):
    """The numbers from 1 of the cells of an index range that may reach beyond the grid; SPOILT outside of it."""
    index, outside = [], []
    for n, (start, stop), wraps in zip(shape, ranges, periodic, strict=True):
        i = np.arange(start, stop)
        outside.append(np.zeros(len(i), bool) if wraps else (i < 0) | (i >= n))
        index.append(i % n)
    numbers = 1.0 + np.ravel_multi_index(np.ix_(*index), shape)
    for axis, mask in enumerate(outside):
        numbers[(slice(None),) * axis + (mask,)] = SPOILT
    return numbers


CASES = [
    (shape, periodic, width, devices)
    for shape, devices in itertools.product([(67,), (41, 37), (27, 25, 26)], (1, 2))
    for periodic in ([True] * len(shape), [False] * len(shape))
    for width in ((1, 8) if len(shape) == 3 else (1, 2, 3, 5, 8))
]


@dataclass(frozen=True)
class Spoiling:
    """An exchange whose ghost cells are all wrong."""

    exchange: Any

    def along(self, axis, first, last, outer):
        ghosts = self.exchange.along(axis, first, last, outer)
        return tuple(None if strip is None else jax.numpy.full_like(strip, SPOILT) for strip in ghosts)


def padded(communicator, case, spoiling=False):
    """(array with ghost cells, what it should be, mask of the owned cells) of both fields on each device of this process.

    Ghost cells outside of the grid, which a device has only because another one needs them, should be 0.
    """
    shape, periodic, width, devices = case
    ndim = len(shape)
    narrowest = (width,) * ndim
    processes = best_parts(communicator.size, shape, periodic, narrowest)
    assert processes is not None
    per_process = tuple(n // p for n, p in zip(shape, processes, strict=True))
    parts = best_parts(devices, per_process, periodic, narrowest)
    if parts is None:
        # So many devices do not fit beside so many processes: the exchange between processes is still tested.
        devices, parts = 1, (1,) * ndim
    topology = Topology(shape, tuple(periodic), processes, parts, (1,) * ndim, communicator.rank)
    grid = problem_of(grid={"shape": list(shape)}, equation={"name": "heat"}).config.grid
    on_devices = Devices(topology, tuple(jax.local_devices()[:devices]))
    own = None if communicator.mpi is None else communicator.mpi.Clone()
    exchange = exchange_for("auto", topology, on_devices, own)
    device_grid = DeviceGrid(topology, grid, on_devices, exchange, narrowest, narrowest, halo_wraps=True)
    fields = {name: device_grid.devices.put(sign * global_index(shape, topology.block(), periodic))
              for name, sign in (("u", 1.0), ("v", -1.0))}  # fmt: skip
    widths = device_grid.widths(1)
    outer = device_grid.outside(widths)(fields)

    def body(u, places, outer):
        frame = device_grid.frame(places)
        own = {name: jax.numpy.where(owned(frame), a, SPOILT) for name, a in u.items()}
        return surround(own, widths, frame.counts, Spoiling(exchange) if spoiling else exchange, outer)

    framed = jax.device_get(device_grid.compiled(body, 0)(fields, device_grid.places, outer))
    for device in range(devices):
        block = topology.device_block(device)
        low, high = ([w if s[end].kind == "halo" else 0 for w, s in zip(widths, device_grid.sides, strict=True)]
                     for end in (0, 1))  # fmt: skip
        reach = [(a - i, b + j) for (a, b), i, j in zip(block, low, high, strict=True)]
        numbers = global_index(shape, reach, periodic)
        here = np.zeros(numbers.shape, bool)
        here[tuple(slice(i, i + b - a) for i, (a, b) in zip(low, block, strict=True))] = True
        for name, sign in (("u", 1.0), ("v", -1.0)):
            array = framed[name][device] if devices > 1 else framed[name]
            assert array.shape == tuple(n + i + j for n, i, j in zip(topology.capacity(), low, high, strict=True))
            yield array[tuple(slice(0, n) for n in here.shape)], np.where(numbers == SPOILT, 0.0, sign * numbers), here


@pytest.mark.parametrize("case", dealt(CASES, hands=5))
def test_ghost_cells_hold_the_cells_they_stand_for(communicator, case):
    for array, expected, _ in padded(communicator, case):
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("devices", (1, 2))
def test_the_comparison_sees_every_ghost_cell(communicator, devices):
    for array, expected, here in padded(communicator, ((41, 37), (True, True), 2, devices), spoiling=True):
        assert not here.all()
        np.testing.assert_array_equal(array == expected, here)


def owned(frame):
    """The cells of a device's array that it really owns."""
    masks = np.True_
    for axis, (n, count) in enumerate(zip(frame.cells, frame.counts, strict=True)):
        shape = [1] * frame.ndim
        shape[axis] = n
        masks = masks & (jax.numpy.arange(n) < count).reshape(shape)
    return masks
