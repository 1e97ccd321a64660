"""Ranges and neighbours: pure arithmetic, tested without MPI."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstencil.numerics.topology import (
    Topology,
    best_parts,
    counts_that_work,
    factorizations,
    halo_surface,
    ravel,
    split,
    unravel,
)


@given(st.integers(1, 10_000), st.integers(1, 50))
def test_split_covers_everything_evenly(cells, parts):
    ranges = [split(cells, parts, i) for i in range(parts)]
    assert ranges[0][0] == 0 and ranges[-1][1] == cells
    assert all(a[1] == b[0] for a, b in itertools.pairwise(ranges))
    sizes = [b - a for a, b in ranges]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 200), st.integers(1, 3))
def test_factorizations_are_all_the_products(number, axes):
    found = list(factorizations(number, axes))
    assert len(set(found)) == len(found)
    brute = [p for p in itertools.product(range(1, number + 1), repeat=axes - 1) if number % _product(p) == 0]
    assert len(found) == len(brute)
    assert all(_product(parts) == number for parts in found)


def _product(parts):
    result = 1
    for p in parts:
        result *= p
    return result


@pytest.mark.parametrize(
    ("number", "shape", "expected"),
    [
        (4, (100, 100), (2, 2)),
        (4, (400, 10), (4, 1)),
        (2, (100, 100), (2, 1)),
        (6, (300, 200), (3, 2)),
        (8, (64, 64, 64), (2, 2, 2)),
        (7, (50, 3), (7, 1)),
    ],
)
def test_best_parts_have_the_least_surface(number, shape, expected):
    assert best_parts(number, shape, (False,) * len(shape), (1,) * len(shape)) == expected


def test_blocks_are_never_thinner_than_asked():
    assert best_parts(4, (8, 8), (True, True), (4, 4)) == (2, 2)
    assert best_parts(8, (8, 8), (True, True), (4, 4)) is None
    assert counts_that_work(8, (8, 8), (True, True), (4, 4)) == [1, 2, 4]


def test_more_parts_than_cells_are_not_searched_for():
    """To factorize this number would take hours."""
    assert best_parts(2**61 - 1, (8, 8), (True, True), (1, 1)) is None


def test_a_periodic_axis_is_cut_once_more():
    assert halo_surface((10, 10), (2, 1), (False, False)) == 10
    assert halo_surface((10, 10), (2, 1), (True, False)) == 20


@given(
    st.lists(st.tuples(st.integers(6, 40), st.integers(1, 3), st.integers(1, 2)), min_size=1, max_size=3),
    st.booleans(),
)
def test_blocks_tile_the_grid_and_neighbours_agree(axes, wraps):
    shape, processes, devices = (tuple(a[i] for a in axes) for i in range(3))
    ones = (1,) * len(shape)
    owners = {}
    for rank in range(_product(processes)):
        topology = Topology(shape, (wraps,) * len(shape), processes, devices, ones, rank)
        for device in range(topology.device_count):
            for cell in itertools.product(*(range(*r) for r in topology.device_block(device))):
                assert cell not in owners
                owners[cell] = rank
            assert all(b - a <= c for (a, b), c in zip(topology.device_block(device), topology.capacity(), strict=True))
        for axis in range(len(shape)):
            above = topology.neighbour(axis, +1)
            if above is None:
                assert not wraps and topology.block()[axis][1] == shape[axis]
            else:
                other = Topology(shape, (wraps,) * len(shape), processes, devices, ones, above)
                assert other.neighbour(axis, -1) == rank
                assert other.block()[axis][0] == topology.block()[axis][1] % shape[axis]
    assert len(owners) == _product(shape)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_ravel_undoes_unravel(shape, data):
    index = data.draw(st.integers(0, _product(shape) - 1))
    assert ravel(unravel(index, shape), shape) == index
