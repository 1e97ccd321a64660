"""Where edges lie in edge memory: what a block sends is what its neighbour reads."""

import math

import pytest

from hpcstencil.backends.native.edge_layout import HERE, PAGE, EdgeLayout, edge_bytes, neighbours, strip_axis
from hpcstencil.numerics.topology import Topology

CASES = [  # shape, periodic, processes, devices, widths
    ((11,), (True,), (3,), (1,), (2,)),
    ((23, 17), (True, False), (2, 1), (1, 3), (4, 2)),
    ((23, 17), (False, False), (2, 2), (2, 1), (3, 3)),
    ((13, 11, 17), (True, True, False), (2, 1, 2), (1, 2, 1), (2, 1, 3)),
    ((9, 8, 7), (True, True, True), (2, 2, 1), (1, 1, 1), (2, 2, 0)),
]


def global_cells(topology, rank, device, axis_of, box, axis, side, widths):
    """The global index of the first cell and the number of cells per axis of a part of a block's strip."""
    cells = []
    for a, (start, stop) in enumerate(topology.device_block(device, rank)):
        b = axis_of[a]
        first = (stop - widths[a] if side else start) if b == axis else start
        cells.append(((first + box[1 + b][1]) % topology.shape[a], box[1 + b][2]))
    return cells


@pytest.mark.parametrize("shape, periodic, processes, devices, widths", CASES)
def test_neighbours_agree_on_what_is_sent(shape, periodic, processes, devices, widths):
    from hpcstencil.backends.native.passes import AXIS_OF

    axis_of, pairs = AXIS_OF[len(shape)], 0
    seen = [
        Topology(shape, periodic, processes, devices, (1,) * len(shape), rank) for rank in range(math.prod(processes))
    ]
    for topology in seen:
        for device in range(topology.device_count):
            mine = EdgeLayout.of(topology, device, widths, 2, 4)
            for offset, (rank, other) in neighbours(topology, device, widths).items():
                theirs = EdgeLayout.of(seen[rank], other, widths, 2, 4)
                back = tuple(-d for d in offset)
                assert neighbours(seen[rank], other, widths)[back] == (topology.rank, device)
                axis = strip_axis(offset)
                sent, read = mine.read_there(offset), theirs.read_here(back)
                assert sent == read
                side = offset[axis] > 0
                assert mine.start(HERE, axis, side, 1) == theirs.start(back, axis, side, 1)
                where = global_cells(topology, topology.rank, device, axis_of, sent, axis, side, widths)
                for a, b in enumerate(axis_of):  # the cells next to the reader, or all of them
                    start, stop = topology.device_block(device)[a]
                    count = widths[a] if offset[b] else stop - start
                    first = stop - count if offset[b] > 0 else start
                    assert where[a] == (first % shape[a], count)
                pairs += 1
    assert pairs


@pytest.mark.parametrize("shape, periodic, processes, devices, widths", CASES)
def test_edges_fit_their_memory(shape, periodic, processes, devices, widths):
    for rank in range(math.prod(processes)):
        topology = Topology(shape, periodic, processes, devices, (1,) * len(shape), rank)
        for device in range(topology.device_count):
            layout = EdgeLayout.of(topology, device, widths, 2, 4)
            end = layout.start(HERE, 2, 1, 1) + math.prod(layout.shape(HERE, 2)) * 4
            assert PAGE < end <= edge_bytes(topology, widths, 8)
