"""The coordinate test: every cell holds its global index; after the exchange every ghost cell holds its own.

Ghost cells are spoilt first, and asserted to differ, so that a test that exchanges nothing fails.
"""

import itertools

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
SPOILT = -7.0


@pytest.fixture(scope="module")
def communicator():
    return connect()


def global_index(shape, ranges, periodic):
    """The number of every cell of an index range that may reach beyond the grid; SPOILT outside of it."""
    index, outside = [], []
    for n, (start, stop), wraps in zip(shape, ranges, periodic, strict=True):
        i = np.arange(start, stop)
        outside.append(np.zeros(len(i), bool) if wraps else (i < 0) | (i >= n))
        index.append(i % n)
    numbers = np.ravel_multi_index(np.ix_(*index), shape).astype(float)
    for axis, mask in enumerate(outside):
        numbers[(slice(None),) * axis + (mask,)] = SPOILT
    return numbers


CASES = [
    (shape, periodic, width, devices)
    for shape, devices in itertools.product([(67,), (41, 37), (27, 25, 26)], (1, 2))
    for periodic in ([True] * len(shape), [False] * len(shape))
    for width in ((1, 8) if len(shape) == 3 else (1, 2, 3, 5, 8))
]


@pytest.mark.parametrize("case", dealt(CASES))
def test_ghost_cells_hold_the_cells_they_stand_for(communicator, case):
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
        spoilt = {name: jax.numpy.where(owned(frame), a, SPOILT) for name, a in u.items()}
        return surround(spoilt, widths, frame.counts, exchange, outer)

    framed = jax.device_get(device_grid.compiled(body, 0)(fields, device_grid.places, outer))
    for device in range(devices):
        block = topology.device_block(device)
        low = [w if s[0].kind == "halo" else 0 for w, s in zip(widths, device_grid.sides, strict=True)]
        high = [w if s[1].kind == "halo" else 0 for w, s in zip(widths, device_grid.sides, strict=True)]
        reach = [(a - i, b + j) for (a, b), i, j in zip(block, low, high, strict=True)]
        expected = global_index(shape, reach, periodic)
        inside = expected != SPOILT
        assert not np.array_equal(global_index(shape, block, periodic), expected) or communicator.size == devices == 1
        for name, sign in (("u", 1.0), ("v", -1.0)):
            array = framed[name][device] if devices > 1 else framed[name]
            array = array[tuple(slice(0, b - a) for a, b in reach)]
            assert array.shape == expected.shape
            np.testing.assert_array_equal(array[inside], sign * expected[inside])


def owned(frame):
    """The cells of a device's array that it really owns."""
    masks = np.True_
    for axis, (n, count) in enumerate(zip(frame.cells, frame.counts, strict=True)):
        shape = [1] * frame.ndim
        shape[axis] = n
        masks = masks & (jax.numpy.arange(n) < count).reshape(shape)
    return masks
