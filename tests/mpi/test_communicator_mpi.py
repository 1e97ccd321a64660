"""Elementwise reductions over processes."""

import numpy as np
import pytest

from hpcstencil.runtime.communicator import connect

pytestmark = pytest.mark.mpi

LAYOUTS = {
    "C order": np.ascontiguousarray,
    "Fortran order": np.asfortranarray,
    "axes in another order": lambda values: values.swapaxes(0, 1).copy().swapaxes(0, 1),
    "every second number": lambda values: np.repeat(values, 2, -1)[..., ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_arrays_of_every_layout_are_reduced_element_by_element(layout):
    processes = connect()
    values = np.arange(24).reshape(2, 3, 4) ** 2
    mine = layout(values * (processes.rank + 1))
    assert np.array_equal(processes.maximum(mine), values * processes.size)
    assert np.array_equal(processes.total(mine), values * (processes.size * (processes.size + 1) // 2))
