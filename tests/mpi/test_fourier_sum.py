"""Stencils by Fourier transforms on several processes: the direct sum up to rounding."""

import numpy as np
import pytest
from support import on, problem_of, simulation_of, stepped

from hpcstencil.runtime.communicator import connect
from hpcstencil.validation.errors import InputError

pytestmark = pytest.mark.mpi


def tables(method):
    weights = np.random.default_rng(1).random((9, 7))
    blur = {"weights": (weights / weights.sum()).tolist(), "method": method}
    return {
        "grid": {"shape": [47, 41]}, "initial": {"u": "2 + noise(1)"}, "boundary": {"y": {"dirichlet": 2.0}},
        "equation": {"name": "custom", "rhs": {"u": "blur(1/u) - blur(u)"}, "stencils": {"blur": blur}},
        "numerics": {"precision": "float64"},
    }  # fmt: skip


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=on(3))])
def test_fourier_transforms_on_several_processes(devices):
    summed, problem = problem_of(**tables("direct")), problem_of(**tables("fft"))
    expected = stepped(summed, simulation_of(summed), 6, 0.1)["u"]
    simulation = simulation_of(problem, connect(), devices)
    found = stepped(problem, simulation, 6, 0.1)["u"]
    index = tuple(slice(*r) for r in simulation.ranges)
    np.testing.assert_allclose(found, expected[index], rtol=0, atol=1e-13)


def test_wide_halos_are_refused():
    problem = problem_of(**tables("fft"), decomposition={"steps_per_exchange": 1})
    if connect().size == 1:
        return
    with pytest.raises(InputError, match=r'steps_per_exchange: expected "auto" with equation\.stencils\.blur by "fft"'):
        simulation_of(problem, connect())
